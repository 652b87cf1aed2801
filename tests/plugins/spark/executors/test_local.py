"""Logs in the one executor of a local session: all of it but the loss of an executor."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from insync.plugins.spark import ExecutorLogs, LogsHandle, OptionError, SchemaError
from insync.plugins.spark.executors import ExecutorLogsError, NoRoomError, SessionError, _jobs
from insync.replication import BlockingConsumer
from insync.replication.client import BootstrapError, UnknownTopicError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 120.0


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def logs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecutorLogs]:
    place = tmp_path_factory.mktemp("executor-logs")
    settings = {"session_timeout_ms": 10_000}
    with ExecutorLogs(spark, replication_factor=2, data_dir=place, settings=settings) as logs:
        metadata = logs.metadata_dir
        assert len(list(place.glob("*/*/node-*/"))) == 2 and (metadata / "meta.db").exists()
        yield logs
    assert list(place.iterdir()) == [] and not metadata.exists(), "files were left behind"


def values(handle: LogsHandle, topic: str) -> list[bytes]:
    """All that is committed of a topic by now."""
    deadline = time.monotonic() + PATIENCE_S
    with handle.consumer(auto_offset_reset="earliest") as consumer:
        count = sum(consumer.end_offsets(consumer.assign_topic(topic)).values())
        found: list[bytes] = []
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} came"
            found += [record.value for record in consumer.poll(1000)]
    return sorted(found)


def test_tasks_write_and_read_by_what_travels_in_a_closure(
    spark: SparkSession, logs: ExecutorLogs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logs.nodes == {1: "driver", 2: "driver"}
    logs.create_topic("closure", 2)
    context = spark.sparkContext
    context.parallelize([b"a", "b", ("k", "c"), (None, b"d")], 2).foreachPartition(
        logs.write_partition("closure")
    )
    rows = spark.createDataFrame([("k", "e", 1), (None, "f", 2)], "key string, value string, more int")
    rows.foreachPartition(logs.write_partition("closure"))

    def through_the_logs(numbers: Iterator[int]) -> None:
        with logs.producer() as producer:
            producer.send_many("closure", [b"n%d" % number for number in numbers]).result()

    context.parallelize(range(3), 1).foreachPartition(through_the_logs)
    expected = [b"a", b"b", b"c", b"d", b"e", b"f", b"n0", b"n1", b"n2"]
    assert values(logs.handle, "closure") == expected
    with logs.admin() as admin:
        (topic,) = admin.describe_topics(["closure"])
    assert topic.replication_factor == 2 and all(len(each.isr) == 2 for each in topic.partitions)
    assert sorted(row.value for row in logs.read("closure").collect()) == [
        bytearray(each) for each in expected
    ]
    logs.read("closure").explain("extended")
    assert logs.handle.secret not in capsys.readouterr().out, "a plan shows the secret"
    keyed = logs.read("closure", columns="key,value").where("key IS NOT NULL").collect()
    assert {(bytes(row.key), bytes(row.value)) for row in keyed} == {(b"k", b"c"), (b"k", b"e")}
    found = logs.rdd("closure").map(lambda record: (record.key, record.value)).collect()
    assert sorted(value for _, value in found) == expected and (b"k", b"c") in found


def test_the_sink_writes_to_them(spark: SparkSession, logs: ExecutorLogs) -> None:
    logs.create_topic("sink", 1)
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("insync").mode("append").options(topic="sink", **logs.options).save()
    assert values(logs.handle, "sink") == sorted(b"%d" % n for n in range(100))


def test_pickled_they_are_their_handle_and_the_secret_is_not_shown(logs: ExecutorLogs) -> None:
    handle = pickle.loads(pickle.dumps(logs))
    assert handle == logs.handle and isinstance(handle, LogsHandle)
    assert handle.servers.startswith("spark://127.0.0.1:")
    assert len(handle.secret) == 64 and handle.secret not in repr(handle) and handle.secret not in repr(logs)


@pytest.mark.parametrize("secret", [None, "0123456789abcdef0123456789abcdef"])
def test_without_the_secret_of_the_run_nobody_comes_in(logs: ExecutorLogs, secret: str | None) -> None:
    with pytest.raises(BootstrapError):
        BlockingConsumer(logs.handle.servers, secret=secret, request_timeout_ms=2000)


def test_what_cannot_be_written_is_said(logs: ExecutorLogs) -> None:
    logs.create_topic("refused", 1)
    with pytest.raises(SchemaError, match="not int"):
        logs.write_partition("refused")([1])
    with pytest.raises(UnknownTopicError):
        logs.write_partition("not-there", max_block_ms=5000)([b"a"])


def test_jobs_that_are_cancelled_and_processes_that_are_killed_come_again(
    spark: SparkSession, logs: ExecutorLogs
) -> None:
    logs.create_topic("survives", 1, 2, {"min_insync_replicas": 2})
    logs.write_partition("survives")([b"before"])
    keeper = logs._keeper_
    first = keeper.nodes[1].pid
    os.kill(first, signal.SIGKILL)
    wait_until(
        lambda: keeper.nodes.keys() == {1, 2} and first not in {each.pid for each in keeper.nodes.values()}
    )
    logs.write_partition("survives")([b"after a kill"])

    second = keeper.nodes[1].pid
    spark.sparkContext.cancelAllJobs()
    wait_until(
        lambda: keeper.nodes.keys() == {1, 2} and second not in {each.pid for each in keeper.nodes.values()}
    )
    logs.write_partition("survives")([b"after cancelling"])

    third, keepers = keeper.nodes[1].pid, keeper.pid
    os.kill(keepers, signal.SIGKILL)
    wait_until(lambda: keeper.pid != keepers and keeper.nodes.keys() == {1, 2})
    assert keeper.nodes[1].pid == third, "a node ended for want of the keeper"
    logs.write_partition("survives")([b"after the keeper's death"])
    expected = [b"after a kill", b"after cancelling", b"after the keeper's death", b"before"]
    assert values(logs.handle, "survives") == expected


def test_what_cannot_be_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="less than replication_factor=3"):
        ExecutorLogs(spark, nodes=2)
    with pytest.raises(OptionError, match="at least 1"):
        ExecutorLogs(spark, replication_factor=0)
    with pytest.raises(OptionError, match="start_timeout_ms is 0; it must be at least 1"):
        ExecutorLogs(spark, start_timeout_ms=0)
    with pytest.raises(OptionError, match="a node has no setting session_timeout"):
        ExecutorLogs(spark, settings={"session_timeout": 1, "session_timeout_ms": 2000})
    with pytest.raises(OptionError, match="above 0"):
        ExecutorLogs(spark, cpus=0)
    with pytest.raises(SessionError, match="spark-submit"):
        ExecutorLogs(type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})())
    with monkeypatch.context() as patched:
        patched.setattr(_jobs, "is_stopped", lambda context: True)
        with pytest.raises(SessionError, match="has been stopped"):
            ExecutorLogs(spark)
    with monkeypatch.context() as patched:
        patched.setattr(_jobs, "executors", lambda context: [_jobs.Executor("driver", "127.0.0.1", 1)])
        with pytest.raises(NoRoomError, match=r"local\[2\]"):
            ExecutorLogs(spark).__enter__()


def test_a_folder_that_cannot_be_used_is_named(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(ExecutorLogsError, match=r"file/insync-executor-logs-\d+.* cannot be used for logs"):
        ExecutorLogs(spark, replication_factor=1, data_dir=place).__enter__()

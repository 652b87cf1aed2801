"""Streaming queries over topics of real nodes: over restarts, over the death of a leader, each record once."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from insync.replication import BlockingAdmin, BlockingProducer
from tests.processes import cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Stream = Callable[..., "DataFrame"]
SOLE = {"min_insync_replicas": 1}


@pytest.fixture
def stream(spark: SparkSession, servers: str) -> Stream:
    def load(**options: Any) -> DataFrame:
        given = {"kafka.bootstrap.servers": servers, **options}
        return spark.readStream.format("insync").options(**given).load()

    return load


def produce(servers: str, topic: str, start: int, stop: int) -> None:
    with BlockingProducer(servers) as producer:
        for n in range(start, stop):
            producer.send(topic, b"%d" % n, partition=n % 2)


class Output:
    """A query that writes Parquet under a checkpoint; started and ended as often as wanted."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.table, self.checkpoint = str(folder / "table"), str(folder / "checkpoint")

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n").writeStream.format("parquet")
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.option("checkpointLocation", self.checkpoint).start(self.table)

    def run(self, frame: DataFrame) -> StreamingQuery:
        """All that is there now."""
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(150)
        return query

    def numbers(self) -> list[int]:
        return sorted(row.n for row in self._spark.read.parquet(self.table).collect())


@pytest.fixture
def output(spark: SparkSession, tmp_path: Path) -> Output:
    return Output(spark, tmp_path)


def test_all_that_is_there_in_small_batches_and_on_after_a_restart(
    stream: Stream, output: Output, servers: str, admin: BlockingAdmin, topic: str
) -> None:
    admin.create_topic(topic, 2, 1, SOLE)
    produce(servers, topic, 0, 100)
    frame = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40", minPartitions="3")
    sizes = [progress.numInputRows for progress in output.run(frame).recentProgress]
    assert [size for size in sizes if size] == [40, 40, 20]
    produce(servers, topic, 100, 130)
    admin.create_partitions(topic, 3)
    with BlockingProducer(servers) as producer:
        producer.send(topic, b"130", partition=2).result(30)
    query = output.run(frame)
    assert output.numbers() == list(range(131))
    end = json.loads(query.lastProgress.sources[0].endOffset)
    (found,) = admin.describe_topics([topic])
    assert end == {topic: {"0": 65, "1": 65, "2": 1, "id": found.topic_id}}


def test_latest_begins_where_it_first_began(
    stream: Stream, output: Output, servers: str, admin: BlockingAdmin, topic: str, tmp_path: Path
) -> None:
    """A query that ended before its first batch was done loses nothing that came meanwhile."""
    admin.create_topic(topic, 2, 1, SOLE)
    produce(servers, topic, 0, 10)
    output.run(stream(subscribe=topic, streamId=topic))
    produce(servers, topic, 10, 20)
    elsewhere = Output(output._spark, tmp_path / "again")
    elsewhere.run(stream(subscribe=topic, streamId=topic))
    assert elsewhere.numbers() == list(range(10, 20))
    with pytest.raises(Exception, match="needs the option streamId"):
        elsewhere.run(stream(subscribe=topic))


def test_what_retention_deleted_fails_the_query_or_is_passed_over(
    stream: Stream, output: Output, servers: str, admin: BlockingAdmin, topic: str
) -> None:
    admin.create_topic(topic, 2, 1, SOLE)
    produce(servers, topic, 0, 20)
    strict = stream(subscribe=topic, startingOffsets="earliest")
    output.run(strict)
    produce(servers, topic, 20, 40)
    admin.delete_records({(topic, 0): 15})
    with pytest.raises(Exception, match=rf"{topic}-0: offsets \[10, 15\) have been deleted"):
        output.run(strict)
    output.run(stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false"))
    lost = {20, 22, 24, 26, 28}
    assert output.numbers() == [n for n in range(40) if n not in lost]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_retention_that_has_passed_the_end_of_a_planned_batch(
    stream: Stream, output: Output, servers: str, admin: BlockingAdmin, topic: str, fails: str
) -> None:
    """Each start plans that batch again, so one that cannot be planned would fail the query for ever."""
    admin.create_topic(topic, 1, 1, SOLE)
    with BlockingProducer(servers) as producer:
        producer.send_many(topic, [b"%d" % n for n in range(20)]).result(30)
    frame = stream(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="4", failOnDataLoss=fails
    )

    def overtaken(rows: DataFrame, batch: int) -> None:
        admin.delete_records({(topic, 0): 9})
        raise ValueError("the batch is planned, and not done")

    dies = frame.writeStream.foreachBatch(overtaken).option("checkpointLocation", output.checkpoint)
    with pytest.raises(Exception, match="the batch is planned, and not done"):
        dies.trigger(availableNow=True).start().awaitTermination(150)
    if fails == "true":
        for _ in range(2):
            with pytest.raises(Exception, match=rf"{topic}-0: offsets \[4, 8\) have been deleted"):
                output.run(frame)
        return
    output.run(frame)
    assert output.numbers() == list(range(9, 20))


def test_each_record_once_though_the_leader_dies(spark: SparkSession, output: Output, tmp_path: Path) -> None:
    """A query over nodes of its own runs on while leaders change under it, and goes on under its checkpoint."""
    (tmp_path / "nodes").mkdir()
    with cluster(tmp_path / "nodes", 3, "--session-timeout-ms", "5000") as nodes:
        servers = ",".join(node.endpoint for node in nodes)
        with BlockingAdmin(servers) as admin:
            admin.create_topic("t", 2, 3)
            options = {"servers": servers, "subscribe": "t", "startingOffsets": "earliest"}
            frame = spark.readStream.format("insync").options(**options).load()
            produce(servers, "t", 0, 500)
            query = output.start(frame, processingTime="0 seconds")
            query.processAllAvailable()
            (found,) = admin.describe_topics(["t"])
            nodes[found.partitions[0].leader - 1].kill()
        produce(servers, "t", 500, 1000)
        query.processAllAvailable()
        query.stop()
        produce(servers, "t", 1000, 1100)
        output.run(frame)
    assert output.numbers() == list(range(1100))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "nowhere-at-all"}, "topic 'nowhere-at-all': UNKNOWN_TOPIC_OR_PARTITION"),
        ({"endingOffsets": "latest"}, "'endingoffsets' is for batch queries"),
        ({"startingOffsets": "latest"}, "needs the option streamId"),
        ({"subscrib": "t"}, "unknown option 'subscrib'; did you mean subscribe?"),
        ({"minPartitions": "none"}, "minPartitions is 'none'; it must be a whole number"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "no node could be reached"),
        ({"startingOffsets": '{"bad-stream":{"0":7}}'}, "offset 7 does not exist yet"),
    ],
)
def test_bad_input_is_told_as_what_it_is(
    stream: Stream, output: Output, admin: BlockingAdmin, options: dict[str, str], said: str
) -> None:
    if "bad-stream" not in admin.list_topics():
        admin.create_topic("bad-stream", 1, 1, SOLE)
    began = time.monotonic()
    with pytest.raises(Exception) as caught:
        output.run(stream(**{"subscribe": "bad-stream", "startingOffsets": "earliest", **options}))
    message = str(caught.value)
    assert said in message
    assert "UnboundLocalError" not in message and "at org.apache.spark" not in message
    assert time.monotonic() - began < 30


def test_all_of_a_result_each_time(
    spark: SparkSession, stream: Stream, servers: str, admin: BlockingAdmin, topic: str, tmp_path: Path
) -> None:
    """Output mode complete: as Spark's Kafka sink does it, rows are appended whenever the result is computed."""
    for name in (topic, f"{topic}-counts"):
        admin.create_topic(name, 2, 1, SOLE)
    counts = stream(subscribe=topic, startingOffsets="earliest").groupBy("partition").count()
    rows = counts.selectExpr("CAST(partition AS STRING) AS key", "CAST(count AS STRING) AS value")
    for start, stop in ((0, 10), (10, 30)):
        produce(servers, topic, start, stop)
        query = (
            rows.writeStream.outputMode("complete")
            .format("insync")
            .options(servers=servers, topic=f"{topic}-counts")
            .option("checkpointLocation", str(tmp_path / "counting"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(150)
    found = spark.read.format("insync").options(servers=servers, subscribe=f"{topic}-counts").load()
    said = found.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
    assert sorted(map(tuple, said)) == [("0", "15"), ("0", "5"), ("1", "15"), ("1", "5")]


def test_windows_behind_a_watermark_over_a_failure(
    spark: SparkSession, stream: Stream, servers: str, admin: BlockingAdmin, topic: str, tmp_path: Path
) -> None:
    """A job as people have it on Kafka: what a failed batch has counted it counts again, the same."""
    for name in (topic, f"{topic}-counts"):
        admin.create_topic(name, 2, 1, SOLE)
    seconds = [3 * n - 9 * (n % 7) + 60 for n in range(300)]
    with BlockingProducer(servers) as producer:
        for n, at in enumerate(seconds):
            producer.send(topic, b"%d" % at, partition=n % 2)
    from pyspark.sql.functions import window

    events = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="100").selectExpr(
        "timestamp_seconds(CAST(CAST(value AS STRING) AS LONG)) AS time"
    )
    counts = events.withWatermark("time", "2 minutes").groupBy(window("time", "1 minute")).count()
    failed: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        told = rows.selectExpr(
            f"'{batch}' AS key", "CONCAT(unix_seconds(window.start), ' ', CAST(count AS STRING)) AS value"
        )
        told.write.format("insync").mode("append").options(servers=servers, topic=f"{topic}-counts").save()
        if batch == 2 and not failed:
            failed.append(batch)
            raise ValueError("the driver dies here")

    def run() -> None:
        started = counts.writeStream.foreachBatch(write).option(
            "checkpointLocation", str(tmp_path / "windows")
        )
        assert started.trigger(availableNow=True).start().awaitTermination(150)

    with pytest.raises(Exception, match="the driver dies here"):
        run()
    run()
    found = spark.read.format("insync").options(servers=servers, subscribe=f"{topic}-counts").load()
    said = found.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
    assert failed and len(said) > len(set(said)), "the failed batch comes again"
    truth = Counter(at // 60 * 60 for at in seconds)
    expected = {f"{start} {number}" for start, number in truth.items() if start + 60 <= max(seconds) - 120}
    assert sorted(row.value for row in set(said)) == sorted(expected)

"""Rows of plans that do not repeat, each once: a batch is a transaction, and what died in it does not count."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from insync.plugins.spark import OptionError, exactly_once
from insync.replication import BlockingAdmin, BlockingConsumer, BlockingProducer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SOLE = {"min_insync_replicas": 1}
WORKER_WAS_LATE = "failed to connect back"


def decided(servers: str, topic: str) -> list[int]:
    """What is committed, once everything is decided: markers follow a commit."""
    patience = time.monotonic() + 120
    with (
        BlockingConsumer(servers) as everything,
        BlockingConsumer(servers, isolation_level="read_committed") as it,
    ):
        at = [(topic, 0), (topic, 1)]
        while it.end_offsets(at) != everything.end_offsets(at):
            assert time.monotonic() < patience, "a transaction stays open"
    return read(servers, topic)


def read(servers: str, topic: str, isolation_level: Any = "read_committed") -> list[int]:
    """The numbers of a topic, up to where readers get to."""
    found: list[int] = []
    with BlockingConsumer(
        servers, auto_offset_reset="earliest", max_poll_records=100_000, isolation_level=isolation_level
    ) as consumer:
        ends = consumer.end_offsets(consumer.assign_topic(topic))
        while any(consumer.position(at) < end for at, end in ends.items()):
            found += [int(each.value or b"") for each in consumer.poll(1_000)]
    return sorted(found)


def produce(servers: str, topic: str, start: int, stop: int) -> None:
    with BlockingProducer(servers) as producer:
        for n in range(start, stop):
            producer.send(topic, b"%d" % n, partition=n % 2)


def killing(servers: str, topic: str, folder: str, after: int) -> Any:
    """Passes rows on; once some of them are written, it once kills the Python processes of the executor."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark, seen = Path(folder, "killed"), 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if seen >= after and not mark.exists():
                mark.touch()
                wait_for_something(servers, topic)
                for worker in psutil.Process(os.getppid()).children():
                    if worker.pid != os.getpid():
                        worker.kill()
                os.kill(os.getpid(), signal.SIGKILL)

    return rows


def wait_for_something(servers: str, topic: str) -> None:
    """Until a record stands in a topic, committed or not."""
    patience = time.monotonic() + 120
    with BlockingConsumer(servers) as consumer:
        while not any(consumer.end_offsets([(topic, 0), (topic, 1)]).values()):
            if time.monotonic() > patience:
                return


class Copying:
    """A query from topic to topic whose rows have another order, and other keys, whenever they come."""

    def __init__(
        self, spark: SparkSession, servers: str, topic: str, folder: Path, die_after: int = 0
    ) -> None:
        self.checkpoint = folder / "checkpoint"
        frame = (
            spark.readStream.format("insync")
            .options(servers=servers, subscribe=f"{topic}-in", startingOffsets="earliest")
            .load()
            .selectExpr("CAST(REPEAT(uuid(), 20) AS BINARY) AS key", "value")
        )
        if die_after:
            killed = frame.repartition(1).mapInArrow(
                killing(servers, topic, str(folder), die_after), frame.schema
            )
            writer = killed.writeStream.format("insync").option("transactional", "true")
        else:
            writer = exactly_once(frame, transactional=True)
        self._writer = writer.options(
            servers=servers, topic=topic, batchBytes="1024", checkpointLocation=str(self.checkpoint)
        )

    def run(self) -> None:
        """All that is there now."""
        from pyspark.errors import StreamingQueryException

        while True:
            query = self._writer.trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(300)
            except StreamingQueryException as error:
                # Spark gives a Python worker 10 s to start, which a busy machine may need.
                if WORKER_WAS_LATE not in str(error):
                    raise
            else:
                return

    def forget_the_last(self) -> None:
        """As if the query had been killed after the sink's commit, and before Spark noted that."""
        last = max(
            (each for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit()), key=by_number
        )
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def by_number(path: Path) -> int:
    return int(path.name)


def test_each_record_once_though_tasks_are_killed_and_rows_come_otherwise(
    spark: SparkSession, servers: str, admin: BlockingAdmin, topic: str, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    for name in (topic, f"{topic}-in"):
        admin.create_topic(name, 2, 1, SOLE)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    try:
        copying = Copying(spark, servers, topic, tmp_path, die_after=1000)
        produce(servers, f"{topic}-in", 0, 2000)
        with pytest.raises(StreamingQueryException):
            copying.run()
        assert read(servers, topic) == []
        copying.run()
        assert decided(servers, topic) == list(range(2000))
        copying.forget_the_last()
        produce(servers, f"{topic}-in", 2000, 2500)
        copying.run()
        assert decided(servers, topic) == list(range(2500))
        names = [each.group for each in admin.list_groups()]
        (group,) = (name for name in names if admin.group_offsets(name).keys() == {(topic, 0)})
        assert admin.group_offsets(group) == {(topic, 0): 2}
        produce(servers, f"{topic}-in", 2500, 2600)
        # Then the cluster knows of later batches, or of none.
        admin.set_group_offsets(group, {(topic, 0): 4})
        with pytest.raises(StreamingQueryException, match="the query runs twice"):
            copying.run()
        admin.delete_group(group)
        with pytest.raises(StreamingQueryException, match="may have been written before"):
            copying.run()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert decided(servers, topic) == list(range(2500))
    assert len(read(servers, topic, "read_uncommitted")) > 2500, "nothing was written before the kills"


def test_a_job_counts_as_a_whole(spark: SparkSession, servers: str, admin: BlockingAdmin, topic: str) -> None:
    admin.create_topic(topic, 2, 1, SOLE)
    rows = spark.range(3000).selectExpr("CAST(id AS STRING) AS value")
    options = {"servers": servers, "topic": topic, "batchBytes": "1024"}
    failing = rows.repartition(1).selectExpr("IF(value = '2999', raise_error('planted'), value) AS value")
    with pytest.raises(Exception, match="planted"):
        exactly_once(failing, transactional=True).options(**options).save()
    by_hand = rows.repartition(3).write.format("insync").mode("append").option("transactional", "true")
    # Spark may start the one task that may write after the others have failed: what it leaves open ends by timeout.
    by_hand = by_hand.option("transactionTimeoutMs", "10000")
    with pytest.raises(Exception, match="needs all rows in one task"):
        by_hand.options(**options).save()
    assert decided(servers, topic) == []
    exactly_once(rows, transactional=True).options(**options).save()
    exactly_once(rows.limit(0), transactional=True).options(**options).save()
    assert decided(servers, topic) == list(range(3000))


def test_a_job_that_cannot_be_aborted_tells_why_it_failed(
    spark: SparkSession, servers: str, admin: BlockingAdmin, topic: str
) -> None:
    """Not why it could not be aborted, which Spark would tell in its place, with all stacks of Java."""
    admin.create_topic(topic, 1, 1, SOLE)
    writer = exactly_once(spark.range(1).selectExpr("'x' AS value"), transactional=True)
    with pytest.raises(Exception, match="INVALID_TRANSACTION_TIMEOUT") as caught:
        writer.options(servers=servers, topic=topic, transactionTimeoutMs="1000000000").save()
    assert len(str(caught.value).splitlines()) < 12


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exactlyOnce": "true", "repeatablePlan": "true", "topic": "t"}, "keep one"),
        ({}, "needs the option topic"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    spark: SparkSession, servers: str, options: dict[str, str], said: str
) -> None:
    frame = spark.range(1).selectExpr("'x' AS value", "'t' AS topic")
    writer = exactly_once(frame, transactional=True).options(servers=servers, **options)
    with pytest.raises(Exception, match=said) as caught:
        writer.save()
    assert OptionError.__name__ in str(caught.value)

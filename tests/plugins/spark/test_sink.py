"""Rows into topics of real nodes: where they go, and that they go there once though tasks are run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from insync.plugins.spark import NotRepeatableError, exactly_once
from insync.replication import BlockingAdmin, BlockingConsumer, BlockingProducer
from insync.replication.client import ConsumerRecord, partition_for_key

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SOLE = {"min_insync_replicas": 1}


def read_all(servers: str, topic: str) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    with BlockingConsumer(servers, auto_offset_reset="earliest", max_poll_records=100_000) as consumer:
        ends = consumer.end_offsets(consumer.assign_topic(topic))
        while len(found) < sum(ends.values()):
            more = consumer.poll(20_000)
            assert more, (len(found), ends)
            found += more
    return found


def test_rows_go_where_their_columns_say(
    spark: SparkSession, servers: str, admin: BlockingAdmin, topic: str
) -> None:
    other = f"{topic}-b"
    for name in (topic, other):
        admin.create_topic(name, 3, 1, SOLE)
    frame = spark.range(2000).selectExpr(
        "IF(id % 5 = 0, NULL, CONCAT('key-', id % 7)) AS key",
        "IF(id % 11 = 0, NULL, CAST(CAST(id AS STRING) AS BINARY)) AS value",
        f"IF(id % 2 = 0, '{topic}', '{other}') AS topic",
        "IF(id % 3 = 0, CAST(id % 2 AS INT), NULL) AS partition",
        "IF(id % 4 = 0, array(named_struct('key', 'id', 'value', CAST(CAST(id AS STRING) AS BINARY)),"
        " named_struct('key', 'none', 'value', CAST(NULL AS BINARY))), NULL) AS headers",
    )
    writer = frame.write.format("insync").mode("append").option("kafka.bootstrap.servers", servers)
    writer.option("compressionType", "lz4").option("batchBytes", "2048").save()
    found = {name: read_all(servers, name) for name in (topic, other)}
    assert [len(found[name]) for name in (topic, other)] == [1000, 1000]
    keys: Counter[bytes | None] = Counter()
    for name, rows in found.items():
        for row in rows:
            keys[row.key] += 1
            if row.value is None:
                continue
            number = int(row.value)
            assert name == (topic if number % 2 == 0 else other)
            assert row.key == (None if number % 5 == 0 else b"key-%d" % (number % 7))
            wanted = (("id", b"%d" % number), ("none", None)) if number % 4 == 0 else ()
            assert row.headers == wanted
            if number % 3 == 0:
                assert row.partition == number % 2
            elif row.key is not None:
                assert row.partition == partition_for_key(row.key, 3)
    assert keys[None] == 400 and sum(keys.values()) == 2000
    assert sum(row.value is None for rows in found.values() for row in rows) == len(range(0, 2000, 11))


def failing(folder: str, after: int) -> Any:
    """Passes rows on, and fails once in each task that has so many; where, it notes in files of the folder."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        mark = Path(folder, f"{context.getLocalProperty('streaming.sql.batchId')}-{context.partitionId()}")
        seen = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if seen >= after and not mark.exists():
                mark.touch()
                raise RuntimeError("planted")

    return rows


class Lasting:
    """A query to be run as often as wanted, each time as if it had never run before but for its checkpoint."""

    def __init__(self, frame: Any, servers: str, topic: str, checkpoint: Path) -> None:
        self._writer = exactly_once(frame).options(
            servers=servers, topic=topic, batchBytes="1024", checkpointLocation=str(checkpoint)
        )

    def run(self) -> None:
        query = self._writer.trigger(availableNow=True).start()
        assert query.awaitTermination(150)


def test_a_batch_that_is_replayed_leaves_no_duplicate(
    spark: SparkSession, servers: str, admin: BlockingAdmin, topic: str, tmp_path: Path
) -> None:
    """Tasks fail after a part of their rows has been written; the query is started again, and goes on."""
    from pyspark.errors import StreamingQueryException

    source = f"{topic}-in"
    for name in (topic, source):
        admin.create_topic(name, 2, 1, SOLE)
    with BlockingProducer(servers) as producer:
        for n in range(3000):
            producer.send(source, b"%d" % n, partition=n % 2)
    frame = (
        spark.readStream.format("insync")
        .options(servers=servers, subscribe=source, startingOffsets="earliest")
        .load()
        .selectExpr("value")
    )
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    try:
        query = Lasting(
            frame.mapInArrow(failing(str(tmp_path), 1000), "value BINARY"),
            servers,
            topic,
            tmp_path / "checkpoint",
        )
        # One task's failure ends the job, maybe before the other has come to its own.
        failures = 0
        while failures < 3:
            try:
                query.run()
            except StreamingQueryException as error:
                assert "planted" in str(error)
                failures += 1
            else:
                break
        query.run()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert failures >= 1
    assert sorted(int(row.value or b"") for row in read_all(servers, topic)) == list(range(3000))


def test_plans_that_do_not_repeat_are_refused(spark: SparkSession, servers: str) -> None:
    rows = spark.range(100).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS value", "id")
    for frame, said in (
        (rows.repartition(3), "Repartition"),
        (rows.groupBy("value").count(), "Aggregate"),
        (rows.join(rows.withColumnRenamed("value", "v"), "id"), "Join"),
        (rows.orderBy("id"), "Sort"),
        (rows.limit(5), "Limit"),
        (rows.selectExpr("CAST(uuid() AS BINARY) AS value"), "not deterministic"),
    ):
        with pytest.raises(NotRepeatableError, match=said):
            exactly_once(frame)
    with pytest.raises(Exception, match="exactlyOnce=true needs a plan"):
        options = {"servers": servers, "topic": "any", "exactlyOnce": "true"}
        rows.repartition(3).write.format("insync").mode("append").options(**options).save()


def bad(said: str, columns: str, **options: str) -> Any:
    return pytest.param(columns, options, said, id=said[:30])


VALUE = "CAST('x' AS BINARY) AS value"


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        bad("there is no column 'value'", "id", topic="t"),
        bad("column 'value' is bigint; it must be binary or string", "id AS value", topic="t"),
        bad("column 'partition' is bigint", f"{VALUE}, id AS partition", topic="t"),
        bad("neither an option nor a column says which topic", VALUE),
        bad("topic 'nowhere': UNKNOWN_TOPIC_OR_PARTITION", VALUE, topic="nowhere"),
        bad("unknown option 'acks'", VALUE, topic="t", acks="1"),
        bad(
            "batchBytes is 67108865; it must be at most 67108864", VALUE, topic="t", batchBytes=str(2**26 + 1)
        ),
        bad("compressionType is 'rar'", VALUE, topic="t", compressionType="rar"),
        bad("no node could be reached", VALUE, topic="t", servers="127.0.0.1:1"),
    ],
)
def test_bad_input_is_told_before_anything_is_written(
    spark: SparkSession, servers: str, columns: str, options: dict[str, str], said: str
) -> None:
    frame = spark.range(3).selectExpr(*columns.split(", "))
    with pytest.raises(Exception) as caught:
        frame.write.format("insync").mode("append").options(**{"servers": servers, **options}).save()
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) < 12


def test_what_a_task_meets_is_told(
    spark: SparkSession, servers: str, admin: BlockingAdmin, topic: str
) -> None:
    admin.create_topic(topic, 2, 1, {**SOLE, "max_message_bytes": 2000})
    writer = spark.range(1).selectExpr("repeat('x', 5000) AS value").write.format("insync").mode("append")
    with pytest.raises(Exception, match="max_message_bytes=2000"):
        writer.option("servers", servers).option("topic", topic).save()
    frame = spark.range(1).selectExpr("'x' AS value", "7 AS partition")
    with pytest.raises(Exception, match=r"names partition 7 of topic .* which has 2"):
        frame.write.format("insync").mode("append").option("servers", servers).option("topic", topic).save()

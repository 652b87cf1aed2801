"""Batch queries over topics of real nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from insync.replication import BlockingAdmin, BlockingConsumer, BlockingProducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]
COUNT = 3000


@pytest.fixture(scope="module")
def filled(servers: str, admin: BlockingAdmin) -> str:
    """A topic of three partitions: records in order of time, a codec for each partition, headers in the last."""
    # The records are of 2023.
    admin.create_topic("filled", 3, 3, {"retention_ms": -1})
    for partition, codec in enumerate(("none", "lz4", "zstd")):
        with BlockingProducer(servers, compression_type=codec) as producer:
            for n in range(COUNT):
                producer.send(
                    "filled",
                    b"%d" % n,
                    key=None if n % 7 == 0 else b"key-%d" % (n % 5),
                    headers=[("n", b"%d" % n), ("none", None)] if partition == 2 and n % 2 else (),
                    partition=partition,
                    timestamp_ms=1_700_000_000_000 + n,
                )
    return "filled"


@pytest.fixture
def read(spark: SparkSession, servers: str) -> Read:
    def load(**options: Any) -> DataFrame:
        return (
            spark.read.format("insync").option("kafka.bootstrap.servers", servers).options(**options).load()
        )

    return load


def rows(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def test_every_record_once_with_all_that_it_has(read: Read, filled: str, servers: str) -> None:
    frame = read(subscribe=filled, includeHeaders="true")
    assert frame.columns[:4] == ["key", "value", "topic", "partition"]
    assert frame.columns[4:] == ["offset", "timestamp", "timestampType", "headers"]
    with BlockingConsumer(servers, auto_offset_reset="earliest", max_poll_records=100_000) as consumer:
        consumer.assign_topic(filled)
        expected: list[Any] = []
        while len(expected) < 3 * COUNT:
            more = consumer.poll(10_000)
            assert more, len(expected)
            expected += more
    found = frame.toArrow().to_pylist()
    assert {row["timestampType"] for row in found} == {0}
    assert sorted(
        (
            row["topic"],
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            tuple((pair["key"], pair["value"]) for pair in row["headers"] or ()),
        )
        for row in found
    ) == sorted(tuple(record)[:7] for record in expected)


def test_only_the_columns_that_are_wanted(spark: SparkSession, read: Read, filled: str, servers: str) -> None:
    assert read(subscribe=filled, columns="value,partition").columns == ["value", "partition"]
    frame = spark.read.format("insync").option("servers", servers).option("subscribe", filled)
    pruned = frame.schema("offset LONG, headers ARRAY<STRUCT<key: STRING, value: BINARY>>").load()
    assert pruned.where("size(headers) = 2").count() == COUNT // 2


def test_from_and_to_offsets_and_times(read: Read, filled: str) -> None:
    start, end = '{"filled":{"0":5,"1":-2,"2":2990}}', '{"filled":{"0":9,"1":2,"2":-1}}'
    found = rows(read(subscribePattern="fil.*", startingOffsets=start, endingOffsets=end))
    assert found == [(0, n) for n in range(5, 9)] + [(1, 0), (1, 1)] + [(2, n) for n in range(2990, 3000)]
    timed = read(
        assign='{"filled":[1]}',
        startingTimestamp=str(1_700_000_000_100),
        endingOffsetsByTimestamp='{"filled":{"1":1700000000103}}',
    )
    assert rows(timed) == [(1, 100), (1, 101), (1, 102)]


def test_more_tasks_than_partitions(read: Read, filled: str) -> None:
    frame = read(subscribe=filled, minPartitions="8", columns="partition,offset")
    assert frame.rdd.getNumPartitions() >= 8
    small = read(subscribe=filled, maxRecordsPerPartition=str(COUNT // 2), columns="partition,offset")
    assert small.rdd.getNumPartitions() == 6 and small.count() == 3 * COUNT
    assert rows(frame) == [(p, n) for p in range(3) for n in range(COUNT)]


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters_are_pushed_where_spark_lets_them(
    spark: SparkSession, read: Read, filled: str, pushed: str
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        frame = read(subscribe=filled)
        narrow = frame.where("partition = 1 and offset >= 7 and offset < 10")
        late = frame.where("timestamp >= timestamp_millis(1700000002998) and partition in (0, 2)")
        assert rows(narrow) == [(1, 7), (1, 8), (1, 9)]
        assert rows(late) == [(0, 2998), (0, 2999), (2, 2998), (2, 2999)]
        tasks = narrow.rdd.getNumPartitions()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert tasks == (1 if pushed == "true" else 3)


def test_sql(spark: SparkSession, filled: str, servers: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW logs USING insync OPTIONS (servers '{servers}', subscribe '{filled}')")
    assert spark.sql("SELECT count(*) AS n FROM logs WHERE key IS NULL").head().n == 3 * len(
        range(0, COUNT, 7)
    )


def test_an_empty_topic(read: Read, admin: BlockingAdmin, topic: str) -> None:
    admin.create_topic(topic, 2, 1, {"min_insync_replicas": 1})
    assert read(subscribe=topic).count() == 0


def test_what_was_deleted_is_told_or_passed_over(
    read: Read, admin: BlockingAdmin, servers: str, topic: str
) -> None:
    admin.create_topic(topic, 1, 3)
    with BlockingProducer(servers) as producer:
        producer.send_many(topic, [b"x"] * 100).result(30)
    admin.delete_records({(topic, 0): 40})
    asked = {"subscribe": topic, "startingOffsets": f'{{"{topic}":{{"0":10}}}}'}
    with pytest.raises(
        Exception, match=rf"{topic}-0: offsets \[10, 40\) have been deleted; the log begins at 40"
    ):
        read(**asked).count()
    assert rows(read(**asked, failOnDataLoss="false")) == [(0, n) for n in range(40, 100)]
    assert rows(read(subscribe=topic)) == [(0, n) for n in range(40, 100)]


def test_all_that_a_batch_query_names_was_deleted(
    read: Read, admin: BlockingAdmin, servers: str, topic: str
) -> None:
    admin.create_topic(topic, 1, 3)
    with BlockingProducer(servers) as producer:
        producer.send_many(topic, [b"x"] * 20).result(30)
    admin.delete_records({(topic, 0): 15})
    asked = {
        "subscribe": topic,
        "startingOffsets": f'{{"{topic}":{{"0":2}}}}',
        "endingOffsets": f'{{"{topic}":{{"0":9}}}}',
    }
    with pytest.raises(Exception, match=rf"{topic}-0: offsets \[2, 9\) have been deleted"):
        read(**asked).count()
    assert rows(read(**asked, failOnDataLoss="false")) == []


def bad(said: str, **options: str) -> Any:
    return pytest.param(options, said, id=said.split(":")[0][:40])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        bad("unknown option 'subscrib'; did you mean subscribe?", subscrib="x"),
        bad("topic 'nowhere': UNKNOWN_TOPIC_OR_PARTITION", subscribe="nowhere"),
        bad("topic 'filled' has 3 partitions; it has no partition 5", assign='{"filled":[5]}'),
        bad("t begin at latest", subscribe="filled", startingOffsets="latest"),
        bad("t begin at latest (-1)", subscribe="filled", startingOffsets='{"filled":{"0":-1,"1":0,"2":0}}'),
        bad(
            "offset 5000 does not exist yet",
            subscribe="filled",
            endingOffsets='{"filled":{"0":5000,"1":1,"2":1}}',
        ),
        bad(
            "filled-1: 3 is before 4",
            subscribe="filled",
            startingOffsets='{"filled":{"0":0,"1":4,"2":0}}',
            endingOffsets='{"filled":{"0":1,"1":3,"2":1}}',
        ),
        bad("there is no column 'nope'", subscribe="filled", columns="nope"),
        bad("no node could be reached", subscribe="filled", servers="127.0.0.1:1"),
        bad("secret_file", subscribe="filled", secretFile="/nowhere/secret"),
    ],
)
def test_bad_input_is_one_message_on_the_driver(
    spark: SparkSession, filled: str, servers: str, options: dict[str, str], said: str
) -> None:
    began = time.monotonic()
    with pytest.raises(Exception) as caught:
        spark.read.format("insync").options(**{"servers": servers, **options}).load().count()
    message = str(caught.value)
    assert said.replace("t begin at", "startingOffsets cannot be") in message
    assert len(message.splitlines()) < 12 and "at org.apache.spark" not in message
    assert time.monotonic() - began < 30


def test_a_schema_that_a_topic_has_not(spark: SparkSession, filled: str, servers: str) -> None:
    frame = spark.read.format("insync").option("servers", servers).option("subscribe", filled)
    with pytest.raises(Exception, match="column 'value' is binary, not string"):
        frame.schema("value STRING").load().count()

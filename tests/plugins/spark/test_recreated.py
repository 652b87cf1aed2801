"""A topic that is deleted and made again is another topic: nothing that was known of the old one is used for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from insync.plugins.spark import TopicRecreatedError
from insync.replication import BlockingAdmin, BlockingProducer
from tests.requires import missing

from .test_stream import Output, Stream, output, stream
from .test_stream_reader import without_ids

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows

    from insync.plugins.spark._columns import source_schema
    from insync.plugins.spark._offsets import Range
    from insync.plugins.spark._options import Connection, Options
    from insync.plugins.spark._reading import ReadOptions, read_range
    from insync.plugins.spark._source import STREAM_OPTIONS, InsyncStreamReader
except ImportError as error:
    missing(f"{error.name} is not installed")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOLE = {"min_insync_replicas": 1}
ALL = ReadAllAvailable()
Offsets = dict[str, dict[str, Any]]
__all__ = ["output", "stream"]
"""Fixtures."""

either = pytest.mark.parametrize("fails", ["true", "false"])


def make(servers: str, admin: BlockingAdmin, topic: str, numbers: range, partitions: int = 2) -> str:
    """A topic with these numbers, in the place of a former one; its id."""
    if topic in admin.list_topics():
        admin.delete_topic(topic)
    topic_id = admin.create_topic(topic, partitions, 1, SOLE)
    with BlockingProducer(servers) as producer:
        for n in numbers:
            producer.send(topic, b"%d" % n, partition=n % partitions)
    return topic_id


def reader(servers: str, **options: str) -> InsyncStreamReader:
    given = Options({"servers": servers, "startingOffsets": "earliest", **options}, STREAM_OPTIONS)
    return InsyncStreamReader(given, source_schema(["value", "offset"], include_headers=False))


def values_of(reader: InsyncStreamReader, start: Offsets, end: Offsets) -> list[int]:
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return sorted(int(value) for batch in batches for value in batch.column("value").to_pylist())


def told(error: object, old: str, new: str) -> bool:
    return all(part in str(error) for part in (old, new, "failOnDataLoss", "new checkpoint"))


# Through Spark


@either
def test_a_batch_query_reads_the_new_topic(
    spark: SparkSession, servers: str, admin: BlockingAdmin, topic: str, fails: str
) -> None:
    """The Python workers of the first query serve the second: their clients know the old topic."""
    options = {"servers": servers, "subscribe": topic, "failOnDataLoss": fails}

    def numbers() -> list[int]:
        found = spark.read.format("insync").options(**options).load().selectExpr("CAST(value AS STRING) AS n")
        return sorted(int(row.n) for row in found.collect())

    # More records, fewer, and another number of partitions.
    for new, partitions in ((range(20), 2), (range(500, 1300), 2), (range(30), 3), (range(7), 1)):
        make(servers, admin, topic, new, partitions)
        assert numbers() == list(new)


@either
def test_a_stream_with_a_new_checkpoint_reads_the_new_topic(
    spark: SparkSession,
    stream: Stream,
    servers: str,
    admin: BlockingAdmin,
    topic: str,
    tmp_path: Path,
    fails: str,
) -> None:
    for name, new in (("old", range(20)), ("new", range(500, 1300))):
        make(servers, admin, topic, new)
        (tmp_path / name).mkdir()
        out = Output(spark, tmp_path / name)
        out.run(stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails))
        assert out.numbers() == list(new)


@either
def test_a_checkpoint_of_the_old_topic(
    stream: Stream,
    output: Output,
    servers: str,
    admin: BlockingAdmin,
    topic: str,
    fails: str,
) -> None:
    """The new topic is longer, so that no offset shows that it is another one."""
    frame = stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails)
    old = make(servers, admin, topic, range(20))
    output.run(frame)
    new = make(servers, admin, topic, range(100, 200))
    if fails == "true":
        for _ in range(2):
            with pytest.raises(Exception, match="TopicRecreatedError") as caught:
                output.run(frame)
            assert told(caught.value, old, new)
        return
    output.run(frame)
    assert output.numbers() == [*range(20), *range(100, 200)]


@either
def test_a_checkpoint_without_ids_goes_on_and_learns_them(
    stream: Stream,
    output: Output,
    servers: str,
    admin: BlockingAdmin,
    topic: str,
    fails: str,
) -> None:
    frame = stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails)
    topic_id = make(servers, admin, topic, range(20))
    output.run(frame)
    for file in (Path(output.checkpoint) / "offsets").glob("[0-9]*"):
        # The format of Spark: a version, the query's metadata, and a line for each source.
        *head, offsets = file.read_text().splitlines()
        assert json.loads(offsets)[topic].pop("id") == topic_id
        file.write_text("\n".join([*head, json.dumps(without_ids(json.loads(offsets)))]))
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    query = output.run(frame)
    assert json.loads(query.lastProgress.sources[0].endOffset)[topic] == {"0": 10, "1": 10, "id": topic_id}
    with BlockingProducer(servers) as producer:
        for n in range(20, 30):
            producer.send(topic, b"%d" % n, partition=n % 2)
    output.run(frame)
    assert output.numbers() == list(range(30))


# Without Spark


def test_offsets_carry_the_ids_of_topics(servers: str, admin: BlockingAdmin, topic: str) -> None:
    topic_id = make(servers, admin, topic, range(10))
    found = reader(servers, subscribe=topic)
    start = found.initialOffset()
    assert start == {topic: {"0": 0, "1": 0, "id": topic_id}}
    end = found.latestOffset(start, ALL)
    assert end == {topic: {"0": 5, "1": 5, "id": topic_id}}
    # Without an id nothing is known, and the offsets stand.
    assert found.latestOffset(without_ids(end), ALL) == end
    old = without_ids(start)
    assert values_of(found, old, end) == values_of(found, old, without_ids(end)) == list(range(10))


def test_a_running_stream_goes_on_at_the_start_of_the_new_topic(
    servers: str, admin: BlockingAdmin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict, loose = (reader(servers, subscribe=topic, failOnDataLoss=fails) for fails in ("true", "false"))
    ids = []
    end: Offsets = {}
    for count, new in enumerate((range(20), range(100, 170), range(200, 203))):
        # The last one has no partition 1.
        ids.append(make(servers, admin, topic, new, 1 if count == 2 else 2))
        start = end or loose.initialOffset()
        if count:
            with pytest.raises(TopicRecreatedError) as caught:
                strict.latestOffset(start, ALL)
            assert told(caught.value, ids[-2], ids[-1])
        caplog.clear()
        end = loose.latestOffset(start, ALL)
        assert end[topic].pop("id") == ids[-1]
        assert sum(end[topic].values()) == len(new)
        end[topic]["id"] = ids[-1]
        assert values_of(loose, start, end) == list(new)
        said = [each.getMessage() for each in caplog.records if "made again" in each.getMessage()]
        assert bool(said) == bool(count)
        if count:
            assert told_count(said[0]) == count and ids[-2] in said[0] and ids[-1] in said[0]


def told_count(text: str) -> int:
    return int(text.rpartition("topics made again so far: ")[2].split()[0])


def test_a_new_topic_that_has_too_few_records_is_waited_for_and_told_once(
    servers: str, admin: BlockingAdmin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(servers, admin, topic, range(20))
    found = reader(servers, subscribe=topic, failOnDataLoss="false", minOffsetsPerTrigger="10")
    end = found.latestOffset(found.initialOffset(), ReadMinRows(10))
    make(servers, admin, topic, range(4))
    caplog.clear()
    for _ in range(3):
        assert found.latestOffset(end, ReadMinRows(10)) == end
    assert len([each for each in caplog.records if "made again" in each.getMessage()]) == 1


def test_a_batch_that_was_planned_of_the_old_topic_is_not_read_of_the_new_one(
    servers: str, admin: BlockingAdmin, topic: str
) -> None:
    """As after a restart: the batch stands in the checkpoint, and its records are gone."""
    strict, loose = (reader(servers, subscribe=topic, failOnDataLoss=fails) for fails in ("true", "false"))
    old = make(servers, admin, topic, range(20))
    start = loose.initialOffset()
    end = loose.latestOffset(start, ALL)
    planned = loose.partitions(start, end)
    new = make(servers, admin, topic, range(100, 200))
    with pytest.raises(TopicRecreatedError) as caught:
        strict.partitions(start, end)
    assert told(caught.value, old, new)
    assert values_of(loose, start, end) == []
    # Tasks that were planned before the topic was deleted.
    with pytest.raises(TopicRecreatedError) as caught:
        list(strict.read(planned[0]))
    assert told(caught.value, old, new)
    assert [batch for part in planned for batch in loose.read(part)] == []


def test_a_task_reads_the_topic_of_its_range_whatever_its_client_knows(
    servers: str, admin: BlockingAdmin, topic: str
) -> None:
    options = ReadOptions(
        connection=Connection(servers=servers, client_id=topic),
        names=("value",),
        fail_on_data_loss=True,
        poll_timeout_ms=30_000,
    )
    for new in (range(20), range(100, 140), range(200, 205)):
        topic_id = make(servers, admin, topic, new, partitions=1)
        found = list(read_range(options, Range(topic, 0, 0, len(new), topic_id)))
        values = [int(value) for batch in found for value in batch.column("value").to_pylist()]
        assert values == list(new)


def test_where_a_stream_began_is_kept_with_the_id(servers: str, admin: BlockingAdmin, topic: str) -> None:
    """A new checkpoint with the same streamId begins where the stream first began, if that is still there."""
    old = make(servers, admin, topic, range(20))
    began = reader(servers, subscribe=topic, streamId=topic).initialOffset()
    assert reader(servers, subscribe=topic, streamId=topic).initialOffset() == began
    assert began[topic]["id"] == old
    new = make(servers, admin, topic, range(100, 200))
    again = reader(servers, subscribe=topic, streamId=topic)
    with pytest.raises(TopicRecreatedError, match="streamId") as caught:
        again.latestOffset(again.initialOffset(), ALL)
    assert told(caught.value, old, new)


def test_where_a_stream_began_before_ids_were_kept(servers: str, admin: BlockingAdmin, topic: str) -> None:
    topic_id = make(servers, admin, topic, range(20))
    admin.commit_offsets(f"spark-start/{topic}", {(topic, 0): 4, (topic, 1): 10})
    found = reader(servers, subscribe=topic, streamId=topic)
    start = found.initialOffset()
    assert start == {topic: {"0": 4, "1": 10}}
    assert found.latestOffset(start, ALL) == {topic: {"0": 10, "1": 10, "id": topic_id}}


@either
def test_a_writer_that_wrote_to_the_old_topic_writes_to_the_new_one(
    spark: SparkSession, servers: str, admin: BlockingAdmin, topic: str, fails: str
) -> None:
    """In the same session: the sink's producers are kept as well."""
    rows = spark.range(50).selectExpr("CAST(id AS STRING) AS value")
    for _ in range(2):
        make(servers, admin, topic, range(0))
        rows.write.format("insync").mode("append").options(servers=servers, topic=topic).save()
        found = spark.read.format("insync").options(servers=servers, subscribe=topic, failOnDataLoss=fails)
        assert found.load().count() == 50

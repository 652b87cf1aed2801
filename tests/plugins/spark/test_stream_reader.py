"""The reader of a streaming query, asked as Spark asks it, without Spark: after restarts, growth and losses."""

from __future__ import annotations

import json
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from insync.plugins.spark import DataLossError, OptionError, StalledError
from insync.replication import BlockingAdmin, BlockingConsumer, BlockingProducer
from insync.replication.client import UnknownTopicError
from tests.requires import missing

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

    from insync.plugins.spark import _reading
    from insync.plugins.spark._columns import source_schema
    from insync.plugins.spark._offsets import Range
    from insync.plugins.spark._options import Connection, Options
    from insync.plugins.spark._reading import ReadOptions, _Task, read_range
    from insync.plugins.spark._source import STREAM_OPTIONS, InsyncStreamReader
except ImportError as error:
    missing(f"{error.name} is not installed")

SOLE = {"min_insync_replicas": 1}
ALL = ReadAllAvailable()


def reader(servers: str, **options: str) -> InsyncStreamReader:
    given = Options({"servers": servers, **options}, STREAM_OPTIONS)
    return InsyncStreamReader(given, source_schema(["value", "offset"], include_headers=False))


def without_ids(offsets: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """As they were before ids of topics stood in them."""
    return {
        topic: {at: offset for at, offset in each.items() if at != "id"} for topic, each in offsets.items()
    }


def produce(servers: str, topic: str, count: int, partition: int = 0) -> None:
    with BlockingProducer(servers) as producer:
        producer.send_many(topic, [b"x"] * count, partition=partition).result(30)


def test_latest_is_where_the_stream_first_began(servers: str, admin: BlockingAdmin, topic: str) -> None:
    admin.create_topic(topic, 2, 1, SOLE)
    produce(servers, topic, 5)
    first = reader(servers, subscribe=topic, streamId=topic)
    began = {topic: {"0": 5, "1": 0}}
    assert without_ids(first.initialOffset()) == began
    produce(servers, topic, 3)
    assert without_ids(first.initialOffset()) == began
    assert without_ids(reader(servers, subscribe=topic, streamId=topic).initialOffset()) == began
    assert without_ids(reader(servers, subscribe=topic, streamId=f"{topic}-b").initialOffset()) == {
        topic: {"0": 8, "1": 0}
    }
    with pytest.raises(OptionError, match="needs the option streamId"):
        reader(servers, subscribe=topic)


def test_a_stream_begins_where_a_group_has_committed(servers: str, admin: BlockingAdmin, topic: str) -> None:
    admin.create_topic(topic, 2, 1, SOLE)
    produce(servers, topic, 5)
    admin.set_group_offsets(f"{topic}-group", {(topic, 0): 3})
    options = {"subscribe": topic, "startingOffsets": f"group:{topic}-group"}
    first = reader(servers, **options, streamId=topic)
    assert without_ids(first.initialOffset()) == {topic: {"0": 3, "1": 0}}
    # What the group commits meanwhile does not move a stream that has begun.
    admin.set_group_offsets(f"{topic}-group", {(topic, 0): 5})
    assert without_ids(reader(servers, **options, streamId=topic).initialOffset()) == {
        topic: {"0": 3, "1": 0}
    }
    with pytest.raises(OptionError, match=r"=group:.* needs the option streamId"):
        reader(servers, **options)
    nobody = {**options, "startingOffsets": "group:nobody"}
    assert without_ids(reader(servers, **nobody, streamId=f"{topic}-b").initialOffset()) == {
        topic: {"0": 0, "1": 0}
    }


def test_offsets_only_grow_and_new_partitions_are_read_whole(
    servers: str, admin: BlockingAdmin, topic: str
) -> None:
    admin.create_topic(topic, 1, 1, SOLE)
    stream = reader(servers, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    start = stream.initialOffset()
    produce(servers, topic, 10)
    limit = stream.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows) and limit.max_rows == 4
    assert without_ids(stream.latestOffset(start, limit)) == {topic: {"0": 4}}
    admin.create_partitions(topic, 2)
    produce(servers, topic, 6, partition=1)
    end = stream.latestOffset(start, ALL)
    assert json.dumps(without_ids(end)) == json.dumps({topic: {"0": 10, "1": 6}})
    assert stream.reportLatestOffset() == end
    parts = [part.value for part in stream.partitions(start, end)]
    assert [(part.partition, part.start, part.end) for part in parts] == [(0, 0, 10), (1, 0, 6)]
    rows = [
        row
        for part in stream.partitions(start, end)
        for batch in stream.read(part)
        for row in batch.to_pylist()
    ]
    assert [row["offset"] for row in rows] == [*range(10), *range(6)]
    assert next(part.value for part in stream.partitions(end, end)).start == 0


def test_available_now_ends_at_what_there_was(servers: str, admin: BlockingAdmin, topic: str) -> None:
    admin.create_topic(topic, 1, 1, SOLE)
    produce(servers, topic, 10)
    stream = reader(servers, subscribe=topic, startingOffsets="earliest")
    stream.prepareForTriggerAvailableNow()
    produce(servers, topic, 10)
    assert without_ids(stream.latestOffset({topic: {"0": 3}}, ALL)) == {topic: {"0": 10}}
    assert without_ids(stream.latestOffset({topic: {"0": 10}}, ALL)) == {topic: {"0": 10}}


def transact(servers: str, topic: str, *values: bytes, commits: bool) -> None:
    with BlockingProducer(servers, transactional_id=topic) as producer:
        producer.begin()
        for value in values:
            producer.send(topic, value)
        producer.flush()
        (producer.commit if commits else producer.abort)()


def wait_for_end(servers: str, topic: str, offset: int) -> None:
    """Until the log ends there: the marker of a transaction follows its commit."""
    deadline = time.monotonic() + 60
    with BlockingConsumer(servers) as consumer:
        while (end := consumer.end_offsets([(topic, 0)])[topic, 0]) != offset:
            assert time.monotonic() < deadline, end


def test_batches_of_what_is_committed_end_at_the_last_stable_offset(
    servers: str, admin: BlockingAdmin, topic: str
) -> None:
    admin.create_topic(topic, 1, 3)
    transact(servers, topic, b"1", b"2", commits=True)
    transact(servers, topic, b"gone", commits=False)
    wait_for_end(servers, topic, 5)
    with BlockingProducer(servers, transactional_id=f"{topic}-open") as other:
        other.begin()
        other.send(topic, b"open")
        other.flush()
        transact(servers, topic, b"3", commits=True)
        wait_for_end(servers, topic, 8)
        read = partial(reader, servers, subscribe=topic, startingOffsets="earliest")
        committed, everything = read(isolationLevel="read_committed"), read()
        start = committed.initialOffset()
        behind, end = committed.latestOffset(start, ALL), everything.latestOffset(start, ALL)
        assert (without_ids(behind), without_ids(end)) == ({topic: {"0": 5}}, {topic: {"0": 8}})
        assert values_of(committed, start, behind) == [b"1", b"2"]
        # In a task of its own, whose range is nothing but what was aborted, and in the middle of a transaction.
        assert values_of(committed, {topic: {"0": 3}}, {topic: {"0": 4}}) == []
        assert values_of(committed, {topic: {"0": 1}}, {topic: {"0": 4}}) == [b"2"]
        assert values_of(everything, start, end) == [b"1", b"2", b"gone", b"open", b"3"]
        other.abort()
    deadline = time.monotonic() + 30
    while without_ids(end := committed.latestOffset(behind, ALL)) != {topic: {"0": 9}}:
        assert time.monotonic() < deadline, end
    assert values_of(committed, behind, end) == [b"3"]
    with pytest.raises(OptionError, match="isolationLevel is 'serializable'"):
        read(isolationLevel="serializable")
    # As a job for Kafka says it.
    kafka = reader(
        servers, subscribe=topic, startingOffsets="earliest", **{"kafka.isolation.level": "read_committed"}
    )
    assert values_of(kafka, start, end) == [b"1", b"2", b"3"]


def test_a_range_ends_where_it_ends_and_not_at_a_record() -> None:
    """Compaction has left nothing of its end, not even a marker (druid#16689)."""

    class Behind:
        def seek(self, at: tuple[str, int], offset: int, *, topic_id: str) -> None:
            self.offset = offset

        def poll_batches(self, timeout_ms: int) -> list[object]:
            self.offset = 9
            return []

        def position(self, at: tuple[str, int]) -> int:
            return self.offset

        def throttled_ms(self, at: tuple[str, int]) -> int:
            return 0

    options = ReadOptions(
        connection=Connection(servers="x"), names=("value",), fail_on_data_loss=True, poll_timeout_ms=1
    )
    assert list(_Task(options, Range("t", 0, 4, 9), Behind()).run()) == []  # type: ignore[arg-type]


def test_a_pause_that_was_told_is_no_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, pauses = [100.0], [9000, 8000, 2000, 0, 0, 0]

    class Throttled:
        """Nothing comes while the pause lasts, nor for two seconds after it."""

        asked = 0

        def seek(self, at: tuple[str, int], offset: int, *, topic_id: str) -> None:
            pass

        def poll_batches(self, timeout_ms: int) -> list[object]:
            self.asked += 1
            now[0] += 9.0 if self.asked < 4 else 1.0
            return []

        def position(self, at: tuple[str, int]) -> int:
            return 4

        def throttled_ms(self, at: tuple[str, int]) -> int:
            return pauses[self.asked - 1]

    monkeypatch.setattr(_reading, "time", SimpleNamespace(monotonic=lambda: now[0]))
    options = ReadOptions(
        connection=Connection(servers="x"), names=("value",), fail_on_data_loss=True, poll_timeout_ms=1500
    )
    throttled = Throttled()
    with pytest.raises(StalledError):
        list(_Task(options, Range("t", 0, 4, 9), throttled).run())  # type: ignore[arg-type]
    assert throttled.asked == 5
    assert [
        each.getMessage() for each in caplog.records if "lets this task wait for 9.0 s" in each.getMessage()
    ]
    assert len(caplog.records) == 1


def test_who_waits_because_of_a_quota_is_told_of_quotas(
    servers: str, admin: BlockingAdmin, topic: str
) -> None:
    admin.create_topic(topic, 1, 1, SOLE)
    with BlockingProducer(servers) as producer:
        for _ in range(6):
            producer.send(topic, b"x" * 900_000, partition=0)
    options = ReadOptions(
        connection=Connection(servers=servers, client_id=topic),
        names=("value",),
        fail_on_data_loss=True,
        poll_timeout_ms=1000,
    )
    admin.alter_quotas("client_id", topic, {"consumer_byte_rate": 1})
    try:
        with BlockingConsumer(servers, client_id=topic, auto_offset_reset="earliest") as other:
            other.assign([(topic, 0)])
            while not other.poll(1000):
                pass
            # Who has taken it was told for how long to pause. What others ask for by that name waits at the node.
            assert other.throttled_ms((topic, 0)) > 1000
            with pytest.raises(StalledError, match=f"more than their quota .* give '{topic}' a higher one"):
                list(read_range(options, Range(topic, 0, 0, 6)))
    finally:
        admin.alter_quotas("client_id", topic, remove=["consumer_byte_rate"])


def values_of(
    reader: InsyncStreamReader, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]
) -> list[bytes]:
    found = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            found += batch.column("value").to_pylist()
    return found


def test_losses_are_named(servers: str, admin: BlockingAdmin, topic: str) -> None:
    admin.create_topic(topic, 1, 1, SOLE)
    produce(servers, topic, 10)
    strict = reader(servers, subscribe=topic, startingOffsets="earliest")
    with pytest.raises(DataLossError, match="was read up to offset 12, and the log ends at 10"):
        strict.latestOffset({topic: {"0": 12}}, ALL)
    loose = reader(servers, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    assert without_ids(loose.latestOffset({topic: {"0": 12}}, ALL)) == {topic: {"0": 12}}
    for each in (strict, loose):
        each.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="was read up to offset 12, and the log ends at 10"):
        strict.latestOffset({topic: {"0": 12}}, ALL)
    assert without_ids(loose.latestOffset({topic: {"0": 12}}, ALL)) == {topic: {"0": 12}}
    admin.delete_records({(topic, 0): 7})
    start, end = {topic: {"0": 2}}, {topic: {"0": 9}}
    with pytest.raises(DataLossError, match=rf"{topic}-0: offsets \[2, 7\) have been deleted"):
        strict.partitions(start, end)
    (part,) = loose.partitions(start, end)
    assert [row["offset"] for batch in loose.read(part) for row in batch.to_pylist()] == [7, 8]


def test_retention_that_has_passed_the_end_of_a_batch(servers: str, admin: BlockingAdmin, topic: str) -> None:
    """All that was planned is gone, as small batches make likely: a loss, and not one that repeats for ever."""
    admin.create_topic(topic, 1, 1, SOLE)
    produce(servers, topic, 10)
    admin.delete_records({(topic, 0): 7})
    start, end = {topic: {"0": 1}}, {topic: {"0": 3}}
    strict = reader(servers, subscribe=topic, startingOffsets="earliest")
    with pytest.raises(DataLossError, match=rf"{topic}-0: offsets \[1, 3\) have been deleted"):
        strict.partitions(start, end)
    loose = reader(servers, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    assert values_of(loose, start, end) == []
    assert values_of(loose, end, {topic: {"0": 9}}) == [b"x"] * 2


def test_a_batch_waits_for_records_but_not_for_ever(
    servers: str, admin: BlockingAdmin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("insync.plugins.spark._source.time.monotonic", lambda: now)
    admin.create_topic(topic, 1, 1, SOLE)
    wants = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
    stream = reader(servers, **wants, maxTriggerDelay="1m")
    limit = stream.getDefaultReadLimit()
    assert isinstance(limit, ReadMinRows)
    produce(servers, topic, 3)
    start = stream.initialOffset()
    first = stream.latestOffset(start, limit)
    assert without_ids(first) == {topic: {"0": 3}}
    produce(servers, topic, 9)
    assert stream.latestOffset(first, limit) == first
    now += 59
    assert stream.latestOffset(first, limit) == first
    now += 1
    second = stream.latestOffset(first, limit)
    assert without_ids(second) == {topic: {"0": 12}}
    produce(servers, topic, 10)
    assert without_ids(stream.latestOffset(second, limit)) == {topic: {"0": 22}}
    capped = reader(servers, **wants, maxOffsetsPerTrigger="4")
    assert isinstance(capped.getDefaultReadLimit(), ReadMaxRows)
    assert without_ids(capped.latestOffset(second, ReadMaxRows(4))) == {topic: {"0": 16}}
    produce(servers, topic, 2)
    late = {topic: {"0": 20}}
    assert without_ids(capped.latestOffset(late, ReadMaxRows(4))) == late
    assert without_ids(capped.latestOffset(late, ALL)) == {topic: {"0": 24}}


def test_a_topic_that_was_deleted_is_a_loss(servers: str, admin: BlockingAdmin, topic: str) -> None:
    other = f"{topic}-other"
    for name in (topic, other):
        admin.create_topic(name, 1, 1, SOLE)
        produce(servers, name, 5)
    both = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest"}
    strict, loose = reader(servers, **both), reader(servers, **both, failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ALL)
    admin.delete_topic(topic)
    produce(servers, other, 1)
    later = {topic: {"0": 5}, other: {"0": 6}}
    with pytest.raises(DataLossError, match=f"{topic}-0 is gone; it was read up to offset 5"):
        strict.latestOffset(end, ALL)
    assert without_ids(loose.latestOffset(end, ALL)) == later
    pattern = reader(servers, subscribePattern=f"{topic}.*", startingOffsets="earliest")
    pattern.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match=f"{topic}-0 is gone; it was read up to offset 5"):
        pattern.latestOffset(end, ALL)
    # As after a restart: with clients that know nothing of the topic.
    both["clientId"] = topic
    with pytest.raises(DataLossError, match=f"{topic}-0 is gone, unread"):
        reader(servers, **both).partitions(start, later)
    (part,) = reader(servers, **both, failOnDataLoss="false").partitions(start, later)
    assert (part.value.topic, part.value.end) == (other, 6)
    partitions = {"assign": f'{{"{topic}":[0],"{other}":[0]}}', "startingOffsets": "earliest"}
    named = reader(servers, **partitions, failOnDataLoss="false")
    named.prepareForTriggerAvailableNow()
    assert without_ids(named.latestOffset(end, ALL)) == later
    with pytest.raises(UnknownTopicError, match=topic):
        reader(servers, **both, failOnDataLoss="false").initialOffset()

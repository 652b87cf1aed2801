"""What the sink's tasks do, without Spark: they stop half-way, are repeated, go on beside their heirs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import attrs
import pytest

from insync.plugins.spark import NotRepeatableError
from insync.replication import BlockingAdmin, BlockingConsumer, ReplicationError
from insync.replication.client import RecordTooLargeError
from tests.requires import missing

try:
    import pyarrow as pa

    from insync.plugins.spark._options import Connection
    from insync.plugins.spark._writing import WriteOptions, write_rows
except ImportError as error:
    missing(f"{error.name} is not installed")

SOLE = {"min_insync_replicas": 1}


def options(servers: str, topic: str, exactly_once: bool = True, batch_bytes: int = 4096) -> WriteOptions:
    return WriteOptions(
        connection=Connection(servers=servers),
        topic=topic,
        exactly_once=exactly_once,
        compression="none",
        batch_bytes=batch_bytes,
        delivery_timeout_ms=60_000,
    )


def rows(start: int, stop: int, step: int = 100) -> Iterator[pa.RecordBatch]:
    """Numbers as values, keys of which a third are null."""
    for at in range(start, stop, step):
        numbers = range(at, min(stop, at + step))
        keys = [None if n % 3 == 0 else b"%d" % (n % 10) for n in numbers]
        values = [b"%d" % n for n in numbers]
        yield pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def stopped(
    batches: Iterator[pa.RecordBatch], has_written: Callable[[], bool] = lambda: True
) -> Iterator[pa.RecordBatch]:
    """A run that stops behind its last batch, when it `has_written`: what it has sent might be written later."""
    yield from batches
    while not has_written():
        pass
    raise RuntimeError("planted")


def values(servers: str, topic: str) -> list[int]:
    found: list[int] = []
    with BlockingConsumer(servers, auto_offset_reset="earliest", max_poll_records=100_000) as consumer:
        ends = consumer.end_offsets(consumer.assign_topic(topic))
        while len(found) < sum(ends.values()):
            more = consumer.poll(20_000)
            assert more, (len(found), ends)
            found += [int(record.value or b"") for record in more]
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send each Arrow batch at once, so that a run that stops has written something."""
    monkeypatch.setattr("insync.plugins.spark._writing._GATHERED_BYTES", 1)


def test_a_run_goes_on_where_the_one_before_it_stopped(
    servers: str, admin: BlockingAdmin, topic: str, small: None
) -> None:
    admin.create_topic(topic, 3, 1, SOLE)
    job = f"{topic}/0"
    for stop in (400, 0, 700):
        some = stopped(rows(0, stop), lambda stop=stop: len(values(servers, topic)) >= stop)
        with pytest.raises(RuntimeError, match="planted"):
            write_rows(options(servers, topic), some, job, 0)
    # Cut differently, and into other batches: only the rows and their order count.
    assert write_rows(options(servers, topic, batch_bytes=1500), rows(0, 1000, 130), job, 0) == 1000
    assert write_rows(options(servers, topic), rows(0, 1000), job, 0) == 1000
    assert sorted(values(servers, topic)) == list(range(1000))


def test_rows_that_do_not_come_again_are_told_of(
    servers: str, admin: BlockingAdmin, topic: str, small: None
) -> None:
    admin.create_topic(topic, 1, 1, SOLE)
    write_rows(options(servers, topic), rows(0, 300), topic, 0)
    with pytest.raises(NotRepeatableError, match=f"{topic}-0: .* has written 100 rows more"):
        write_rows(options(servers, topic), rows(0, 200), topic, 0)
    assert len(values(servers, topic)) == 300


def test_rows_that_come_otherwise_are_told_of(
    servers: str, admin: BlockingAdmin, topic: str, small: None
) -> None:
    """The source lost its oldest rows between two runs: as many later ones must not be taken for written."""
    admin.create_topic(topic, 2, 1, SOLE)
    with pytest.raises(RuntimeError, match="planted"):
        write_rows(
            options(servers, topic),
            stopped(rows(0, 600), lambda: len(values(servers, topic)) == 600),
            topic,
            0,
        )
    written = sorted(values(servers, topic))
    with pytest.raises(NotRepeatableError, match="has written other rows than came this time: offset"):
        write_rows(options(servers, topic), rows(400, 2000), topic, 0)
    assert sorted(values(servers, topic)) == written
    assert write_rows(options(servers, topic), rows(0, 1000), topic, 0) == 1000
    assert sorted(values(servers, topic)) == list(range(1000))


def test_rows_that_come_again_are_compared_however_large_they_are_without_compression(
    servers: str, admin: BlockingAdmin, topic: str
) -> None:
    """The nodes take a batch by its compressed size, and the sink makes batches of up to 64 MiB."""
    admin.create_topic(topic, 1, 1, SOLE)
    large = pa.record_batch({"value": pa.array([bytes(63 << 20)], pa.binary())})
    packed = attrs.evolve(options(servers, topic), compression="zstd")
    for _ in range(2):
        assert write_rows(packed, iter([large]), topic, 0) == 1


def test_what_was_deleted_from_the_target_is_not_written_again(
    servers: str, admin: BlockingAdmin, topic: str, small: None
) -> None:
    admin.create_topic(topic, 2, 1, SOLE)
    with pytest.raises(RuntimeError, match="planted"):
        write_rows(
            options(servers, topic),
            stopped(rows(0, 600), lambda: len(values(servers, topic)) == 600),
            topic,
            0,
        )
    admin.delete_records({(topic, 0): -1, (topic, 1): -1})
    assert write_rows(options(servers, topic), rows(0, 1000), topic, 0) == 1000
    with BlockingConsumer(servers, auto_offset_reset="earliest") as consumer:
        ends = consumer.end_offsets(consumer.assign_topic(topic))
    assert sum(ends.values()) == 1000


def test_a_row_beyond_all_batches_is_told_of(
    servers: str, admin: BlockingAdmin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("insync.plugins.spark._writing.LARGEST_BATCH_BYTES", 10_000)
    admin.create_topic(topic, 1, 1, SOLE)
    large = pa.record_batch({"value": pa.array([b"x" * 20_000], pa.binary())})
    with pytest.raises(RecordTooLargeError, match="does not fit a batch of 10000 bytes"):
        write_rows(options(servers, topic), iter([large]), topic, 0)


def test_a_run_that_is_still_alive_is_fenced(
    servers: str, admin: BlockingAdmin, topic: str, small: None
) -> None:
    """It goes on beside its heir, with rows that were never to be written."""
    admin.create_topic(topic, 2, 1, SOLE)
    go_on = threading.Event()
    failures: list[BaseException] = []

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows(0, 500)
        assert go_on.wait(60)
        yield from rows(5000, 6000)

    def zombie() -> None:
        try:
            write_rows(options(servers, topic), slow(), topic, 0)
        except ReplicationError as error:
            failures.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    try:
        while len(values(servers, topic)) < 500:
            assert thread.is_alive()
        assert write_rows(options(servers, topic), rows(0, 1000), topic, 0) == 1000
    finally:
        go_on.set()
        thread.join(60)
    assert "INVALID_PRODUCER_EPOCH" in str(failures[0])
    assert sorted(values(servers, topic)) == list(range(1000))


def test_at_least_once_is_all_that_is_promised_otherwise(
    servers: str, admin: BlockingAdmin, topic: str
) -> None:
    admin.create_topic(topic, 2, 1, SOLE)
    for _ in range(2):
        write_rows(options(servers, topic, exactly_once=False), rows(0, 50), topic, 0)
    assert sorted(values(servers, topic)) == sorted([*range(50), *range(50)])

"""Tasks and drivers of the transactional sink, asked as Spark asks them, without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from insync.replication import BlockingAdmin
from insync.replication.client import ClientError, ProducerFencedError
from tests.requires import missing

from .test_transactional_sink import SOLE, decided, read

try:
    import pyarrow as pa

    from insync.plugins.spark._options import Connection
    from insync.plugins.spark._sink import InsyncWriter
    from insync.plugins.spark._transactions import abort_open, end_transaction, write_transaction
    from insync.plugins.spark._writing import WriteOptions
except ImportError as error:
    missing(f"{error.name} is not installed")

PATIENCE = 120


class Sink:
    """A query's sink of one topic; its rows are numbers."""

    def __init__(self, servers: str, admin: BlockingAdmin, topic: str) -> None:
        admin.create_topic(topic, 2, 1, SOLE)
        self.servers, self.topic, self.name = servers, topic, f"spark/{topic}"
        self.options = WriteOptions(
            connection=Connection(servers=servers),
            topic=topic,
            exactly_once=False,
            transactional=True,
            compression="none",
            batch_bytes=1024,
            delivery_timeout_ms=120_000,
        )

    def write(self, rows: Iterator[pa.RecordBatch], batch: int) -> object:
        return write_transaction(self.options, rows, self.name, batch)

    def end(self, written: object, *, committed: bool = True) -> None:
        end_transaction(self.options, written, committed=committed)  # type: ignore[arg-type]

    def seen(self) -> list[int]:
        """What readers of committed records get now."""
        return read(self.servers, self.topic)

    def decided(self) -> list[int]:
        return decided(self.servers, self.topic)

    def written(self) -> int:
        """How many records there are, committed or not."""
        return len(read(self.servers, self.topic, "read_uncommitted"))


@pytest.fixture
def sink(servers: str, admin: BlockingAdmin, topic: str) -> Sink:
    return Sink(servers, admin, topic)


def rows(start: int, stop: int) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    for first in range(start, stop, 200):
        numbers = range(first, min(first + 200, stop))
        columns = {"key": [b"k" * 40] * len(numbers), "value": [b"%d" % n for n in numbers]}
        yield pa.RecordBatch.from_pydict(columns, schema=schema)


def test_a_batch_that_comes_again_after_its_commit_is_left_out(sink: Sink) -> None:
    """The driver died between its commit and the checkpoint. The plan gives other rows now."""
    sink.end(sink.write(rows(0, 500), 0))
    sink.end(sink.write(rows(9_000, 9_600), 0))
    assert sink.decided() == list(range(500))
    sink.end(sink.write(rows(500, 700), 1))
    sink.end(sink.write(rows(9_000, 9_600), 1))
    assert sink.decided() == list(range(700))


def test_a_batch_is_seen_by_nobody_before_its_driver_commits_it(sink: Sink) -> None:
    first = sink.write(rows(0, 500), 0)
    assert (sink.written(), sink.seen()) == (500, [])
    sink.end(first)
    assert sink.decided() == list(range(500))


def test_a_batch_that_breaks_off_half_written_counts_nowhere(sink: Sink) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows(0, 2000)
        # An abort drops what still waits, which may be all of it.
        deadline = time.monotonic() + PATIENCE
        while not sink.written():
            assert time.monotonic() < deadline, "nothing was written before it broke off"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sink.write(failing(), 0)
    assert sink.decided() == []
    assert sink.written() > 0
    # A process that is gone aborts nothing: whoever comes next does, or its driver.
    sink.write(rows(2000, 3000), 0)
    assert sink.seen() == []
    abort_open(sink.options, sink.name)
    assert sink.decided() == []
    sink.write(rows(3000, 4000), 0)
    sink.end(sink.write(rows(0, 700), 0))
    assert sink.decided() == list(range(700))


def test_a_job_that_is_given_up_aborts_the_transaction_of_a_task_that_was_killed(sink: Sink) -> None:
    """Of such a task no message has come."""
    job = InsyncWriter(sink.options)
    job.write(rows(0, 500))
    assert (sink.written(), sink.seen()) == (500, [])
    job.abort([None])
    assert sink.decided() == []


def test_a_driver_that_stood_still_commits_nothing_and_aborts_nothing(sink: Sink) -> None:
    """Another one has run the batch again meanwhile."""
    old = sink.write(rows(9_000, 9_600), 0)
    new = sink.write(rows(0, 500), 0)
    with pytest.raises(ProducerFencedError):
        sink.end(old)
    sink.end(old, committed=False)
    assert sink.seen() == []
    sink.end(new)
    sink.end(new)
    with pytest.raises(ProducerFencedError):
        sink.end(old)
    assert sink.decided() == list(range(500))


def test_a_task_that_stood_still_writes_nothing_into_the_next_transaction(sink: Sink) -> None:
    waits, goes_on = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def halting() -> Iterator[pa.RecordBatch]:
        yield from rows(9_000, 10_000)
        waits.set()
        goes_on.wait(PATIENCE)
        yield from rows(10_000, 11_000)

    def task() -> None:
        try:
            sink.write(halting(), 0)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at below
            failures.append(error)

    thread = threading.Thread(target=task)
    thread.start()
    try:
        assert waits.wait(PATIENCE)
        new = sink.write(rows(0, 500), 0)
    finally:
        goes_on.set()
        thread.join(PATIENCE)
    assert [isinstance(each, ClientError) for each in failures] == [True], failures
    sink.end(new)
    assert sink.decided() == list(range(500))

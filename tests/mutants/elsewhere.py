"""Planted errors of transactions that the simulator does not play, or too seldom: in files, readers and views.

Each names a test that must fail while it is planted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
import trio.testing
from msgspec import structs

from insync.replication.client.consumer import _fetcher, _isolation
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.transaction_gate import TransactionGate
from insync.replication.core.transactions.marker_queue import MarkerQueue, MarkersAnswered
from insync.replication.core.transactions.shard import TransactionCoordinator
from insync.storage import disk_log
from insync.storage._transactions import Transactions
from insync.storage.compaction import _cleaner, _compaction
from tests.replication.client.consumer import test_isolation
from tests.replication.core.partition import test_transaction_gate
from tests.replication.core.transactions import test_markers
from tests.storage import test_transaction_model, test_transactions
from tests.storage.building import open_disk

from .registry import Patch, Registry

REGISTRY = Registry()
SHOWN: dict[str, Callable[[], None]] = {}
"""Of each the test that shows it."""


def mutant(name: str, title: str, shown: Callable[[], None]) -> Callable[[Any], Any]:
    SHOWN[name] = shown
    return REGISTRY.mutant(name, title)


def _in_a_folder(test: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        test(Path(folder))


def _with_a_log(test: Callable[[Any], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = open_disk(Path(folder) / "t-0", test_transactions.SETTINGS)
        try:
            test(log)
        finally:
            log.close(clean=False)


def _in_quick_time(test: Callable[..., Any]) -> None:
    """As with the fixture `autojump_clock`."""
    trio.run(test, None, clock=trio.testing.MockClock(autojump_threshold=0))


@mutant(
    "TZ28",
    "the look-up of aborted transactions stops at the end of a segment (AutoMQ#754)",
    partial(_in_a_folder, test_transaction_model.test_a_marker_may_lie_many_segments_behind_what_it_aborts),
)
def _(patch: Patch) -> None:
    right = disk_log.aborted_between
    patch.setattr(disk_log, "aborted_between", lambda indexes, *rest: right(list(indexes)[:1], *rest))


@mutant(
    "TZ29",
    "a reader stops at a marker (brod#659)",
    partial(_in_quick_time, test_isolation.test_what_is_open_waits_and_what_was_aborted_is_never_seen),
)
def _(patch: Patch) -> None:
    right = _isolation.committed

    def committed(chunk: _isolation.Chunk, aborted: Sequence[Any]) -> _isolation.Chunk:
        found = right(chunk, aborted)
        markers = [info.base_offset for info in chunk.batches if info.is_control]
        return attrs.evolve(found, next_offset=min([chunk.next_offset, *markers]))

    patch.setattr(_fetcher, "committed", committed)


def _a_range_ends_where_it_ends() -> None:
    from insync.plugins.spark import SparkError
    from tests.plugins.spark import test_stream_reader

    try:
        test_stream_reader.test_a_range_ends_where_it_ends_and_not_at_a_record()
    except SparkError as error:
        raise AssertionError(error) from error


@mutant(
    "TZ30",
    "a task of Spark waits for a record at the end of its range (druid#16689)",
    _a_range_ends_where_it_ends,
)
def _(patch: Patch) -> None:
    from insync.plugins.spark import _reading

    class Records:
        """A consumer that is where its last record was, and not behind markers and what compaction took."""

        def __init__(self, consumer: Any) -> None:
            self._consumer = consumer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._consumer, name)

        def seek(self, at: Any, offset: int, *, topic_id: str = "") -> None:
            self._offset = offset
            self._consumer.seek(at, offset, topic_id=topic_id)

        def position(self, at: Any) -> int:
            return self._offset

    right = _reading._Task.run

    def run(self: Any) -> Any:
        self._consumer = Records(self._consumer)
        return right(self)

    patch.setattr(_reading._Task, "run", run)


@mutant(
    "TZ31",
    "compaction drops the markers of what it leaves in the log (KAFKA-8351)",
    partial(
        _with_a_log, test_transactions.test_a_marker_stays_as_long_as_what_it_ends_and_then_as_tombstones_do
    ),
)
def _(patch: Patch) -> None:
    right = _cleaner.Copier._flags

    def flags(self: _cleaner.Copier, info: Any) -> int:
        found = right(self, info)
        marker = info.is_control and info.is_transactional
        return _cleaner.lib.ISR_CLEAN_DROP if marker else found

    patch.setattr(_cleaner.Copier, "_flags", flags)


@mutant(
    "TZ34",
    "compaction goes over a transaction that is open (KAFKA-7190)",
    partial(_with_a_log, test_transactions.test_nothing_counts_from_an_open_transaction_on),
)
def _(patch: Patch) -> None:
    patch.setattr(Transactions, "is_open", lambda self, info: False)


@mutant(
    "TZ47",
    "compaction takes what was aborted for committed",
    partial(_with_a_log, test_transactions.test_what_was_aborted_replaces_nothing_and_goes),
)
def _(patch: Patch) -> None:
    patch.setattr(Transactions, "is_aborted", lambda self, info: False)


@mutant(
    "TZ53",
    "a compacted index still names aborted transactions whose markers are gone",
    partial(
        _with_a_log,
        partial(
            test_transactions.test_readers_are_not_told_of_an_aborted_transaction_whose_marker_is_gone,
            is_last=False,
        ),
    ),
)
def _(patch: Patch) -> None:
    patch.setattr(_compaction.Pass, "ended", lambda self, aborted: list(aborted))


@mutant(
    "TZ12",
    "a partition counts as deleted by a view from before its creation",
    test_markers.test_only_a_view_that_must_know_of_it_says_that_a_topic_is_gone,
)
def _(patch: Patch) -> None:
    right = MarkerQueue._target

    def target(self: MarkerQueue, name: Any, view: Any) -> int | None:
        if view.leader(*name[1]) is None:
            self._done(name)
            return None
        return right(self, name, view)

    patch.setattr(MarkerQueue, "_target", target)


@mutant(
    "TZ14",
    "a partition counts as done when its node does not know it (redpanda#7061)",
    test_markers.test_a_node_that_does_not_know_a_partition_is_asked_again,
)
def _(patch: Patch) -> None:
    right = MarkerQueue.answered

    def answered(self: MarkerQueue, event: MarkersAnswered, now: float) -> None:
        done = tuple(
            structs.replace(each, error=0) if each.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else each
            for each in event.outcomes
        )
        right(self, MarkersAnswered(event.attempt, done), now)

    patch.setattr(MarkerQueue, "answered", answered)


@mutant(
    "TZ44",
    "an answer to the question of an earlier leadership counts",
    test_transaction_gate.test_nor_does_one_to_an_earlier_leadership,
)
def _(patch: Patch) -> None:
    right = TransactionGate.on_answered

    def on_answered(self: TransactionGate, event: ev.AddAnswered) -> None:
        asked = self._asked.get(event.producer_id)
        if asked is not None:
            event = structs.replace(event, leader_epoch=self._role.epoch, attempt=asked.attempt)
        right(self, event)

    patch.setattr(TransactionGate, "on_answered", on_answered)


@mutant(
    "TZ51",
    "a partition that is added again is not known to be newer than when it was first added",
    test_markers.test_a_topic_that_is_made_again_within_a_transaction_is_not_gone_by_a_view_of_before,
)
def _(patch: Patch) -> None:
    def seen(self: TransactionCoordinator, message: Any) -> None:
        there = self._revisions.setdefault(message.transactional_id, {})
        for each in getattr(message, "partitions", ()):
            there.setdefault((each.topic, each.partition), message.view_revision)

    patch.setattr(TransactionCoordinator, "_seen", seen)


@mutant(
    "TZ52",
    "a shard writes the offsets that it was admitted to write, whatever marker came meanwhile",
    partial(
        test_transaction_gate.test_what_a_shard_writes_too_late_is_refused_also_within_the_epoch, is_open=True
    ),
)
def _(patch: Patch) -> None:
    patch.setattr(TransactionGate, "_may_write", lambda self, batch, entry: True)

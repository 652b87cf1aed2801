"""The segments of a log that are compacted, when, and in which order: the same on disk and in memory."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import attrs

from .._transactions import AbortedTransaction, Transactions
from ..batch._columns import Buffer
from ..errors import CorruptBatchError, StorageError
from ..file_range import ReadableFile
from ..log import CompactionResult, EpochEntry, ProducerSnapshot
from ..segment._index import MAX_RELATIVE
from ..segment._segment import Spot
from ..settings import NEVER, UNLIMITED, LogSettings
from ._cleaner import Cleaned, Copier, KeyMap, Rules, Source, enter_keys

_SLICE_SECONDS = 0.1


class Segment(Protocol):
    """A segment as compaction sees it."""

    base_offset: int
    end: Spot

    @property
    def file(self) -> ReadableFile: ...

    @property
    def place(self) -> str: ...

    @property
    def first_timestamp(self) -> int: ...

    @property
    def last_written_ms(self) -> int: ...


S = TypeVar("S", bound=Segment)


class StoppedError(StorageError):
    """A compaction was asked to stop. Nothing of it is left."""


@attrs.frozen(slots=True)
class Plan(Generic[S]):
    """The segments that may be compacted, and those of them that never were."""

    clean: Sequence[S]
    dirty: Sequence[S]
    """The first may be compacted in part."""
    first_dirty_offset: int

    @property
    def segments(self) -> Sequence[S]:
        return (*self.clean, *self.dirty)


def plan(
    segments: Sequence[S],
    settings: LogSettings,
    now_ms: int,
    *,
    cleaned_offset: int,
    high_watermark: int,
) -> Plan[S]:
    """The segments that may be compacted: they are closed, end at or below the high watermark (KAFKA-13194) and
    hold nothing younger than the minimal lag.
    """
    clean: list[S] = []
    dirty: list[S] = []
    for segment in segments[:-1]:
        young = settings.min_compaction_lag_ms and (
            segment.last_written_ms > now_ms - settings.min_compaction_lag_ms
        )
        if segment.end.offset > high_watermark or (young and segment.end.offset > cleaned_offset):
            break
        (clean if segment.end.offset <= cleaned_offset else dirty).append(segment)
    return Plan(clean, dirty, cleaned_offset)


def is_due(found: Plan[S], settings: LogSettings, now_ms: int) -> bool:
    """Whether enough is dirty, or something has been for too long (KIP-354)."""
    dirty = sum(segment.end.position for segment in found.dirty)
    if not dirty:
        return False
    if _waits_too_long(found.dirty[0], settings, now_ms):
        return True
    whole = dirty + sum(segment.end.position for segment in found.clean)
    return dirty / whole > settings.min_cleanable_dirty_ratio


def is_outdated(last: Segment, settings: LogSettings, now_ms: int) -> bool:
    """Whether the active segment should be closed although no writes arrive."""
    limited = settings.deletes and settings.retention_ms != UNLIMITED
    old = limited and now_ms - last.last_written_ms > settings.retention_ms
    return old or _waits_too_long(last, settings, now_ms)


def _waits_too_long(segment: Segment, settings: LogSettings, now_ms: int) -> bool:
    if not settings.compacts or settings.max_compaction_lag_ms == NEVER:
        return False
    since = segment.first_timestamp if segment.first_timestamp >= 0 else segment.last_written_ms
    return now_ms - since > settings.max_compaction_lag_ms


def groups(
    segments: Iterable[S], settings: LogSettings, index_bytes: Callable[[S], int]
) -> Iterator[list[S]]:
    """Neighbours that fit one segment together, going by their sizes now."""
    group: list[S] = []
    for segment in segments:
        if group and (
            sum(each.end.position for each in group) + segment.end.position > settings.segment_bytes
            or sum(map(index_bytes, group)) + index_bytes(segment) > settings.segment_index_bytes
            or segment.end.offset - group[0].base_offset > MAX_RELATIVE
        ):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


class Pace:
    """Keeps to a number of bytes a second, and stops when asked to."""

    def __init__(self, bytes_per_second: float | None, stop: Callable[[], bool]) -> None:
        self._rate = bytes_per_second
        self._stop = stop
        self._begun = time.monotonic()
        self.bytes = 0

    def __call__(self, count: int) -> None:
        """`count` more bytes were read or written. Raises StoppedError."""
        self.bytes += count
        while True:
            if self._stop():
                raise StoppedError("the compaction was stopped")
            due = self._begun + (self.bytes / self._rate if self._rate else 0)
            wait = due - time.monotonic()
            if wait <= 0:
                return
            time.sleep(min(wait, _SLICE_SECONDS))


def producers_last(
    producers: Iterable[ProducerSnapshot], end_offset: int, now_ms: int, settings: LogSettings
) -> list[int]:
    """The last offsets of the batches that alone tell of a producer's sequence below an offset."""
    found = []
    for producer in producers:
        if now_ms - producer.timestamp_ms <= settings.producer_id_expiration_ms:
            found += [each.last_offset for each in producer.batches if each.last_offset < end_offset][-1:]
    return found


def markers_last(
    producers: Iterable[ProducerSnapshot], markers: Mapping[int, int], now_ms: int, settings: LogSettings
) -> list[int]:
    """The offsets of the markers that alone tell of a producer's epoch."""
    return [
        markers[each.producer_id]
        for each in producers
        if not each.batches
        and each.producer_id in markers
        and now_ms - each.timestamp_ms <= settings.producer_id_expiration_ms
    ]


@attrs.define(eq=False, slots=True)
class Totals:
    """Of all passes."""

    removed_bytes: int = 0
    removed: int = 0
    keyless: int = 0
    before: int = 0
    after: int = 0
    passes: int = 0
    unreadable: int = 0
    first_unreadable: str = ""

    def add(self, step: Pass[Any]) -> None:
        """A pass is done."""
        self.removed += step.done.removed
        self.keyless += step.done.keyless
        self.passes += 1
        # Each pass copies all that the ones before have copied.
        self.unreadable, self.first_unreadable = step.done.unreadable, step.done.first_unreadable

    def replaced(self, group: Sequence[Segment], size: int) -> None:
        """A segment of that size stands for the group."""
        self.removed_bytes += sum(segment.end.position for segment in group) - size
        self.before += len(group)
        self.after += 1

    def result(self, cleaned_offset: int, bytes_moved: int) -> CompactionResult:
        return CompactionResult(
            cleaned_offset=cleaned_offset,
            bytes_moved=bytes_moved,
            bytes_removed=self.removed_bytes,
            records_removed=self.removed,
            records_without_key=self.keyless,
            segments_before=self.before,
            segments_after=self.after,
            passes=self.passes,
            batches_unreadable=self.unreadable,
            first_unreadable=self.first_unreadable,
        )


class Pass(Generic[S]):
    """One pass over a log: the keys of as many dirty segments as fit, then copies of all up to there."""

    def __init__(
        self,
        found: Plan[S],
        settings: LogSettings,
        now_ms: int,
        producers: Iterable[ProducerSnapshot],
        epochs: Iterable[EpochEntry],
        pace: Pace,
        *,
        index_bytes: Callable[[S], int],
        key_map_bytes: int,
    ) -> None:
        self._pace = pace
        self._ends = {segment.base_offset: segment.end for segment in found.segments}

        @cache
        def transactions() -> Transactions:
            return Transactions.of(
                (segment.file, self._ends[segment.base_offset].position) for segment in found.segments
            )

        keys = KeyMap(key_map_bytes, sum(segment.end.position for segment in found.dirty))
        self.covered_offset = found.first_dirty_offset
        """Up to where keys are in the map: so far the log is compacted after this pass."""
        self.is_last = True
        for segment in found.dirty:
            with _named(segment):
                self.covered_offset, full = enter_keys(
                    keys, self._source(segment), found.first_dirty_offset, transactions, pace
                )
            self.is_last = not full
            if self.covered_offset < segment.end.offset:
                break
        if self.covered_offset == found.first_dirty_offset:
            # All that is new waits for a transaction to end.
            self.groups: list[list[S]] = []
            self.done = Cleaned()
            return
        known = [each for each in found.segments if each.base_offset < self.covered_offset]
        self.groups = list(groups(known, settings, index_bytes))
        """The segments whose copies make one."""
        # The last batch of each group stays: so every segment reaches up to the next. And that of each leader
        # epoch: so whoever copies this log learns where the next one began, and tells no reader of a truncation.
        kept = [group[-1].end.offset - 1 for group in self.groups]
        kept += [entry.start_offset - 1 for entry in epochs]
        if known:
            held = [*producers]
            kept += producers_last(held, known[-1].end.offset, now_ms, settings)
            if any(not each.batches and each.coordinator_epoch >= 0 for each in held):
                # A marker alone tells of the epoch that it has begun.
                kept += markers_last(held, transactions().markers, now_ms, settings)
        rules = Rules(kept, self.covered_offset, now_ms, settings.delete_retention_ms)
        self._copier = Copier(keys, rules, transactions)
        self.done = self._copier.done

    def copy(self, group: Sequence[S]) -> Iterator[Buffer]:
        """The pieces of a group's copy, each valid until the next. Groups are copied in order."""
        for segment in group:
            with _named(segment):
                for piece, read in self._copier.copy(self._source(segment)):
                    self._pace(read + len(piece))
                    yield piece

    def ended(self, aborted: Iterable[AbortedTransaction]) -> list[AbortedTransaction]:
        """Of what the indexes of a copied group say that of which the marker has stayed.

        To a reader everything of a producer is aborted from such an entry on to the next ABORT marker: without the
        marker it would pass over later transactions, which are committed.
        """
        return [each for each in aborted if each.last_offset in self._copier.markers]

    def _source(self, segment: S) -> Source:
        return Source(segment.file, segment.base_offset, self._ends[segment.base_offset])

    def place_of(self, group: Sequence[S], segments: Sequence[S]) -> int | None:
        """The place of the group among the log's segments; None if it has changed."""
        at = bisect_left(segments, group[0].base_offset, key=lambda each: each.base_offset)
        there = segments[at : at + len(group)]
        as_they_were = all(segment.end == self._ends[segment.base_offset] for segment in group)
        closed = at + len(group) < len(segments)
        return at if [*there] == [*group] and as_they_were and closed else None


@contextmanager
def _named(segment: Segment) -> Iterator[None]:
    """Have an error say where the damage is."""
    try:
        yield
    except CorruptBatchError as error:
        raise CorruptBatchError(error.position, error.reason, path=segment.place) from error

"""A log in memory: for tests, simulations and topics whose loss nobody minds."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs

from insync.storage._epochs import EpochCache
from insync.storage._files import write_all
from insync.storage._prepare import Piece, Placed, prepare
from insync.storage._producers import ProducerTable
from insync.storage._retention import expired
from insync.storage._transactions import AbortedTransaction, CompletedTransaction, marker_of
from insync.storage.batch import BatchInfo, records, scan
from insync.storage.batch._columns import Buffer
from insync.storage.compaction._compaction import Pace, Pass, StoppedError, Totals, is_due, is_outdated, plan
from insync.storage.errors import AppendError, LogClosedError, OffsetOutOfRangeError
from insync.storage.file_range import FileRange, RangeFile, read_at
from insync.storage.log import (
    KEY_MAP_BYTES,
    Chunk,
    CompactionResult,
    EpochEntry,
    Log,
    MaintenanceResult,
    ProducerSnapshot,
    ReadResult,
    TimestampedOffset,
    never,
)
from insync.storage.segment._index import MAX_RELATIVE
from insync.storage.segment._segment import Spot
from insync.storage.settings import UNLIMITED, LogSettings


@attrs.frozen(slots=True)
class _Held:
    """A batch. It also holds the offsets that compaction took away before it, from `start_offset` on."""

    start_offset: int
    next_offset: int
    position: int
    end: int
    info: BatchInfo
    base_offset: int
    max_timestamp: int
    """Of this batch and all before it in the segment."""


class _MemorySegment:
    """Batches in an anonymous file, so that ranges of it go the way of any other."""

    def __init__(self, name: str, base_offset: int) -> None:
        self._name = name
        self.base_offset = base_offset
        self.file = RangeFile(os.memfd_create(f"insync-{name}-{base_offset}"))
        self.held: list[_Held] = []
        self.end = Spot(0, base_offset)

    @property
    def place(self) -> str:
        """What it is called when it is damaged."""
        return f"segment {self.base_offset} of {self._name} in memory"

    @property
    def first_timestamp(self) -> int:
        return self.held[0].info.max_timestamp if self.held else -1

    @property
    def last_written_ms(self) -> int:
        if self.held and self.held[-1].max_timestamp >= 0:
            return self.held[-1].max_timestamp
        return os.fstat(self.file.fileno()).st_mtime_ns // 1_000_000

    def has_room(self, piece: Piece, settings: LogSettings) -> bool:
        if not self.held:
            return True
        if (
            self.end.position + piece.size > settings.segment_bytes
            or piece.batches[-1].last_offset - self.base_offset > MAX_RELATIVE
        ):
            return False
        first, newest = self.first_timestamp, piece.max_timestamp
        return first < 0 or newest < 0 or newest - first <= settings.roll_ms

    def write(self, buffers: Sequence[Buffer]) -> None:
        write_all(self.file.fileno(), buffers, self.end.position)

    def add(self, info: BatchInfo, place: Placed) -> None:
        """A batch stands behind the end."""
        position, offset = self.end
        latest = max(info.max_timestamp, self.held[-1].max_timestamp if self.held else -1)
        end = Spot(position + info.size_bytes, place.last_offset + 1)
        self.held.append(_Held(offset, end.offset, position, end.position, info, place.base_offset, latest))
        self.end = end

    def take(self, data: bytes) -> None:
        """Write whole batches as they are."""
        self.write([data])
        for info in scan(data):
            self.add(
                info, Placed(info.base_offset, info.next_offset - 1, info.size_bytes, info.max_timestamp)
            )

    def drop_unseen(self) -> None:
        """Remove bytes behind the end."""
        os.ftruncate(self.file.fileno(), self.end.position)

    def cut(self, keep: int) -> None:
        """Keep that many batches."""
        if keep < len(self.held):
            self.end = Spot(self.held[keep].position, self.held[keep].start_offset)
            del self.held[keep:]
            self.drop_unseen()


class MemoryLog(Log):
    """Segments like those on disk, and the same rules for them."""

    def __init__(self, topic: str, partition: int, *, settings: LogSettings | None = None) -> None:
        self.topic = topic
        self.partition = partition
        self.settings = settings or LogSettings()
        self._writing = threading.RLock()
        """Held by whoever changes the log."""
        self._segments: tuple[_MemorySegment, ...] = ()
        self._start = self._end = self._flushed = self.cleaned_offset = 0
        self._begin_segment(0)
        self._epochs = EpochCache(None)
        self._producers = ProducerTable()
        self._completed: list[CompletedTransaction] = []
        self._unmarked: set[int] = set()
        """Of those the last offsets whose markers compaction has taken away."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<MemoryLog {self.name} {self._start}..{self._end}>"

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def log_start_offset(self) -> int:
        return self._start

    @property
    def log_end_offset(self) -> int:
        return self._end

    @property
    def recovery_point(self) -> int:
        return self._flushed

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        return self._epochs.entries

    @property
    def size_bytes(self) -> int:
        return sum(segment.end.position for segment in self._segments)

    @property
    def segment_base_offsets(self) -> tuple[int, ...]:
        """Where each segment starts; the last is the one being written."""
        return tuple(segment.base_offset for segment in self._segments)

    def producer_states(self) -> tuple[ProducerSnapshot, ...]:
        return self._producers.snapshots()

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return [
            each.index_entry
            for each in self._completed
            if each.is_aborted and each.last_offset >= start_offset and each.first_offset < end_offset
            if each.last_offset not in self._unmarked
        ]

    def completed_transactions(self, offset: int) -> list[CompletedTransaction]:
        return [each for each in self._completed if each.last_offset >= offset]

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, limit_offset: int | None = None, min_one: bool = True
    ) -> ReadResult:
        segments, end = self._segments, self._end
        if not self._start <= offset <= end:
            raise OffsetOutOfRangeError(self.name, offset, self._start, end)
        limit = end if limit_offset is None else min(limit_offset, end)
        segment = segments[_segment_of(segments, offset)]
        held = segment.held
        first = bisect_right(held, offset, key=lambda each: each.start_offset) - 1
        stop = bisect_right(held, limit, key=lambda each: each.next_offset)
        if offset >= limit or stop <= first:
            return ReadResult(None, offset, offset, 0)
        start = held[first].position
        within = bisect_right(held, start + max_bytes, lo=first, hi=stop, key=lambda each: each.end)
        stop = max(within, first + 1) if min_one else within
        if stop == first:
            return ReadResult(None, offset, offset, 0)
        last, size = held[stop - 1], held[stop - 1].end - start
        return ReadResult(
            FileRange(segment.file, start, size), held[first].start_offset, last.next_offset, size
        )

    def offset_for_timestamp(
        self, timestamp_ms: int, *, stop: Callable[[], bool] = never
    ) -> TimestampedOffset | None:
        start, end = self._start, self._end
        for segment in self._segments:
            at = bisect_left(segment.held, timestamp_ms, key=lambda each: each.max_timestamp)
            for each in segment.held[at:]:
                if each.info.max_timestamp < timestamp_ms or each.base_offset >= end:
                    continue
                data = read_at(segment.file.fileno(), each.info.size_bytes, each.position)
                for record in records(data, start_offset=start):
                    if record.timestamp_ms >= timestamp_ms:
                        return TimestampedOffset(record.offset, record.timestamp_ms)
        return None

    # Writing

    def append(self, chunks: Sequence[Chunk]) -> None:
        self._check_open()
        pieces, epochs = prepare(self.name, chunks, self._end, self._epochs.latest)
        with self._writing:
            for piece in pieces:
                if not self._segments[-1].has_room(piece, self.settings):
                    self._begin_segment(self._segments[-1].end.offset)
                self._segments[-1].write(piece.buffers)
                self._hold(piece)
            self._enter(epochs)

    def _hold(self, piece: Piece) -> None:
        for info, place in zip(piece.infos, piece.batches, strict=True):
            self._segments[-1].add(info, place)
            ended = self._producers.add(info, place.base_offset, piece.markers.get(place.base_offset))
            if ended is not None:
                self._completed.append(ended)

    def _enter(self, epochs: Sequence[EpochEntry]) -> None:
        self._epochs.add(epochs)
        self._end = self._segments[-1].end.offset

    def _begin_segment(self, base_offset: int) -> None:
        self._segments = (*self._segments, _MemorySegment(self.name, base_offset))

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        self._check_open()
        if any(each.epoch > epoch and each.start_offset < self._end for each in self.epochs):
            raise AppendError(f"{self.name} holds batches of a leader epoch later than {epoch}")
        self._epochs.assign(epoch, start_offset)

    def truncate(self, offset: int) -> None:
        self._check_open()
        with self._writing:
            if offset < self._segments[0].base_offset:
                self.truncate_fully(offset)
                return
            if offset < self._end:
                self._cut(offset)
            self._epochs.trim_end(self._end)

    def _cut(self, offset: int) -> None:
        """The new end gets a segment of its own: a place in a file that readers were shown is not used again."""
        at = _segment_of(self._segments, offset)
        segment = self._segments[at]
        segment.cut(bisect_right(segment.held, offset, key=lambda each: each.start_offset) - 1)
        end = segment.end.offset
        self._segments = self._segments[: at + 1 if segment.held else at]
        self._begin_segment(end)
        self._end = end
        self._start, self._flushed = min(self._start, end), min(self._flushed, end)
        self.cleaned_offset = min(self.cleaned_offset, end)
        self._completed = [each for each in self._completed if each.last_offset < end]
        if not self._producers.cut(end):
            self._producers = ProducerTable()
            for kept in self._segments:
                for held in kept.held:
                    marker = None
                    if held.info.is_control:
                        marker = marker_of(read_at(kept.file.fileno(), held.info.size_bytes, held.position))
                    self._producers.add(held.info, held.base_offset, marker)

    def truncate_fully(self, new_start_offset: int) -> None:
        self._check_open()
        with self._writing:
            self._segments = ()
            self._begin_segment(new_start_offset)
            self._start = self._end = new_start_offset
            self._flushed = min(self._flushed, new_start_offset)
            self.cleaned_offset = min(self.cleaned_offset, new_start_offset)
            self._epochs.replace(())
            self._producers = ProducerTable()
            self._completed = []

    def advance_log_start_offset(self, offset: int) -> None:
        self._check_open()
        with self._writing:
            self._raise_start(min(offset, self._end))

    def _raise_start(self, offset: int) -> None:
        if offset > self._start:
            self._start = offset
            self._epochs.trim_start(offset)

    # Maintenance

    def maintain(
        self,
        now_ms: int,
        *,
        high_watermark: int,
        decides: bool = True,
        bytes_per_second: float | None = None,
        key_map_bytes: int = KEY_MAP_BYTES,
        stop: Callable[[], bool] = lambda: False,
    ) -> MaintenanceResult:
        self._check_open()
        with self._writing:
            deleted = self._delete_old_segments(now_ms, high_watermark, decides)
        done = None
        if self.settings.compacts:
            with suppress(StoppedError):
                done = self._compact(now_ms, high_watermark, Pace(bytes_per_second, stop), key_map_bytes)
        return MaintenanceResult(self._start, deleted, done)

    def _delete_old_segments(self, now_ms: int, high_watermark: int, decides: bool) -> int:
        settings, last = self.settings, self._segments[-1]
        whole = last.held and self._end <= high_watermark
        if whole and is_outdated(last, settings, now_ms):
            self._begin_segment(self._end)
        limited = settings.deletes and decides
        count = expired(
            self._segments,
            now_ms,
            retention_ms=settings.retention_ms if limited else UNLIMITED,
            retention_bytes=settings.retention_bytes if limited else UNLIMITED,
            log_start_offset=self._start,
            high_watermark=high_watermark,
        )
        if count:
            self._raise_start(self._segments[count].base_offset)
            self._segments = self._segments[count:]
        return count

    def _compact(
        self, now_ms: int, high_watermark: int, pace: Pace, key_map_bytes: int
    ) -> CompactionResult | None:
        totals = Totals()
        while True:
            segments = self._segments
            cleaned = max(self.cleaned_offset, segments[0].base_offset)
            found = plan(
                segments, self.settings, now_ms, cleaned_offset=cleaned, high_watermark=high_watermark
            )
            if not totals.passes and not is_due(found, self.settings, now_ms):
                return None
            if not found.dirty:
                return totals.result(cleaned, pace.bytes)
            # What a record is replaced by must not be lost by a crash that the record would have survived.
            self._flushed = max(self._flushed, found.segments[-1].end.offset)
            step = Pass(
                found,
                self.settings,
                now_ms,
                self._producers.snapshots(),
                self.epochs,
                pace,
                index_bytes=lambda _: 0,
                key_map_bytes=key_map_bytes,
            )
            for group in step.groups:
                self._replace(group, step, totals)
            totals.add(step)
            self.cleaned_offset = step.covered_offset
            if step.is_last:
                return totals.result(step.covered_offset, pace.bytes)

    def _replace(self, group: Sequence[_MemorySegment], step: Pass[_MemorySegment], totals: Totals) -> None:
        fresh = _MemorySegment(self.name, group[0].base_offset)
        for piece in step.copy(group):
            fresh.take(bytes(piece))
        modified = os.fstat(group[-1].file.fileno()).st_mtime_ns
        os.utime(fresh.file.fileno(), ns=(modified, modified))
        with self._writing:
            segments = self._segments
            at = step.place_of(group, segments)
            if at is None:
                raise StoppedError(f"{self.name} was truncated while it was compacted")
            self._segments = (*segments[:at], fresh, *segments[at + len(group) :])
        first, end = group[0].base_offset, group[-1].end.offset
        told = [each for each in self._completed if each.is_aborted and first <= each.last_offset < end]
        stay = step.ended(each.index_entry for each in told)
        self._unmarked |= {each.last_offset for each in told if each.index_entry not in stay}
        totals.replaced(group, fresh.end.position)

    def flush(self) -> None:
        self._check_open()
        self._flushed = self._end

    def crash(self, keep: int | None = None) -> None:
        """Lose what was not flushed, as a machine does that loses power; the log can be used on.

        `keep`: the log end offset to come back with, not below the recovery point; by default that point.
        """
        end = self._flushed if keep is None else max(keep, self._flushed)
        self.truncate(end)

    def close(self, clean: bool = True) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosedError(f"{self.name} is closed")


def _segment_of(segments: Sequence[_MemorySegment], offset: int) -> int:
    return bisect_right(segments, offset, key=lambda each: each.base_offset) - 1

"""A log in memory: for tests, simulations and topics whose loss nobody minds."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import attrs

from ._epochs import EpochCache
from ._files import write_all
from ._prepare import Piece, prepare
from ._producers import ProducerTable
from .batch import BatchInfo, records
from .errors import AppendError, LogClosedError, OffsetOutOfRangeError
from .file_range import FileRange, RangeFile, read_at
from .log import Chunk, EpochEntry, Log, ProducerSnapshot, ReadResult, TimestampedOffset


@attrs.frozen(slots=True)
class _Held:
    base_offset: int
    position: int
    info: BatchInfo
    max_timestamp: int
    """Of this batch and all before it."""


class MemoryLog(Log):
    """All batches in one anonymous file, so that ranges of it go the way of any other."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self._file = RangeFile(os.memfd_create(f"insync-{topic}-{partition}"))
        self._held: list[_Held] = []
        self._size = 0
        self._start = self._end = self._flushed = 0
        self._epochs = EpochCache(None)
        self._producers = ProducerTable()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<MemoryLog {self.topic}-{self.partition} {self._start}..{self._end}>"

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
        return self._size

    def append(self, chunks: Sequence[Chunk]) -> None:
        self._check_open()
        pieces, epochs = prepare(f"{self.topic}-{self.partition}", chunks, self._end, self._epochs.latest)
        buffers = [buffer for piece in pieces for buffer in piece.buffers]
        write_all(self._file.fileno(), buffers, self._size)
        for piece in pieces:
            self._hold(piece)
        self._epochs.add(epochs)
        if self._held:
            self._end = self._held[-1].base_offset + self._held[-1].info.last_offset_delta + 1

    def _hold(self, piece: Piece) -> None:
        for info, batch in zip(piece.infos, piece.batches, strict=True):
            latest = max(info.max_timestamp, self._held[-1].max_timestamp if self._held else -1)
            self._held.append(_Held(batch.base_offset, self._size, info, latest))
            self._producers.add(info, batch.base_offset)
            self._size += info.size_bytes

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        self._check_open()
        if any(each.epoch > epoch and each.start_offset < self._end for each in self.epochs):
            raise AppendError(
                f"{self.topic}-{self.partition} holds batches of a leader epoch later than {epoch}"
            )
        self._epochs.assign(epoch, start_offset)

    def truncate(self, offset: int) -> None:
        self._check_open()
        if offset < (self._held[0].base_offset if self._held else self._start):
            self.truncate_fully(offset)
            return
        if offset < self._end:
            keep = bisect_right(self._held, offset, key=lambda held: held.base_offset) - 1
            self._cut(keep)
        self._epochs.trim_end(self._end)

    def _cut(self, keep: int) -> None:
        """Keep that many batches."""
        cut = self._held[keep]
        self._end, self._size = cut.base_offset, cut.position
        del self._held[keep:]
        os.ftruncate(self._file.fileno(), self._size)
        self._start, self._flushed = min(self._start, self._end), min(self._flushed, self._end)
        if not self._producers.cut(self._end):
            self._producers = ProducerTable()
            for held in self._held:
                self._producers.add(held.info, held.base_offset)

    def truncate_fully(self, new_start_offset: int) -> None:
        self._check_open()
        self._held.clear()
        os.ftruncate(self._file.fileno(), 0)
        self._size = 0
        self._start = self._end = new_start_offset
        self._flushed = min(self._flushed, new_start_offset)
        self._epochs.replace(())
        self._producers = ProducerTable()

    def advance_log_start_offset(self, offset: int) -> None:
        self._check_open()
        offset = min(offset, self._end)
        if offset > self._start:
            self._start = offset
            self._epochs.trim_start(offset)

    def read(
        self, offset: int, *, max_bytes: int, limit_offset: int | None = None, min_one: bool = True
    ) -> ReadResult:
        end = self._end
        if not self._start <= offset <= end:
            raise OffsetOutOfRangeError(f"{self.topic}-{self.partition}", offset, self._start, end)
        limit = end if limit_offset is None else min(limit_offset, end)
        held = self._held
        first = bisect_right(held, offset, key=lambda each: each.base_offset) - 1
        stop = self._first_at(limit)
        if offset >= limit or stop <= first:
            return ReadResult(None, offset, offset, 0)
        start = held[first].position
        within = bisect_right(held, start + max_bytes, lo=first, hi=stop, key=_end_position)
        stop = max(within, first + 1) if min_one else within
        if stop == first:
            return ReadResult(None, offset, offset, 0)
        last = held[stop - 1]
        size = _end_position(last) - start
        next_offset = last.base_offset + last.info.last_offset_delta + 1
        return ReadResult(FileRange(self._file, start, size), held[first].base_offset, next_offset, size)

    def _first_at(self, limit: int) -> int:
        """The number of batches that end at or below `limit`."""
        return bisect_right(
            self._held, limit, key=lambda held: held.base_offset + held.info.last_offset_delta + 1
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        start, end, held = self._start, self._end, self._held
        for each in held[bisect_left(held, timestamp_ms, key=lambda each: each.max_timestamp) :]:
            if each.info.max_timestamp < timestamp_ms or each.base_offset >= end:
                continue
            data = read_at(self._file.fileno(), each.info.size_bytes, each.position)
            for record in records(data, start_offset=start):
                if record.timestamp_ms >= timestamp_ms:
                    return TimestampedOffset(record.offset, record.timestamp_ms)
        return None

    def producer_states(self) -> tuple[ProducerSnapshot, ...]:
        return self._producers.snapshots()

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
            raise LogClosedError(f"{self.topic}-{self.partition} is closed")


def _end_position(held: _Held) -> int:
    return held.position + held.info.size_bytes

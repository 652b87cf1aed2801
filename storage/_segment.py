"""One segment of a log: a `.log` file of batches, its `.index`, and where the latest batches lie."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ._columns import Buffer
from ._files import write_all
from ._index import MAX_RELATIVE, OffsetIndex
from ._native import ffi, lib
from .errors import CorruptBatchError, StorageBrokenError
from .file_range import RangeFile
from .settings import MAX_SEGMENT_BYTES, LogSettings

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"

_RECENT = 1024
_NO_LIMIT = (1 << 63) - 1


def segment_path(folder: Path, base_offset: int, suffix: str) -> Path:
    return folder / f"{base_offset:020d}{suffix}"


class Spot(NamedTuple):
    """Where a batch starts, and at which offset."""

    position: int
    offset: int


class _Recent:
    """Where the latest batches lie, in two generations, so that reads at the tail need no system call.

    Offsets are added after positions: whoever finds one in the first list finds its place in the second.
    """

    __slots__ = ("generations",)

    def __init__(self) -> None:
        self.generations: tuple[tuple[list[int], list[int]], ...] = (([], []),)

    def add(self, base_offset: int, position: int) -> None:
        offsets, positions = self.generations[0]
        if len(offsets) >= _RECENT:
            offsets, positions = [], []
            self.generations = ((offsets, positions), self.generations[0])
        positions.append(position)
        offsets.append(base_offset)

    def holding(self, offset: int) -> Spot | None:
        """The batch that holds `offset`, which is not above the last."""
        for offsets, positions in self.generations:
            if offsets and offsets[0] <= offset:
                at = bisect_right(offsets, offset) - 1
                return Spot(positions[at], offsets[at])
        return None

    def before(self, position: int) -> Spot | None:
        """The last batch that starts at or before `position`."""
        for offsets, positions in self.generations:
            if offsets and positions[0] <= position:
                at = bisect_right(positions, position, hi=len(offsets)) - 1
                return Spot(positions[at], offsets[at])
        return None


class Segment:
    """`end` is (position, offset) after the last batch; readers trust nothing behind it."""

    def __init__(self, folder: Path, base_offset: int, settings: LogSettings) -> None:
        self.base_offset = base_offset
        self.path = segment_path(folder, base_offset, LOG_SUFFIX)
        self.index_path = segment_path(folder, base_offset, INDEX_SUFFIX)
        self._settings = settings
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.file = RangeFile.open(str(self.path))
        self.index = OffsetIndex(self.index_path, base_offset)
        self.end = Spot(0, base_offset)
        self._recent = _Recent()
        self._since_entry = 0

    @property
    def file_size(self) -> int:
        return os.fstat(self._fd).st_size

    def has_room(self, pending: int, size: int, last_offset: int) -> bool:
        """Whether batches of `size` bytes up to `last_offset` may follow `pending` others; an empty segment
        takes any.
        """
        position = self.end.position + pending
        if last_offset - self.base_offset > MAX_RELATIVE or position + size > MAX_SEGMENT_BYTES:
            return False
        return position == 0 or (position + size <= self._settings.segment_bytes and not self.index.is_full)

    def open_for_writing(self) -> None:
        self.index.grow(self._settings.segment_index_bytes)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Put bytes into the file. They belong to the log only once `added` says so."""
        write_all(self._fd, buffers, position)

    def added(self, batches: Sequence[tuple[int, int, int]]) -> None:
        """Batches stand behind the end now, each (base offset, last offset, size): index them, move the end."""
        position, offset = self.end
        for base_offset, last_offset, size in batches:
            if self._since_entry > self._settings.index_interval_bytes:
                self.index.add(last_offset, position)
                self._since_entry = 0
            self._since_entry += size
            self._recent.add(base_offset, position)
            position += size
            offset = last_offset + 1
        self.end = Spot(position, offset)

    def cut(self, spot: Spot) -> None:
        """End the segment at a batch boundary, in the file as well."""
        self.end = spot
        self._recent = _Recent()
        self._since_entry = 0
        self.index.truncate(spot.position)
        os.ftruncate(self._fd, spot.position)

    def flush(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        """No more writing. Ranges that were read stay valid."""
        if self._fd >= 0:
            self.index.trim()
            os.close(self._fd)
            self._fd = -1

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self.index_path.unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def slice(self, offset: int, limit_offset: int, max_bytes: int, min_one: bool) -> tuple[Spot, Spot]:
        """First batch and end of the whole batches from the one holding `offset` to below the limits."""
        end = self.end
        start = self.holding(offset)
        stop = end if limit_offset >= end.offset else self.holding(limit_offset)
        if stop.position - start.position > max_bytes:
            stop = self._last_boundary(start, start.position + max_bytes)
            if stop.position <= start.position and min_one:
                stop = self._walk(start.position, stop_position=start.position, at_least_one=True)
        return start, max(start, stop)

    def holding(self, offset: int) -> Spot:
        """Where the batch that holds `offset` starts; `offset` is below the end."""
        recent = self._recent.holding(offset)
        if recent is not None:
            return recent
        return self._walk(self.index.position_for(offset), stop_offset=offset)

    def find_end(self) -> Spot:
        """The end of the batches in the file, going by their headers from the last index entry on.

        Raises CorruptBatchError if they do not end where the file does.
        """
        self.end = Spot(self.file_size, self.base_offset)
        if self.end.position:
            self.end = self._walk(self.index.last_entry()[1])
        return self.end

    def _last_boundary(self, start: Spot, position: int) -> Spot:
        """The last batch boundary that is not behind `position`."""
        recent = self._recent.before(position)
        if recent is not None and recent.position >= start.position:
            return recent
        entry = self.index.position_before(position)
        return self._walk(max(entry, start.position), stop_position=position)

    def _walk(
        self,
        start: int,
        *,
        stop_offset: int = _NO_LIMIT,
        stop_position: int = _NO_LIMIT,
        at_least_one: bool = False,
    ) -> Spot:
        """Go over whole batches from `start` while they end at or below both limits."""
        position, offset = ffi.new("int64_t *"), ffi.new("int64_t *", self.base_offset)
        reason = lib.isr_batch_walk_file(
            self.file.fileno(),
            start,
            self.end.position,
            stop_offset,
            stop_position,
            at_least_one,
            position,
            offset,
        )
        if reason == lib.ISR_IO_ERROR:
            raise StorageBrokenError(
                f"{self.path} cannot be read: {os.strerror(ffi.errno)}; check the device"
            )
        if reason != lib.ISR_OK:
            raise CorruptBatchError(position[0], "its header makes no sense", path=str(self.path))
        return Spot(position[0], offset[0])

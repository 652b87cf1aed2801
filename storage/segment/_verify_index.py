"""Checking the indexes of a segment against its batches, in one pass over both."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from .._opening import read_file
from ..batch._scan import BatchInfo

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")

Fault = tuple[int, int, str]
"""Position in the index file, the offset it is about, and what is wrong."""


def read_entries(path: Path, entry: struct.Struct) -> tuple[list[tuple[int, int]], int]:
    """An index file's entries, and how many bytes behind them are none. Raises OSError."""
    data = read_file(path) if path.exists() else b""
    extra = len(data) % entry.size
    # What a writer reserved and did not use is zeros, and no entry is.
    used = len(data[: len(data) - extra].rstrip(b"\0"))
    used += -used % entry.size
    return list(entry.iter_unpack(data[:used])), extra


class _IndexCheck(ABC):
    """Fed with the batches of a segment in order, then finished; both tell the faults found."""

    def __init__(self, path: Path, base_offset: int, entry: struct.Struct) -> None:
        self._base = base_offset
        self._size = entry.size
        self._entries, self._extra = read_entries(path, entry)
        self._at = 0

    @property
    def count(self) -> int:
        return len(self._entries)

    def _fault(self, offset: int, reason: str) -> Fault:
        return self._at * self._size, offset, reason

    def finish(self) -> Iterator[Fault]:
        """No more batches."""
        while self._at < len(self._entries):
            yield self._fault(self._offset(), "the entry lies behind the end of the log")
            self._at += 1
        if self._extra:
            size = len(self._entries) * self._size + self._extra
            yield size - self._extra, -1, f"the file's size is not a multiple of {self._size}"

    @abstractmethod
    def _offset(self) -> int:
        """The offset of the entry that is looked at."""


class OffsetIndexCheck(_IndexCheck):
    """Each entry must name a batch's position and its last offset, and both must rise."""

    def __init__(self, path: Path, base_offset: int) -> None:
        super().__init__(path, base_offset, OFFSET_ENTRY)

    def _offset(self) -> int:
        return self._base + self._entries[self._at][0]

    def saw(self, position: int, info: BatchInfo) -> Iterator[Fault]:
        while self._at < len(self._entries):
            offset, pointed = self._offset(), self._entries[self._at][1]
            if pointed > position:
                return
            if pointed < position:
                yield self._fault(offset, f"no batch starts at byte {pointed} of the log")
            elif offset != info.next_offset - 1:
                reason = f"the batch at byte {pointed} ends at offset {info.next_offset - 1}, not {offset}"
                yield self._fault(offset, reason)
            self._at += 1

    def skip(self, position: int) -> None:
        """Leave out entries before a position of the log: the log is damaged there."""
        while self._at < len(self._entries) and self._entries[self._at][1] < position:
            self._at += 1


class TimeIndexCheck(_IndexCheck):
    """Each entry must name the greatest timestamp of the batch that holds its offset, and timestamps must rise."""

    def __init__(self, path: Path, base_offset: int) -> None:
        super().__init__(path, base_offset, TIME_ENTRY)
        self._latest = -(1 << 63)

    def _offset(self) -> int:
        return self._base + self._entries[self._at][1]

    def saw(self, position: int, info: BatchInfo) -> Iterator[Fault]:
        while self._at < len(self._entries):
            offset, time = self._offset(), self._entries[self._at][0]
            if offset >= info.next_offset:
                return
            if offset < info.base_offset:
                yield self._fault(offset, "the log has no batch with that offset")
            elif time != info.max_timestamp:
                reason = f"the batch's greatest timestamp is {info.max_timestamp}, not {time}"
                yield self._fault(offset, reason)
            elif time < self._latest:
                yield self._fault(offset, f"timestamp {time} comes after {self._latest}")
            self._latest = max(self._latest, time)
            self._at += 1

    def skip_offset(self, offset: int) -> None:
        """Leave out entries below an offset: the log is damaged there."""
        while self._at < len(self._entries) and self._offset() < offset:
            self._at += 1

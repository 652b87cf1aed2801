"""The `.index` of a segment: every few KiB of log an entry that says which batch starts where.

Entries are 8 bytes, big endian: the last offset of a batch, relative to the segment's base, and the position of
its first byte, both i32 and rising. A file of the greatest size is mapped while the segment grows; unused room is
zeros until it is trimmed. There is no checksum: what does not look right is built anew from the log.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

ENTRY = struct.Struct(">ii")
MAX_RELATIVE = (1 << 31) - 1


class OffsetIndex:
    """One thread adds and truncates, another may search: an entry is counted only once it is written."""

    def __init__(self, path: Path, base_offset: int) -> None:
        self._path = path
        self._base = base_offset
        size = path.stat().st_size if path.exists() else 0
        self._is_whole = size % ENTRY.size == 0
        self._count = self._room = size // ENTRY.size
        self._map: mmap.mmap | bytes = b""
        self._resize(self._room)

    def grow(self, max_bytes: int) -> None:
        """Make room for writing."""
        self._resize(max(max_bytes // ENTRY.size, self._count))

    def trim(self) -> None:
        """Give up the room that is not used."""
        self._resize(self._count)

    def _resize(self, entries: int) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, entries * ENTRY.size)
            self._map = mmap.mmap(fd, entries * ENTRY.size) if entries else b""
        finally:
            os.close(fd)
        self._room = entries

    @property
    def is_full(self) -> bool:
        return self._count >= self._room

    def is_sane(self, log_size: int) -> bool:
        """Whether a file that was trimmed at a clean stop may be believed."""
        if not self._is_whole:
            return False
        if self._count == 0:
            return True
        relative, position = self._entry(self._count - 1)
        return relative >= 0 and 0 < position < log_size

    def last_entry(self) -> tuple[int, int]:
        """Offset and position of the last entry; the segment's start if there is none."""
        if self._count == 0:
            return self._base, 0
        relative, position = self._entry(self._count - 1)
        return self._base + relative, position

    def add(self, last_offset: int, position: int) -> None:
        """Enter the batch at `position`; nothing happens when the index is full."""
        if self.is_full:
            return
        assert isinstance(self._map, mmap.mmap)
        ENTRY.pack_into(self._map, self._count * ENTRY.size, last_offset - self._base, position)
        self._count += 1

    def position_for(self, offset: int) -> int:
        """Of a batch at or before the one that holds `offset`."""
        entry = bisect_right(range(self._count), offset - self._base, key=lambda at: self._entry(at)[0])
        return self._entry(entry - 1)[1] if entry else 0

    def position_before(self, position: int) -> int:
        """The greatest entry's position that is not above the one given."""
        entry = bisect_right(range(self._count), position, key=lambda at: self._entry(at)[1])
        return self._entry(entry - 1)[1] if entry else 0

    def truncate(self, position: int) -> None:
        """Drop the entries of batches at or behind `position`."""
        entry = bisect_right(range(self._count), position - 1, key=lambda at: self._entry(at)[1])
        self._count = entry

    def rebuild(self, entries: Iterable[tuple[int, int]]) -> None:
        """Replace all entries, given as (last offset, position)."""
        found = list(entries)
        self._count = 0
        self._is_whole = True
        self._resize(max(len(found), self._room))
        for last_offset, position in found:
            self.add(last_offset, position)

    def _entry(self, at: int) -> tuple[int, int]:
        return ENTRY.unpack_from(self._map, at * ENTRY.size)

"""The indexes of a segment: every few KiB of log an entry that says which batch starts where, and when.

The file is mapped, and grows in steps while the segment does: the device is asked for room before it is used.
Unused room is zeros until it is trimmed. There is no checksum: an index that looks wrong is built anew from the
log. A file that somebody has removed, cut or replaced is built anew when it is next written. Until then, entries
that are gone read as zeros, and a search begins at the segment's start.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from array import array
from pathlib import Path
from typing import Any

from .._files import fsync_file, replace_file
from .._native import ffi, lib
from .._opening import kind_of, make_way, open_file, remove_file

MAX_RELATIVE = (1 << 31) - 1
_SPARE = 1
"""Room for the entry that closes a time index."""
_STEP = 4096
"""Initial size of an index in bytes; it grows by doubling."""


class IndexFile:
    """Entries of one size. One thread adds and truncates, another may search: an entry is counted only once it
    is written.
    """

    ENTRY: struct.Struct

    def __init__(self, path: Path, base_offset: int) -> None:
        self.path = path
        self._base = base_offset
        self.existed = path.exists()
        size = path.stat().st_size if self.existed else 0
        self._is_whole = size % self.ENTRY.size == 0
        self._count = self._room = self._limit = size // self.ENTRY.size
        self._map: Any = b""
        self._mapping: Any = None
        self._identity = (0, 0)
        """Device and inode of the file that is mapped."""
        self._view: Any = None
        self._was_cut = False
        """There were more entries, which a search that has begun may still look at."""
        self._resize(self._room)

    def __len__(self) -> int:
        return self._count

    def grow(self, max_bytes: int) -> None:
        """Let it grow to that size."""
        self._limit = max(max_bytes // self.ENTRY.size, self._count)

    def needs_file(self, more: int) -> bool:
        """Whether so many more entries may need room, or some are known to be lost: time to ask what is `wrong`."""
        return self._count + more >= self._room or self.has_lost

    @property
    def has_lost(self) -> bool:
        """Whether entries were gone when they were looked for."""
        return self._mapping is not None and bool(self._mapping.lost)

    def wrong(self) -> str:
        """The change to the file, if it is not as it was left; else empty."""
        try:
            found = os.lstat(self.path)
            if stat.S_ISLNK(found.st_mode):
                found = os.stat(self.path)
        except OSError:
            what = kind_of(self.path)
            return f"it is {what} now" if what else "it was removed"
        if not stat.S_ISREG(found.st_mode):
            return f"it is {kind_of(self.path) or 'something else'} now"
        if (found.st_dev, found.st_ino) != self._identity:
            return "another file has its name"
        if found.st_size < self._room * self.ENTRY.size:
            return f"it was cut to {found.st_size} bytes"
        return "some of it could not be read" if self.has_lost else ""

    def replace(self, entries: bytes) -> None:
        """Have a new file, with these entries, in the place of whatever has the name. Raises OSError."""
        make_way(self.path)
        replace_file(self.path, entries, sync=False)
        count = len(entries) // self.ENTRY.size
        # Who searches meanwhile finds entries that are there, or none.
        self._count = min(self._count, count)
        self._resize(count)
        self._limit = max(self._limit, count + _SPARE)
        self._count = count
        self._was_cut = False
        self.existed = self._is_whole = True

    def trim(self) -> None:
        """Give up the room that is not used."""
        self._limit = self._count
        if self._was_cut:
            # Memory that is mapped must not lose its file. So the old one keeps its size, without a name.
            replace_file(self.path, self._map[: self._count * self.ENTRY.size], sync=False)
            self._was_cut = False
            self._resize(self._count)
        elif self._room != self._count:
            self._resize(self._count)

    def sync(self) -> None:
        """Bring the entries to the device."""
        fsync_file(self.path)

    def delete(self) -> None:
        remove_file(self.path)

    def rename(self, suffix: str) -> list[Path]:
        """Give the file another name, if it is there; the entries can still be read. Returns that name."""
        return renamed(self.path, suffix)

    def in_c(self) -> tuple[Any, int]:
        """The entries as bytes for C, which need the first of the two kept alive, and their number."""
        view = self._view
        return view, min(self._count, len(view) // self.ENTRY.size)

    def _resize(self, entries: int) -> None:
        """Raises OSError, with an unchanged file, without disk space."""
        size = entries * self.ENTRY.size
        fd = open_file(self.path, os.O_RDWR | os.O_CREAT)
        try:
            before = os.fstat(fd).st_size
            if size > before:
                _allocate(fd, before, size)
            elif size < before:
                os.ftruncate(fd, size)
            self._mapping, self._map = _map(fd, size)
            found = os.fstat(fd)
            self._identity = found.st_dev, found.st_ino
        finally:
            os.close(fd)
        self._view = ffi.from_buffer(self._map)
        self._room = entries

    def _put(self, first: int, second: int) -> None:
        if self._count >= self._room:
            self._grow()
        self.ENTRY.pack_into(self._map, self._count * self.ENTRY.size, first, second)
        self._count += 1

    def _grow(self) -> None:
        self._resize(min(self._limit, max(2 * self._count, _STEP // self.ENTRY.size)))

    def rebuild(self, entries: bytes | bytearray) -> None:
        """Replace all entries."""
        size = self.ENTRY.size
        self._count = 0
        self._limit = len(entries) // size + _SPARE
        self._resize(self._limit)
        self._map[: len(entries)] = bytes(entries)
        self._count = len(entries) // size
        self.existed = self._is_whole = True

    def _cut_to(self, count: int) -> None:
        self._was_cut = self._was_cut or count < self._count
        self._count = count

    def _count_up_to(self, field: int, value: int) -> int:
        """How many entries have at most that value in a field; written out, as every read does this twice."""
        low, high = 0, self._count
        size, unpack, entries = self.ENTRY.size, self.ENTRY.unpack_from, self._map
        while low < high:
            middle = (low + high) >> 1
            if unpack(entries, middle * size)[field] <= value:
                low = middle + 1
            else:
                high = middle
        return low

    def _entry(self, at: int) -> tuple[int, int]:
        first, second = self.ENTRY.unpack_from(self._map, at * self.ENTRY.size)
        return first, second


def _big_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def _allocate(fd: int, before: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, before, size - before)
    except OSError:
        os.ftruncate(fd, before)
        raise


def _map(fd: int, size: int) -> tuple[Any, Any]:
    """A file's bytes, unmapped with the last that holds them; unlike Python's own map it keeps no descriptor.

    Returns what C knows of the map (None for an empty one), and its bytes.
    """
    if size == 0:
        return None, b""
    mapping = lib.isr_map(fd, size)
    if mapping == ffi.NULL:
        raise OSError(ffi.errno, os.strerror(ffi.errno))
    start = ffi.gc(mapping.start, lambda _: lib.isr_unmap(mapping))
    return mapping, ffi.buffer(start, size)


def renamed(path: Path, suffix: str) -> list[Path]:
    """Give a file another name. Returns that name: none if the file is not there, which then harms nobody.

    Raises OSError.
    """
    make_way(path)
    aside = path.with_name(path.name + suffix)
    try:
        return [path.rename(aside)]
    except FileNotFoundError:
        return []


class OffsetIndex(IndexFile):
    """`.index`: 8 bytes, big endian: the last offset of a batch, relative to the segment's base, and the position
    of its first byte, both i32 and rising.
    """

    ENTRY = struct.Struct(">ii")

    @property
    def is_full(self) -> bool:
        return self._count >= self._limit

    def is_sane(self, log_size: int) -> bool:
        """Whether a file that was trimmed at a clean stop may be believed."""
        if not self._is_whole or (log_size and not self.existed):
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

    def add_all(self, entries: array[int]) -> None:
        """Enter batches: last offset, relative to the segment's base, and position of each; those go in for which
        there is room.
        """
        entries = entries[: 2 * (self._limit - self._count)]
        while (count := len(entries) // 2) > 0:
            if self._count >= self._room:
                self._grow()
            count = min(count, self._room - self._count)
            start = self._count * self.ENTRY.size
            self._map[start : start + count * self.ENTRY.size] = _big_endian(entries[: 2 * count])
            self._count += count
            entries = entries[2 * count :]

    def position_for(self, offset: int) -> int:
        """Of a batch at or before the one that holds `offset`."""
        entry = self._count_up_to(0, offset - self._base)
        return self._entry(entry - 1)[1] if entry else 0

    def position_before(self, position: int) -> int:
        """The greatest entry's position that is not above the one given; the segment's start if that is damaged."""
        entry = self._count_up_to(1, position)
        return max(0, self._entry(entry - 1)[1]) if entry else 0

    def truncate(self, position: int) -> None:
        """Drop the entries of batches at or behind `position`."""
        self._cut_to(self._count_up_to(1, position - 1))


class TimeIndex(IndexFile):
    """`.timeindex`: 12 bytes, big endian: a timestamp in ms (i64, rising) that no earlier batch reaches, and the
    last offset of the batch that has it (i32, relative to the segment's base).
    """

    ENTRY = struct.Struct(">qi")

    @property
    def is_full(self) -> bool:
        """One place is kept for the entry that `close_with` makes."""
        return self._count >= self._limit - 1

    def is_sane(self, log_end_offset: int) -> bool:
        """Whether a file that was trimmed may be believed, for a segment that ends there."""
        if not self._is_whole or not self.existed:
            return False
        if self._count == 0:
            return True
        timestamp, relative = self._entry(self._count - 1)
        return timestamp >= self._entry(0)[0] >= 0 and 0 <= relative < log_end_offset - self._base

    def last_entry(self) -> tuple[int, int]:
        """Timestamp and offset of the last entry; -1 and the segment's base if there is none."""
        if self._count == 0:
            return -1, self._base
        timestamp, relative = self._entry(self._count - 1)
        return timestamp, self._base + relative

    def add(self, timestamp: int, offset: int) -> None:
        """Enter the greatest timestamp so far; nothing happens if it is there already or the index is full."""
        if not self.is_full and timestamp > self.last_entry()[0]:
            self._put(timestamp, offset - self._base)

    def close_with(self, timestamp: int, offset: int) -> None:
        """The last entry of a segment that is closed: its greatest timestamp."""
        if self._count < self._limit and timestamp > self.last_entry()[0]:
            self._put(timestamp, offset - self._base)

    def offset_for(self, timestamp: int) -> int:
        """Where to look from: no batch that ends below this offset reaches the timestamp."""
        entry = self._count_up_to(0, timestamp)
        return self._base + (self._entry(entry - 1)[1] if entry else 0)

    def truncate(self, log_end_offset: int) -> None:
        """Drop the entries of offsets at or above the end."""
        relative = log_end_offset - self._base - 1
        self._cut_to(self._count_up_to(1, relative))

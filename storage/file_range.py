"""Byte ranges of segment files, which transports send by reference without reading them."""

from __future__ import annotations

import _thread
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from ._opening import open_file

CLOSED_ASIDE_FROM = 1 << 20
"""Bytes of a deleted file that the system takes a while to free: 10 to 60 ms for 170 MiB where it tells the device
what is free (`discard`).
"""


class ReadableFile(Protocol):
    """Anything with a descriptor that can be read at a position."""

    def fileno(self) -> int: ...


class Descriptor(int):
    """A descriptor number that keeps its file open. `os.fsync(segment.file.fileno())` holds only this number, while
    another thread may release the file.
    """

    owner: RangeFile


class RangeFile:
    """A descriptor that is closed when its last holder (a range, a segment or a call) is gone.

    A range therefore outlives the removal of its segment: unlinking a file does not affect open descriptors.
    """

    __slots__ = ("descriptor",)

    def __init__(self, fd: int) -> None:
        self.descriptor = fd
        """The number; valid for as long as this object lives."""

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> RangeFile:
        return cls(open_file(path, os.O_RDWR | (os.O_CREAT if create else 0)))

    def fileno(self) -> int:
        fd = Descriptor(self.descriptor)
        fd.owner = self
        return fd

    def __del__(self) -> None:
        close_aside(self.descriptor)


def close_aside(fd: int) -> None:
    """Close a descriptor, in a thread of its own if that may free a large file.

    A deleted file is freed by whoever closes it last: often an event loop, when it is done with a range.
    """
    # It may run in the collector, under any lock: `threading.Thread` would wait for one. RuntimeError: no thread is
    # to be had.
    with suppress(OSError, RuntimeError):
        state = os.fstat(fd)
        if not state.st_nlink and state.st_size >= CLOSED_ASIDE_FROM:
            _thread.start_new_thread(os.close, (fd,))
            return
    os.close(fd)


class FileRange(NamedTuple):
    """`length` bytes from `offset` on of an append-only file."""

    file: ReadableFile
    offset: int
    length: int
    data: bytes | None = None
    """The bytes, if they belong to the last small appends and are still in memory."""

    def fileno(self) -> int:
        """Valid for as long as this object lives."""
        return self.file.fileno()

    def read_bytes(self) -> bytes:
        """The bytes; fewer if the file was truncated meanwhile."""
        return read_at(self.file.fileno(), self.length, self.offset)


def read_at(fd: int, length: int, position: int) -> bytes:
    """`length` bytes of a file, fewer only at its end."""
    data = os.pread(fd, length, position)
    while 0 < len(data) < length:
        more = os.pread(fd, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data

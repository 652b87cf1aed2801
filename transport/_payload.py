"""Memory of received payloads."""

from __future__ import annotations

import errno
import mmap
import os
from collections import defaultdict
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

from . import _framing
from .errors import RangeTruncated
from .parts import FileRange

_KEPT_BYTES = 64 << 20
_MAX_POOLED = 16 << 20
_TIDY_PAUSE = 3.0


class PayloadPool:
    """Buffers for large payloads, kept warm: fresh memory costs a page fault every 4 KiB.

    A buffer is used again only when nobody looks at it any more: what a careless holder kept is never overwritten.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = defaultdict(list)
        self._kept = 0
        self._least: dict[int, int] = {}
        """How many of each size were not needed since `tidy` looked."""
        self._tidied = 0.0
        self._users = 0

    def take(self, size: int) -> BufferPayload:
        """A payload of `size` bytes, not yet filled."""
        capacity = max(1 << 16, 1 << (size - 1).bit_length())
        if capacity > _MAX_POOLED:
            # Pages come into being as they are filled. To zero all of them beforehand takes longer than others may
            # be kept waiting, and who declares much need not send it.
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return BufferPayload(memoryview(memory))
        free = self._free[capacity]
        if free:
            buffer = free.pop()
            self._kept -= capacity
            if len(free) < self._least.get(capacity, 0):
                self._least[capacity] = len(free)
        else:
            buffer = bytearray(capacity)
        return BufferPayload(memoryview(buffer)[:size], self, buffer)

    def give_back(self, buffer: bytearray) -> None:
        if self._kept + len(buffer) > _KEPT_BYTES or _is_looked_at(buffer):
            return
        self._free[len(buffer)].append(buffer)
        self._kept += len(buffer)

    def entered(self) -> None:
        """A connection begins."""
        self._users += 1

    def left(self) -> None:
        """A connection has ended; after the last one nothing is kept."""
        self._users -= 1
        if self._users <= 0:
            self._free.clear()
            self._least.clear()
            self._kept = 0

    def tidy(self, now: float) -> None:
        """Let go of what was not needed for `_TIDY_PAUSE` seconds. Called now and then, at a time of any clock."""
        if 0 <= now - self._tidied < _TIDY_PAUSE:
            return
        self._tidied = now
        for capacity, free in self._free.items():
            unused = free[: self._least.get(capacity, 0)]
            del free[: len(unused)]
            self._kept -= capacity * len(unused)
            self._least[capacity] = len(free)


def _is_looked_at(buffer: bytearray) -> bool:
    """Whether a memoryview of it is alive: a bytearray cannot change its length then."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False


POOL = PayloadPool()


class BufferPayload:
    """A payload in memory of our own."""

    __slots__ = ("_buffer", "_pool", "_view", "nbytes")

    source: Literal["pooled", "ring", "range"] = "pooled"

    def __init__(
        self, view: memoryview, pool: PayloadPool | None = None, buffer: bytearray | None = None
    ) -> None:
        self.nbytes = view.nbytes
        self._view: memoryview | None = view
        self._pool = pool
        self._buffer = buffer

    def view(self) -> memoryview:
        """The bytes. Raises ValueError after `release()`."""
        if self._view is None:
            raise ValueError("this payload has been released")
        return self._view

    def copy_to(self, fd: int, offset: int) -> int:
        """Write all of it to a file at `offset`; returns the number of bytes."""
        return _write(self.view(), fd, offset)

    def release(self) -> None:
        """Give the memory back. Idempotent."""
        self._view = None
        if self._pool is not None and self._buffer is not None:
            self._pool.give_back(self._buffer)
        self._pool = self._buffer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class BytesPayload(_framing.Copied):
    """A payload that is a copy already; that of most frames is empty."""

    __slots__ = ()

    source: Literal["pooled", "ring", "range"] = "pooled"

    def view(self) -> memoryview:
        """The bytes. Raises ValueError after `release()`."""
        if self._data is None:
            raise ValueError("this payload has been released")
        # One for each call: who is given a view may release it.
        return memoryview(self._data)

    def copy_to(self, fd: int, offset: int) -> int:
        """Write all of it to a file at `offset`; returns the number of bytes."""
        return _write(self.view(), fd, offset)

    def release(self) -> None:
        """Let go of the bytes. Idempotent."""
        self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data = None


bytes_payload = BytesPayload


class RangePayload:
    """A payload that lies in files, which the peer may still append to, cut or unlink. It holds the ranges.

    `view` reads them into memory, at once; `copy_to` leaves that to the system. Both read what is there at that
    time and raise RangeTruncated if a file was cut: what matters is checked afterwards, in memory or an own file.
    """

    __slots__ = ("_in_memory", "_ranges", "nbytes")

    source: Literal["pooled", "ring", "range"] = "range"

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        self.nbytes = sum(one.length for one in ranges)
        self._ranges: Sequence[FileRange] | None = ranges
        self._in_memory: BufferPayload | None = None

    def view(self) -> memoryview:
        """The bytes. Raises ValueError after `release()`, RangeTruncated if a file was cut."""
        if self._in_memory is None:
            ranges = self._held()
            self._in_memory = _read(ranges, self.nbytes)
        return self._in_memory.view()

    def copy_to(self, fd: int, offset: int) -> int:
        """Write all of it to a file at `offset`, without a way through this process's memory where possible."""
        at = offset
        for one in self._held():
            _copy(one, fd, at)
            at += one.length
        return at - offset

    def release(self) -> None:
        """Let go of the files. Idempotent."""
        self._ranges = None
        if self._in_memory is not None:
            self._in_memory.release()

    def _held(self) -> Sequence[FileRange]:
        if self._ranges is None:
            raise ValueError("this payload has been released")
        return self._ranges

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_NO_COPY_HERE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_PIECE_BYTES = 256 << 10


def _read(ranges: Sequence[FileRange], size: int) -> BufferPayload:
    payload = POOL.take(size)
    target = payload.view()
    at = 0
    for one in ranges:
        done = 0
        while done < one.length:
            count = os.preadv(one.fileno(), [target[at + done : at + one.length]], one.offset + done)
            if count == 0:
                raise _cut(one, done)
            done += count
        at += one.length
    return payload


def _copy(source: FileRange, fd: int, offset: int) -> None:
    done = 0
    while done < source.length:
        try:
            count = os.copy_file_range(
                source.fileno(), fd, source.length - done, source.offset + done, offset + done
            )
        except OSError as error:
            if error.errno not in _NO_COPY_HERE:
                raise
            _copy_by_reading(source, fd, offset, done)
            return
        if count == 0:
            raise _cut(source, done)
        done += count


def _copy_by_reading(source: FileRange, fd: int, offset: int, done: int) -> None:
    while done < source.length:
        piece = os.pread(source.fileno(), min(_PIECE_BYTES, source.length - done), source.offset + done)
        if not piece:
            raise _cut(source, done)
        done += _write(memoryview(piece), fd, offset + done)


def _write(view: memoryview, fd: int, offset: int) -> int:
    done = 0
    while done < view.nbytes:
        done += os.pwrite(fd, view[done:], offset + done)
    return done


def _cut(source: FileRange, done: int) -> RangeTruncated:
    return RangeTruncated(
        f"the peer's file ends at byte {source.offset + done}, inside the range of {source.length} bytes from "
        f"{source.offset} that it has handed over: it was cut meanwhile"
    )

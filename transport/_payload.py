"""Memory of received payloads."""

from __future__ import annotations

import os
from collections import defaultdict
from types import TracebackType
from typing import Literal, Self

_KEPT_BYTES = 64 << 20
_MAX_POOLED = 16 << 20


class PayloadPool:
    """Buffers for large payloads, kept warm: fresh memory costs a page fault every 4 KiB.

    A buffer is used again only when nobody looks at it any more: what a careless holder kept is never overwritten.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = defaultdict(list)
        self._kept = 0

    def take(self, size: int) -> BufferPayload:
        """A payload of `size` bytes, not yet filled."""
        capacity = max(1 << 16, 1 << (size - 1).bit_length())
        if capacity > _MAX_POOLED:
            return BufferPayload(memoryview(bytearray(size)))
        free = self._free[capacity]
        if free:
            buffer = free.pop()
            self._kept -= capacity
        else:
            buffer = bytearray(capacity)
        return BufferPayload(memoryview(buffer)[:size], self, buffer)

    def give_back(self, buffer: bytearray) -> None:
        if self._kept + len(buffer) > _KEPT_BYTES or _is_looked_at(buffer):
            return
        self._free[len(buffer)].append(buffer)
        self._kept += len(buffer)


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
        view = self.view()
        done = 0
        while done < view.nbytes:
            done += os.pwrite(fd, view[done:], offset + done)
        return done

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


def bytes_payload(data: bytes) -> BufferPayload:
    """A payload that is a copy already."""
    return BufferPayload(memoryview(data))

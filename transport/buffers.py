"""Memory that costs nothing until it is used, and can be given back while it stays where it is.

A link receives into a buffer that is large enough for a burst; most links are idle most of the time, and a node has
thousands. Pages of such a buffer come into being when the system writes into them, and `give_back` returns them.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

from ._payload import POOL

KEPT = 4 * mmap.PAGESIZE
"""Bytes at the beginning of a buffer that `LazyBuffer.give_back` leaves as they are.

A read that may be under way meanwhile goes there. Small frames always do: giving that back would cost a fault for
each.
"""


class LazyBuffer:
    """`size` bytes of memory, zeros at first. `view` is what to receive into."""

    __slots__ = ("_memory", "view")

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            # Neighbours would be joined to huge pages, of which the first byte costs two megabytes.
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.view = memoryview(self._memory)

    def give_back(self) -> None:
        """Forget what lies behind its first `KEPT` bytes, at once. A later look finds zeros there, also that of a
        read that has put something there and has not returned.
        """
        if len(self._memory) > KEPT:
            self._memory.madvise(mmap.MADV_DONTNEED, KEPT, len(self._memory) - KEPT)


__all__ = ["KEPT", "POOL", "LazyBuffer"]

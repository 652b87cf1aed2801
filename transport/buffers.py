"""Memory that costs nothing until it is used, and can be given back while it stays where it is.

A link receives into a buffer that is large enough for a burst; most links are idle most of the time, and a node has
thousands. Pages of such a buffer come into being when the system writes into them, and `give_back` returns them.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

_KEPT = 2 * mmap.PAGESIZE
"""Small frames always come to the beginning: giving that back would only cost a fault for each of them."""


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
        """Forget what is in it, but for the first bytes; whoever looks later sees zeros."""
        if len(self._memory) > _KEPT:
            self._memory.madvise(mmap.MADV_DONTNEED, _KEPT, len(self._memory) - _KEPT)


__all__ = ["LazyBuffer"]

"""Memory of large batches, used again when they are settled: fresh memory costs a page fault every 4 KiB."""

from __future__ import annotations

from collections import defaultdict

LARGE = 64 << 10
"""Buffers of at least this many bytes are worth keeping; sizes are rounded up to multiples of it."""
KEPT = 16 << 20
"""Bytes kept for later: about what a few leaders have under way."""


class Buffers:
    """Of one producer. A buffer still looked at (by a request that was given up, say) is never used again."""

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = defaultdict(list)
        self._kept = 0

    def take(self, size: int) -> bytearray:
        """At least `size` bytes, with anything in them."""
        capacity = -(-size // LARGE) * LARGE
        free = self._free[capacity]
        if not free:
            return bytearray(capacity)
        self._kept -= capacity
        return free.pop()

    def give_back(self, view: memoryview) -> None:
        """The memory of a batch that is settled."""
        buffer = view.obj
        assert isinstance(buffer, bytearray)
        try:
            view.release()
            # Its length cannot change while there is a view of it.
            buffer.append(buffer.pop())
        except BufferError:
            return
        if self._kept + len(buffer) <= KEPT:
            self._kept += len(buffer)
            self._free[len(buffer)].append(buffer)

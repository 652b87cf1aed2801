"""A bound on the bytes a second of what may wait."""

from __future__ import annotations

import trio


class Throttle:
    """Paid for afterwards: whoever has taken something pauses for as long as that should have taken."""

    def __init__(self, bytes_per_second: int) -> None:
        self.rate = bytes_per_second
        self._free_at = float("-inf")

    def took(self, size: int) -> None:
        self._free_at = max(self._free_at, trio.current_time()) + size / self.rate

    @property
    def pause(self) -> float:
        """Seconds until more may be taken; 0 if it may be at once."""
        if self._free_at == float("-inf"):
            return 0.0
        return max(0.0, self._free_at - trio.current_time())

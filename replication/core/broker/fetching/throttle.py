"""A bound on the bytes a second that a reassignment may take of a node (KIP-73)."""

from __future__ import annotations

UNLIMITED = 2**63 - 1
"""Bytes a second of no bound."""


class Throttle:
    """A limiter that is paid afterwards: after n bytes it asks for a pause of n / rate seconds."""

    def __init__(self, bytes_per_second: int) -> None:
        self.rate = bytes_per_second
        self._free_at = float("-inf")

    def took(self, size: int, now: float) -> None:
        """Account `size` bytes at clock reading `now`."""
        self._free_at = max(self._free_at, now) + size / self.rate

    def pause(self, now: float) -> float:
        """Seconds until more may be taken; 0 if it may be at once."""
        return max(0.0, self._free_at - now)

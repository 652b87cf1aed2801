"""A received payload that several partitions use: given back to the transport when the last is done with it."""

from __future__ import annotations

from ...transport import Payload


class SharedPayload:
    """Counts users; starts with one, its maker."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._users = 1
        self.view = payload.view()

    def slice(self, start: int, size: int) -> memoryview:
        """`size` bytes from `start` on, for one more user."""
        self._users += 1
        return self.view[start : start + size]

    def release(self) -> None:
        """One user is done."""
        self._users -= 1
        if self._users == 0:
            self._payload.release()

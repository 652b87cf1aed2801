"""A received payload that several partitions use: given back to the transport when the last is done with it."""

from __future__ import annotations

from ...transport import Payload


class SharedPayload:
    """Counts users; starts with one, its maker.

    The last one's end is also that of every slice: the transport uses memory again only if nobody looks at it.
    """

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._users = 1
        self.view = payload.view()
        self._slices: list[memoryview] = []

    def slice(self, start: int, size: int) -> memoryview:
        """`size` bytes from `start` on, for one more user."""
        self._users += 1
        part = self.view[start : start + size]
        self._slices.append(part)
        return part

    def release(self) -> None:
        """One user is done."""
        self._users -= 1
        if self._users == 0:
            for part in self._slices:
                part.release()
            self.view.release()
            self._payload.release()

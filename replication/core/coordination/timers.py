"""Deadlines by name. All of them can slip together: when nobody could be heard, nobody is late."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Times are monotonic seconds; setting a timer again moves it."""

    def __init__(self) -> None:
        self._due: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._slip = 0.0
        self._number = 0

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, due: float) -> None:
        self._number += 1
        self._due[key] = due - self._slip, self._number
        heapq.heappush(self._heap, (due - self._slip, self._number, key))
        # A timer that is moved at each heartbeat leaves one entry behind each time.
        if len(self._heap) > 64 + 4 * len(self._due):
            self._heap = [(at, number, name) for name, (at, number) in self._due.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> None:
        self._due.pop(key, None)

    def due(self, key: K) -> float | None:
        """When a timer goes by; None: it is not set."""
        found = self._due.get(key)
        return None if found is None else found[0] + self._slip

    def slip(self, seconds: float) -> None:
        """All go by so much later."""
        self._slip += seconds

    @property
    def deadline(self) -> float | None:
        while self._heap:
            at, number, key = self._heap[0]
            if self._due.get(key) == (at, number):
                return at + self._slip
            heapq.heappop(self._heap)
        return None

    def pop(self, now: float) -> K | None:
        """The next one whose time has come; None: there is none."""
        due = self.deadline
        if due is None or due > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._due[key]
        return key

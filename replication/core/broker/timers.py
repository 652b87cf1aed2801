"""Callbacks at readings of a clock that the host owns, and the time at which it owes the next call."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import attrs

NEVER = float("inf")
_MOST_DEAD = 64


def _nothing() -> None:
    pass


@attrs.define(eq=False, slots=True)
class Timer:
    """A callback to come; `cancel` makes it never come."""

    callback: Callable[[], None] | None
    _cancelled: Callable[[], None]

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._cancelled()


class Timers:
    """Call `run` at `deadline` or later. Callbacks that are due at the same time come in the order of `call_at`."""

    def __init__(self) -> None:
        self.on_sooner: Callable[[], None] = _nothing
        """Called when `deadline` has become sooner, for the host to look at it when it has time."""
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._dead = 0

    def __len__(self) -> int:
        """Timers held, cancelled ones included."""
        return len(self._heap)

    @property
    def deadline(self) -> float:
        """When `run` is due, in seconds of the host's clock; `NEVER` without timers."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            # Nobody is woken for these: most timers belong to requests that are answered long before.
            heapq.heappop(heap)
            self._dead -= 1
        return heap[0][0] if heap else NEVER

    def call_at(self, deadline: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback, self._on_cancelled)
        heapq.heappush(self._heap, (deadline, next(self._order), timer))
        if self._heap[0][2] is timer:
            self.on_sooner()
        return timer

    def run(self, now: float) -> None:
        """Call what is due at `now`, what those callbacks add for `now` included."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            timer = heapq.heappop(heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is None:
                self._dead -= 1
            else:
                callback()

    def _on_cancelled(self) -> None:
        """A request that is answered early leaves its timer behind: drop the dead when they are the most."""
        self._dead += 1
        if self._dead > _MOST_DEAD + len(self._heap) // 2:
            # In place: `run` may be looking at the list.
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._dead = 0

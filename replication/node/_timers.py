"""Callbacks at times of the trio clock: one task for all of them, so that a timer costs no task."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import attrs
import trio


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
    """A heap of callbacks. `run` is the task that calls them, and `after` when it has called all that were due."""

    def __init__(self, after: Callable[[], None] = lambda: None) -> None:
        self._after = after
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._sooner = trio.Event()
        self._dead = 0

    def __len__(self) -> int:
        """Timers held, cancelled ones included."""
        return len(self._heap)

    def call_at(self, deadline: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback, self._on_cancelled)
        heapq.heappush(self._heap, (deadline, next(self._order), timer))
        if self._heap[0][2] is timer:
            self._sooner.set()
        return timer

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self.call_at(trio.current_time() + seconds, callback)

    async def run(self) -> None:
        while True:
            self._sooner = trio.Event()
            with trio.move_on_at(self._heap[0][0] if self._heap else float("inf")):
                await self._sooner.wait()
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                timer = heapq.heappop(self._heap)[2]
                callback, timer.callback = timer.callback, None
                if callback is not None:
                    callback()
                else:
                    self._dead -= 1
            self._after()

    def _on_cancelled(self) -> None:
        """A long-poll that is answered early leaves its timer behind: drop the dead when they are the most."""
        self._dead += 1
        if self._dead > 64 + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._dead = 0

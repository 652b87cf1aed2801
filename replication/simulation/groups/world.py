"""Time, chance, and processes that stop for a while."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

Action = Callable[[], None]

LONGEST_DELAY = 6.0
"""Seconds that a message may take, if it was sent before the calm."""


class Process:
    """Something that may stand still or end. `clock` runs at its own rate."""

    def __init__(self, world: World, name: str, rate: float = 1.0) -> None:
        self.world = world
        self.name = name
        self.up = True
        self.paused = False
        self.held: list[Action] = []
        self._rate = rate
        self._skew = world.random.uniform(0, 1000)

    @property
    def clock(self) -> float:
        return self._skew + self.world.now * self._rate

    def true_time(self, clock: float) -> float:
        """When this process's clock shows that."""
        return (clock - self._skew) / self._rate

    def pause(self, seconds: float) -> None:
        if self.up and not self.paused:
            self.paused = True
            self.world.later(seconds, self.resume)

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            held, self.held = self.held, []
            for action in held:
                self.run(action)

    def run(self, action: Action) -> None:
        """Now, or when it goes on; never, if it has ended."""
        if not self.up:
            return
        if self.paused:
            self.held.append(action)
        else:
            action()

    def after(self, seconds: float, action: Action) -> None:
        """By this process's own clock."""
        # A little more: a clock that runs at its own rate must not be a rounding error short of the time.
        self.world.later(max(0.0, seconds) / self._rate + 1e-6, lambda: self.run(action))


class World:
    """Actions in the order of their times. Everything random comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"groups {seed}")
        self.now = 0.0
        self.calm = False
        self.events = 0
        self.cuts: set[frozenset[str]] = set()
        """Pairs between which nothing gets through."""
        self._queue: list[tuple[float, int, Action]] = []
        self._number = 0

    def later(self, seconds: float, action: Action) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + seconds, self._number, action))

    def run_until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            self.events += 1
            action()
        self.now = end

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def send(self, source: Process, target: Process, action: Action) -> None:
        """A message: late, doubled or lost now and then. A message to a paused process waits for it."""
        if frozenset({source.name, target.name}) in self.cuts:
            return
        copies = 1
        if not self.calm:
            if self.chance(0.01):
                return
            copies += self.chance(0.01)
        for _ in range(copies):
            delay = self.random.uniform(0.0005, 0.01)
            if not self.calm and self.chance(0.01):
                delay = self.random.uniform(0.1, LONGEST_DELAY)
            self.later(delay, lambda: target.run(action))

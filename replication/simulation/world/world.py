"""Virtual time, processes that die and stand still, and a network between them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from typing import Protocol

from ..faults.weather import Mishap, Weather
from ..settings import Settings
from .trace import Trace

Action = Callable[[], None]


class Process(Protocol):
    """The state of a node's process that the world needs to know."""

    id: int
    up: bool
    paused: bool
    process: int
    held: list[Action]


class World:
    """Runs actions in the order of their time; everything random comes from one seed."""

    def __init__(
        self, seed: int, settings: Settings, script: Mapping[str, Mishap] | None, *, keep_trace: bool
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.random = random.Random(f"world {seed}")
        self.weather = Weather(seed, settings, script)
        self.trace = Trace(keep=keep_trace)
        self.now = 0.0
        self.cuts: dict[tuple[int, int], int] = {}
        """(source, target) between which nothing gets through, and how many faults have it so."""
        self._queue: list[tuple[float, int, Process | None, int, Action]] = []
        self._ids = 0

    @property
    def calm(self) -> bool:
        return self.weather.calm

    @property
    def lull(self) -> bool:
        """Whether nobody begins to write."""
        begin = self.settings.lull_at
        return not self.calm and begin <= self.now < begin + self.settings.lull_for

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def later(self, delay: float, action: Action) -> None:
        self._ids += 1
        heapq.heappush(self._queue, (self.now + delay, self._ids, None, 0, action))

    def on(self, node: Process, delay: float, action: Action) -> None:
        """Run `action` in the process that `node` is now; a paused process runs it when it goes on."""
        self._ids += 1
        heapq.heappush(self._queue, (self.now + delay, self._ids, node, node.process, action))

    def run_until(self, end: float) -> None:
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= end:
            self.now, _, node, process, action = pop(queue)
            if node is not None:
                if not node.up or node.process != process:
                    continue
                if node.paused:
                    node.held.append(action)
                    continue
            action()
        self.now = end

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def delay(self) -> float:
        return 0.01 + 0.14 * self.random.random()

    def send(self, source: int, target: Process | None, action: Action) -> None:
        """A message: `source` 0 is a client, `target` None is one."""
        delay = self.delay()
        mishap = self.weather.message()
        if self.cuts and (source, target.id if target is not None else 0) in self.cuts:
            return
        if mishap is not None:
            what, seconds = mishap
            if what == "drop":
                return
            if what == "double":
                self._deliver(target, delay + seconds, action)
            else:
                delay = seconds
        self._deliver(target, delay, action)

    def _deliver(self, target: Process | None, delay: float, action: Action) -> None:
        self._ids += 1
        process = target.process if target is not None else 0
        heapq.heappush(self._queue, (self.now + delay, self._ids, target, process, action))

    def cut(self, pairs: list[tuple[int, int]], seconds: float) -> None:
        """Let nothing through from each pair's first to its second for so long."""
        for pair in pairs:
            self.cuts[pair] = self.cuts.get(pair, 0) + 1
        self.later(seconds, lambda: self._mend(pairs))

    def _mend(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            left = self.cuts.get(pair, 0) - 1
            if left > 0:
                self.cuts[pair] = left
            else:
                self.cuts.pop(pair, None)

    def note(self, text: str) -> None:
        if self.trace.keep:
            self.trace.note(self.now, text)

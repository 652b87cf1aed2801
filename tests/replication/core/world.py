"""Virtual time, and the two things that can go wrong between processes: a message, and a write to the store."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

import attrs

from insync.replication.core import controller as ctl
from insync.replication.core import effects as fx
from insync.replication.core import events as ev
from insync.replication.core.replica import Replica
from insync.replication.core.types import BatchMeta

from .model import Disk


@attrs.frozen(kw_only=True)
class Settings:
    """What the storm is made of; probabilities per message or per store write, rates per second."""

    nodes: int = 3
    min_isr: int = 2
    drop: float = 0.05
    double: float = 0.05
    late: float = 0.1
    unclear: float = 0.1
    unseen: float = 0.4
    log_failure: float = 0.002
    slow_disk: float = 0.05
    faults: float = 0.5
    moves: float = 0.3
    may_lose_data: bool = True
    registration_checks_all: bool = True


@attrs.define(eq=False)
class Sent:
    """A produce request; `again`: the same batch may be sent more than once."""

    payload: str
    acks: int
    batch: BatchMeta
    again: bool
    node: int
    process: int
    reply: fx.ReplyProduce | None = None
    by_the_leader: bool = False
    """Whether who answered was the leader by the store's record, too."""


@attrs.define(eq=False)
class Node:
    id: int
    disk: Disk = attrs.Factory(Disk)
    replica: Replica | None = None
    controller: ctl.Controller | None = None
    up: bool = False
    paused: bool = False
    process: int = 0
    incarnation: int = 0
    renewed: float = 0.0
    seen: int = -1
    registered: int = 0
    """The revision of this process's registration: what was read before is of its predecessor."""
    lost_data: bool = False
    store_cut: bool = False
    question: int = 0
    jobs: deque[fx.Append | fx.AssignEpoch | fx.Truncate] = attrs.Factory(deque)
    worker: int = 0
    busy: bool = False
    parked: dict[int, tuple[ev.Fetch, Callable[..., None]]] = attrs.Factory(dict)
    held: list[Callable[[], None]] = attrs.Factory(list)


class World:
    """Runs actions in the order of their time; everything random comes from one seed."""

    def __init__(self, seed: int, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.random = random.Random(seed)
        self.now = 0.0
        self.calm = False
        self.nodes = {number: Node(number) for number in range(1, self.settings.nodes + 1)}
        self.cuts: set[tuple[int, int]] = set()
        """(source, target) of nodes between which nothing gets through."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = 0

    def later(self, delay: float, action: Callable[[], None]) -> None:
        self._ids += 1
        heapq.heappush(self._queue, (self.now + delay, self._ids, action))

    def on(self, node: Node, delay: float, action: Callable[[], None]) -> None:
        """Run `action` in the process that `node` is now; a paused process runs it when it goes on."""
        process = node.process

        def go() -> None:
            if not node.up or node.process != process:
                return
            if node.paused:
                node.held.append(go)
            else:
                action()

        self.later(delay, go)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def run_until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end

    # Messages between nodes

    def send(self, source: int, target: Node, action: Callable[[], None]) -> None:
        if not self.calm and (self.chance(self.settings.drop) or (source, target.id) in self.cuts):
            return
        copies = 2 if not self.calm and self.chance(self.settings.double) else 1
        for _ in range(copies):
            self.on(target, self.delay(), action)

    def delay(self) -> float:
        if not self.calm and self.chance(self.settings.late):
            return self.random.uniform(0.5, 8.0)
        return self.random.uniform(0.01, 0.15)

    def transact(self, node: Node, write: Callable[[], object], done: Callable[[object], None]) -> None:
        """Do `write` in the store; `done` gets its result, or None if nobody knows."""
        fate = self.random.random() if not self.calm else 1.0
        if node.store_cut or fate < self.settings.unclear:
            if not node.store_cut and self.chance(0.7):
                self.later(self.random.choice((0.05, 0.5, 4.0)), write)  # type: ignore[arg-type]
            self.on(node, 0.6, lambda: done(None))
            return

        def arrive() -> None:
            result = write()
            self.on(node, self.delay(), lambda: done(result))

        self.later(self.random.uniform(0.01, 0.1), arrive)

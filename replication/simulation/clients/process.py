"""A process of a client: its own clock, and times at which it stands still or is cut off from nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..world.node import Node

if TYPE_CHECKING:
    from ..world.cluster import Cluster

Action = Callable[[], None]


class Process:
    """`clock` runs at its own rate."""

    def __init__(self, cluster: Cluster, name: str, rate: float = 1.0) -> None:
        self.cluster = cluster
        self.name = name
        self.up = True
        self.paused = False
        self._held: list[Action] = []
        self._rate = rate
        self._cut_until: dict[int, float] = {}

    def __repr__(self) -> str:
        return self.name

    @property
    def clock(self) -> float:
        """Seconds."""
        return self.cluster.now * self._rate

    def pause(self, seconds: float) -> None:
        """It stands still; a message to it waits."""
        if self.up and not self.paused:
            self.paused = True
            self.cluster.later(seconds, self.resume)

    def resume(self) -> None:
        """It goes on, if it stands still, with all that has come meanwhile."""
        if self.paused:
            self.paused = False
            held, self._held = self._held, []
            for action in held:
                self.run(action)

    def run(self, action: Action) -> None:
        """Now, or when it goes on; never, if it has ended."""
        if self.up and self.paused:
            self._held.append(action)
        elif self.up:
            action()

    def after(self, seconds: float, action: Action) -> None:
        """By its own clock, a little more: a rounding error must not make it short of the time."""
        self.cluster.later(max(0.0, seconds) / self._rate + 1e-6, lambda: self.run(action))

    def cut_off(self, seconds: float, *nodes: int) -> None:
        """Nothing gets from it to these nodes, nor back; without any, to no node."""
        for node in nodes or self.cluster.nodes:
            self._cut_until[node] = max(self.cluster.now + seconds, self._cut_until.get(node, 0.0))

    def mend(self) -> None:
        """All nodes can be reached again."""
        self._cut_until = {}

    def _reaches(self, node: Node) -> bool:
        return self.cluster.now >= self._cut_until.get(node.id, 0.0)

    def ask(self, node: Node, message: Any, told: Callable[[Any], None]) -> None:
        """Send a request to a node; `told` gets the answer, if it comes."""

        def answered(reply: Any) -> None:
            if self._reaches(node):
                self.run(lambda: told(reply))

        if self._reaches(node):
            self.cluster.coordinators.ask(node, message, answered)

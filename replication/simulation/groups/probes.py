"""Askers that are no members: what is committed, of any node; and joins that nobody follows up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.messages import groups as gm
from .world import Process

if TYPE_CHECKING:
    from .brokers import Broker, Cluster

FLOODED = "f"
"""A group that only such joins know."""


class Probe(Process):
    """Asks whoever takes itself for the coordinator: a client whose news of who leads may be old."""

    def __init__(self, cluster: Cluster, groups: tuple[str, ...]) -> None:
        super().__init__(cluster.world, "probe")
        self._cluster = cluster
        self._groups = groups
        self._joins = 0
        self.after(1.0, self._go_on)

    def _go_on(self) -> None:
        world = self.world
        broker = world.random.choice(self._cluster.brokers)
        if broker.leads:
            message = gm.GroupOffsetsRequest(
                group=world.random.choice(self._groups), require_stable=world.chance(0.5)
            )
            self._ask(broker, message)
            if not world.calm and world.chance(0.1):
                self._join(broker, world.random.choice((FLOODED, *self._groups)))
        self.after(world.random.uniform(0.05, 0.4), self._go_on)

    def _join(self, broker: Broker, group: str) -> None:
        """A client that is given an id, and dies; in a group of their own, many of them (KAFKA-7610)."""
        for _ in range(20 if group == FLOODED else 1):
            self._joins += 1
            message = gm.JoinGroupRequest(
                group=group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=8_000,
                protocol_type="consumer",
                protocols=[
                    gm.GroupProtocol(name="range", metadata=b""),
                    gm.GroupProtocol(name="cooperative-sticky", metadata=b""),
                ],
                known_member_id=True,
                fresh_id=f"stray-{self._joins}",
            )
            self._ask(broker, message)

    def _ask(self, broker: Broker, message: Any) -> None:
        self.world.send(self, broker, lambda: broker.ask(message, 5.0, -1, lambda reply: None))

"""How a node may ask others: one fetch at a time from each (L12), and after a failure with a pause (L13)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...core import messages as m
from ...core.broker import effects as fx
from ...core.partition.effects import FetchNext
from ...core.types import PartitionId
from ..errors import require
from ..world.node import Node

if TYPE_CHECKING:
    from ..world.cluster import Cluster

FETCH_BACKOFF = 0.3
"""The simulated `replica_fetch_backoff`, by the clock of the node that asks."""
_ROUNDING = 1e-6


class Pauses:
    """Told of every question and failure from outside; by process, so that a new one may ask at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._partitions: dict[tuple[int, int, PartitionId], float] = {}
        self._peers: dict[tuple[int, int, int, str], float] = {}

    def wants(self, node: Node, partition: PartitionId, question: FetchNext) -> None:
        """A replica asks for what comes next, perhaps after a failure."""
        pause = self._now(node) + FETCH_BACKOFF if question.delayed else 0.0
        self._partitions[node.id, node.process, partition] = pause

    def stops(self, node: Node, partition: PartitionId) -> None:
        """A replica does not want to know any more."""
        self._partitions.pop((node.id, node.process, partition), None)

    def asking(self, node: Node, peer: Node, ask: fx.Ask, under_way: Iterable[fx.Ask]) -> None:
        """A question goes out; `under_way`: those to the same peer that are neither answered nor given up."""
        if not isinstance(ask.message, m.FetchRequest):
            return
        others = [each for each in under_way if isinstance(each.message, m.FetchRequest)]
        require(
            not others, "L12", "node {} has {} fetches under way to {}", node.id, len(others) + 1, peer.id
        )
        for each in ask.message.partitions:
            partition = PartitionId(each.topic, each.partition)
            until = self._partitions.get((node.id, node.process, partition), 0.0)
            early = until - self._now(node)
            require(
                early < _ROUNDING, "L13", "node {} asks for {} {:g} s too early", node.id, partition, early
            )

    def dialling(self, node: Node, dial: fx.Dial) -> None:
        """A node is dialled."""
        until = self._peers.get((node.id, node.process, dial.peer, dial.lane), 0.0)
        early = until - self._now(node)
        require(early < _ROUNDING, "L13", "node {} dials node {} {:g} s too early", node.id, dial.peer, early)

    def dial_failed(self, node: Node, dial: fx.Dial) -> None:
        """Nobody answered, or nobody listens. A dial that was given up says nothing."""
        assert node.broker is not None
        if node.broker.channels.awaits(dial.dial):
            key = node.id, node.process, dial.peer, dial.lane
            self._peers[key] = self._now(node) + FETCH_BACKOFF

    def _now(self, node: Node) -> float:
        return node.clock(self._cluster.now)

"""The controller's questions to replicas about their logs, over a network that loses and delays them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..core.control import controller as ctl
from ..core.control.elections import LogInfo
from ..core.types import PartitionId
from .node import Node

if TYPE_CHECKING:
    from .cluster import Cluster

BOUND = 2.0
PAUSE = 0.3


class LogQuestions:
    """One round, as a node asks it: everybody at once and again until they answer, or the bound is reached."""

    def __init__(self, cluster: Cluster, node: Node, asked: ctl.AskReplicas) -> None:
        self._cluster = cluster
        self._node = node
        self._asked = asked
        self._told: dict[PartitionId, dict[int, LogInfo]] = {}
        self._over = False

    def begin(self) -> None:
        for target in sorted({node for nodes in self._asked.partitions.values() for node in nodes}):
            self._ask(target)
        self._cluster.on(self._node, BOUND, self._finish)

    def _ask(self, target: int) -> None:
        missing = [
            partition
            for partition, nodes in self._asked.partitions.items()
            if target in nodes and target not in self._told.get(partition, {})
        ]
        if self._over or not missing:
            return
        peer = self._cluster.nodes[target]
        self._cluster.send(self._node.id, peer, partial(self._answer, peer, missing))
        self._cluster.on(self._node, PAUSE, partial(self._ask, target))

    def _answer(self, peer: Node, partitions: list[PartitionId]) -> None:
        told: dict[PartitionId, LogInfo] = {}
        for partition in partitions:
            host = peer.hosts.get(partition)
            info = host.replica.log_info() if host is not None and host.replica is not None else None
            if info is not None and self._asked.is_answered(partition, info):
                assert host is not None
                if info.leader_epoch == self._asked.leader_epochs[partition]:
                    self._cluster.oracle.telling(host, info)
                told[partition] = info
        self._cluster.send(peer.id, self._node, partial(self._take, peer.id, told))

    def _take(self, target: int, told: dict[PartitionId, LogInfo]) -> None:
        for partition, info in told.items():
            self._told.setdefault(partition, {})[target] = info
        if all(
            set(nodes) <= self._told.get(partition, {}).keys()
            for partition, nodes in self._asked.partitions.items()
        ):
            self._finish()

    def _finish(self) -> None:
        if not self._over and self._node.controller is not None:
            self._over = True
            self._cluster.oracle.told(self._node.writer(self._node.incarnation), self._told)
            self._cluster.control(self._node, ctl.LogsTold(logs=self._told))

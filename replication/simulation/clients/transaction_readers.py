"""Consumers that read committed records alone (`isolation_level=read_committed`); the oracle judges them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...core.messages import FetchPartition
from ...core.messages.records import READ_COMMITTED
from ...core.types import PartitionId
from ..driver.fetches import BATCH_SIZE
from .plain import GIVES_UP

if TYPE_CHECKING:
    from ..world.cluster import Cluster

NEAR = 60
"""Offsets below the last stable one, at most, where it begins to read."""


class CommittedReader:
    """Reads anywhere from whoever leads, or believes so."""

    def __init__(self, cluster: Cluster, partition: PartitionId) -> None:
        self._cluster = cluster
        self._partition = partition
        self._facts = cluster.oracle.partitions[partition]

    def turn(self) -> None:
        cluster = self._cluster
        if cluster.calm or (self._facts.gone and cluster.chance(GIVES_UP)):
            return
        for host in cluster.leaders_of(self._partition):
            assert host.replica is not None
            stable = host.replica.log.last_stable_offset
            question = FetchPartition(
                topic=self._partition.topic,
                partition=self._partition.partition,
                # Where something was decided a moment ago.
                fetch_offset=max(0, stable - int(cluster.random.random() * NEAR)),
                max_bytes=1 + int(cluster.random.random() * 40 * BATCH_SIZE),
            )
            asked = partial(cluster.serve, host, question, isolation_level=READ_COMMITTED)
            cluster.send(0, host.node, asked)
        cluster.later(0.2 + cluster.random.random(), self.turn)

"""Proofs of folders when their processes begin, and the clocks by which records are deleted: S37, S39, S41, S42."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.broker.membership.registration import NextProof
from ..errors import require
from ..world.node import Host, Node

if TYPE_CHECKING:
    from ..world.cluster import Cluster


class Kept:
    """Looks at folders and clocks from outside."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def deleting_stranger(self, host: Host, identity: str) -> None:
        """S37: a start deletes a log under another topic id only if the store says that this id was deleted."""
        deleted = identity in self._cluster.store.deleted
        require(deleted, "S37", "{} names topic id {}, and is deleted", host.name, identity)

    def proved(self, node: Node) -> None:
        """S39: a process that registers counts for nothing where its identity files prove nothing."""
        for partition, topic_id in node.unproven:
            known = self._cluster.store.partitions.get(partition)
            if known is None or known.record.topic_id != topic_id:
                continue
            counts = node.id in (*known.record.isr, *known.record.elr)
            require(
                not counts,
                "S39",
                "node {} cannot prove its log of {}: {}",
                node.id,
                partition,
                known,
            )

    def proof_written(self, node: Node, proof: NextProof) -> None:
        """S42: a folder names no revision and no count that the store has not confirmed."""
        store = self._cluster.store
        if store.is_put_back:
            return
        pulses = store.pulses.get(node.id)
        counted = pulses.pulses.get(node.folder, 0) if pulses is not None else 0
        right = proof.revision <= store.revision and proof.stored <= counted
        require(
            right, "S42", "node {}: {} at revision {}, counted {}", node.id, proof, store.revision, counted
        )

    def clock_judged(self, node: Node, *, doubted: bool) -> None:
        """S41: where most of the clocks that a node knows are right, it doubts its own only if that is wrong."""
        known = [node.wall_ahead, *node.heard.values()]
        if 2 * known.count(0.0) > len(known) > 1:
            right = doubted == (node.wall_ahead != 0.0)
            require(right, "S41", "node {} doubts its clock: {}; clocks: {}", node.id, doubted, known)

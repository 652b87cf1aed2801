"""Automatic rebalance: leaderships that failures have moved go back to the preferred replicas."""

from __future__ import annotations

from . import transitions
from .records import PartitionRecord, Versioned, partition_key
from .view import ClusterView


def plan(view: ClusterView, imbalance_percentage: int) -> list[tuple[PartitionRecord, Versioned]]:
    """The records to write, with those they replace; none for a node whose imbalance is tolerable.

    A node's imbalance is the share of the partitions that prefer it which are led by others
    (`leader.imbalance.per.broker.percentage`). A partition that is being reassigned is left alone.
    """
    preferring: dict[int, list[Versioned]] = {}
    for versioned in view.partitions.values():
        preferring.setdefault(versioned.record.replicas[0], []).append(versioned)
    changes = []
    for node, partitions in preferring.items():
        elsewhere = [each for each in partitions if each.record.leader != node]
        if 100 * len(elsewhere) <= imbalance_percentage * len(partitions):
            continue
        for versioned in elsewhere:
            record = versioned.record
            stays = record.reassigning or partition_key(record.id) in view.unreadable
            moved = None if stays else transitions.prefer(record, view.live_for(record.id))
            if moved is not None:
                changes.append((moved, versioned))
    return changes

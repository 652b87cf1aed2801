"""Where the replicas of a node go when it is to have none: the plan for taking a node out of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..types import PartitionId


def drained(
    replicas: Mapping[PartitionId, Sequence[int]], node: int, racks: Mapping[int, str]
) -> dict[PartitionId, list[int] | None]:
    """For each partition that has a replica on `node`: its replicas with another node in that place.

    `racks` names the nodes that may take replicas. The successor is in a rack where the partition has no other
    replica, if there is one (KIP-36), and has the fewest replicas of those. It takes the place of `node` in the
    order of preference, so that leaderships move as replicas do. None: every other node has a replica already.
    """
    held = Counter(each for nodes in replicas.values() for each in nodes)
    plan: dict[PartitionId, list[int] | None] = {}
    for partition, nodes in sorted(replicas.items()):
        if node not in nodes:
            continue
        taken = {racks.get(each, "") for each in nodes if each != node}
        candidates = [each for each in racks if each != node and each not in nodes]
        if not candidates:
            plan[partition] = None
            continue
        successor = min(
            candidates, key=lambda each: (racks[each] != "" and racks[each] in taken, held[each], each)
        )
        held[successor] += 1
        plan[partition] = [successor if each == node else each for each in nodes]
    return plan

"""How many partitions the nodes can take, so that a topic that is too large is refused before it is made."""

from __future__ import annotations

from collections import Counter

from ..errors import ErrorCode
from ..wording import counted
from .topics import TopicError, assign
from .view import ClusterView


def room(view: ClusterView) -> dict[int, int]:
    """How many replicas more each living node takes; below 0 where a node has more than it says it takes."""
    hosted = Counter(node for known in view.partitions.values() for node in known.record.replicas)
    return {node: each.max_partitions - hosted[node] for node, each in view.nodes.items()}


def check_room(name: str, replication_factor: int, partitions: int, view: ClusterView) -> None:
    """Whether `partitions` new partitions of a topic fit on the nodes that are alive, placed as they would be.

    The cost is bounded by what the nodes can host, whatever the number asked for.

    Raises:
      TopicError: They do not fit; the text says how many would.
    """
    hosted = Counter(node for known in view.partitions.values() for node in known.record.replicas)
    free = {node: max(0, each.max_partitions - hosted[node]) for node, each in view.staying.items()}
    most = min(partitions, sum(free.values()) // replication_factor)
    racks = {node: record.rack for node, record in view.staying.items()}
    fits = 0
    for replicas in assign(racks, most, replication_factor, len(view.partitions)):
        for node in replicas:
            free[node] -= 1
        if any(free[node] < 0 for node in replicas):
            break
        fits += 1
    if fits < partitions:
        told = ", ".join(
            f"node {node} has {hosted[node]} of {each.max_partitions}"
            for node, each in sorted(view.staying.items())
        )
        raise TopicError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {name!r} asks for {counted(partitions, 'new partition')} of "
            f"{counted(replication_factor, 'replica')}, but only {fits} can stand on the nodes that are alive "
            f"({told}): ask for at most {fits}, start more nodes, or raise max_partitions_per_node",
        )

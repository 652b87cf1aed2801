"""Replicas that a client has chosen for new partitions, in the place of those that the controller would choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import ErrorCode
from ..wording import counted
from .capacity import room
from .topics import TopicError
from .view import ClusterView

_MOST_TOLD = 100


def check(
    name: str, assignments: Sequence[Sequence[int]], replication_factor: int, view: ClusterView
) -> None:
    """Whether new partitions can be placed so: on living nodes, each once, and as many for each partition.

    Raises:
      TopicError: They are impossible; the text names the first such partition.
    """
    living = view.staying
    for number, replicas in enumerate(assignments):
        problem = ""
        strangers = [node for node in replicas if node not in living]
        if not replicas:
            problem = "names no node: name one for each replica"
        elif len(set(replicas)) < len(replicas):
            problem = f"{_told(replicas)} names a node twice: name each once"
        elif len(replicas) != replication_factor:
            problem = (
                f"{_told(replicas)} names {counted(len(replicas), 'node')}, and the replication factor is "
                f"{replication_factor}: name as many nodes for each partition"
            )
        elif strangers:
            there = ", ".join(map(str, sorted(living))) or "none"
            problem = f"node {strangers[0]} is not alive: choose among {there}"
        if problem:
            raise TopicError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"topic {name!r}: the assignment of new partition {number}: {problem}",
            )
    free = room(view)
    for node, count in sorted(Counter(node for replicas in assignments for node in replicas).items()):
        if count > free[node]:
            raise TopicError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"topic {name!r}: node {node} is to take {counted(count, 'replica')}, "
                f"and takes {max(0, free[node])} more: choose other nodes, or raise its max_partitions_per_node",
            )


def _told(replicas: Sequence[int]) -> str:
    """As many as an answer has room for, whatever a client has given."""
    return f"{[*replicas[:_MOST_TOLD]]}" + (" and more" if len(replicas) > _MOST_TOLD else "")

"""Faults that wait for a moment at which they hurt, because chance alone hits it too seldom."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ...core.types import PartitionId

Strike = Callable[[Sequence[int], PartitionId], None]
"""Gets the nodes and the partition that the moment is about."""

JOIN = "join"
"""A leader proposes a member: the one that is to join."""
ADD = "add"
"""The same moment: the leader, and the one that is to join."""
ELECTION = "election"
"""A leadership changes: the members of the ISR, and those eligible."""
END = "end"
"""A coordinator is asked to end a transaction: its node."""
MARKER = "marker"
"""A marker reaches the node that is to write it: the coordinator's node, and that one."""


class Traps:
    """Each trap springs once, at the next moment of its kind."""

    def __init__(self) -> None:
        self._laid: dict[str, deque[Strike]] = {
            moment: deque() for moment in (JOIN, ADD, ELECTION, END, MARKER)
        }
        self.late_answers: deque[float] = deque()
        """How much later leaders hear what became of the next members that they propose, each."""

        self.late_writes: deque[float] = deque()
        """How much later the next proposals of a member reach the store, each."""

    def lay(self, moment: str, strike: Strike) -> None:
        self._laid[moment].append(strike)

    def lateness(self) -> float:
        """Of the answer to a proposal that is made now."""
        return self.late_answers.popleft() if self.late_answers else 0.0

    def write_lateness(self) -> float:
        """Of a proposal that is made now, on its way to the store."""
        return self.late_writes.popleft() if self.late_writes else 0.0

    def spring(self, moment: str, nodes: Sequence[int], partition: PartitionId) -> None:
        """The moment is there; `nodes` are not empty, or nothing happens."""
        laid = self._laid[moment]
        if laid and nodes:
            laid.popleft()(nodes, partition)

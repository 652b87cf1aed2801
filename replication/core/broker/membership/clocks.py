"""Whether this node's wall clock can be believed: what is old is deleted for good, and that clock says what is old.

Every clock is held as its distance from a clock that cannot be set, so that a wall clock that jumps is found out
when it is looked at next, not when another node is heard of next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import median_low

import msgspec


class ClockVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of this node's clock with the clocks that it hears of.

    difference: seconds by which this node's clock, if it is doubted, is ahead of the others' (less than 0: behind).
    is_decided: whether the clocks of a majority agree, so that the others are wrong.
    heard: the other nodes whose clocks are known.
    wrong: seconds by which other nodes' clocks are ahead of those of the majority.
    """

    difference: float = 0.0
    is_decided: bool = True
    heard: tuple[int, ...] = ()
    wrong: Mapping[int, float] = msgspec.field(default_factory=dict)

    @property
    def finding(self) -> tuple[object, ...]:
        """Equal for two verdicts that are the same news."""
        doubted = (self.is_decided, bool(self.heard)) if self.difference else ()
        return *doubted, *sorted(self.wrong)

    @property
    def problem(self) -> str:
        """Why this node deletes nothing; empty if its clock is believed."""
        if not self.difference:
            return ""
        if not self.heard:
            return f"this node's clock has jumped {_seconds(self.difference)} its start, {_NOTHING}; set it right"
        if self.is_decided:
            return f"this node's clock is {_seconds(self.difference)} those of most nodes, {_NOTHING}; set it right"
        nodes = ", ".join(map(str, self.heard))
        return (
            f"this node's clock is {_seconds(self.difference)} those of the other nodes that it hears of "
            f"({nodes}), and no majority shows which are wrong, {_NOTHING}; set the wrong ones right"
        )

    def other_problem(self, node_id: int) -> str:
        """Of one that is `wrong`."""
        return (
            f"the clock of node {node_id} is {_seconds(self.wrong[node_id])} those of most nodes: set it right "
            "there; that node deletes nothing meanwhile"
        )


_NOTHING = "so nothing is deleted or compacted here"


def _seconds(difference: float) -> str:
    return f"{abs(difference):.0f} s {'ahead of' if difference > 0 else 'behind'}"


class WallClocks:
    """One thread tells what it hears, others may ask."""

    def __init__(self, own_distance: float, max_difference: float) -> None:
        """
        own_distance: seconds from the clock that cannot be set to this node's wall clock, at the start.
        max_difference: seconds by which clocks may differ.
        """
        self._max_difference = max_difference
        self._at_start = own_distance
        self._peers: Mapping[int, float] = {}
        """Never changed but replaced: other threads look at it."""

    def heard(self, node_id: int, distance: float) -> None:
        """Note the wall clock of another node, as a distance from our clock that cannot be set."""
        self._peers = {**self._peers, node_id: distance}

    def keep(self, node_ids: Collection[int]) -> None:
        """Forget the other nodes: they have left the cluster."""
        if any(each not in node_ids for each in self._peers):
            self._peers = {each: found for each, found in self._peers.items() if each in node_ids}

    def judge(self, own_distance: float) -> ClockVerdict:
        """Compare this node's clock with those of the others, and without others with what it said at the start.

        More than half of the clocks that agree with each other are right. Without such a majority, as between two
        nodes, this node doubts its own where that is not the others'.
        """
        peers = self._peers
        if not peers:
            return ClockVerdict(difference=self._beyond(own_distance - self._at_start))
        heard, clocks = tuple(sorted(peers)), [own_distance, *peers.values()]
        right = median_low(clocks)
        if 2 * sum(not self._beyond(each - right) for each in clocks) <= len(clocks):
            right = median_low(peers.values())
            return ClockVerdict(difference=self._beyond(own_distance - right), is_decided=False, heard=heard)
        apart = {node_id: self._beyond(each - right) for node_id, each in peers.items()}
        return ClockVerdict(
            difference=self._beyond(own_distance - right),
            heard=heard,
            wrong={node_id: by for node_id, by in apart.items() if by},
        )

    def _beyond(self, difference: float) -> float:
        """A difference that is too much; else 0."""
        return difference if abs(difference) > self._max_difference else 0.0

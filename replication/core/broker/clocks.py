"""Whether this node's wall clock can be believed: what is old is deleted for good, and that clock says what is old.

Every clock is held as its distance from a clock that cannot be set, so that a wall clock that jumps is found out
when it is looked at next, not when another node is heard of next.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import median_low


class WallClocks:
    """One thread tells what it hears, others may ask."""

    def __init__(self, own_distance: float, max_difference: float) -> None:
        """
        own_distance: seconds from the clock that cannot be set to this node's wall clock, at the start.
        max_difference: seconds by which clocks may differ.
        """
        self._max_difference = max_difference
        self._at_start = own_distance
        self._peers: dict[int, float] = {}
        self._expected = own_distance

    def heard(self, node_id: int, distance: float) -> None:
        """What the wall clock of another node says, as a distance from our clock that cannot be set."""
        if self._peers.get(node_id) != distance:
            self._peers[node_id] = distance
            self._expected = median_low(self._peers.values())

    def keep(self, node_ids: Collection[int]) -> None:
        """Forget the other nodes: they have left the cluster."""
        gone = [each for each in self._peers if each not in node_ids]
        for each in gone:
            del self._peers[each]
        if gone:
            self._expected = median_low(self._peers.values()) if self._peers else self._at_start

    def difference(self, own_distance: float) -> float:
        """By how many seconds this node's clock is ahead of the others' (behind: negative), 0 if that is within
        bounds. It is compared with the median of theirs, so one that is wrong among several does not count. Without
        others it is compared with what it said at the start.
        """
        found = own_distance - self._expected
        return found if abs(found) > self._max_difference else 0.0

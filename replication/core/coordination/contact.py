"""Since when a leader has been sure that nobody else leads: what its followers' fetches prove."""

from __future__ import annotations

from collections.abc import Iterable


class Contact:
    """One leadership of one partition. Times are the leader's own monotonic clock.

    A fetch proves that its sender followed this leader when the answer was sent that the fetch continues. When the
    fetch arrives proves nothing: it may have lain in a socket while this process stood still, and its sender has
    elected another leader meanwhile.
    """

    def __init__(self) -> None:
        self._asked_after: dict[int, float] = {}

    def fetched(self, follower: int, asked_after: float) -> None:
        """A fetch came that continues the answer which this leader sent at `asked_after`."""
        self._asked_after[follower] = max(asked_after, self._asked_after.get(follower, asked_after))

    def since(self, leader: int, maximal_isr: Iterable[int], now: float) -> float:
        """When all still followed; now, for a leader without followers.

        All of the maximal ISR count: any of them may be the next leader. Minus infinity: one has not been heard.
        """
        times = [self._asked_after.get(node, float("-inf")) for node in maximal_isr if node != leader]
        return min(times, default=now)

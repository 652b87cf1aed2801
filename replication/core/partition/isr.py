"""Replicas that keep up: lag by time, the maximal ISR, and the high watermark over it.

KIP-497 (a joining replica counts from the moment its joining is proposed, a leaving one until its leaving is
stored), KAFKA-1546 and KAFKA-7152 (lag is time, but equality is never lag), KAFKA-15583 (no progress of the
high watermark under the minimum ISR), KAFKA-7128 (join only past the start of the leader's epoch).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

UNKNOWN_OFFSET = -1


@attrs.define(slots=True)
class Follower:
    """A follower as its leader sees it in the current epoch; times are readings of the host's clock.

    Invariant: forgotten at every new leader epoch, so that an offset acknowledged in an older epoch never
    counts in this one.
    """

    node_id: int
    log_end_offset: int = UNKNOWN_OFFSET
    last_caught_up: float = 0.0
    last_fetch: float = 0.0
    leader_end_at_last_fetch: int = UNKNOWN_OFFSET
    incarnation: int = -1
    log_start_offset: int = UNKNOWN_OFFSET
    """Where its log begins on its own disk, as its last fetch said."""

    def fetched(self, offset: int, leader_end: int, now: float, log_start: int = UNKNOWN_OFFSET) -> None:
        """Account a successful fetch from `offset` at time `now`, the leader's log ending at `leader_end`."""
        if log_start > self.log_start_offset:
            self.log_start_offset = log_start
        if offset >= leader_end:
            self.last_caught_up = max(self.last_caught_up, now)
        elif self.leader_end_at_last_fetch != UNKNOWN_OFFSET and offset >= self.leader_end_at_last_fetch:
            self.last_caught_up = max(self.last_caught_up, self.last_fetch)
        self.log_end_offset = offset
        self.leader_end_at_last_fetch = leader_end
        self.last_fetch = now


def caught_up(follower: Follower, leader_end: int, now: float, lag_max: float) -> bool:
    """Whether a follower counts as in sync (`replica.lag.time.max.ms`); an equal one always does."""
    return follower.log_end_offset == leader_end or now - follower.last_caught_up <= lag_max


def lagging(
    isr: Iterable[int],
    leader: int,
    followers: Mapping[int, Follower],
    leader_end: int,
    now: float,
    lag_max: float,
) -> tuple[int, ...]:
    """The members that a leader proposes to remove; never itself."""
    return tuple(
        node for node in isr if node != leader and not caught_up(followers[node], leader_end, now, lag_max)
    )


def may_join(follower: Follower, high_watermark: int, epoch_start: int) -> bool:
    """Whether a follower has all that is committed, and all that was there when this epoch began."""
    return follower.log_end_offset >= max(high_watermark, epoch_start)


def has_let_go(follower: Follower, log_start: int) -> bool:
    """Whether a follower holds nothing of what its leader has deleted.

    A member may be elected, so one that joins must not bring back what a client was told is gone.
    """
    return follower.log_start_offset >= log_start


def low_watermark(own: int, starts: Iterable[int]) -> int:
    """Below this offset no replica that counts holds anything any more; UNKNOWN_OFFSET while one has not said."""
    return min((own, *starts))


def maximal_isr(isr: Collection[int], joining: int | None) -> frozenset[int]:
    """The set that must hold a record before it is committed.

    A proposed member counts at once, because the proposal may be stored before we hear of it; a proposed
    removal counts only when stored, because it may fail.
    """
    return frozenset(isr) if joining is None else frozenset((*isr, joining))


def high_watermark(current: int, leader_end: int, holders: Iterable[int], isr_size: int, min_isr: int) -> int:
    """The new high watermark: the least end offset over `holders`, never going back.

    `holders` are the ends of the other members of the maximal ISR and of those about to join; an unknown one
    blocks. Under the minimum ISR nothing moves.
    """
    if isr_size < min_isr:
        return current
    least = leader_end
    for end in holders:
        if end == UNKNOWN_OFFSET:
            return current
        least = min(least, end)
    return max(current, least)

"""Leader epochs of one log: which epoch wrote from which offset on, and where two logs part.

KIP-101 (epoch lookup), KIP-279 (truncate to the end of an epoch that both sides know), KIP-595 (the question
travels in the fetch). The high watermark is never a truncation point.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from .types import EpochEnd, EpochEntry


class EpochCache:
    """The epochs of one log in order. Invariant: epochs and start offsets both strictly increase."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        """The greatest epoch known, or -1."""
        return self._entries[-1].epoch if self._entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` starts at `start_offset`; entries that contradict this are dropped.

        An epoch that is already the latest keeps its start.
        """
        latest = self._entries[-1] if self._entries else None
        if latest is not None and latest.epoch == epoch and latest.start_offset <= start_offset:
            return
        self._entries = [e for e in self._entries if e.epoch < epoch and e.start_offset < start_offset]
        self._entries.append(EpochEntry(epoch, start_offset))

    def trim_start(self, log_start_offset: int) -> None:
        """Forget the epochs that end at or below the log start; the one that covers it begins there."""
        covering = [entry for entry in self._entries if entry.start_offset <= log_start_offset]
        self._entries = [entry for entry in self._entries if entry.start_offset > log_start_offset]
        if covering:
            self._entries.insert(0, EpochEntry(covering[-1].epoch, log_start_offset))

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote an offset, or would write it next; -1 if that is not known."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[index - 1].epoch if index else -1

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Where `epoch` ends in this log, or None if this log cannot tell (KIP-101, KIP-279).

        The answer's epoch is `epoch` itself or the greatest one below it that this log has.
        """
        if epoch < 0 or not self._entries:
            return None
        latest = self._entries[-1].epoch
        if epoch > latest:
            return None
        if epoch == latest:
            return EpochEnd(epoch, log_end_offset)
        index = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        if index == 0:
            return EpochEnd(epoch, self._entries[0].start_offset)
        return EpochEnd(self._entries[index - 1].epoch, self._entries[index].start_offset)


def diverges(end: EpochEnd, last_fetched_epoch: int, fetch_offset: int) -> bool:
    """Whether a follower at `fetch_offset` after `last_fetched_epoch` has left the leader's log (KIP-595)."""
    return end.epoch < last_fetched_epoch or end.end_offset < fetch_offset


def truncation_point(cache: EpochCache, log_end_offset: int, leader_end: EpochEnd) -> int:
    """How much of its own log a follower keeps, given where the leader says that the epochs part (KIP-279).

    Never more than both logs hold of an epoch that both know; where the follower does not know the leader's
    epoch it cuts back to the end of its own last earlier one, and asks again.
    """
    own = cache.end_offset_for(leader_end.epoch, log_end_offset)
    if own is None:
        return min(leader_end.end_offset, log_end_offset)
    if own.epoch != leader_end.epoch:
        return min(own.end_offset, log_end_offset)
    return min(own.end_offset, leader_end.end_offset, log_end_offset)

"""Requests that wait: produces for the local write (acks=1) or for the high watermark (acks=all), deletions for
every replica's log start.

They belong to one leader epoch and never outlive it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ..types import named


class Parked(NamedTuple):
    """Waits until the log (or its high watermark) reaches `end_offset`; ordered by that, and then by request."""

    end_offset: int
    request_id: int
    base_offset: int
    deadline: float


class ProducePurgatory:
    """Two heaps by end offset; each entry leaves exactly once."""

    def __init__(self) -> None:
        self._for_write: list[Parked] = []
        self._for_commit: list[Parked] = []

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._for_write or self._for_commit)

    def park(
        self, *, request_id: int, base_offset: int, end_offset: int, deadline: float, committed: bool
    ) -> None:
        heap = self._for_commit if committed else self._for_write
        heapq.heappush(heap, named(Parked, (end_offset, request_id, base_offset, deadline)))

    def written(self, log_end_offset: int) -> list[Parked]:
        """Take out those that waited for the local write up to `log_end_offset`."""
        return _reached(self._for_write, log_end_offset)

    def committed(self, high_watermark: int) -> list[Parked]:
        """Take out those that waited for the high watermark."""
        return _reached(self._for_commit, high_watermark)

    def expired(self, now: float) -> list[Parked]:
        """Take out those whose deadline has passed."""
        late: list[Parked] = []
        for heap in (self._for_write, self._for_commit):
            overdue = [parked for parked in heap if parked.deadline <= now]
            if overdue:
                heap[:] = [parked for parked in heap if parked.deadline > now]
                heapq.heapify(heap)
                late += overdue
        return late

    def drain(self) -> list[Parked]:
        """Take out all."""
        everything = sorted(self._for_write + self._for_commit)
        self._for_write, self._for_commit = [], []
        return everything


class ParkedDeletion(msgspec.Struct, frozen=True):
    """Waits until no replica holds anything below `offset`."""

    offset: int
    request_id: int
    deadline: float


class DeletionPurgatory:
    """Few at a time, so a list; each entry leaves exactly once."""

    def __init__(self) -> None:
        self._waiting: list[ParkedDeletion] = []

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def park(self, deletion: ParkedDeletion) -> None:
        self._waiting.append(deletion)

    def reached(self, low_watermark: int) -> list[ParkedDeletion]:
        """Take out those that waited for no more than this."""
        return self._take(lambda parked: parked.offset <= low_watermark)

    def expired(self, now: float) -> list[ParkedDeletion]:
        """Take out those whose deadline has passed."""
        return self._take(lambda parked: parked.deadline <= now)

    def drain(self) -> list[ParkedDeletion]:
        """Take out all."""
        return self._take(lambda parked: True)

    def _take(self, chosen: Callable[[ParkedDeletion], bool]) -> list[ParkedDeletion]:
        if not self._waiting:
            return []
        taken = [parked for parked in self._waiting if chosen(parked)]
        self._waiting = [parked for parked in self._waiting if not chosen(parked)]
        return taken


def _reached(heap: list[Parked], offset: int) -> list[Parked]:
    taken: list[Parked] = []
    while heap and heap[0].end_offset <= offset:
        taken.append(heapq.heappop(heap))
    return taken

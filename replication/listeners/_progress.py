"""The offsets that may be committed, and when. Pure: no clock, no I/O."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import attrs

from ..core.types import PartitionId


class AckMode(enum.Enum):
    """When the offsets of records that are done are committed (the modes of Spring for Apache Kafka)."""

    RECORD = "record"
    """After each record, before the next one."""
    BATCH = "batch"
    """When all records that a partition had at hand are done."""
    TIME = "time"
    """`ack_time_ms` after the last commit."""
    COUNT = "count"
    """After `ack_count` records."""
    COUNT_TIME = "count_time"
    """The earlier of both."""
    MANUAL = "manual"
    """As BATCH, of those records that the handler has acknowledged."""
    MANUAL_IMMEDIATE = "manual_immediate"
    """At each acknowledgement."""

    @property
    def is_manual(self) -> bool:
        return self in (AckMode.MANUAL, AckMode.MANUAL_IMMEDIATE)

    @property
    def counts(self) -> bool:
        return self in (AckMode.COUNT, AckMode.COUNT_TIME)

    @property
    def is_timed(self) -> bool:
        return self in (AckMode.TIME, AckMode.COUNT_TIME)


@attrs.define(eq=False)
class Progress:
    """One partition, for as long as this member has it: what was handed out, in order, and what of that is done."""

    at: PartitionId
    next: int | None = None
    """Everything that was handed out below this offset is done; None: nothing yet."""
    committed: int | None = None
    """The offset that was committed last."""
    _open: deque[int] = attrs.Factory(deque)
    _left: set[int] = attrs.Factory(set)
    """Of those the ones that are not done."""

    @property
    def in_hand(self) -> int:
        """Records that were handed out and are not done."""
        return len(self._left)

    @property
    def position(self) -> int | None:
        """The first offset that is not done; None: nothing was handed out yet."""
        return self._open[0] if self._open else self.next

    def handed_out(self, offsets: Sequence[int]) -> None:
        assert offsets and (not self._open or offsets[0] > self._open[-1]), "records are handed out in order"
        self._open.extend(offsets)
        self._left.update(offsets)

    def done(self, offsets: Iterable[int]) -> None:
        """These are done; again, or one that was never handed out: nothing."""
        self._left.difference_update(offsets)
        while self._open and self._open[0] not in self._left:
            self.next = self._open.popleft() + 1

    @property
    def due(self) -> int | None:
        """The offset that may be committed and was not."""
        return self.next if self.next is not None and self.next > (self.committed or 0) else None


class Commits:
    """The commits that are due, of all partitions of a listener."""

    def __init__(self, mode: AckMode, *, count: int, seconds: float, now: float) -> None:
        self.partitions: dict[PartitionId, Progress] = {}
        self._mode = mode
        self._count = count
        self._seconds = seconds
        self._since_commit = 0
        self._last = now
        self._again: set[PartitionId] = set()
        """Commits of these have failed."""

    def handed_out(self, at: PartitionId, offsets: Sequence[int]) -> Progress:
        progress = self.partitions.setdefault(at, Progress(at))
        progress.handed_out(offsets)
        return progress

    @property
    def room(self) -> int:
        """How many records may be handled until something must be committed, for the modes that count."""
        if self._mode is AckMode.RECORD:
            return 1
        return max(1, self._count - self._since_commit) if self._mode.counts else 1 << 30

    def done(self, progress: Progress, offsets: Sequence[int], now: float) -> dict[PartitionId, int]:
        """Records are done, or acknowledged; what is to be committed now."""
        if self.partitions.get(progress.at) is not progress:
            return {}  # another member has the partition, or this one has it a second time
        progress.done(offsets)
        self._since_commit += len(offsets)
        mode = self._mode
        if mode in (AckMode.RECORD, AckMode.MANUAL_IMMEDIATE):
            return self._of([progress.at], now)
        if mode.counts and self._since_commit >= self._count:
            return self.take(now)
        return self._in_time(now)

    def ended(self, at: PartitionId, now: float) -> dict[PartitionId, int]:
        """All records that a partition had at hand have been handled."""
        if self._mode in (AckMode.BATCH, AckMode.MANUAL):
            return self._of([at], now)
        return self._in_time(now)

    def tick(self, now: float) -> dict[PartitionId, int]:
        """Time has passed: what is due by it, what was acknowledged late, and what has failed before."""
        if self._mode is AckMode.MANUAL:
            return self.take(now)
        due = self._in_time(now)
        return self._of(list(self._again), now) if self._again and not due else due

    def take(self, now: float) -> dict[PartitionId, int]:
        """All that may be committed and was not."""
        return self._of(list(self.partitions), now)

    def _in_time(self, now: float) -> dict[PartitionId, int]:
        return self.take(now) if self._mode.is_timed and now - self._last >= self._seconds else {}

    def _of(self, partitions: list[PartitionId], now: float) -> dict[PartitionId, int]:
        found = {}
        for at in partitions:
            progress = self.partitions.get(at)
            if progress is not None and progress.due is not None:
                found[at] = progress.committed = progress.due
        self._last, self._since_commit = now, 0
        self._again.difference_update(partitions)
        return found

    def failed(self, offsets: Mapping[PartitionId, int]) -> None:
        """A commit did not come through: it is due again."""
        for at, offset in offsets.items():
            progress = self.partitions.get(at)
            if progress is not None and progress.committed == offset:
                progress.committed = None
                self._again.add(at)

    def forget(self, partitions: Iterable[PartitionId]) -> None:
        """Others have these partitions now."""
        for at in partitions:
            self.partitions.pop(at, None)
            self._again.discard(at)

"""Which offsets may be committed, when, and what to do with a record that fails. Pure: no clock, no I/O."""

from __future__ import annotations

import enum
from collections import deque

import attrs

from ..core.types import PartitionId


class AckMode(enum.Enum):
    """When the offsets of records that are done are committed (the modes of Spring for Apache Kafka)."""

    RECORD = "record"
    """After each record."""
    BATCH = "batch"
    """When all records that a partition had at hand are done."""
    TIME = "time"
    """`ack_time_ms` after the last commit."""
    COUNT = "count"
    """After `ack_count` records."""
    COUNT_TIME = "count_time"
    """Whichever of both is first."""
    MANUAL = "manual"
    """As BATCH, of those records that the handler has acknowledged."""
    MANUAL_IMMEDIATE = "manual_immediate"
    """At each acknowledgement."""

    @property
    def is_manual(self) -> bool:
        return self in (AckMode.MANUAL, AckMode.MANUAL_IMMEDIATE)


@attrs.define(eq=False)
class Progress:
    """One partition: what was handed out, in order, and what of that is done."""

    _open: deque[int] = attrs.Factory(deque)
    _done: set[int] = attrs.Factory(set)
    next: int | None = None
    """Everything that was handed out below this offset is done; None: nothing yet."""

    def handed_out(self, offset: int) -> None:
        assert not self._open or offset > self._open[-1], "records of a partition are handed out in order"
        self._open.append(offset)

    def done(self, offset: int) -> None:
        """A record is done; again, or one that was never handed out: nothing."""
        if offset in self._open:
            self._done.add(offset)
        while self._open and self._open[0] in self._done:
            self.next = self._open.popleft() + 1
            self._done.discard(self.next - 1)


class Commits:
    """What is due to be committed, of all partitions of a listener."""

    def __init__(self, mode: AckMode, *, count: int, seconds: float, now: float) -> None:
        self._mode = mode
        self._count = count
        self._seconds = seconds
        self._partitions: dict[PartitionId, Progress] = {}
        self._committed: dict[PartitionId, int] = {}
        self._since_commit = 0
        self._last = now

    def handed_out(self, at: PartitionId, offset: int) -> None:
        self._partitions.setdefault(at, Progress()).handed_out(offset)

    def done(self, at: PartitionId, offset: int, now: float) -> dict[PartitionId, int]:
        """A record is done, or acknowledged; what is to be committed now."""
        progress = self._partitions.get(at)
        if progress is None:
            return {}
        progress.done(offset)
        self._since_commit += 1
        mode, over = self._mode, now - self._last >= self._seconds
        enough = self._since_commit >= self._count
        due = (
            mode in (AckMode.RECORD, AckMode.MANUAL_IMMEDIATE)
            or (mode in (AckMode.COUNT, AckMode.COUNT_TIME) and enough)
            or (mode in (AckMode.TIME, AckMode.COUNT_TIME) and over)
        )
        return self.take(now) if due else {}

    def ended(self, at: PartitionId, now: float) -> dict[PartitionId, int]:
        """All records that a partition had at hand have been handled."""
        if self._mode in (AckMode.BATCH, AckMode.MANUAL):
            return self._of([at], now)
        return self.tick(now)

    def tick(self, now: float) -> dict[PartitionId, int]:
        """Time has passed."""
        timed = self._mode in (AckMode.TIME, AckMode.COUNT_TIME)
        return self.take(now) if timed and now - self._last >= self._seconds else {}

    def take(self, now: float) -> dict[PartitionId, int]:
        """All that may be committed and was not."""
        return self._of(list(self._partitions), now)

    def _of(self, partitions: list[PartitionId], now: float) -> dict[PartitionId, int]:
        found = {}
        for at in partitions:
            progress = self._partitions.get(at)
            reached = progress.next if progress is not None else None
            if reached is not None and reached > self._committed.get(at, -1):
                found[at] = self._committed[at] = reached
        self._last, self._since_commit = now, 0
        return found

    def failed(self, offsets: dict[PartitionId, int]) -> None:
        """A commit did not come through: it is due again with the next."""
        for at, offset in offsets.items():
            if self._committed.get(at) == offset:
                del self._committed[at]

    def forget(self, partitions: list[PartitionId]) -> None:
        """Others have these partitions now."""
        for at in partitions:
            self._partitions.pop(at, None)
            self._committed.pop(at, None)


class Verdict(enum.Enum):
    """What becomes of a record whose handler has failed too often."""

    DEAD_LETTER = "dead_letter"
    SKIP = "skip"
    STOP = "stop"


@attrs.frozen(kw_only=True)
class Failures:
    """`retries` attempts after the first, each after twice the pause of the one before, then `verdict`."""

    retries: int
    backoff: float
    backoff_max: float
    verdict: Verdict

    def after(self, attempts: int) -> float | Verdict:
        """The pause before the next attempt, in seconds, when so many have failed; or what to do instead."""
        if attempts > self.retries:
            return self.verdict
        return min(self.backoff_max, self.backoff * 2 ** min(attempts - 1, 30))

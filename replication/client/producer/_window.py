"""The batches of one partition from queue to outcome: which may go next, under which sequence, and what failed.

A pure machine: it sends nothing, reads no clock, draws no random number. `Producer` and `BatchProducer` drive it.

Order and exactly-once (KIP-98, KIP-360). Up to `limit` batches are in flight. When one of them fails retriably
nothing more is sent until all have settled; then those that were not acknowledged go again in sequence order, byte
for byte, so that the leader recognises a repetition. A batch of which no bytes can be made takes no sequence, so it
leaves no gap. One that is given up after it was sent may leave a gap in the sequences. The batches sent behind it
are tried under the old epoch first: accepted means that there is no gap; out of order proves that none of them is
in the log, and they move to the next epoch.

A batch that its leader refuses as too large may be `divided` (KIP-126). Its parts have its sequences between them,
so what was sent behind it stays as it is. Where an earlier attempt of the whole may have been written, a leader
that has it calls the parts out of order, too, which proves nothing about such parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from ...core.types import SEQUENCE_MODULUS

WINDOW = 5
"""Batches of a producer that a leader remembers for each partition."""


class Sendable(Protocol):
    """A batch, as the window knows it."""

    number: int
    """Its place among those of the partition; given by the window, and higher once one before it is divided."""
    sequence: int
    """Of its first record under the current epoch; -1 until its bytes are made."""
    attempts: int
    maybe_written: bool
    """Whether an attempt ended without saying that nothing was written."""
    maybe_in_whole: bool
    """Whether it is a part of a batch that may have been written before it was divided."""

    @property
    def count(self) -> int:
        """How many sequences it takes."""


B = TypeVar("B", bound=Sendable)


class SendWindow(Generic[B]):
    """One partition's batches: `waiting`, then `in_flight`, and `failed` until those in flight have settled.

    Invariants: numbers rise from `in_flight` to `waiting`; nothing is sent while `failed` is not empty; an epoch
    begins only when nothing is in flight.

    Args:
      limit: How many batches may be in flight, counted from the oldest that is not acknowledged.
      sequenced: Whether batches carry sequences, so that the leader keeps them in order and tells repetitions.
    """

    __slots__ = (
        "begins_at_zero",
        "established",
        "failed",
        "failed_target",
        "gap_confirmed",
        "gaps",
        "identity",
        "in_flight",
        "limit",
        "next_sequence",
        "numbers",
        "retries",
        "retry_at",
        "sequenced",
        "target",
        "waiting",
    )

    def __init__(self, *, limit: int = WINDOW, sequenced: bool = True) -> None:
        self.limit = limit
        self.sequenced = sequenced
        self.waiting: deque[B] = deque()
        self.in_flight: list[B] = []
        self.failed: list[B] = []
        self.numbers = 0
        self.identity: object | None = None
        self.next_sequence = 0
        self.established = False
        """Whether a leader has acknowledged anything under `identity`."""
        self.begins_at_zero = False
        """Whether every leader refuses a batch of `identity` that comes before the one with sequence 0."""
        self.gaps: set[int] = set()
        """Numbers of batches that failed for good after they were given a sequence, which the log may miss."""
        self.gap_confirmed = False
        self.retries = 0
        self.retry_at = -1.0
        self.target: object = None
        """The leader to which those in flight were sent."""
        self.failed_target: object = None

    # What may go

    def must_wait(self, batch: B) -> bool:
        """Whether a pushed batch has to wait until others have settled, regardless of the leader."""
        if self.failed:
            return True
        oldest = self.in_flight[0] if self.in_flight else self.waiting[0]
        room = 1 if self.sequenced and not self.established else self.limit
        return batch.number - oldest.number >= room

    def push(self, batch: B) -> None:
        """Put a new batch behind all others."""
        batch.number = self.numbers
        self.numbers += 1
        self.waiting.append(batch)

    def may_send(self, target: object) -> bool:
        """Whether the first waiting batch may go to the leader `target` now, but for pauses and identities."""
        if not self.waiting or self.failed:
            return False
        if not self.in_flight:
            return True
        if self.sequenced and not self.established and not self.begins_at_zero:
            # A leader that does not know the producer accepts any sequence: a second batch could be taken before
            # the first, which then never could.
            return False
        # Counted from the oldest that is not acknowledged, past acknowledged ones, too: the leader must still
        # remember it when it comes again. And two leaders would not see one order.
        return self.waiting[0].number - self.in_flight[0].number < self.limit and target == self.target

    def paused_until(self, target: object) -> float:
        """When the first waiting batch may be tried again; another leader than the one that failed it: at once."""
        return self.retry_at if target == self.failed_target else -1.0

    @property
    def needs_epoch(self) -> bool:
        """Whether nothing more can be sent under this epoch: the log misses, or may miss, a sequence.

        Only once nothing is in flight: a batch of this epoch that arrived behind one of the next would be fenced.
        And sealed batches behind an unproven gap are tried under the old epoch first, for they may be written.
        """
        if not self.gaps or self.in_flight or not self.waiting:
            return False
        return self.gap_confirmed or self.waiting[0].sequence < 0

    def begin_epoch(self, identity: object, *, begins_at_zero: bool = False) -> list[B]:
        """Go on at sequence 0 under `identity`; gives the batches that need other bytes, in order (`stamped`).

        begins_at_zero: leaders take nothing under `identity` before sequence 0, as in a transaction that has an
        epoch of its own (KIP-890). The whole window may then be in flight before the first acknowledgement.
        """
        assert not self.in_flight and not self.failed, (
            "an epoch begins when nothing of the last one is in flight"
        )
        self.identity, self.next_sequence, self.begins_at_zero = identity, 0, begins_at_zero
        self.gap_confirmed = self.established = False
        self.gaps.clear()
        return [batch for batch in self.waiting if batch.sequence >= 0]

    def stamped(self, batch: B) -> None:
        """The bytes of a batch were made with `next_sequence`: what follows goes behind them."""
        batch.sequence = self.next_sequence
        self.next_sequence = (self.next_sequence + batch.count) % SEQUENCE_MODULUS

    def divided(self, batch: B, parts: Sequence[B]) -> None:
        """Smaller batches take the place of one that is in flight and was refused, or waits without a sequence.

        Those of a refused one are to be sent as if each had failed retriably.
        """
        more = len(parts) - 1
        for other in (*self.in_flight, *self.failed, *self.waiting):
            if other.number > batch.number:
                other.number += more
        self.gaps = {number + more if number > batch.number else number for number in self.gaps}
        self.numbers += more
        sequence = batch.sequence
        for place, part in enumerate(parts):
            part.number = batch.number + place
            part.maybe_written = part.maybe_in_whole = batch.maybe_written
            if sequence >= 0:
                part.sequence = sequence
                sequence = (sequence + part.count) % SEQUENCE_MODULUS
        if batch in self.in_flight:
            self.in_flight.remove(batch)
            self.failed.extend(parts)
        else:
            at = self.waiting.index(batch)
            del self.waiting[at]
            for part in reversed(parts):
                self.waiting.insert(at, part)

    def launch(self, target: object) -> B:
        """The first waiting batch goes to `target`."""
        assert self.may_send(target)
        batch = self.waiting.popleft()
        batch.attempts += 1
        assert not self.in_flight or self.in_flight[-1].number < batch.number
        self.in_flight.append(batch)
        self.target = target
        return batch

    # What became of it

    def acknowledged(self, batch: B) -> None:
        """It is in the log, and with it all before it that has a sequence."""
        self.in_flight.remove(batch)
        self.retries = 0
        self.established = True
        if self.gaps:
            self.gaps = {number for number in self.gaps if number > batch.number}

    def retriable(self, batch: B, *, written: bool) -> None:
        """An attempt failed, and may succeed later; `written`: it may have reached the log nevertheless."""
        self.in_flight.remove(batch)
        batch.maybe_written |= written
        self.failed.append(batch)
        self.failed_target = self.target

    def given_up(self, batch: B, *, written: bool = False) -> None:
        """The batch has failed finally, or its caller no longer waits."""
        self.in_flight.remove(batch)
        batch.maybe_written |= written
        self._leave_gap(batch)

    def withdraw(self, batch: B) -> bool:
        """Take a batch back that is not in flight; False if it is (or has settled)."""
        for place in (self.waiting, self.failed):
            if batch in place:
                place.remove(batch)
                self._leave_gap(batch)
                # The pauses were the trouble of this one; what follows gets its own first try at once.
                self.retries, self.retry_at = 0, -1.0
                return True
        return False

    def follows_a_failure(self, batch: B) -> bool:
        """Whether "out of order" is but the consequence of an earlier batch that is not in the log."""
        if any(other.number < batch.number for other in (*self.failed, *self.in_flight)):
            return True
        if batch.maybe_in_whole:
            # The whole that it was a part of may be in the log: under another epoch it could be there twice.
            return False
        if any(number < batch.number for number in self.gaps):
            self.gap_confirmed = True
            return True
        return False

    @property
    def round_is_over(self) -> bool:
        """Whether all have settled and some have failed: time for `repeat`."""
        return bool(self.failed) and not self.in_flight

    def repeat(self, retry_at: float) -> None:
        """Those that failed go again, in order, before all others; not before `retry_at` to the same leader."""
        assert self.round_is_over
        self.retries += 1
        # A confirmed gap does not require waiting: the next epoch does.
        self.retry_at = -1.0 if self.gap_confirmed else retry_at
        self.waiting.extendleft(sorted(self.failed, key=lambda batch: -batch.number))
        self.failed.clear()

    def _leave_gap(self, batch: B) -> None:
        if batch.sequence >= 0:
            self.gaps.add(batch.number)

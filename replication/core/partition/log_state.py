"""A replica's knowledge of its log: the part that is written, and the part whose writing it has asked for."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ..epochs import EpochCache
from ..types import NO_EPOCH, BatchMeta, EndedTransaction, EpochEntry, ProducerEntry
from .producers import ProducerTable


@attrs.define(eq=False, slots=True)
class LogState:
    """A mirror of the log.

    Invariant: log_start_offset <= high_watermark <= log_end_offset <= next_offset.
    `next_offset` is where the log ends once all outstanding appends are done; epochs and producers include
    those appends, so that a batch is checked against the one just before it.
    """

    log_start_offset: int = 0
    log_end_offset: int = 0
    next_offset: int = 0
    high_watermark: int = 0
    outstanding: int = 0
    """Log effects asked for and not yet reported."""
    cut_to: int | None = None
    """Where an outstanding truncation may have left the end."""
    epochs: EpochCache = attrs.Factory(EpochCache)
    producers: ProducerTable = attrs.Factory(ProducerTable)

    @classmethod
    def opened(
        cls,
        log_start_offset: int,
        log_end_offset: int,
        high_watermark: int,
        epochs: Iterable[EpochEntry],
        producers: Iterable[ProducerEntry],
        ended: Iterable[EndedTransaction] = (),
    ) -> LogState:
        """The state of a log as found; the high watermark is a hint and is clamped to what is there."""
        return cls(
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            next_offset=log_end_offset,
            high_watermark=max(log_start_offset, min(high_watermark, log_end_offset)),
            epochs=EpochCache(epochs),
            producers=ProducerTable(producers, ended),
        )

    def truncated(
        self,
        log_start_offset: int,
        log_end_offset: int,
        epochs: Iterable[EpochEntry],
        producers: Iterable[ProducerEntry],
        ended: Iterable[EndedTransaction] = (),
    ) -> LogState:
        """The state after a cut: the high watermark never stays above the end."""
        return LogState.opened(
            log_start_offset, log_end_offset, self.high_watermark, epochs, producers, ended
        )

    def expect(self, batches: Iterable[BatchMeta], leader_epoch: int | None = None) -> None:
        """Account an append that is about to be asked for."""
        for batch in batches:
            epoch = batch.leader_epoch if leader_epoch is None else leader_epoch
            # The first batch after the log start may begin below it (KAFKA-6975). Of offsets that compaction took
            # away before a batch nobody knows in which epoch they were: to count them to the earlier one would hide
            # that another replica's records there were never committed.
            start = min(batch.base_offset, self.next_offset)
            self.epochs.assign(epoch, max(start, self.log_start_offset))
            self.producers.record(batch)
            self.next_offset = batch.next_offset
        self.outstanding += 1

    def expect_cut(self, offset: int, *, restart: bool) -> None:
        """Account a truncation that is about to be asked for."""
        self.cut_to = 0 if restart else offset
        self.outstanding += 1

    @property
    def held_epochs(self) -> tuple[EpochEntry, ...]:
        """The leader epochs of which there are records, or were, in order."""
        return tuple([entry for entry in self.epochs.entries if entry.start_offset < self.log_end_offset])

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record, `NO_EPOCH` if there is none."""
        held = self.held_epochs
        return held[-1].epoch if held else NO_EPOCH

    @property
    def least_end(self) -> int:
        """The least end that this log may have without having lost anything that was shown."""
        return self.log_end_offset if self.cut_to is None else min(self.cut_to, self.log_end_offset)

    def appended(self, log_end_offset: int) -> None:
        """Account an append that is done."""
        self.outstanding -= 1
        self.log_end_offset = log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """How far readers of committed records may read."""
        return self.producers.transactions.stable_offset(self.high_watermark, self.log_start_offset)

    @property
    def is_empty(self) -> bool:
        return self.log_start_offset == self.next_offset

    def raise_start(self, offset: int) -> bool:
        """Account that what lay below `offset` is gone; whether that is news.

        A report that a truncation has overtaken says nothing about the log as it is now.
        """
        if not self.log_start_offset < offset <= self.log_end_offset:
            return False
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.epochs.trim_start(offset)
        return True

    def learn_high_watermark(self, leader_high_watermark: int) -> bool:
        """A follower's rule: never above the own end, never back; whether it moved.

        Committed records stay committed, so a new leader's lower value takes nothing away; only a
        truncation does.
        """
        value = max(self.high_watermark, min(leader_high_watermark, self.log_end_offset))
        moved = value != self.high_watermark
        self.high_watermark = value
        return moved

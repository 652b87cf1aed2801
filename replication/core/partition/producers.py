"""Idempotent producers: what each of them last wrote, and whether its next batch may be appended.

Kafka's rules (KIP-98, KAFKA-5494): five batches are remembered per producer, so that any of five requests in
flight may be retried. The leader decides; followers and recovery replay.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

from ..types import (
    NO_PRODUCER,
    SEQUENCE_MODULUS,
    BatchMeta,
    EndedTransaction,
    ProducerEntry,
    SequencedBatch,
    named,
)
from .open_transactions import OpenTransactions

BATCHES_KEPT = 5
_KEPT_BESIDE = slice(1 - BATCHES_KEPT, None)
"""Of the batches of a producer, those that are kept beside another one."""


class SequenceVerdict(enum.Enum):
    """The leader's verdict on a batch of an idempotent producer."""

    ACCEPT = enum.auto()
    DUPLICATE = enum.auto()
    OUT_OF_ORDER = enum.auto()
    FENCED = enum.auto()
    INSIDE_TRANSACTION = enum.auto()
    """It belongs to no transaction, and its producer's is open."""


class ProducerTable:
    """The producers of one log, including batches whose append is still under way."""

    def __init__(self, entries: Iterable[ProducerEntry] = (), ended: Iterable[EndedTransaction] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}
        self.transactions = OpenTransactions(
            (
                (entry.producer_id, entry.first_offset)
                for entry in self._entries.values()
                if entry.first_offset >= 0
            ),
            ended,
        )

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Collection[ProducerEntry]:
        return self._entries.values()

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def check(self, batch: BatchMeta) -> tuple[SequenceVerdict, SequencedBatch | None]:
        """The verdict on `batch`, and for a duplicate the batch that it repeats."""
        if batch.producer_id == NO_PRODUCER:
            return SequenceVerdict.ACCEPT, None
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            # Its earlier batches may have been deleted by retention: nothing to compare with.
            return SequenceVerdict.ACCEPT, None
        if batch.producer_epoch < entry.producer_epoch:
            return SequenceVerdict.FENCED, None
        if entry.first_offset >= 0 and not batch.transactional:
            return SequenceVerdict.INSIDE_TRANSACTION, None
        expected = (entry.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS if entry.batches else 0
        if batch.producer_epoch > entry.producer_epoch:
            if batch.transactional:
                # A transaction of an epoch of its own begins at 0 in each partition (KIP-890): what its first batch
                # lacks before it was lost.
                return (SequenceVerdict.OUT_OF_ORDER if batch.base_sequence else SequenceVerdict.ACCEPT), None
            # Anew, as KIP-360 has it, or where its predecessor stopped: a producer that outlives its processes.
            fresh = batch.base_sequence in (0, expected)
            return (SequenceVerdict.ACCEPT if fresh else SequenceVerdict.OUT_OF_ORDER), None
        if batch.base_sequence == expected:
            return SequenceVerdict.ACCEPT, None
        sequences = batch.base_sequence, batch.last_sequence
        for kept in entry.batches:
            if (kept.base_sequence, kept.last_sequence) == sequences:
                return SequenceVerdict.DUPLICATE, kept
        return SequenceVerdict.OUT_OF_ORDER, None

    def record(self, batch: BatchMeta) -> None:
        """Remember a batch that stands (or is about to stand) in the log at its base offset."""
        base_offset, count, _, _, producer_id, epoch, sequence, transactional, _ = batch
        if producer_id == NO_PRODUCER:
            return
        if transactional or sequence < 0:
            self._record_transactional(batch)
            return
        last_sequence = (sequence + count - 1) % SEQUENCE_MODULUS
        kept = named(SequencedBatch, (sequence, last_sequence, base_offset, base_offset + count - 1))
        entry = self._entries.get(producer_id)
        if entry is None:
            self._entries[producer_id] = ProducerEntry(producer_id, epoch, (kept,))
            return
        earlier = entry.batches[_KEPT_BESIDE] if entry.producer_epoch == epoch else ()
        self._entries[producer_id] = ProducerEntry(
            producer_id, epoch, (*earlier, kept), entry.coordinator_epoch, entry.first_offset
        )

    def _record_transactional(self, batch: BatchMeta) -> None:
        """A batch of a transaction, its marker, or a batch without sequences (a coordinator's)."""
        entry = self._entries.get(batch.producer_id)
        batches: tuple[SequencedBatch, ...] = ()
        coordinator_epoch = -1
        if entry is not None:
            coordinator_epoch = entry.coordinator_epoch
            if entry.producer_epoch == batch.producer_epoch:
                batches = entry.batches
        if batch.marker is not None:
            coordinator_epoch = batch.marker.coordinator_epoch
            self.transactions.end(batch.producer_id, batch.base_offset)
        elif batch.transactional:
            self.transactions.begin(batch.producer_id, batch.base_offset)
        if batch.base_sequence >= 0:
            kept = SequencedBatch(
                batch.base_sequence, batch.last_sequence, batch.base_offset, batch.next_offset - 1
            )
            batches = (*batches[_KEPT_BESIDE], kept)
        self._entries[batch.producer_id] = ProducerEntry(
            batch.producer_id,
            batch.producer_epoch,
            batches,
            coordinator_epoch,
            self.transactions.first_offset(batch.producer_id),
        )

"""Small values that the machines, their messages and their hosts share."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

Value = int | float | str
"""A topic setting."""

NO_LEADER = -1
NO_EPOCH = -1
NO_PRODUCER = -1
CONSUMER = -1
"""`replica_id` of a fetch that comes from a consumer."""

SEQUENCE_MODULUS = 2**31

named = tuple.__new__
"""`named(Kind, (value, ...))` makes a named tuple of all fields, without its class's call of a Python function."""


class PartitionId(NamedTuple):
    """One partition of one topic; prints as `topic-3`, the name of its folder."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class EpochEntry(NamedTuple):
    """The first offset written under a leader epoch (KIP-101)."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """Where a leader epoch ends in somebody's log, end exclusive (KIP-101, KIP-279)."""

    epoch: int
    end_offset: int


class TransactionMarker(NamedTuple):
    """The content of the control batch at a transaction's end."""

    committed: bool
    coordinator_epoch: int


class EndedTransaction(NamedTuple):
    """A transaction whose marker stands in a log."""

    producer_id: int
    first_offset: int
    marker_offset: int


class BatchMeta(NamedTuple):
    """The facts of a record batch that the protocol needs; the bytes stay with the host.

    In a produce request `base_offset` is meaningless until the leader assigns it.
    """

    base_offset: int
    offset_count: int
    leader_epoch: int
    size_bytes: int
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    marker: TransactionMarker | None = None
    """Of a control batch that ends a transaction."""

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.offset_count

    @property
    def last_sequence(self) -> int:
        """Sequences wrap from 2^31-1 to 0 (record batch v2)."""
        return (self.base_sequence + self.offset_count - 1) % SEQUENCE_MODULUS


class SequencedBatch(NamedTuple):
    """A batch that an idempotent producer wrote, as the duplicate check remembers it."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerEntry(msgspec.Struct, frozen=True):
    """One producer's last batches (five at most) in a log.

    There are none once a marker has ended its transaction under a new epoch: only that epoch is known then.
    """

    producer_id: int
    producer_epoch: int
    batches: tuple[SequencedBatch, ...]
    coordinator_epoch: int = -1
    """Of its last marker; -1 without one."""
    first_offset: int = -1
    """Where its open transaction begins; -1 without one."""

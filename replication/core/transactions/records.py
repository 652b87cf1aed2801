"""Records of `__transaction_state`, and their bytes: bit for bit what Kafka's transaction coordinator writes."""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import Any

import msgspec

from ..groups.record_codec import Unknown
from ..kafka.schema import Array, Field, RecordFormatError, Schema, decode, encode

NO_ID = -1
NO_EPOCH = -1
LAST_EPOCH = 32766
"""The last epoch that a producer is given; the one after it stands in markers alone."""
_KEY_VERSION, _VALUE_VERSION = 0, 1
_HEAD = 2


class Status(enum.IntEnum):
    """Where a transaction stands (Kafka's `TransactionState`)."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided, and not every partition knows it yet."""
        return self in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)

    @property
    def is_committed(self) -> bool:
        """Whether the outcome is a commit."""
        return self in (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT)

    @property
    def is_idle(self) -> bool:
        """Nothing is under way."""
        return self in (Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)


HELD = frozenset({Status.ONGOING.name, Status.PREPARE_COMMIT.name, Status.PREPARE_ABORT.name})
"""States, by the names that messages have for them, in which a coordinator has yet to end a transaction."""


class TransactionKey(msgspec.Struct, frozen=True):
    """Version 0."""

    transactional_id: str

    @property
    def group(self) -> str:
        """The name by which the shard runtime keeps writes."""
        return self.transactional_id


class TopicPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions of one topic, ascending."""

    topic: str
    partitions: tuple[int, ...]


class TransactionValue(msgspec.Struct, frozen=True, kw_only=True):
    """Versions 0 and 1; times in milliseconds since 1970. It is also the coordinator's state of a transactional id.

    `last_epoch`: the one whose holder owns `producer_epoch` (-1: nobody), so that it may ask again for what it was
    told. Kafka writes no field for it; ours is tagged, and skipped by other software.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: Status
    topics: tuple[TopicPartitions, ...] | None = None
    last_update_ms: int = -1
    start_ms: int = -1
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    client_version: int = 0
    last_epoch: int = NO_EPOCH

    @property
    def told(self) -> tuple[int, int]:
        """Producer id and epoch of whoever holds the transactional id: those of its next transaction."""
        if self.next_producer_id != NO_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch

    @property
    def partitions(self) -> frozenset[tuple[str, int]]:
        """The partitions of the transaction."""
        return frozenset(
            (each.topic, partition) for each in self.topics or () for partition in each.partitions
        )


def by_topic(partitions: frozenset[tuple[str, int]]) -> tuple[TopicPartitions, ...]:
    """The same partitions as the record has them."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return tuple(TopicPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in topics.items())


_KEY = Schema(cls=TransactionKey, fields=[Field(name="transactional_id", type="string")])
_TOPIC = Schema(
    cls=TopicPartitions,
    fields=[Field(name="topic", type="string"), Field(name="partitions", type=Array("int32"))],
)


def _value(**found: Any) -> TransactionValue:
    try:
        status = Status(found.pop("status"))
    except ValueError as error:
        raise RecordFormatError(str(error)) from error
    return TransactionValue(status=status, **found)


_VALUE = Schema(
    cls=_value,
    versions=(0, 1),
    flexible=1,
    fields=[
        Field(name="producer_id", type="int64"),
        Field(name="previous_producer_id", type="int64", since=1, tag=0, default=NO_ID),
        Field(name="next_producer_id", type="int64", since=1, tag=1, default=NO_ID),
        Field(name="producer_epoch", type="int16"),
        Field(name="timeout_ms", type="int32"),
        Field(name="status", type="int8"),
        Field(name="topics", type=Array(_TOPIC), nullable=True),
        Field(name="last_update_ms", type="int64"),
        Field(name="start_ms", type="int64"),
        Field(name="client_version", type="int16", since=1, tag=2, default=0),
        Field(name="last_epoch", type="int16", since=1, tag=10000, default=NO_EPOCH),
    ],
)


def encode_transaction_key(key: TransactionKey) -> bytes:
    return _encoded_key(key.transactional_id)


@lru_cache(1024)
def _encoded_key(transactional_id: str) -> bytes:
    """The same few are written again and again."""
    return _KEY_VERSION.to_bytes(_HEAD, "big") + encode(_KEY, TransactionKey(transactional_id), _KEY_VERSION)


def encode_transaction(value: TransactionValue, version: int = _VALUE_VERSION) -> bytes:
    return version.to_bytes(_HEAD, "big") + encode(_VALUE, value, version)


def decode_transaction(
    key: bytes | None, value: bytes | None
) -> tuple[TransactionKey, TransactionValue | None] | Unknown:
    """A record as it stands in the log; the value is None for a tombstone. Nothing in a log raises."""
    if key is None or len(key) < _HEAD:
        return Unknown("a key without a version")
    if int.from_bytes(key[:_HEAD], "big", signed=True) != _KEY_VERSION:
        return Unknown("a key of an unknown version")
    try:
        known = decode(_KEY, key[_HEAD:], _KEY_VERSION)
        if value is None:
            return known, None
        version = int.from_bytes(value[:_HEAD], "big", signed=True) if len(value) >= _HEAD else -1
        if not _VALUE.versions[0] <= version <= _VALUE.versions[1]:
            return Unknown(f"a value of version {version}")
        return known, decode(_VALUE, value[_HEAD:], version)
    except RecordFormatError as error:
        return Unknown(f"malformed record of a transaction: {error}")

"""The members' own format in the classic protocol: Kafka's `ConsumerProtocol`, versions 0 to 3."""

from __future__ import annotations

import msgspec

from ..kafka.schema import Array, Field, RecordFormatError, Schema, decode, encode
from .assignors.assignment import NO_GENERATION, Partition

_HIGHEST = 3
_VERSION_BYTES = 2


class TopicPartitionNumbers(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partitions: tuple[int, ...]


class EmbeddedSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """`owned` since version 1, `generation` since 2, `rack` since 3."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartitionNumbers, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


class EmbeddedAssignment(msgspec.Struct, frozen=True, kw_only=True):
    partitions: tuple[TopicPartitionNumbers, ...]
    user_data: bytes | None = None


_PARTITIONS = Schema(
    cls=TopicPartitionNumbers,
    fields=[Field(name="topic", type="string"), Field(name="partitions", type=Array("int32"))],
)
_SUBSCRIPTION = Schema(
    cls=EmbeddedSubscription,
    fields=[
        Field(name="topics", type=Array("string")),
        Field(name="user_data", type="bytes", nullable=True),
        Field(name="owned", type=Array(_PARTITIONS), since=1, default=()),
        Field(name="generation", type="int32", since=2, default=NO_GENERATION),
        Field(name="rack", type="string", since=3, nullable=True, default=None),
    ],
)
_ASSIGNMENT = Schema(
    cls=EmbeddedAssignment,
    fields=[
        Field(name="partitions", type=Array(_PARTITIONS)),
        Field(name="user_data", type="bytes", nullable=True),
    ],
)


def encode_subscription(subscription: EmbeddedSubscription, version: int = _HIGHEST) -> bytes:
    return version.to_bytes(_VERSION_BYTES, "big") + encode(_SUBSCRIPTION, subscription, version)


def encode_assignment(assignment: EmbeddedAssignment, version: int = _HIGHEST) -> bytes:
    return version.to_bytes(_VERSION_BYTES, "big") + encode(_ASSIGNMENT, assignment, version)


def decode_subscription(data: bytes) -> EmbeddedSubscription:
    """Raises `RecordFormatError` if the bytes are no subscription."""
    found = _decode(_SUBSCRIPTION, data)
    assert isinstance(found, EmbeddedSubscription)
    return found


def decode_assignment(data: bytes) -> EmbeddedAssignment:
    """Raises `RecordFormatError` if the bytes are no assignment; no bytes are an assignment of nothing."""
    if not data:
        return EmbeddedAssignment(partitions=())
    found = _decode(_ASSIGNMENT, data)
    assert isinstance(found, EmbeddedAssignment)
    return found


def _decode(schema: Schema, data: bytes) -> object:
    """A later version begins as the highest known one does; what it adds at the end is left unread (KIP-429)."""
    if len(data) < _VERSION_BYTES:
        raise RecordFormatError("no version")
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if version < 0:
        raise RecordFormatError(f"version {version}")
    return decode(schema, data[_VERSION_BYTES:], min(version, _HIGHEST), whole=version <= _HIGHEST)


def as_partitions(topics: tuple[TopicPartitionNumbers, ...]) -> frozenset[Partition]:
    return frozenset(Partition(each.topic, number) for each in topics for number in each.partitions)


def as_numbers(partitions: frozenset[Partition] | list[Partition]) -> tuple[TopicPartitionNumbers, ...]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return tuple(
        [TopicPartitionNumbers(topic=topic, partitions=tuple(found)) for topic, found in topics.items()]
    )

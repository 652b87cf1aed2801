"""The records of `__consumer_offsets`, in Kafka's terms; `record_codec` gives their bytes.

A topic id is 32 hexadecimal digits, as in `TopicRecord`. Partitions stand in ascending order of (topic id,
partition), so that equal assignments are equal records.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    """One partition by the id of its topic: a topic that was deleted and created again is another."""

    topic_id: str
    partition: int


class MemberState(enum.IntEnum):
    """Where a member of the consumer protocol stands between what it owns and what it is to own (KIP-848)."""

    STABLE = 0
    UNREVOKED = 1
    """It must let some partitions go before it gets its new epoch."""
    UNRELEASED = 2
    """It waits for partitions that other members have not let go yet."""


# Keys


class OffsetKey(msgspec.Struct, frozen=True):
    """Types 0 and 1."""

    group: str
    topic: str
    partition: int


class ClassicGroupKey(msgspec.Struct, frozen=True):
    """Type 2."""

    group: str


class ConsumerGroupKey(msgspec.Struct, frozen=True):
    """Type 3."""

    group: str


class TopicMetadataKey(msgspec.Struct, frozen=True):
    """Type 4, read only: releases before KIP-1101 kept the topics' metadata here."""

    group: str


class MemberKey(msgspec.Struct, frozen=True):
    """Type 5."""

    group: str
    member_id: str


class TargetEpochKey(msgspec.Struct, frozen=True):
    """Type 6."""

    group: str


class TargetKey(msgspec.Struct, frozen=True):
    """Type 7."""

    group: str
    member_id: str


class CurrentKey(msgspec.Struct, frozen=True):
    """Type 8."""

    group: str
    member_id: str


class RegexKey(msgspec.Struct, frozen=True):
    """Type 16."""

    group: str
    regex: str


Key = (
    OffsetKey
    | ClassicGroupKey
    | ConsumerGroupKey
    | TopicMetadataKey
    | MemberKey
    | TargetEpochKey
    | TargetKey
    | CurrentKey
    | RegexKey
)

# Values


class OffsetValue(msgspec.Struct, frozen=True, kw_only=True):
    """A committed offset: the next one to be read.

    `expire_timestamp` comes from version 1 only, `topic_id` from version 4.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    expire_timestamp: int = NO_TIMESTAMP
    topic_id: str = ""


class ClassicMemberValue(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a classic group; `subscription` and `assignment` are the client's own bytes."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    session_timeout_ms: int
    subscription: bytes = b""
    assignment: bytes = b""


class ClassicGroupValue(msgspec.Struct, frozen=True, kw_only=True):
    """A classic group, Empty if it has no members, else Stable."""

    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: str | None = None
    state_timestamp: int = NO_TIMESTAMP
    members: tuple[ClassicMemberValue, ...] = ()


class ConsumerGroupValue(msgspec.Struct, frozen=True, kw_only=True):
    """`metadata_hash`: of the topics that the group subscribes to (KIP-1101)."""

    epoch: int
    metadata_hash: int = 0
    creation_time_ms: int = NO_TIMESTAMP


class PartitionRacks(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    racks: tuple[str, ...]


class TopicMetadata(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: str
    topic: str
    partitions: int
    racks: tuple[PartitionRacks, ...]


class TopicMetadataValue(msgspec.Struct, frozen=True, kw_only=True):
    topics: tuple[TopicMetadata, ...]


class ClassicProtocol(msgspec.Struct, frozen=True, kw_only=True):
    """One assignor that a classic member supports, with its metadata: the client's own bytes."""

    name: str
    metadata: bytes


class ClassicMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata that a member of the classic protocol brought into a group of the consumer protocol."""

    session_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...]


class MemberValue(msgspec.Struct, frozen=True, kw_only=True):
    """A member's description of itself."""

    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] | None = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMetadata | None = None


class TargetEpochValue(msgspec.Struct, frozen=True, kw_only=True):
    """`timestamp`: when the assignment was computed (KIP-1263); 0 from releases that do not say."""

    epoch: int
    timestamp: int = 0


class TopicPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions of one topic. `epochs`: the member epoch at which each was given (KIP-1251), None: not known."""

    topic_id: str
    partitions: tuple[int, ...]
    epochs: tuple[int, ...] | None = None


class TargetValue(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions that a member is to own at the target epoch."""

    topics: tuple[TopicPartitions, ...] = ()


class CurrentValue(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions that a member owns, and those that it has been asked to let go. `state`: a `MemberState`, or
    what a newer release wrote.
    """

    epoch: int
    previous_epoch: int = -1
    state: int = MemberState.STABLE
    assigned: tuple[TopicPartitions, ...] = ()
    pending: tuple[TopicPartitions, ...] = ()


class RegexValue(msgspec.Struct, frozen=True, kw_only=True):
    """The topics to which a pattern was resolved at metadata `version`."""

    topics: tuple[str, ...]
    version: int
    timestamp: int


Value = (
    OffsetValue
    | ClassicGroupValue
    | ConsumerGroupValue
    | TopicMetadataValue
    | MemberValue
    | TargetEpochValue
    | TargetValue
    | CurrentValue
    | RegexValue
)

Owned = Mapping[TopicPartition, int]
"""Partitions, each with the member epoch at which it was given."""


def target_topics(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    """Partitions as a target assignment keeps them."""
    topics: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return tuple([TopicPartitions(topic_id=each, partitions=tuple(found)) for each, found in topics.items()])


def owned_topics(partitions: Owned) -> tuple[TopicPartitions, ...]:
    """Partitions with their epochs, as a current assignment keeps them."""
    topics: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return tuple(
        [
            TopicPartitions(
                topic_id=each,
                partitions=tuple(found),
                epochs=tuple([partitions[TopicPartition(each, partition)] for partition in found]),
            )
            for each, found in topics.items()
        ]
    )


def as_set(topics: Iterable[TopicPartitions]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(each.topic_id, partition) for each in topics for partition in each.partitions
    )


def as_owned(topics: Iterable[TopicPartitions], epoch: int) -> dict[TopicPartition, int]:
    """Partitions with their epochs; `epoch` for those of which the record does not say it, as Kafka reads it."""
    found: dict[TopicPartition, int] = {}
    for each in topics:
        known = each.epochs
        if known is None or len(known) != len(each.partitions):
            known = (epoch,) * len(each.partitions)
        for partition, given in zip(each.partitions, known, strict=True):
            found[TopicPartition(each.topic_id, partition)] = given
    return found

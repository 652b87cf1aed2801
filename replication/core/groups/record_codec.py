"""Keys and values of `__consumer_offsets` to bytes and back: bit for bit what Kafka's group coordinator writes."""

from __future__ import annotations

from struct import Struct
from sys import intern
from typing import Any

import msgspec

from ..kafka.schema import Array, Field, RecordFormatError, Schema, decode, encode
from . import records as r

_HEAD = 2
"""Bytes of the number that begins each key (its type) and each value (its version)."""


class Unknown(msgspec.Struct, frozen=True):
    """A record that this software does not understand: it stays in the log, and nothing is made of it."""

    reason: str


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One type of record. `written`: the version of its value that this software writes."""

    key: Schema
    value: Schema
    written: int


def _key(cls: type, *names: str) -> Schema:
    numbers = {"partition"}
    return Schema(
        cls=cls, fields=[Field(name=name, type="int32" if name in numbers else "string") for name in names]
    )


_PARTITIONS = Schema(
    cls=lambda **found: r.TopicPartitions(**found, epochs=None),
    fields=[Field(name="topic_id", type="uuid"), Field(name="partitions", type=Array("int32"))],
)
_OWNED = Schema(
    cls=r.TopicPartitions,
    fields=[
        *_PARTITIONS.fields,
        Field(name="epochs", type=Array("int32"), nullable=True, tag=0, default=None),
    ],
)
_CLASSIC_MEMBER = Schema(
    cls=r.ClassicMemberValue,
    fields=[
        Field(name="member_id", type="string"),
        Field(name="instance_id", type="string", since=3, nullable=True, default=None),
        Field(name="client_id", type="string"),
        Field(name="client_host", type="string"),
        Field(name="rebalance_timeout_ms", type="int32", since=1, default=-1),
        Field(name="session_timeout_ms", type="int32"),
        Field(name="subscription", type="bytes"),
        Field(name="assignment", type="bytes"),
    ],
)
_CLASSIC_METADATA = Schema(
    cls=r.ClassicMetadata,
    fields=[
        Field(name="session_timeout_ms", type="int32"),
        Field(
            name="protocols",
            type=Array(
                Schema(
                    cls=r.ClassicProtocol,
                    fields=[Field(name="name", type="string"), Field(name="metadata", type="bytes")],
                )
            ),
        ),
    ],
)
_RACKS = Schema(
    cls=r.PartitionRacks,
    fields=[Field(name="partition", type="int32"), Field(name="racks", type=Array("string"))],
)
_TOPIC_METADATA = Schema(
    cls=r.TopicMetadata,
    fields=[
        Field(name="topic_id", type="uuid"),
        Field(name="topic", type="string"),
        Field(name="partitions", type="int32"),
        Field(name="racks", type=Array(_RACKS)),
    ],
)
_OFFSET = _Kind(
    key=_key(r.OffsetKey, "group", "topic", "partition"),
    value=Schema(
        cls=r.OffsetValue,
        versions=(0, 4),
        flexible=4,
        fields=[
            Field(name="offset", type="int64"),
            Field(name="leader_epoch", type="int32", since=3, default=-1),
            Field(name="metadata", type="string"),
            Field(name="commit_timestamp", type="int64"),
            Field(name="expire_timestamp", type="int64", since=1, until=1, default=r.NO_TIMESTAMP),
            Field(name="topic_id", type="uuid", since=4, tag=0, default=""),
        ],
    ),
    written=3,
)


def _flexible(cls: type, *fields: Field) -> Schema:
    return Schema(cls=cls, flexible=0, fields=fields)


_KINDS: dict[int, _Kind] = {
    0: _OFFSET,
    1: _OFFSET,
    2: _Kind(
        key=_key(r.ClassicGroupKey, "group"),
        value=Schema(
            cls=r.ClassicGroupValue,
            versions=(0, 4),
            flexible=4,
            fields=[
                Field(name="protocol_type", type="string"),
                Field(name="generation", type="int32"),
                Field(name="protocol", type="string", nullable=True),
                Field(name="leader", type="string", nullable=True),
                Field(name="state_timestamp", type="int64", since=2, default=r.NO_TIMESTAMP),
                Field(name="members", type=Array(_CLASSIC_MEMBER)),
            ],
        ),
        written=3,
    ),
    3: _Kind(
        key=_key(r.ConsumerGroupKey, "group"),
        value=_flexible(
            r.ConsumerGroupValue,
            Field(name="epoch", type="int32"),
            Field(name="metadata_hash", type="int64", tag=0, default=0),
            Field(name="creation_time_ms", type="int64", tag=1, default=r.NO_TIMESTAMP),
        ),
        written=0,
    ),
    4: _Kind(
        key=_key(r.TopicMetadataKey, "group"),
        value=_flexible(r.TopicMetadataValue, Field(name="topics", type=Array(_TOPIC_METADATA))),
        written=0,
    ),
    5: _Kind(
        key=_key(r.MemberKey, "group", "member_id"),
        value=_flexible(
            r.MemberValue,
            Field(name="instance_id", type="string", nullable=True),
            Field(name="rack", type="string", nullable=True),
            Field(name="client_id", type="string"),
            Field(name="client_host", type="string"),
            Field(name="topics", type=Array("string"), nullable=True),
            Field(name="regex", type="string", nullable=True),
            Field(name="rebalance_timeout_ms", type="int32"),
            Field(name="assignor", type="string", nullable=True),
            Field(name="classic", type=_CLASSIC_METADATA, nullable=True, tag=0, default=None),
        ),
        written=0,
    ),
    6: _Kind(
        key=_key(r.TargetEpochKey, "group"),
        value=_flexible(
            r.TargetEpochValue,
            Field(name="epoch", type="int32"),
            Field(name="timestamp", type="int64", tag=0, default=0),
        ),
        written=0,
    ),
    7: _Kind(
        key=_key(r.TargetKey, "group", "member_id"),
        value=_flexible(r.TargetValue, Field(name="topics", type=Array(_PARTITIONS))),
        written=0,
    ),
    8: _Kind(
        key=_key(r.CurrentKey, "group", "member_id"),
        value=_flexible(
            r.CurrentValue,
            Field(name="epoch", type="int32"),
            Field(name="previous_epoch", type="int32"),
            Field(name="state", type="int8"),
            Field(name="assigned", type=Array(_OWNED)),
            Field(name="pending", type=Array(_OWNED)),
        ),
        written=0,
    ),
    16: _Kind(
        key=_key(r.RegexKey, "group", "regex"),
        value=_flexible(
            r.RegexValue,
            Field(name="topics", type=Array("string")),
            Field(name="version", type="int64"),
            Field(name="timestamp", type="int64"),
        ),
        written=0,
    ),
}
_TYPES: dict[type, int] = {
    r.OffsetKey: 1,
    r.ClassicGroupKey: 2,
    r.ConsumerGroupKey: 3,
    r.TopicMetadataKey: 4,
    r.MemberKey: 5,
    r.TargetEpochKey: 6,
    r.TargetKey: 7,
    r.CurrentKey: 8,
    r.RegexKey: 16,
}


_OFFSET_V1_KEY, _OFFSET_V3 = b"\0\1", b"\0\3"
_VALUE_HEAD, _VALUE_TAIL = Struct(">qih"), Struct(">q")


def _decode_offset(key: bytes, value: bytes) -> tuple[r.Key, Any | None] | None:
    """Decode most records of a log in a fifth of the time; None for a record that the tables must look at.

    A coordinator that takes over serves nobody until it has read all of them.
    """
    if not 4 <= len(key) < 1 << 15:
        return None
    group_end = 4 + (key[2] << 8 | key[3])
    topic_at = group_end + 2
    if topic_at > len(key) or len(value) < _HEAD + _VALUE_HEAD.size:
        return None
    topic_end = topic_at + (key[group_end] << 8 | key[group_end + 1])
    offset, leader_epoch, length = _VALUE_HEAD.unpack_from(value, _HEAD)
    metadata_at = _HEAD + _VALUE_HEAD.size
    if topic_end + 4 != len(key) or length < 0 or metadata_at + length + _VALUE_TAIL.size != len(value):
        return None
    try:
        # A group's topics, and its name, stand in each of its records: one copy in memory is enough.
        group, topic = intern(str(key[4:group_end], "utf-8")), intern(str(key[topic_at:topic_end], "utf-8"))
        metadata = str(value[metadata_at : metadata_at + length], "utf-8")
    except UnicodeDecodeError:
        return None
    partition = int.from_bytes(key[topic_end:], "big", signed=True)
    committed = r.OffsetValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp=_VALUE_TAIL.unpack_from(value, metadata_at + length)[0],
    )
    return r.OffsetKey(group, topic, partition), committed


_LENGTH, _PARTITION = Struct(">h"), Struct(">i")


def _encode_offset_key(key: r.OffsetKey) -> bytes:
    """Encode the key that is written most often, in a quarter of the time."""
    group, topic = key.group.encode("utf-8", "surrogatepass"), key.topic.encode("utf-8", "surrogatepass")
    return b"".join(
        (
            _OFFSET_V1_KEY,
            _LENGTH.pack(len(group)),
            group,
            _LENGTH.pack(len(topic)),
            topic,
            _PARTITION.pack(key.partition),
        )
    )


def _encode_offset(value: r.OffsetValue) -> bytes:
    metadata = value.metadata.encode("utf-8", "surrogatepass")
    head = _VALUE_HEAD.pack(value.offset, value.leader_epoch, len(metadata))
    return b"".join((_OFFSET_V3, head, metadata, _VALUE_TAIL.pack(value.commit_timestamp)))


def encode_key(key: r.Key) -> bytes:
    if type(key) is r.OffsetKey:
        return _encode_offset_key(key)
    type_ = _TYPES[type(key)]
    return type_.to_bytes(_HEAD, "big") + encode(_KINDS[type_].key, key, 0)


def encode_value(key: r.Key, value: r.Value, version: int | None = None) -> bytes:
    """The value under `key`, in the version that this software writes or the one that is asked for."""
    if type(value) is r.OffsetValue and version is None:
        return _encode_offset(value)
    kind = _KINDS[_TYPES[type(key)]]
    wanted = kind.written if version is None else version
    return wanted.to_bytes(_HEAD, "big") + encode(kind.value, value, wanted)


def decode_record(key: bytes | None, value: bytes | None) -> tuple[r.Key, Any | None] | Unknown:
    """A record as it stands in the log; the value is None for a tombstone.

    No content of the log raises anything: one record that cannot be read must not keep a coordinator from
    serving every other group of its partition.
    """
    if key is None or len(key) < _HEAD:
        return Unknown("a key without a type")
    if value is not None and value[:_HEAD] == _OFFSET_V3 and key[:_HEAD] == _OFFSET_V1_KEY:
        found = _decode_offset(key, value)
        if found is not None:
            return found
    type_ = int.from_bytes(key[:_HEAD], "big", signed=True)
    kind = _KINDS.get(type_)
    if kind is None:
        return Unknown(f"type {type_}")
    try:
        decoded = decode(kind.key, key[_HEAD:], 0)
        if value is None:
            return decoded, None
        if len(value) < _HEAD:
            raise RecordFormatError("a value without a version")
        version = int.from_bytes(value[:_HEAD], "big", signed=True)
        least, greatest = kind.value.versions
        if not least <= version <= greatest:
            return Unknown(f"type {type_} version {version}")
        return decoded, decode(kind.value, value[_HEAD:], version)
    except RecordFormatError as error:
        return Unknown(f"malformed record of type {type_}: {error}")

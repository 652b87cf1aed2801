"""The records of Kafka's controllers in `__cluster_metadata`, of topics and of producer ids (KIP-631)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import structs

from .schema import Array, Field, RecordFormatError, Schema, decode

_NO_CHANGE = -2
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4


class KafkaMetadataError(ValueError):
    """The records are not those of a metadata log, or of a release of Kafka that this software does not know."""


class KafkaPartition(msgspec.Struct, frozen=True, kw_only=True):
    """elr: those that may lead though they are not in sync (KIP-966)."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    leader_epoch: int


class KafkaTopic(msgspec.Struct, frozen=True, kw_only=True):
    """`topic_id`: 32 hexadecimal digits. `partitions`: by number. `config`: what was set, by Kafka's names."""

    name: str
    topic_id: str
    partitions: dict[int, KafkaPartition]
    config: dict[str, str]


class KafkaMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """`position`: last epoch and end of the metadata log; of several copies the greatest is the latest.

    `broker_config`: what was set for all brokers at once; `own_config`: for single ones, by node id.
    """

    position: tuple[int, int]
    topics: tuple[KafkaTopic, ...]
    broker_config: dict[str, str]
    own_config: dict[str, dict[str, str]]
    next_producer_id: int


def _fields(**found: Any) -> dict[str, Any]:
    return found


def _schema(versions: int, *fields: Field) -> Schema:
    return Schema(cls=_fields, versions=(0, versions), flexible=0, fields=fields)


_NODES = Array("int32")
_CHANGES = ("isr", "leader", "replicas", "removing", "adding", "recovery", "elr", "last_elr")
"""Of a change to a partition, by their tags; `None`, and -2 for the leader, stand for what stays as it is."""
_SCHEMAS = {
    2: _schema(0, Field(name="name", type="string"), Field(name="topic_id", type="uuid")),
    3: _schema(
        2,
        Field(name="partition", type="int32"),
        Field(name="topic_id", type="uuid"),
        Field(name="replicas", type=_NODES),
        Field(name="isr", type=_NODES),
        Field(name="removing", type=_NODES),
        Field(name="adding", type=_NODES),
        Field(name="leader", type="int32"),
        Field(name="leader_epoch", type="int32"),
        Field(name="partition_epoch", type="int32"),
        Field(name="directories", type=Array("uuid"), since=1, default=()),
        Field(name="elr", type=_NODES, since=2, nullable=True, tag=1, default=None),
    ),
    4: _schema(
        0,
        Field(name="resource_type", type="int8"),
        Field(name="resource", type="string"),
        Field(name="name", type="string"),
        Field(name="value", type="string", nullable=True),
    ),
    5: _schema(
        2,
        Field(name="partition", type="int32"),
        Field(name="topic_id", type="uuid"),
        *(
            Field(name=name, type="int32", tag=tag, default=_NO_CHANGE)
            if name == "leader"
            else Field(name=name, type=_NODES, nullable=True, tag=tag, default=None)
            for tag, name in enumerate(_CHANGES)
            if name != "recovery"
        ),
    ),
    9: _schema(0, Field(name="topic_id", type="uuid")),
    15: _schema(
        0,
        Field(name="broker", type="int32"),
        Field(name="broker_epoch", type="int64"),
        Field(name="next_producer_id", type="int64"),
    ),
    23: _schema(0),
    24: _schema(0),
    25: _schema(0),
    28: _schema(0, Field(name="name", type="string")),
}
"""By the types of records that matter here; the others say nothing of logs."""
_BEGIN, _END, _ABORT = 23, 24, 25
_OTHERS = frozenset({0, 1, 7, 8, 10, 11, 12, 14, 17, 18, 19, 20, 21, 22, 26, 27})
"""Of brokers, features, users, quotas, ACLs and tokens."""


def read(position: tuple[int, int], values: Iterable[bytes]) -> KafkaMetadata:
    """The state that the records of a metadata log amount to.

    Raises:
      KafkaMetadataError: They are no such records, or of a later Kafka.
    """
    image = _Image()
    pending: list[tuple[int, dict[str, Any]]] | None = None
    for value in values:
        kind, found = _decode(value)
        if found is None:
            continue
        if kind == _BEGIN:
            pending = []
        elif kind == _ABORT:
            pending = None
        elif kind == _END:
            for each in pending or ():
                image.apply(*each)
            pending = None
        elif pending is not None:
            # Part of a transaction of the controller's (KIP-868): one that has not ended never was.
            pending.append((kind, found))
        else:
            image.apply(kind, found)
    return image.told(position)


def _decode(value: bytes) -> tuple[int, dict[str, Any] | None]:
    """Type and fields; no fields for a type that says nothing of logs."""
    frame, at = _uvarint(value, 0)
    kind, at = _uvarint(value, at)
    version, at = _uvarint(value, at)
    schema = _SCHEMAS.get(kind)
    if schema is None and kind in _OTHERS:
        return kind, None
    if frame > 1 or schema is None or version > schema.versions[1]:
        raise KafkaMetadataError(
            f"a metadata record of type {kind}, version {version}, in a frame of version {frame} is of a later "
            "Kafka than this release knows (up to 4.x): upgrade insync"
        )
    try:
        return kind, decode(schema, value[at:], version)
    except RecordFormatError as error:
        raise KafkaMetadataError(f"a metadata record of type {kind} is malformed: {error}") from error


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
    raise KafkaMetadataError("a metadata record ends within its header")


class _Image:
    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """By topic id."""
        self._partitions: dict[str, dict[int, KafkaPartition]] = {}
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._next_producer_id = 0
        self._apply: dict[int, Callable[[dict[str, Any]], None]] = {
            2: self._topic,
            3: self._partition,
            4: self._config,
            5: self._change,
            9: self._remove,
            15: self._producer_ids,
            28: self._clear_elr,
        }

    def apply(self, kind: int, found: dict[str, Any]) -> None:
        try:
            self._apply[kind](found)
        except KeyError as error:
            raise KafkaMetadataError(
                f"a metadata record of type {kind} is about {error}, which is unknown"
            ) from error

    def _topic(self, found: dict[str, Any]) -> None:
        self._names[found["topic_id"]] = found["name"]
        self._partitions[found["topic_id"]] = {}

    def _partition(self, found: dict[str, Any]) -> None:
        self._partitions[found["topic_id"]][found["partition"]] = KafkaPartition(
            replicas=found["replicas"],
            isr=found["isr"],
            elr=found["elr"] or (),
            adding=found["adding"],
            removing=found["removing"],
            leader_epoch=found["leader_epoch"],
        )

    def _change(self, found: dict[str, Any]) -> None:
        partitions = self._partitions[found["topic_id"]]
        before = partitions[found["partition"]]
        changed = {
            name: found[name]
            for name in ("isr", "replicas", "removing", "adding", "elr")
            if found[name] is not None
        }
        begins = found["leader"] != _NO_CHANGE
        partitions[found["partition"]] = structs.replace(
            before, **changed, leader_epoch=before.leader_epoch + begins
        )

    def _remove(self, found: dict[str, Any]) -> None:
        name = self._names.pop(found["topic_id"])
        del self._partitions[found["topic_id"]]
        self._configs.pop((_TOPIC_RESOURCE, name), None)

    def _config(self, found: dict[str, Any]) -> None:
        settings = self._configs.setdefault((found["resource_type"], found["resource"]), {})
        if found["value"] is None:
            settings.pop(found["name"], None)
        else:
            settings[found["name"]] = found["value"]

    def _producer_ids(self, found: dict[str, Any]) -> None:
        self._next_producer_id = max(self._next_producer_id, found["next_producer_id"])

    def _clear_elr(self, found: dict[str, Any]) -> None:
        for topic_id, partitions in self._partitions.items():
            if found["name"] in ("", self._names[topic_id]):
                for number, each in partitions.items():
                    partitions[number] = structs.replace(each, elr=())

    def told(self, position: tuple[int, int]) -> KafkaMetadata:
        return KafkaMetadata(
            position=position,
            topics=tuple(
                KafkaTopic(
                    name=name,
                    topic_id=topic_id,
                    partitions=dict(sorted(self._partitions[topic_id].items())),
                    config=self._configs.get((_TOPIC_RESOURCE, name), {}),
                )
                for topic_id, name in sorted(self._names.items(), key=lambda each: each[1])
            ),
            broker_config=self._configs.get((_BROKER_RESOURCE, ""), {}),
            own_config={
                resource: settings
                for (kind, resource), settings in self._configs.items()
                if kind == _BROKER_RESOURCE and resource
            },
            next_producer_id=self._next_producer_id,
        )


def inherited(properties: Mapping[str, str]) -> dict[str, str]:
    """The settings that topics take from a broker's, under the topics' names."""
    found = {}
    for name, own in _INHERITED.items():
        if own in properties:
            found[name] = properties[own].strip()
    for name, units in _IN_UNITS.items():
        for own, factor in units:
            if own in properties:
                number = properties[own].strip()
                if not number.lstrip("-").isdecimal():
                    raise KafkaMetadataError(f"{own}={number} in the broker's settings is not a number")
                found[name] = number if int(number) < 0 else str(int(number) * factor)
                break
    return found


_INHERITED = {
    "cleanup.policy": "log.cleanup.policy",
    "retention.bytes": "log.retention.bytes",
    "segment.bytes": "log.segment.bytes",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "max.message.bytes": "message.max.bytes",
    "min.insync.replicas": "min.insync.replicas",
    "flush.messages": "log.flush.interval.messages",
    "message.timestamp.type": "log.message.timestamp.type",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""A topic's setting, and the broker's that it has where it has none of its own."""
_IN_UNITS = {
    "retention.ms": (
        ("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)
    ),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", 3_600_000)),
}  # fmt: skip

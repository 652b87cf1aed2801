"""The records that the metadata store keeps, and the keys under which they stand.

A fact has one home: who leads a partition, at which epoch and with which ISR is true because it stands here.
"""

from __future__ import annotations

import attrs
import msgspec

from ..scram import ScramCredential
from ..types import NO_LEADER, PartitionId

CLUSTER_KEY = "/cluster"
CONTROLLER_KEY = "/controller"
CONTROLLER_EPOCH_KEY = "/controller_epoch"
PRODUCER_IDS_KEY = "/producer_ids"
NODES_PREFIX = "/nodes/"
INCARNATIONS_PREFIX = "/incarnations/"
TOPICS_PREFIX = "/topics/"
DELETED_PREFIX = "/deleted/"
PARTITIONS_PREFIX = "/partitions/"
QUOTAS_PREFIX = "/quotas/"
USERS_PREFIX = "/users/"
PRODUCERS_PREFIX = "clients/producers/"
OFFSETS_PREFIX = "clients/offsets/"
PULSES_PREFIX = "folders/pulses/"
"""The keys for clients, and for folders, do not begin with a slash: nodes read all that do, whenever any of them
changes."""

DAY_MS = 86_400_000


def node_key(node_id: int) -> str:
    return f"{NODES_PREFIX}{node_id}"


def incarnation_key(node_id: int) -> str:
    return f"{INCARNATIONS_PREFIX}{node_id}"


def pulse_key(node_id: int) -> str:
    return f"{PULSES_PREFIX}{node_id}"


def topic_key(topic: str) -> str:
    return f"{TOPICS_PREFIX}{topic}"


def deleted_key(topic_id: str) -> str:
    return f"{DELETED_PREFIX}{topic_id}"


def producer_key(identity: str) -> str:
    return f"{PRODUCERS_PREFIX}{identity}"


def offsets_key(group: str) -> str:
    return f"{OFFSETS_PREFIX}{group}"


def partition_key(partition: PartitionId) -> str:
    return f"{PARTITIONS_PREFIX}{partition.topic}/{partition.partition}"


def quota_key(entity_type: str, name: str) -> str:
    return f"{QUOTAS_PREFIX}{entity_type}/{name}"


def user_key(name: str) -> str:
    return f"{USERS_PREFIX}{name}"


@attrs.frozen(kw_only=True)
class ClusterRecord:
    """Identity of the cluster; written once by the first node. `secret`: random, for the nodes alone; empty in
    records of earlier releases.
    """

    cluster_id: str
    secret: str = attrs.field(default="", repr=False)


class HolderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of every ephemeral record: the process that it stands for."""

    node_id: int
    incarnation: int


class NodeRecord(HolderRecord, frozen=True, kw_only=True):
    """A living node (ephemeral): where it listens, in order of preference."""

    endpoints: tuple[str, ...]
    rack: str = ""
    offline: frozenset[PartitionId] = frozenset()
    """Replicas that the node has and cannot use, because a log directory of it is offline: as if it were not
    alive, for these alone."""
    max_partitions: int = 20_000
    """How many replicas it takes, as its settings say; those of a release that said nothing take as many."""
    coordinates: tuple[str, ...] = ()
    """The internal topics whose partitions it can lead, as a coordinator of what they keep."""
    leaving: bool = False
    """Whether it is about to stop: where others can take over it is to lead nothing and be in no ISR (KIP-841)."""
    number: int = 0
    """The number of this registration of its process: no two are equal, though the key's version begins at 1 again
    when a node was taken out. A comparison by value is never misled by an earlier registration."""


class DirectoryProof(msgspec.Struct, frozen=True, kw_only=True):
    """The last process that wrote to a log directory without a failure, and the boot of the machine it ran in."""

    directory_id: str
    incarnation: int
    boot_id: str


class IncarnationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How often a node's process has started, and in which log directories its data is whole.

    The next process proves with `directories` that a kill lost no written page. One whose device failed is taken
    out: pages that could not be written are gone, though the machine has not been restarted. `process` is a text
    that only the process of this incarnation has; empty in records of earlier releases.
    """

    node_id: int
    incarnation: int
    directories: tuple[DirectoryProof, ...] = ()
    process: str = ""


class PulseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far the log directories of a node have come: a number for each, which rises every few seconds.

    Each directory holds the same number. One that is behind was put back to an older state.
    """

    node_id: int
    pulses: dict[str, int]
    """By directory id."""


class ControllerRecord(HolderRecord, frozen=True, kw_only=True):
    """The acting controller (ephemeral)."""

    controller_epoch: int


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The greatest controller epoch given out so far; every controller write checks its version."""

    controller_epoch: int


class ProducerIdsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The first unused producer id."""

    next_producer_id: int


class QuotaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one entity, bytes a second by their names; see `insync.replication.core.control.quotas`."""

    entity_type: str
    name: str
    limits: dict[str, int]


class UserRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A user, by whom clients log in; see `insync.replication.core.control.users`."""

    name: str
    credentials: dict[str, ScramCredential]
    """By SASL mechanism, never empty."""
    allow: tuple[str, ...] | None = None


class ProducerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A producer that outlives its processes: its id, and the epoch of the latest process."""

    producer_id: int
    producer_epoch: int


class OffsetsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that a group of readers keeps: by topic, by partition."""

    offsets: dict[str, dict[str, int]]


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Topic settings, Kafka's names in snake_case; sizes in bytes."""

    min_insync_replicas: int = 2
    unclean_leader_election: str = "wait"
    """`wait` (Kafka's false) or `any` (Kafka's true)."""
    max_message_bytes: int = 1048588
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    cleanup_policy: str = "delete"
    """`delete` (by age, size or request), `compact` (keep the last record of each key) or `compact,delete`."""
    retention_ms: int = 7 * DAY_MS
    """How long records are kept under `delete`; -1 for ever."""
    retention_bytes: int = -1
    """How much of a partition is kept under `delete`; -1 for all."""
    file_delete_delay_ms: int = 60_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = DAY_MS
    produce_batch_validation: str = "auto"
    """The checks before a batch is taken: `relaxed` (header, CRC, and records that are not compressed),
    `strict` (compressed ones as well), `auto` (`strict` if the topic is compacted).
    """
    durability: str = "replicated"
    """When a replica counts a batch as written: `replicated` (its log has it) or `flushed` (its device has it, as
    with Kafka's `flush.messages=1`).
    """

    @property
    def validates_compressed(self) -> bool:
        """Whether compressed records are checked before the append, because unreadable ones block compaction."""
        policy = self.produce_batch_validation
        return policy == "strict" or (policy == "auto" and self.compacts)

    @property
    def flushes(self) -> bool:
        """Whether a replica counts a batch only when its device has it."""
        return self.durability == "flushed"

    @property
    def deletes(self) -> bool:
        """Whether old records may be deleted, by retention or on request."""
        return "delete" in self.cleanup_policy.split(",")

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy.split(",")


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A topic: its identity and what its partitions have in common."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    config: TopicConfig
    was_compacted: bool = False
    """Whether `cleanup_policy` has ever contained `compact`: its logs may have gaps, for good."""
    creation_id: str = ""
    """The request that made it, in its sender's words; another than `topic_id`, because a topic that was deleted
    and is made by a late attempt must not be taken for the former one.
    """


class DeletedTopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that was deleted, by its id. A node deletes the topic's logs by this record alone, because a topic
    that is missing from the store may have been forgotten by it.

    number: which deletion it was, counted from 1; the oldest records go first.
    """

    name: str
    topic_id: str
    number: int


class PartitionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one partition; every change is one compare-and-set that raises `partition_epoch` by one.

    Invariant: leader in isr or NO_LEADER; isr, elr and last_known_elr are disjoint subsets of replicas;
    elr is empty while len(isr) >= min_insync_replicas (KIP-966).
    `min_insync_replicas` stands here, not only in the topic, so that leader and controller can never
    apply different values to one version.
    """

    topic: str
    partition: int
    topic_id: str
    replicas: tuple[int, ...]
    """In order of preference for leadership."""
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    controller_epoch: int = 0
    min_insync_replicas: int = 1
    recovering: bool = False
    """Set by an unclean election until the leader has more than itself in the ISR (KIP-704)."""
    unclean_epoch: int = -1
    """The leader epoch that the last unclean election began: what was committed in earlier ones may be gone."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    """A reassignment under way (KIP-455): `replicas` are the target and then those to be removed. Before it there
    was nobody of `adding`; after it there is nobody of `removing`; one that was to be added and no more is in both.
    """

    @property
    def id(self) -> PartitionId:
        return PartitionId(self.topic, self.partition)

    @property
    def min_isr(self) -> int:
        """The effective bound: never more than there are replicas, before and after a reassignment."""
        if not self.reassigning:
            return min(self.min_insync_replicas, len(self.replicas))
        return min(self.min_insync_replicas, len(self.origin), len(self.target))

    @property
    def reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the reassignment (though perhaps not in their former order)."""
        return tuple([node for node in self.replicas if node not in self.adding])

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment, in order of preference."""
        return tuple([node for node in self.replicas if node not in self.removing])


class Versioned(msgspec.Struct, frozen=True):
    """A partition record and the store's version of its key (the compare-and-set token)."""

    record: PartitionRecord
    version: int

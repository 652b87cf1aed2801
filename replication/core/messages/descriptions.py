"""Requests and answers about what there is, and how it is: nodes, topics, replicas, producers, changes."""

from __future__ import annotations

import msgspec

from ..types import NO_EPOCH, NO_LEADER, EpochEntry, Value
from .admin import PartitionName

MOST_DESCRIBED = 2_000
"""Partitions that one answer describes (Kafka's `max.request.partition.size.limit`, KIP-966); a cursor says where
the next one goes on."""
MOST_PRODUCERS = 10_000
"""Producers that one answer describes, and of one partition; those with an open transaction come first."""
EVERY_PRODUCER = -1


class MetadataRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`topics` None asks for all of them. `quotas`: whether the limits of clients and nodes are asked for, too.

    partition_limit: no more partitions in one answer; 0: all. cursor: the first partition that is asked for, where
    a former answer ended (`next_cursor`); topics and partitions go in order (KIP-966).
    """

    topics: list[str] | None = None
    quotas: bool = False
    partition_limit: int = 0
    cursor: PartitionName | None = None


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    incarnation: int
    endpoints: list[str]
    rack: str = ""


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: list[int]
    isr: list[int]
    elr: list[int]
    last_known_elr: list[int] = msgspec.field(default_factory=list)
    adding: list[int] = msgspec.field(default_factory=list)
    removing: list[int] = msgspec.field(default_factory=list)
    recovering: bool = False


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is UNKNOWN_TOPIC_OR_PARTITION for a topic that was asked for and does not exist."""

    name: str
    error: int
    topic_id: str = ""
    replication_factor: int = 0
    config: dict[str, Value] = msgspec.field(default_factory=dict)
    partitions: list[PartitionInfo] = msgspec.field(default_factory=list)


class QuotaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one entity, see `insync.replication.core.control.quotas`."""

    entity_type: str
    name: str
    limits: dict[str, int]


class MetadataResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as the answering node sees it at store revision `revision`."""

    cluster_id: str
    revision: int
    controller_id: int
    nodes: list[NodeInfo]
    topics: list[TopicInfo]
    quotas: list[QuotaInfo] = msgspec.field(default_factory=list)
    next_cursor: PartitionName | None = None
    """Where to go on; None: there is no more. The last topic may then be there in part."""


class DescribeProducersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What has a producer written to these partitions (KIP-664)? Asked of their leader; with `any_replica` of a
    node that follows them, too.

    `producer_id` `EVERY_PRODUCER`: all of them are told, in `producers` of each partition. Partitions that are
    missing in the answer were not looked at, as it was full (`MOST_PRODUCERS`): they are to be asked for again.
    """

    producer_id: int
    partitions: list[PartitionName]
    any_replica: bool = False


class ActiveProducer(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's knowledge of one producer (KIP-664).

    `last_sequence` -1: only its epoch is known. `last_timestamp_ms`: the largest of its last batch, in milliseconds
    since 1970 as the producer gave it; -1 while that is on its way to the device. `coordinator_epoch`: of its last
    marker. `start_offset`: of its open transaction. -1 where there is none.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int = -1
    last_timestamp_ms: int = -1
    coordinator_epoch: int = -1
    start_offset: int = -1


class DescribeProducersResult(msgspec.Struct, frozen=True, kw_only=True):
    """`last_sequence` and `last_offset` are those of its last record in the log, -1 if there is none; that is
    committed if `last_offset` is below `high_watermark`.
    """

    topic: str
    partition: int
    error: int
    producer_epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    high_watermark: int = -1
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    producers: list[ActiveProducer] = msgspec.field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether nothing of what the producer has written can vanish: only then may another go on from there."""
        return self.error == 0 and (self.last_offset < 0 or self.last_offset < self.high_watermark)


class DescribeProducersResponse(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[DescribeProducersResult]


class DescribePartitionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`topics` None asks for every partition that the answering node hosts.

    partition_limit, cursor: as in `MetadataRequest`.
    """

    topics: list[str] | None = None
    partition_limit: int = 0
    cursor: PartitionName | None = None


class FollowerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as its leader sees it; `log_end_offset` -1 until it has fetched in this epoch."""

    node_id: int
    log_end_offset: int
    lag_ms: int
    in_sync: bool
    why_out: str = ""


class ReplicaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One replica on the answering node; `followers` is filled by the leader alone. `log_dir`: where its log lies,
    empty while it is being made, and for clients that may not administer.
    """

    topic: str
    partition: int
    role: str
    leader: int
    leader_epoch: int
    partition_epoch: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    size_bytes: int
    isr: list[int]
    followers: list[FollowerInfo] = msgspec.field(default_factory=list)
    error: str = ""
    log_dir: str = ""


class DescribePartitionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`store_age_ms`: since when the metadata store has taken no write of the node; what it knows is as old."""

    node_id: int
    incarnation: int
    partitions: list[ReplicaInfo]
    next_cursor: PartitionName | None = None
    store_age_ms: int = 0


class GetReplicaLogInfoRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How complete are these logs? Asked by the controller before an unclean election (KIP-966)."""

    partitions: list[PartitionName]


class ReplicaLogInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`leader_epoch` is the one that the replica has entered; `last_epoch` that of its last batch, -1 for none.

    `topic_id`: of which topic of that name it is a replica; empty if unsaid. `epochs`: the latest of its log, in
    order.
    """

    topic: str
    partition: int
    leader_epoch: int
    last_epoch: int
    log_end_offset: int
    topic_id: str = ""
    log_start_offset: int = 0
    epochs: list[EpochEntry] = msgspec.field(default_factory=list)


class GetReplicaLogInfoResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions whose log is not open are left out."""

    node_id: int
    incarnation: int
    partitions: list[ReplicaLogInfo]


class IsSilentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Does this process leave your questions open, too? Asked by a node to which it does."""

    node_id: int
    incarnation: int


class IsSilentResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`silent`: whether it does; a node that has asked it nothing says no."""

    silent: bool


class DescribeNodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a node how it is."""


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """`detail` says what is wrong, or (where all is well) what was looked at."""

    name: str
    ok: bool
    detail: str = ""


class LogDirectoryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is why it is offline, empty while it works; sizes in bytes.

    free_bytes: what the device has left for it, -1 if that is not known. device: the same text for log directories
    that share what is left. stray_logs, stray_bytes: the logs that were set aside, and the space that they take.
    """

    path: str
    error: str = ""
    partitions: int = 0
    size_bytes: int = 0
    free_bytes: int = -1
    device: str = ""
    stray_logs: int = 0
    stray_bytes: int = 0


class DescribeNodeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`counters` only grow while the process (`incarnation`) lives: bytes and requests since its start."""

    node_id: int
    incarnation: int
    uptime_ms: int
    controller_id: int
    checks: list[HealthCheck]
    log_directories: list[LogDirectoryInfo]
    counters: dict[str, int]
    version: str = ""


class DescribeChangesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a node for the changes that it remembers, from number `start` on, at most `limit` of them.

    Numbers count from 1 within a process: under another `incarnation` than the node's (-1: any) all are told.
    """

    start: int = 1
    incarnation: int = -1
    limit: int = 500


class ChangeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the cluster as one node saw it: an event by name, its facts, and when, in ms since 1970."""

    number: int
    at_ms: int
    name: str
    facts: dict[str, str | int | list[int]]


class DescribeChangesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`next_number`: where to go on. `first_number`: the oldest that is still remembered."""

    node_id: int
    incarnation: int
    first_number: int
    next_number: int
    changes: list[ChangeInfo] = msgspec.field(default_factory=list)

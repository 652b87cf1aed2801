"""Requests and answers between clients, nodes and the controller.

Record batches do not stand in them: they follow as the payload, in the order of the partitions named here,
`size` bytes for each. Names are those of Kafka's protocol guide. Fields may be added; none may change.
Those about groups stand in `coordination.group_messages`.
"""

from __future__ import annotations

import enum

import attrs

from .control.admin_messages import (  # noqa: F401 - every message is to be found in this module
    AlterConfigRequest,
    AlterQuotasRequest,
    AlterQuotasResponse,
    AlterReassignmentsRequest,
    AlterReassignmentsResponse,
    CreatePartitionsRequest,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionName,
    PartitionOutcome,
    PartitionReassignment,
    TopicChanged,
)
from .control.user_messages import (  # noqa: F401 - likewise
    AlterUserRequest,
    AlterUserResponse,
    DescribeUsersRequest,
    DescribeUsersResponse,
    UserInfo,
    VerifyUserRequest,
    VerifyUserResponse,
)
from .types import NO_EPOCH, NO_LEADER, EpochEnd, Value


class Kind(enum.IntEnum):
    """What a request asks for (Kafka's api keys where there is one)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    CREATE_TOPIC = 19
    DELETE_TOPIC = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    ALTER_CONFIG = 33
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    ALTER_PARTITION_REASSIGNMENTS = 45
    OFFSET_DELETE = 47
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USERS = 50
    ALTER_USER = 51
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_PARTITIONS = 75
    GET_REPLICA_LOG_INFO = 93
    DESCRIBE_NODE = 1000
    COMMIT_GROUP_OFFSETS = 1008
    GROUP_OFFSETS = 1009
    INIT_TRANSACTIONS = 1011
    DESCRIBE_CHANGES = 1020
    READ_INDEX = 1021
    ABORT_TRANSACTION = 1022
    IS_SILENT = 1023
    VERIFY_USER = 1030
    """Kafka has none of these, from `DESCRIBE_NODE` on."""


EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MOST_DESCRIBED = 2_000
"""Partitions that one answer describes (Kafka's `max.request.partition.size.limit`, KIP-966); a cursor says where
the next one goes on."""
MOST_LOOK_UPS = 1_000
"""Timestamps of records that one `ListOffsetsRequest` may have looked for in logs."""
MOST_PRODUCERS = 10_000
"""Producers that one answer describes, and of one partition; those with an open transaction come first."""
EVERY_PRODUCER = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


@attrs.frozen(kw_only=True)
class ProducePartition:
    """One record batch for one partition; `leader_epoch` -1 means that the producer does not say."""

    topic: str
    partition: int
    size: int
    leader_epoch: int = NO_EPOCH


@attrs.frozen(kw_only=True)
class ProduceTransaction:
    """Whose transactional batches a request has. `version` 2: each transaction has a producer epoch of its own."""

    transactional_id: str
    version: int = 2


@attrs.frozen(kw_only=True)
class ProduceRequest:
    """`acks`: 0 (no answer is awaited), 1 (the leader wrote it) or -1 (all in-sync replicas have it).

    `client_id`: what the client calls itself, for its quota. `transaction`: None if no batch is transactional.
    """

    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]
    client_id: str = ""
    transaction: ProduceTransaction | None = None


@attrs.frozen(kw_only=True)
class ProduceResult:
    """`leader` and `leader_epoch` hint where to go when `error` says that this node does not lead."""

    topic: str
    partition: int
    error: int
    base_offset: int = -1
    log_start_offset: int = -1
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    message: str = ""


@attrs.frozen(kw_only=True)
class ProduceResponse:
    """`throttle_time_ms` (KIP-219): the client is over its quota; for so long the node serves no more of its
    produce requests, so it had better send none.
    """

    partitions: list[ProduceResult]
    throttle_time_ms: int = 0


@attrs.frozen(kw_only=True)
class FetchPartition:
    """`leader_epoch`: the epoch under which the reader believes to read (-1: a consumer that does not care).

    `last_fetched_epoch`: the epoch of the last batch before `fetch_offset` (KIP-595); -1 for none.
    `high_watermark`: the one that the follower knows (KIP-1166); -1 from a consumer. `topic_id` (KIP-516): which
    topic of that name is meant; empty from one that does not care. `damaged`: the last answer from this offset on
    held a damaged batch.
    """

    topic: str
    partition: int
    fetch_offset: int
    max_bytes: int
    leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    high_watermark: int = -1
    log_start_offset: int = 0
    topic_id: str = ""
    damaged: bool = False


@attrs.frozen(kw_only=True)
class FetchRequest:
    """`replica_id` -1 for consumers; `incarnation` tells a restarted follower from its former self (KIP-903).

    `session_epoch` (KIP-227): -1 without a session; 0 asks for one; else how many answers have arrived in
    `session_id`, and `partitions` are only those whose question is new, `forgotten` those that are withdrawn.
    `time_ms`: a follower's wall clock, in milliseconds since 1970; 0 from others. `isolation_level` (of
    consumers): with READ_COMMITTED the answer ends where a transaction is not decided (KIP-98).
    """

    replica_id: int
    incarnation: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: list[FetchPartition]
    session_id: int = 0
    session_epoch: int = -1
    forgotten: list[PartitionName] = attrs.Factory(list)
    client_id: str = ""
    time_ms: int = 0
    isolation_level: int = READ_UNCOMMITTED


@attrs.frozen(kw_only=True)
class FetchResult:
    """`size` bytes of the payload are whole batches from (at or before) the fetch offset on."""

    topic: str
    partition: int
    error: int
    high_watermark: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1
    leader_epoch: int = NO_EPOCH
    leader: int = NO_LEADER
    diverging: EpochEnd | None = None
    size: int = 0
    message: str = ""


@attrs.frozen(kw_only=True)
class AbortedProducer:
    """The transactional batches of a producer from `first_offset` up to its next ABORT marker count for nothing."""

    producer_id: int
    first_offset: int


@attrs.frozen(kw_only=True)
class FetchedTransactions:
    """What a reader of committed records must know to read the batches of a partition in a fetch response.

    `aborted`: by first offset, every transaction that was aborted and reaches into the batches.
    """

    topic: str
    partition: int
    last_stable_offset: int
    aborted: list[AbortedProducer]


@attrs.frozen(kw_only=True)
class FetchResponse:
    """Partitions that have nothing to say are left out of an answer to a consumer or a follower.

    `session_id`: the session that this belongs to, 0 for none. `error`: the session is over, ask everything anew.
    `throttle_time_ms`: as in `ProduceResponse`, for fetches. `transactions`: of each partition without an error, if
    only committed records were asked for.
    """

    partitions: list[FetchResult]
    session_id: int = 0
    error: int = 0
    throttle_time_ms: int = 0
    transactions: list[FetchedTransactions] | None = None


@attrs.frozen(kw_only=True)
class ListOffsetsPartition:
    """`timestamp`: EARLIEST_TIMESTAMP, LATEST_TIMESTAMP (the high watermark; for readers of committed records the
    last stable offset), or milliseconds since 1970.
    """

    topic: str
    partition: int
    timestamp: int
    leader_epoch: int = NO_EPOCH


@attrs.frozen(kw_only=True)
class ListOffsetsRequest:
    partitions: list[ListOffsetsPartition]
    isolation_level: int = READ_UNCOMMITTED


@attrs.frozen(kw_only=True)
class ListOffsetsResult:
    """`offset` -1 without an error: no committed record has that timestamp or a later one."""

    topic: str
    partition: int
    error: int
    offset: int = -1
    leader_epoch: int = NO_EPOCH
    leader: int = NO_LEADER


@attrs.frozen(kw_only=True)
class ListOffsetsResponse:
    partitions: list[ListOffsetsResult]


@attrs.frozen(kw_only=True)
class ReadIndexRequest:
    """Asks leaders for offsets behind every write that was acknowledged (acks=all) before they are asked."""

    timeout_ms: int
    partitions: list[PartitionName]


@attrs.frozen(kw_only=True)
class ReadIndexResult:
    """`offset`: what was acknowledged before the question came lies below it, whoever acknowledged it."""

    topic: str
    partition: int
    error: int
    offset: int = -1
    leader_epoch: int = NO_EPOCH
    leader: int = NO_LEADER


@attrs.frozen(kw_only=True)
class ReadIndexResponse:
    partitions: list[ReadIndexResult]


@attrs.frozen(kw_only=True)
class MetadataRequest:
    """`topics` None asks for all of them. `quotas`: whether the limits of clients and nodes are asked for, too.

    partition_limit: no more partitions in one answer; 0: all. cursor: the first partition that is asked for, where
    a former answer ended (`next_cursor`); topics and partitions go in order (KIP-966).
    """

    topics: list[str] | None = None
    quotas: bool = False
    partition_limit: int = 0
    cursor: PartitionName | None = None


@attrs.frozen(kw_only=True)
class NodeInfo:
    node_id: int
    incarnation: int
    endpoints: list[str]
    rack: str = ""


@attrs.frozen(kw_only=True)
class PartitionInfo:
    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: list[int]
    isr: list[int]
    elr: list[int]
    last_known_elr: list[int] = attrs.Factory(list)
    adding: list[int] = attrs.Factory(list)
    removing: list[int] = attrs.Factory(list)
    recovering: bool = False


@attrs.frozen(kw_only=True)
class TopicInfo:
    """`error` is UNKNOWN_TOPIC_OR_PARTITION for a topic that was asked for and does not exist."""

    name: str
    error: int
    topic_id: str = ""
    replication_factor: int = 0
    config: dict[str, Value] = attrs.Factory(dict)
    partitions: list[PartitionInfo] = attrs.Factory(list)


@attrs.frozen(kw_only=True)
class QuotaInfo:
    """The limits of one entity, see `insync.replication.core.control.quotas`."""

    entity_type: str
    name: str
    limits: dict[str, int]


@attrs.frozen(kw_only=True)
class MetadataResponse:
    """The cluster as the answering node sees it at store revision `revision`."""

    cluster_id: str
    revision: int
    controller_id: int
    nodes: list[NodeInfo]
    topics: list[TopicInfo]
    quotas: list[QuotaInfo] = attrs.Factory(list)
    next_cursor: PartitionName | None = None
    """Where to go on; None: there is no more. The last topic may then be there in part."""


@attrs.frozen(kw_only=True)
class InitProducerIdRequest:
    """`producer_id` -1 asks for a new identity; otherwise its epoch is raised.

    `identity` names a producer that outlives its processes: whoever asks under the same name gets the same id and
    the next epoch, which fences whoever had it before. With `producer_id` and `producer_epoch` only if they are
    still those of the name, otherwise whoever asks is fenced itself (KIP-360). `forget`: no more of it, nor of any
    whose name begins so.
    """

    producer_id: int = -1
    producer_epoch: int = -1
    identity: str = ""
    forget: bool = False


@attrs.frozen(kw_only=True)
class InitProducerIdResponse:
    error: int
    producer_id: int = -1
    producer_epoch: int = -1
    message: str = ""


@attrs.frozen(kw_only=True)
class DescribeProducersRequest:
    """What has a producer written to these partitions (KIP-664)? Asked of their leader.

    `producer_id` `EVERY_PRODUCER`: all of them are told, in `producers` of each partition. Partitions that are
    missing in the answer were not looked at, as it was full (`MOST_PRODUCERS`): they are to be asked for again.
    """

    producer_id: int
    partitions: list[PartitionName]


@attrs.frozen(kw_only=True)
class ActiveProducer:
    """What a partition knows of one producer (KIP-664).

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


@attrs.frozen(kw_only=True)
class DescribeProducersResult:
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
    producers: list[ActiveProducer] = attrs.Factory(list)

    @property
    def settled(self) -> bool:
        """Whether nothing of what the producer has written can vanish: only then may another go on from there."""
        return self.error == 0 and (self.last_offset < 0 or self.last_offset < self.high_watermark)


@attrs.frozen(kw_only=True)
class DescribeProducersResponse:
    partitions: list[DescribeProducersResult]


@attrs.frozen(kw_only=True)
class CommittedOffset:
    topic: str
    partition: int
    offset: int


@attrs.frozen(kw_only=True)
class OffsetCommitRequest:
    """Keep offsets under the name of a group of readers, or of one, beside those of other partitions.

    No offsets: forget all that are kept.

    `if_absent`: only if none are kept; the answer has those that are kept then, whoever was first.
    """

    group: str
    offsets: list[CommittedOffset]
    if_absent: bool = False


@attrs.frozen(kw_only=True)
class OffsetFetchRequest:
    group: str


@attrs.frozen(kw_only=True)
class OffsetsResponse:
    """The offsets that are kept; empty: none are."""

    error: int
    offsets: list[CommittedOffset] = attrs.Factory(list)
    message: str = ""


@attrs.frozen(kw_only=True)
class DescribePartitionsRequest:
    """`topics` None asks for every partition that the answering node hosts.

    partition_limit, cursor: as in `MetadataRequest`.
    """

    topics: list[str] | None = None
    partition_limit: int = 0
    cursor: PartitionName | None = None


@attrs.frozen(kw_only=True)
class FollowerInfo:
    """A follower as its leader sees it; `log_end_offset` -1 until it has fetched in this epoch."""

    node_id: int
    log_end_offset: int
    lag_ms: int
    in_sync: bool
    why_out: str = ""


@attrs.frozen(kw_only=True)
class ReplicaInfo:
    """One replica on the answering node; `followers` is filled by the leader alone. `log_dir`: where its log lies,
    empty while it is being made.
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
    followers: list[FollowerInfo] = attrs.Factory(list)
    error: str = ""
    log_dir: str = ""


@attrs.frozen(kw_only=True)
class DescribePartitionsResponse:
    """`store_age_ms`: since when the metadata store has taken no write of the node; what it knows is as old."""

    node_id: int
    incarnation: int
    partitions: list[ReplicaInfo]
    next_cursor: PartitionName | None = None
    store_age_ms: int = 0


@attrs.frozen(kw_only=True)
class GetReplicaLogInfoRequest:
    """How complete are these logs? Asked by the controller before an unclean election (KIP-966)."""

    partitions: list[PartitionName]


@attrs.frozen(kw_only=True)
class ReplicaLogInfo:
    """`leader_epoch` is the one that the replica has entered; `last_epoch` that of its last batch, -1 for none.

    `topic_id`: of which topic of that name it is a replica; empty if unsaid.
    """

    topic: str
    partition: int
    leader_epoch: int
    last_epoch: int
    log_end_offset: int
    topic_id: str = ""


@attrs.frozen(kw_only=True)
class GetReplicaLogInfoResponse:
    """Partitions whose log is not open are left out."""

    node_id: int
    incarnation: int
    partitions: list[ReplicaLogInfo]


@attrs.frozen(kw_only=True)
class IsSilentRequest:
    """Does this process leave your questions open, too? Asked by a node to which it does."""

    node_id: int
    incarnation: int


@attrs.frozen(kw_only=True)
class IsSilentResponse:
    """`silent`: whether it does; a node that has asked it nothing says no."""

    silent: bool


@attrs.frozen(kw_only=True)
class DeleteRecordsPartition:
    """Delete what lies below `offset`; -1 stands for the high watermark (KIP-107)."""

    topic: str
    partition: int
    offset: int


@attrs.frozen(kw_only=True)
class DeleteRecordsRequest:
    """Asked of the partitions' leader."""

    timeout_ms: int
    partitions: list[DeleteRecordsPartition]


@attrs.frozen(kw_only=True)
class DeleteRecordsResult:
    """`low_watermark`: no replica that is alive or may lead holds anything below it any more."""

    topic: str
    partition: int
    error: int
    low_watermark: int = -1
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    message: str = ""


@attrs.frozen(kw_only=True)
class DeleteRecordsResponse:
    partitions: list[DeleteRecordsResult]


@attrs.frozen(kw_only=True)
class DescribeNodeRequest:
    """Asks a node how it is."""


@attrs.frozen(kw_only=True)
class HealthCheck:
    """`detail` says what is wrong, or (where all is well) what was looked at."""

    name: str
    ok: bool
    detail: str = ""


@attrs.frozen(kw_only=True)
class LogDirectoryInfo:
    """`error` is why it is offline, empty while it works; sizes in bytes."""

    path: str
    error: str = ""
    partitions: int = 0
    size_bytes: int = 0


@attrs.frozen(kw_only=True)
class DescribeNodeResponse:
    """`counters` only grow while the process (`incarnation`) lives: bytes and requests since its start."""

    node_id: int
    incarnation: int
    uptime_ms: int
    controller_id: int
    checks: list[HealthCheck]
    log_directories: list[LogDirectoryInfo]
    counters: dict[str, int]
    version: str = ""


@attrs.frozen(kw_only=True)
class DescribeChangesRequest:
    """Asks a node for the changes that it remembers, from number `start` on, at most `limit` of them.

    Numbers count from 1 within a process: under another `incarnation` than the node's (-1: any) all are told.
    """

    start: int = 1
    incarnation: int = -1
    limit: int = 500


@attrs.frozen(kw_only=True)
class ChangeInfo:
    """A change of the cluster as one node saw it: an event by name, its facts, and when, in ms since 1970."""

    number: int
    at_ms: int
    name: str
    facts: dict[str, str | int | list[int]]


@attrs.frozen(kw_only=True)
class DescribeChangesResponse:
    """`next_number`: where to go on. `first_number`: the oldest that is still remembered."""

    node_id: int
    incarnation: int
    first_number: int
    next_number: int
    changes: list[ChangeInfo] = attrs.Factory(list)

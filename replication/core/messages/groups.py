"""Requests to a group's coordinator and its answers; Kafka's kinds and meanings unless a line says so.

An `error` is an `ErrorCode`. `leader` and `leader_epoch` of an answer hint at another coordinator, if it is known.
`coordinator_epoch` of a request: the `leader_epoch` that `FindCoordinatorResponse` gave; -1 if the sender does not
say. A coordinator that has lost the group and got it back refuses what was meant for its former self.
"""

from __future__ import annotations

import msgspec

NO_EPOCH = -1
JOIN = 0
LEAVE = -1
LEAVE_STATIC = -2
"""`member_epoch` of a heartbeat that joins, leaves for good, or leaves as a static member that comes back."""


class FindCoordinatorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes coordinate these groups? Any node knows (KIP-699). The first one makes the internal topic.

    `key_type`: `GROUP`, or `TRANSACTION` for transactional ids.
    """

    keys: list[str]
    key_type: int = 0


GROUP = 0
TRANSACTION = 1
"""`key_type` of `FindCoordinatorRequest`, as in Kafka."""


class Coordinator(msgspec.Struct, frozen=True, kw_only=True):
    """`error`: COORDINATOR_NOT_AVAILABLE while nobody leads; the same question may be asked again."""

    key: str
    error: int = 0
    message: str = ""
    node_id: int = -1
    endpoints: list[str] = msgspec.field(default_factory=list)
    leader_epoch: int = -1


class FindCoordinatorResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One for each key, in their order."""

    coordinators: list[Coordinator]


class TopicPartitionList(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions of one topic, by its id."""

    topic_id: str
    partitions: list[int]


class ConsumerGroupHeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-848. None: unchanged since the last one that was answered. A join says everything.

    `max_wait_ms` (ours): how long the coordinator may keep this until there is news. `sequence` (ours): grows with
    each one that the member sends; a late copy of an earlier one would say that it has let go what it was given
    since. -1 from a client whose connection keeps the order. `client_host`: what the node saw; a client's own word
    counts for nothing.
    """

    group: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    topics: list[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: list[TopicPartitionList] | None = None
    max_wait_ms: int = 0
    sequence: int = -1
    client_id: str = ""
    client_host: str = ""
    coordinator_epoch: int = NO_EPOCH


class ConsumerGroupHeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`assignment`: what the member is to own, all of it; None: unchanged.

    `session_timeout_ms` (ours): how long a member may go on after the sending of its last answered heartbeat.
    """

    error: int = 0
    message: str = ""
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    session_timeout_ms: int = 0
    assignment: list[TopicPartitionList] | None = None
    leader: int = -1
    leader_epoch: int = -1


class GroupOffset(msgspec.Struct, frozen=True, kw_only=True):
    """One offset to commit: of the next record to be read.

    `topic_id`: which topic of that name is meant; empty from a client that does not care.
    """

    topic: str
    partition: int
    offset: int
    topic_id: str = ""
    leader_epoch: int = -1
    metadata: str = ""


class CommitGroupOffsetsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`epoch`: the member epoch or generation; -1 without membership, for a group without members."""

    group: str
    member_id: str = ""
    epoch: int = NO_EPOCH
    instance_id: str | None = None
    offsets: list[GroupOffset]
    coordinator_epoch: int = NO_EPOCH


class TxnOffsetCommitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that takes effect with the transaction of a producer (KIP-447).

    `version` 2: the group's partition is added to the transaction. Before, clients add it; it is refused otherwise.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group: str
    member_id: str = ""
    epoch: int = NO_EPOCH
    instance_id: str | None = None
    offsets: list[GroupOffset]
    coordinator_epoch: int = NO_EPOCH
    version: int = 2


class PartitionError(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a request for one partition."""

    topic: str
    partition: int
    error: int = 0


class CommitGroupOffsetsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is of all partitions if it is not 0; then `partitions` is empty."""

    error: int = 0
    message: str = ""
    partitions: list[PartitionError] = msgspec.field(default_factory=list)
    leader: int = -1
    leader_epoch: int = -1


class TopicPartitionName(msgspec.Struct, frozen=True, kw_only=True):
    """`topic_id`: which topic of that name is meant; empty from a client that does not care."""

    topic: str
    partition: int
    topic_id: str = ""


class GroupOffsetsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a group's committed offsets; `partitions` None: all that there are.

    `require_stable`: an offset that an undecided transaction is about to replace is an error (KIP-447).
    """

    group: str
    member_id: str = ""
    epoch: int = NO_EPOCH
    partitions: list[TopicPartitionName] | None = None
    require_stable: bool = False
    coordinator_epoch: int = NO_EPOCH


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """`offset` -1: nothing is committed."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: int = 0


class GroupOffsetsResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: int = 0
    message: str = ""
    offsets: list[CommittedOffset] = msgspec.field(default_factory=list)
    leader: int = -1
    leader_epoch: int = -1


class ListGroupsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Empty lists: any. States and types by their names, as `GroupListing` has them."""

    states: list[str] = msgspec.field(default_factory=list)
    types: list[str] = msgspec.field(default_factory=list)


class GroupListing(msgspec.Struct, frozen=True, kw_only=True):
    """`type`: `consumer`, `classic`, or `simple` for offsets without members."""

    group: str
    type: str
    state: str
    protocol_type: str = ""


class ListGroupsResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: int = 0
    message: str = ""
    groups: list[GroupListing] = msgspec.field(default_factory=list)
    leader: int = -1
    leader_epoch: int = -1


class DescribeGroupsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of any type."""

    groups: list[str]


class ConsumerGroupDescribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of the consumer protocol; one of another type is GROUP_ID_NOT_FOUND, as in Kafka."""

    groups: list[str]


class DescribedMember(msgspec.Struct, frozen=True, kw_only=True):
    """`owned`: what it has; `target`: what it is to have (consumer protocol)."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rack: str | None = None
    epoch: int = -1
    topics: list[str] = msgspec.field(default_factory=list)
    owned: list[TopicPartitionList] = msgspec.field(default_factory=list)
    target: list[TopicPartitionList] = msgspec.field(default_factory=list)
    is_classic: bool = False
    subscription: bytes = b""
    assignment: bytes = b""


class DescribedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """`epoch`: the group epoch or generation."""

    group: str
    error: int = 0
    type: str = ""
    state: str = ""
    epoch: int = -1
    target_epoch: int = -1
    protocol_type: str = ""
    protocol: str = ""
    members: list[DescribedMember] = msgspec.field(default_factory=list)


class DescribeGroupsResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: int = 0
    message: str = ""
    groups: list[DescribedGroup] = msgspec.field(default_factory=list)
    leader: int = -1
    leader_epoch: int = -1


class DeleteGroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One group, with its offsets; it must have no members."""

    group: str
    coordinator_epoch: int = NO_EPOCH


class DeleteGroupResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: int = 0
    message: str = ""
    leader: int = -1
    leader_epoch: int = -1


class DeleteGroupOffsetsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of topics that nobody in the group reads."""

    group: str
    partitions: list[TopicPartitionName]
    coordinator_epoch: int = NO_EPOCH


class GroupProtocol(msgspec.Struct, frozen=True, kw_only=True):
    """An assignor that a classic member supports, with what it says to it."""

    name: str
    metadata: bytes


class JoinGroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Classic protocol. `member_id` empty: a new member. `protocols` in order of preference.

    `known_member_id`: whether a new dynamic member must come back with the id that it is given first (v4, KIP-394).
    `fresh_id`: the id for it, made by the node; a client's own word counts for nothing, as for `client_host`.
    """

    group: str
    member_id: str = ""
    instance_id: str | None = None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: list[GroupProtocol]
    known_member_id: bool = True
    client_id: str = ""
    client_host: str = ""
    fresh_id: str = ""
    coordinator_epoch: int = NO_EPOCH


class JoinedMember(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None = None
    metadata: bytes = b""


class JoinGroupResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`members`: all of them, for the leader alone. `skip_assignment`: it has nothing to assign (v9, KIP-814)."""

    error: int = 0
    message: str = ""
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader_id: str = ""
    member_id: str = ""
    members: list[JoinedMember] = msgspec.field(default_factory=list)
    skip_assignment: bool = False
    leader: int = -1
    leader_epoch: int = -1


class MemberAssignment(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    assignment: bytes


class SyncGroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`assignments`: from the leader; empty from all others."""

    group: str
    member_id: str
    instance_id: str | None = None
    generation: int
    assignments: list[MemberAssignment] = msgspec.field(default_factory=list)
    coordinator_epoch: int = NO_EPOCH


class SyncGroupResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: int = 0
    message: str = ""
    protocol_type: str = ""
    protocol: str = ""
    assignment: bytes = b""
    leader: int = -1
    leader_epoch: int = -1


class HeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    member_id: str
    instance_id: str | None = None
    generation: int
    coordinator_epoch: int = NO_EPOCH


class HeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: int = 0
    message: str = ""
    leader: int = -1
    leader_epoch: int = -1


class LeavingMember(msgspec.Struct, frozen=True, kw_only=True):
    """By its id, or by its instance with an empty id (an operator's wish)."""

    member_id: str = ""
    instance_id: str | None = None


class LeaveGroupRequest(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    members: list[LeavingMember]
    coordinator_epoch: int = NO_EPOCH


class LeaveGroupResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`errors`: of each member that was named, in order."""

    error: int = 0
    message: str = ""
    errors: list[int] = msgspec.field(default_factory=list)
    leader: int = -1
    leader_epoch: int = -1


Request = (
    ConsumerGroupHeartbeatRequest
    | JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | CommitGroupOffsetsRequest
    | TxnOffsetCommitRequest
    | GroupOffsetsRequest
    | ListGroupsRequest
    | DescribeGroupsRequest
    | ConsumerGroupDescribeRequest
    | DeleteGroupRequest
    | DeleteGroupOffsetsRequest
)
RESPONSES: dict[type, type] = {
    ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponse,
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
    CommitGroupOffsetsRequest: CommitGroupOffsetsResponse,
    TxnOffsetCommitRequest: CommitGroupOffsetsResponse,
    GroupOffsetsRequest: GroupOffsetsResponse,
    ListGroupsRequest: ListGroupsResponse,
    DescribeGroupsRequest: DescribeGroupsResponse,
    ConsumerGroupDescribeRequest: DescribeGroupsResponse,
    DeleteGroupRequest: DeleteGroupResponse,
    DeleteGroupOffsetsRequest: CommitGroupOffsetsResponse,
}

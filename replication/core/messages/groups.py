"""Requests to a group's coordinator and its answers; Kafka's kinds and meanings unless a line says so.

An `error` is an `ErrorCode`. `leader` and `leader_epoch` of an answer hint at another coordinator, if it is known.
`coordinator_epoch` of a request: the `leader_epoch` that `FindCoordinatorResponse` gave; -1 if the sender does not
say. A coordinator that has lost the group and got it back refuses what was meant for its former self.
"""

from __future__ import annotations

import attrs

NO_EPOCH = -1
JOIN = 0
LEAVE = -1
LEAVE_STATIC = -2
"""`member_epoch` of a heartbeat that joins, leaves for good, or leaves as a static member that comes back."""


@attrs.frozen(kw_only=True)
class FindCoordinatorRequest:
    """Which nodes coordinate these groups? Any node knows (KIP-699). The first one makes the internal topic.

    `key_type`: `GROUP`, or `TRANSACTION` for transactional ids.
    """

    keys: list[str]
    key_type: int = 0


GROUP = 0
TRANSACTION = 1
"""`key_type` of `FindCoordinatorRequest`, as in Kafka."""


@attrs.frozen(kw_only=True)
class Coordinator:
    """`error`: COORDINATOR_NOT_AVAILABLE while nobody leads; the same question may be asked again."""

    key: str
    error: int = 0
    message: str = ""
    node_id: int = -1
    endpoints: list[str] = attrs.Factory(list)
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class FindCoordinatorResponse:
    """One for each key, in their order."""

    coordinators: list[Coordinator]


@attrs.frozen(kw_only=True)
class TopicPartitionList:
    """Partitions of one topic, by its id."""

    topic_id: str
    partitions: list[int]


@attrs.frozen(kw_only=True)
class ConsumerGroupHeartbeatRequest:
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


@attrs.frozen(kw_only=True)
class ConsumerGroupHeartbeatResponse:
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


@attrs.frozen(kw_only=True)
class GroupOffset:
    """One offset to commit: of the next record to be read.

    `topic_id`: which topic of that name is meant; empty from a client that does not care.
    """

    topic: str
    partition: int
    offset: int
    topic_id: str = ""
    leader_epoch: int = -1
    metadata: str = ""


@attrs.frozen(kw_only=True)
class CommitGroupOffsetsRequest:
    """`epoch`: the member epoch or generation; -1 without membership, for a group without members."""

    group: str
    member_id: str = ""
    epoch: int = NO_EPOCH
    instance_id: str | None = None
    offsets: list[GroupOffset]
    coordinator_epoch: int = NO_EPOCH


@attrs.frozen(kw_only=True)
class TxnOffsetCommitRequest:
    """A commit that takes effect with the transaction of a producer (KIP-447)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group: str
    member_id: str = ""
    epoch: int = NO_EPOCH
    instance_id: str | None = None
    offsets: list[GroupOffset]
    coordinator_epoch: int = NO_EPOCH


@attrs.frozen(kw_only=True)
class PartitionError:
    """The outcome of a request for one partition."""

    topic: str
    partition: int
    error: int = 0


@attrs.frozen(kw_only=True)
class CommitGroupOffsetsResponse:
    """`error` is of all partitions if it is not 0; then `partitions` is empty."""

    error: int = 0
    message: str = ""
    partitions: list[PartitionError] = attrs.Factory(list)
    leader: int = -1
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class TopicPartitionName:
    """`topic_id`: which topic of that name is meant; empty from a client that does not care."""

    topic: str
    partition: int
    topic_id: str = ""


@attrs.frozen(kw_only=True)
class GroupOffsetsRequest:
    """A request for a group's committed offsets; `partitions` None: all that there are.

    `require_stable`: an offset that an undecided transaction is about to replace is an error (KIP-447).
    """

    group: str
    member_id: str = ""
    epoch: int = NO_EPOCH
    partitions: list[TopicPartitionName] | None = None
    require_stable: bool = False
    coordinator_epoch: int = NO_EPOCH


@attrs.frozen(kw_only=True)
class CommittedOffset:
    """`offset` -1: nothing is committed."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: int = 0


@attrs.frozen(kw_only=True)
class GroupOffsetsResponse:
    error: int = 0
    message: str = ""
    offsets: list[CommittedOffset] = attrs.Factory(list)
    leader: int = -1
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class ListGroupsRequest:
    """Empty lists: any. States and types by their names, as `GroupListing` has them."""

    states: list[str] = attrs.Factory(list)
    types: list[str] = attrs.Factory(list)


@attrs.frozen(kw_only=True)
class GroupListing:
    """`type`: `consumer`, `classic`, or `simple` for offsets without members."""

    group: str
    type: str
    state: str
    protocol_type: str = ""


@attrs.frozen(kw_only=True)
class ListGroupsResponse:
    error: int = 0
    message: str = ""
    groups: list[GroupListing] = attrs.Factory(list)
    leader: int = -1
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class DescribeGroupsRequest:
    """Groups of any type."""

    groups: list[str]


@attrs.frozen(kw_only=True)
class ConsumerGroupDescribeRequest:
    """Groups of the consumer protocol; one of another type is GROUP_ID_NOT_FOUND, as in Kafka."""

    groups: list[str]


@attrs.frozen(kw_only=True)
class DescribedMember:
    """`owned`: what it has; `target`: what it is to have (consumer protocol)."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rack: str | None = None
    epoch: int = -1
    topics: list[str] = attrs.Factory(list)
    owned: list[TopicPartitionList] = attrs.Factory(list)
    target: list[TopicPartitionList] = attrs.Factory(list)
    is_classic: bool = False
    subscription: bytes = b""
    assignment: bytes = b""


@attrs.frozen(kw_only=True)
class DescribedGroup:
    """`epoch`: the group epoch or generation."""

    group: str
    error: int = 0
    type: str = ""
    state: str = ""
    epoch: int = -1
    target_epoch: int = -1
    protocol_type: str = ""
    protocol: str = ""
    members: list[DescribedMember] = attrs.Factory(list)


@attrs.frozen(kw_only=True)
class DescribeGroupsResponse:
    error: int = 0
    message: str = ""
    groups: list[DescribedGroup] = attrs.Factory(list)
    leader: int = -1
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class DeleteGroupRequest:
    """One group, with its offsets; it must have no members."""

    group: str
    coordinator_epoch: int = NO_EPOCH


@attrs.frozen(kw_only=True)
class DeleteGroupResponse:
    error: int = 0
    message: str = ""
    leader: int = -1
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class DeleteGroupOffsetsRequest:
    """Offsets of topics that nobody in the group reads."""

    group: str
    partitions: list[TopicPartitionName]
    coordinator_epoch: int = NO_EPOCH


@attrs.frozen(kw_only=True)
class GroupProtocol:
    """An assignor that a classic member supports, with what it says to it."""

    name: str
    metadata: bytes


@attrs.frozen(kw_only=True)
class JoinGroupRequest:
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


@attrs.frozen(kw_only=True)
class JoinedMember:
    member_id: str
    instance_id: str | None = None
    metadata: bytes = b""


@attrs.frozen(kw_only=True)
class JoinGroupResponse:
    """`members`: all of them, for the leader alone. `skip_assignment`: it has nothing to assign (v9, KIP-814)."""

    error: int = 0
    message: str = ""
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader_id: str = ""
    member_id: str = ""
    members: list[JoinedMember] = attrs.Factory(list)
    skip_assignment: bool = False
    leader: int = -1
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class MemberAssignment:
    member_id: str
    assignment: bytes


@attrs.frozen(kw_only=True)
class SyncGroupRequest:
    """`assignments`: from the leader; empty from all others."""

    group: str
    member_id: str
    instance_id: str | None = None
    generation: int
    assignments: list[MemberAssignment] = attrs.Factory(list)
    coordinator_epoch: int = NO_EPOCH


@attrs.frozen(kw_only=True)
class SyncGroupResponse:
    error: int = 0
    message: str = ""
    protocol_type: str = ""
    protocol: str = ""
    assignment: bytes = b""
    leader: int = -1
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class HeartbeatRequest:
    group: str
    member_id: str
    instance_id: str | None = None
    generation: int
    coordinator_epoch: int = NO_EPOCH


@attrs.frozen(kw_only=True)
class HeartbeatResponse:
    error: int = 0
    message: str = ""
    leader: int = -1
    leader_epoch: int = -1


@attrs.frozen(kw_only=True)
class LeavingMember:
    """By its id, or by its instance with an empty id (an operator's wish)."""

    member_id: str = ""
    instance_id: str | None = None


@attrs.frozen(kw_only=True)
class LeaveGroupRequest:
    group: str
    members: list[LeavingMember]
    coordinator_epoch: int = NO_EPOCH


@attrs.frozen(kw_only=True)
class LeaveGroupResponse:
    """`errors`: of each member that was named, in order."""

    error: int = 0
    message: str = ""
    errors: list[int] = attrs.Factory(list)
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

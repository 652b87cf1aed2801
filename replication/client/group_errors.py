"""The errors of consumer groups and their coordinators; see `errors` for the rest."""

from __future__ import annotations

from ..core.errors import ErrorCode
from .errors import ClientError, ServerError, add_errors


class SubscriptionError(ClientError):
    """A consumer chooses in one way what it reads: `assign`, or `subscribe` with a `group_id`. It was asked for
    what only the other way has.
    """


class GroupError(ServerError):
    """Root of the errors of consumer groups."""


class OffsetMetadataTooLargeError(GroupError):
    """The metadata beside a committed offset is above `offset_metadata_max_bytes`."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class CoordinatorLoadInProgressError(GroupError):
    """The group's coordinator still reads what its predecessor wrote."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorNotAvailableError(GroupError):
    """The group has no coordinator that could write."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class NotCoordinatorError(GroupError):
    """The node asked does not coordinate the group, or ceased to while the request was under way."""

    code = ErrorCode.NOT_COORDINATOR
    outcome = "unknown"


class RecordListTooLargeError(GroupError):
    """The records that the coordinator would have to write at once are above the size of a batch."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE


class StaleMemberEpochError(GroupError):
    """The group has gone on without the member, which poll joins again.

    The partition was given to the member, or taken from it, after the epoch of its request; or, with the classic
    protocol, one of the errors below.
    """

    code = ErrorCode.STALE_MEMBER_EPOCH


class IllegalGenerationError(StaleMemberEpochError):
    """The group has been rebalanced since the member joined."""

    code = ErrorCode.ILLEGAL_GENERATION


class InconsistentGroupProtocolError(GroupError):
    """The member has no assignor, or no protocol type, in common with the others."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class InvalidGroupIdError(GroupError):
    """The group id is not one that can be used."""

    code = ErrorCode.INVALID_GROUP_ID


class UnknownMemberIdError(StaleMemberEpochError):
    """The group has no such member (any more)."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidSessionTimeoutError(GroupError):
    """The session timeout is outside the bounds that the nodes set."""

    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgressError(GroupError):
    """The group is being rebalanced."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class NonEmptyGroupError(GroupError):
    """The group still has members."""

    code = ErrorCode.NON_EMPTY_GROUP


class GroupIdNotFoundError(GroupError):
    """The group does not exist."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class MemberIdRequiredError(GroupError):
    """The coordinator has given the member an id to join with."""

    code = ErrorCode.MEMBER_ID_REQUIRED


class GroupMaxSizeReachedError(GroupError):
    """The group has as many members as it may have."""

    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceIdError(GroupError):
    """Another process has taken over this static member."""

    code = ErrorCode.FENCED_INSTANCE_ID


class GroupSubscribedToTopicError(GroupError):
    """The group still reads the topic."""

    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


class UnstableOffsetCommitError(GroupError):
    """A transaction that commits this offset is not decided yet."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT


class FencedMemberEpochError(GroupError):
    """The group has gone on without the member."""

    code = ErrorCode.FENCED_MEMBER_EPOCH


class UnreleasedInstanceIdError(GroupError):
    """Another member with this group_instance_id is alive."""

    code = ErrorCode.UNRELEASED_INSTANCE_ID


class UnsupportedAssignorError(GroupError):
    """The coordinator has no such assignor."""

    code = ErrorCode.UNSUPPORTED_ASSIGNOR


class InvalidRegularExpressionError(GroupError):
    """The coordinator does not resolve this pattern."""

    code = ErrorCode.INVALID_REGULAR_EXPRESSION


_REMEDIES = {
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "commit less metadata, or raise offset_metadata_max_bytes on the nodes",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "try again; the coordinator is loading",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "start nodes until `__consumer_offsets` has enough in-sync replicas",
    ErrorCode.NOT_COORDINATOR: "try again; the coordinator has moved",
    ErrorCode.RECORD_LIST_TOO_LARGE: "commit fewer partitions at once, or make the group smaller",
    ErrorCode.ILLEGAL_GENERATION: "poll again: the member joins the new generation",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "use one partition_assignment_strategy in all members of the group",
    ErrorCode.INVALID_GROUP_ID: "use a group_id that is not empty",
    ErrorCode.UNKNOWN_MEMBER_ID: "poll again: the member joins as a new one",
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "use one between group_min_session_timeout_ms and group_max_session_timeout_ms"
    ),
    ErrorCode.REBALANCE_IN_PROGRESS: "poll again: the member joins the rebalance",
    ErrorCode.NON_EMPTY_GROUP: "stop its consumers, or wait until their sessions end",
    ErrorCode.GROUP_ID_NOT_FOUND: "list the groups (`insync group list`)",
    ErrorCode.MEMBER_ID_REQUIRED: "join again with the member id in the answer",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "start fewer consumers, or raise group_max_size or group_consumer_max_size",
    ErrorCode.FENCED_INSTANCE_ID: "give each process a group_instance_id of its own",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the consumers that subscribe to it",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "try again; the transaction ends or times out",
    ErrorCode.FENCED_MEMBER_EPOCH: "poll again: the member releases its partitions and joins again",
    ErrorCode.UNRELEASED_INSTANCE_ID: "stop the other process, or give each a group_instance_id of its own",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "set group_remote_assignor to one of group_consumer_assignors of the nodes",
    ErrorCode.STALE_MEMBER_EPOCH: "poll again: the member learns its new epoch",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "subscribe by a pattern that the client resolves, or by names",
}
_LEAVES = [*GroupError.__subclasses__(), *StaleMemberEpochError.__subclasses__()]
add_errors({leaf.code: leaf for leaf in _LEAVES}, _REMEDIES)

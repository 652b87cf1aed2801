"""What the clients raise. One class for each error code that a node may answer, and those of the client itself.

Every error knows the `outcome` of the records that it is about: `absent` (they are certainly in no log) or
`unknown` (they may still be, or become, committed).
"""

from __future__ import annotations

from typing import Literal

from ..core.errors import ErrorCode
from ..errors import ReplicationError

Outcome = Literal["absent", "unknown"]
LossCause = Literal["deletion", "truncation", "recreation", ""]


class ClientError(ReplicationError):
    """Root of what producer, consumer and admin raise.

    `outcome` tells, of a write, whether it is certainly absent from every log or may be in one.
    `retriable` tells whether the same call may succeed later.
    """

    outcome: Outcome = "absent"
    retriable: bool = False

    def __init__(self, message: str = "", *, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        if outcome is not None:
            self.outcome = outcome


class InvalidSettingError(ClientError, ValueError):
    """A client was given a setting that cannot be, or two that contradict each other."""


class InvalidArgumentError(ClientError, TypeError, ValueError):
    """An argument of a call is of the wrong type or shape, or cannot be; nothing was sent.

    It is a TypeError and a ValueError, too, for who expects of a function what functions raise.
    """


class ClosedError(ClientError):
    """The client is closed, or its block has been left."""


class BootstrapError(ClientError):
    """No bootstrap server could be reached; the message names each and what came of it.

    `patience`: for how many seconds a client that is being opened tries again before it raises this. A server that
    refuses may be about to listen; one that drops connections is there, and busy.
    """

    retriable = True
    patience: float = 0.0


class MetadataTimeoutError(ClientError):
    """The client did not learn in time what it needs before it can begin (`max_block_ms`)."""

    retriable = True


class NotAssignedError(ClientError):
    """A consumer was asked to read, and nothing is assigned to it; or a partition was named that is not."""


class BufferFullError(ClientError):
    """The records that wait to be sent fill `buffer_memory`; nothing of this one was kept."""

    retriable = True


class DeliveryTimeoutError(ClientError):
    """Not acknowledged within `delivery_timeout_ms`. The message names the last error; see `outcome`."""


class RequestTimeoutError(ClientError):
    """No answer came in time; the message names the last error."""

    outcome = "unknown"
    retriable = True


class NoDiskRoomError(ClientError):
    """A move of partitions needs more room than a node has; nothing was asked for.

    node: that node; needed, free: bytes.
    """

    def __init__(self, node: int, needed: int, free: int) -> None:
        super().__init__(
            f"the partitions that are to move to node {node} have {needed} bytes, and its log directories have "
            f"{free} free: free some, choose another node, move fewer at a time, or move them without this check "
            "(check_room=False, --no-check-room)"
        )
        self.node = node
        self.needed = needed
        self.free = free


class TopicNotReadyError(RequestTimeoutError):
    """Partitions are made, and not all can be written to yet. Nodes go on with the others: nothing is to repeat.

    writable: how many can be; partitions: of how many that were asked for. topic_id: that of the topic.
    """

    retriable = False

    def __init__(self, topic: str, topic_id: str, writable: int, partitions: int, timeout_ms: int) -> None:
        super().__init__(
            f"topic {topic!r} is created, but after request_timeout_ms={timeout_ms} only {writable} of its "
            f"{partitions} new partitions accept writes; the nodes continue with the others: do not create it "
            f"again, see `insync topic describe {topic}`"
        )
        self.topic_id = topic_id
        self.writable = writable
        self.partitions = partitions


class AuthorizationError(ClientError):
    """The cluster knows this client and does not let it do that (`allow` of its nodes); no retry helps."""


class SerializationError(ClientError):
    """A serializer raised, or gave no bytes; the record was not sent. Its own error is the cause."""


class BatchError(ClientError):
    """The batch that a record was in could not be built or handed to the network: an error of this process.

    No memory, say, or a codec that raised; its own error is the cause. Other batches are still sent.
    """


class PartitionerError(ClientError):
    """A partitioner raised, or gave no number; the record was not sent. Its own error is the cause."""


class UndecodableError(ClientError):
    """A fetched batch holds what this client cannot decode.

    `topic`, `partition`, `offset` (where the consumer stands) and `next_offset` (behind the batch) tell which one.
    The consumer stays there until `seek`; with `on_corrupt="skip"` it steps over the batch instead.
    """

    topic = ""
    partition = -1
    offset = -1
    next_offset = -1


class DecompressionBombError(UndecodableError):
    """A compressed batch grows above what this consumer takes at once (`fetch_max_bytes`, at least 16 MiB)."""


class DeserializationError(ClientError):
    """A deserializer raised; its own error is the cause. The consumer stands at the record: `seek` past it.

    `topic`, `partition` and `offset` tell which one; the message tells whether it was the key or the value.
    """

    topic = ""
    partition = -1
    offset = -1


class ServerError(ClientError):
    """Root of the errors that a node answers; `code` is the one it gave."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR


class UnknownServerError(ServerError):
    """The node failed in a way that has no error code of its own."""

    outcome = "unknown"


class OffsetOutOfRangeError(ServerError):
    """The offset is not (or no longer) in the log, and `auto_offset_reset` is `none`.

    `topic`, `partition`, `offset` (asked for), `log_start_offset` and `end_offset` (what there is, -1: unknown).
    `lost`: the offsets [first, end) of which this reader misses the records, or None if none is known to be lost.
    `by`: "deletion" (retention, or `Admin.delete_records`), "truncation" (an unclean election, or a log that was
    damaged: what was read at these offsets is not what is there now), "recreation" (another topic has the name
    now), or "" (nobody knows: the offset may never have existed).
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE
    topic = ""
    partition = -1
    offset = -1
    log_start_offset = -1
    end_offset = -1
    lost: tuple[int, int] | None = None
    by: LossCause = ""


class CorruptMessageError(ServerError):
    """A batch does not match its checksum, or stands at an offset where it cannot.

    Of a consumer: `topic`, `partition` and `offset` tell where it stands. It stays there until `seek`; with
    `on_corrupt="skip"` it steps over the batch instead.
    """

    code = ErrorCode.CORRUPT_MESSAGE
    topic = ""
    partition = -1
    offset = -1


class UnknownTopicError(ServerError):
    """There is no such topic or partition."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailableError(ServerError):
    """The partition has no leader now."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeaderError(ServerError):
    """The node asked does not lead the partition, or lost it while the request was under way."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    outcome = "unknown"


class RequestTimedOutError(ServerError):
    """The node could not do it within the request's time; it may still happen."""

    code = ErrorCode.REQUEST_TIMED_OUT
    outcome = "unknown"


class RecordTooLargeError(ServerError):
    """A record or batch is above a size limit; the message names both sizes and the setting."""

    code = ErrorCode.RECORD_TOO_LARGE


class InvalidTopicError(ServerError):
    """Not a legal topic name."""

    code = ErrorCode.INVALID_TOPIC


class NotEnoughReplicasError(ServerError):
    """Fewer replicas are in sync than `min_insync_replicas`; nothing was written."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(ServerError):
    """Written, but the ISR fell under `min_insync_replicas` before it was committed."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    outcome = "unknown"


class InvalidAcksError(ServerError):
    """`acks` must be 0, 1 or all."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


class TopicExistsError(ServerError):
    """A topic of that name exists already."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(ServerError):
    """Not a possible number of partitions."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactorError(ServerError):
    """Not a possible replication factor: below 1, or more than there are living nodes."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidConfigError(ServerError):
    """A topic setting that does not exist or has an impossible value."""

    code = ErrorCode.INVALID_CONFIG


class InvalidReplicaAssignmentError(ServerError):
    """Replicas that a partition cannot have: none, one twice, or a node that is not alive."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class PreferredLeaderNotAvailableError(ServerError):
    """The preferred replica is not alive, or not in the ISR."""

    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class EligibleLeadersNotAvailableError(ServerError):
    """No replica of the partition is alive, so not even an unclean election can give it a leader."""

    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class ElectionNotNeededError(ServerError):
    """The partition is led as asked already."""

    code = ErrorCode.ELECTION_NOT_NEEDED


class NoReassignmentInProgressError(ServerError):
    """There is nothing to cancel."""

    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class NotControllerError(ServerError):
    """There is no acting controller, or it moved while it was asked."""

    code = ErrorCode.NOT_CONTROLLER


class InvalidRequestError(ServerError):
    """The node did not understand the request."""

    code = ErrorCode.INVALID_REQUEST


class PolicyViolationError(ServerError):
    """The topic's settings do not allow it."""

    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequenceError(ServerError):
    """The log misses earlier batches of this producer that were acknowledged: committed records are lost.

    Only an unclean leader election or a damaged log can bring this about.
    """

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class ProducerFencedError(ServerError):
    """A newer epoch of the same producer id has written to the partition."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class NodeStorageError(ServerError):
    """The leader's disk failed it."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    outcome = "unknown"


class FetchSessionNotFoundError(ServerError):
    """The node does not know the fetch session (any more)."""

    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class InvalidFetchSessionEpochError(ServerError):
    """Both ends of a fetch session disagree about what was asked."""

    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH


class FencedLeaderEpochError(ServerError):
    """The client's leader epoch is older than the node's."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(ServerError):
    """The client's leader epoch is newer than the node's."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class OffsetNotAvailableError(ServerError):
    """A new leader does not know yet how far the log is committed (KIP-207)."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE


class InconsistentTopicIdError(ServerError):
    """The node knows another topic of the same name: one of the two was deleted."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID


class InvalidRecordError(ServerError):
    """The node refuses the batch."""

    code = ErrorCode.INVALID_RECORD


def _leaves(cls: type[ServerError]) -> dict[ErrorCode, type[ServerError]]:
    return {leaf.code: leaf for leaf in cls.__subclasses__()}


ERROR_CLASSES: dict[ErrorCode, type[ServerError]] = _leaves(ServerError)
"""Every error code but NONE, and the class that stands for it."""

_REMEDIES: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "see the log of that node",
    ErrorCode.OFFSET_OUT_OF_RANGE: "seek to an offset that exists, or set auto_offset_reset",
    ErrorCode.CORRUPT_MESSAGE: "check the node's disk and memory; another replica may be undamaged",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "list the topics (`insync topic list`), or create it (`insync topic create`)"
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: "start a node of its in-sync replicas; `insync topic describe` names them",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "try again; leadership has moved",
    ErrorCode.REQUEST_TIMED_OUT: "raise request_timeout_ms, or see why its followers lag",
    ErrorCode.RECORD_TOO_LARGE: "raise the topic's max_message_bytes, or lower batch_size and max_request_size",
    ErrorCode.INVALID_TOPIC: "use 1 to 249 letters, digits, dots, underscores and hyphens",
    ErrorCode.NOT_ENOUGH_REPLICAS: "bring replicas back in sync, or lower min_insync_replicas",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "bring replicas back in sync, or lower min_insync_replicas",
    ErrorCode.INVALID_REQUIRED_ACKS: "use acks 0, 1 or 'all'",
    ErrorCode.TOPIC_ALREADY_EXISTS: "use it as it is, or choose another name",
    ErrorCode.INVALID_PARTITIONS: "use at least one partition",
    ErrorCode.INVALID_REPLICATION_FACTOR: "start more nodes, or lower the replication factor",
    ErrorCode.INVALID_CONFIG: "mend the settings",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "name nodes that are alive, each once",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "start that node, or wait until it has caught up",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "start a node that holds a replica",
    ErrorCode.ELECTION_NOT_NEEDED: "nothing has to be done",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "nothing has to be cancelled",
    ErrorCode.NOT_CONTROLLER: "try again; a controller is being elected",
    ErrorCode.INVALID_REQUEST: "client and node may be of different versions",
    ErrorCode.POLICY_VIOLATION: "change the topic's settings (`insync config`), or leave it",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "compare with the source: acknowledged records were lost",
    ErrorCode.INVALID_PRODUCER_EPOCH: "open a new producer",
    ErrorCode.KAFKA_STORAGE_ERROR: "see that node's log and disk",
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "begin a new fetch session",
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: "begin a new fetch session",
    ErrorCode.FENCED_LEADER_EPOCH: "try again; leadership has moved",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "try again; the node is behind",
    ErrorCode.OFFSET_NOT_AVAILABLE: "try again; the new leader is catching up",
    ErrorCode.INCONSISTENT_TOPIC_ID: "try again; the node is behind",
    ErrorCode.INVALID_RECORD: "the record breaks a rule of the topic",
}


def add_errors(classes: dict[ErrorCode, type[ServerError]], remedies: dict[ErrorCode, str]) -> None:
    """Make the codes of another subject known, each with its class and what to do about it."""
    ERROR_CLASSES.update(classes)
    _REMEDIES.update(remedies)


_SELF_EXPLAINING = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.RECORD_TOO_LARGE,
        ErrorCode.INVALID_TOPIC,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_CONFIG,
    }
)
"""Where nodes say themselves what to do, in terms of what was asked; a general remedy might contradict them."""


def error_for(code: int, thing: str, detail: str = "", *, outcome: Outcome | None = None) -> ServerError:
    """The exception for an answered error code.

    Args:
      code: As it stood in the answer; numbers that are not known become `UnknownServerError`.
      thing: What it is about, first in the message ("topic 'orders'", "orders-3").
      detail: The node's own words, if it gave any.
      outcome: Overrides what the class says of the records.
    """
    try:
        known = ErrorCode(code)
    except ValueError:
        known, detail = ErrorCode.UNKNOWN_SERVER_ERROR, detail or f"error code {code}"
    cls = ERROR_CLASSES.get(known, UnknownServerError)
    said = f": {detail}" if detail else ""
    remedy = _REMEDIES.get(known, _REMEDIES[ErrorCode.UNKNOWN_SERVER_ERROR])
    advice = "" if detail and known in _SELF_EXPLAINING else f"; {remedy}"
    error = cls(f"{thing}: {known.name}{said}{advice}", outcome=outcome)
    error.retriable = known.retriable
    return error

"""The errors of clients: one class for each error code of a node's answer, and the clients' own errors.

Every error has the `outcome` of its records: `absent` (they are certainly in no log) or `unknown` (they may be, or
become, committed).
"""

from __future__ import annotations

from typing import Literal

from ..core.errors import ErrorCode
from ..errors import ReplicationError

Outcome = Literal["absent", "unknown"]
LossCause = Literal["deletion", "truncation", "recreation", ""]


class ClientError(ReplicationError):
    """Root of the errors of producer, consumer and admin client.

    `outcome` says whether a write is certainly absent from every log or may be in one.
    `retriable` says whether the same call may succeed later.
    """

    outcome: Outcome = "absent"
    retriable: bool = False

    def __init__(self, message: str = "", *, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        if outcome is not None:
            self.outcome = outcome


class InvalidSettingError(ClientError, ValueError):
    """A setting is unknown or impossible, or two settings contradict each other."""


class InvalidArgumentError(ClientError, TypeError, ValueError):
    """An argument has the wrong type or shape, or an impossible value; nothing was sent.

    It is also a TypeError and a ValueError, as callers of Python functions expect.
    """


class ClosedError(ClientError):
    """The client is closed, or its block has been left."""


class OutcomePendingError(ClientError, RuntimeError):
    """The outcome of a delivery was asked for before it is known; wait for the delivery first."""

    outcome = "unknown"


class NoTrioError(ClientError, RuntimeError):
    """A client for trio was opened where trio does not run."""


class BootstrapError(ClientError):
    """No bootstrap server could be reached; the message names each server and its error.

    `patience`: for how many seconds an opening client retries before it raises this. A server that refuses
    connections may be about to listen; one that drops connections is alive but busy.
    """

    retriable = True
    patience: float = 0.0


class MetadataTimeoutError(ClientError):
    """The client did not get the metadata that it needs within `max_block_ms`."""

    retriable = True


class NotAssignedError(ClientError):
    """The consumer has no partition assigned, or a call names a partition that is not assigned."""


class BufferFullError(ClientError):
    """Waiting records fill `buffer_memory`; this record was not accepted."""

    retriable = True


class DeliveryTimeoutError(ClientError):
    """Not acknowledged within `delivery_timeout_ms`. The message names the last error; see `outcome`."""


class RequestTimeoutError(ClientError):
    """No answer came in time; the message names the last error."""

    outcome = "unknown"
    retriable = True


class NoDiskRoomError(ClientError):
    """A move of partitions needs more disk space than a node has; nothing was changed.

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
    """New partitions exist, but some accept no writes yet. Nodes continue with those: do not repeat the call.

    writable: the number of new partitions that accept writes; partitions: the number of all new partitions;
    topic_id: the topic's id.
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
    """The rules of the nodes (`allow`) do not permit this to the client; a retry does not help."""


class SerializationError(ClientError):
    """A serializer raised or did not return bytes; the record was not sent. `__cause__` is its error."""


class BatchError(ClientError):
    """The batch of a record could not be built or handed to the network, because of an error in this process.

    Examples are a lack of memory or a codec that raised; `__cause__` is the error. Other batches are still sent.
    """


class PartitionerError(ClientError):
    """A partitioner raised or did not return a number; the record was not sent. `__cause__` is its error."""


class UndecodableError(ClientError):
    """The client cannot decode a fetched batch.

    `topic`, `partition`, `offset` (the consumer's position) and `next_offset` (the end of the batch) identify it.
    The consumer stays there until `seek`; with `on_corrupt="skip"` it skips the batch instead.
    """

    topic = ""
    partition = -1
    offset = -1
    next_offset = -1


class DecompressionBombError(UndecodableError):
    """A compressed batch expands beyond the consumer's limit (`fetch_max_bytes`, at least 16 MiB)."""


class DeserializationError(ClientError):
    """A deserializer raised; `__cause__` is its error. The position stays at the record: `seek` past it.

    `topic`, `partition` and `offset` identify the record; the message says whether its key or value failed.
    """

    topic = ""
    partition = -1
    offset = -1


class ServerError(ClientError):
    """Root of the errors in answers of nodes; `code` is the error code."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR


class UnknownServerError(ServerError):
    """The node failed in a way without a specific error code."""

    outcome = "unknown"


class OffsetOutOfRangeError(ServerError):
    """The offset is not (or no longer) in the log, and `auto_offset_reset` is `none`.

    `offset` is the requested one; `log_start_offset` and `end_offset` are the bounds of the log (-1: unknown).
    `lost`: the offsets [first, end) of records that this reader misses, or None if none is known to be lost.
    `by`: "deletion" (retention, or `Admin.delete_records`), "truncation" (an unclean election or a damaged log:
    other records may be at these offsets now), "recreation" (another topic has the name now), or "" (unknown: the
    offset may never have existed).
    `topic_ids`: if `by` is "recreation", the ids of the former topic and of the one that has its name now.
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE
    topic = ""
    partition = -1
    offset = -1
    log_start_offset = -1
    end_offset = -1
    lost: tuple[int, int] | None = None
    by: LossCause = ""
    topic_ids: tuple[str, str] | None = None


class CorruptMessageError(ServerError):
    """A batch does not match its checksum, or has an impossible offset.

    In a consumer, `topic`, `partition` and `offset` are its position. It stays there until `seek`; with
    `on_corrupt="skip"` it skips the batch instead.
    """

    code = ErrorCode.CORRUPT_MESSAGE
    topic = ""
    partition = -1
    offset = -1


class UnknownTopicError(ServerError):
    """The topic or partition does not exist."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailableError(ServerError):
    """The partition currently has no leader."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeaderError(ServerError):
    """The node does not lead the partition, or lost the leadership during the request."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    outcome = "unknown"


class RequestTimedOutError(ServerError):
    """The node did not finish the request within its timeout; it may still take effect."""

    code = ErrorCode.REQUEST_TIMED_OUT
    outcome = "unknown"


class RecordTooLargeError(ServerError):
    """A record or batch exceeds a size limit; the message names both sizes and the setting."""

    code = ErrorCode.RECORD_TOO_LARGE


class InvalidTopicError(ServerError):
    """The topic name is not valid."""

    code = ErrorCode.INVALID_TOPIC


class NotEnoughReplicasError(ServerError):
    """Fewer replicas are in sync than `min_insync_replicas`; nothing was written."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(ServerError):
    """The record was written, but the ISR fell below `min_insync_replicas` before the commit."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    outcome = "unknown"


class InvalidAcksError(ServerError):
    """`acks` must be 0, 1 or all."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


class TopicExistsError(ServerError):
    """A topic of that name exists already."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(ServerError):
    """The number of partitions is not valid."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactorError(ServerError):
    """The replication factor is below 1 or above the number of living nodes."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidConfigError(ServerError):
    """A topic setting is unknown or has an impossible value."""

    code = ErrorCode.INVALID_CONFIG


class InvalidReplicaAssignmentError(ServerError):
    """An assignment has no replica, a replica twice, or a node that is not alive."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class PreferredLeaderNotAvailableError(ServerError):
    """The preferred replica is not alive, or not in the ISR."""

    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class EligibleLeadersNotAvailableError(ServerError):
    """No replica of the partition is alive, so not even an unclean election can give it a leader."""

    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class ElectionNotNeededError(ServerError):
    """The partition already has the requested leader."""

    code = ErrorCode.ELECTION_NOT_NEEDED


class NoReassignmentInProgressError(ServerError):
    """No reassignment is running that could be cancelled."""

    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class NotControllerError(ServerError):
    """There is no active controller, or it changed during the request."""

    code = ErrorCode.NOT_CONTROLLER


class InvalidRequestError(ServerError):
    """The node did not understand the request."""

    code = ErrorCode.INVALID_REQUEST


class PolicyViolationError(ServerError):
    """The topic's settings do not allow the operation."""

    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequenceError(ServerError):
    """The log lacks earlier acknowledged batches of this producer: committed records are lost.

    Only an unclean leader election or a damaged log can cause this.
    """

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class ProducerFencedError(ServerError):
    """A newer epoch of the same producer id has written to the partition."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class NodeStorageError(ServerError):
    """The leader's disk failed."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    outcome = "unknown"


class FetchSessionNotFoundError(ServerError):
    """The node does not know the fetch session, or has dropped it."""

    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class InvalidFetchSessionEpochError(ServerError):
    """Client and node disagree about the state of a fetch session."""

    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH


class FencedLeaderEpochError(ServerError):
    """The client's leader epoch is older than the node's."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(ServerError):
    """The client's leader epoch is newer than the node's."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class OffsetNotAvailableError(ServerError):
    """A new leader does not know its high watermark yet (KIP-207)."""

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
"""The class of every error code except NONE."""

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
    ErrorCode.INVALID_CONFIG: "correct the settings",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "name nodes that are alive, each once",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "start that node, or wait until it has caught up",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "start a node that holds a replica",
    ErrorCode.ELECTION_NOT_NEEDED: "no action is needed",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "there is nothing to cancel",
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
    """Register further error codes, each with its class and remedy."""
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
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.ELECTION_NOT_NEEDED,
    }
)
"""Codes whose answers contain a remedy of the node; a general remedy might contradict it. An answer that names a
command contains one, too.
"""


def error_for(code: int, thing: str, detail: str = "", *, outcome: Outcome | None = None) -> ServerError:
    """The exception for an answered error code.

    Args:
      code: The number in the answer; an unknown number becomes `UnknownServerError`.
      thing: The object of the error, which starts the message ("topic 'orders'", "orders-3").
      detail: The node's message, if it sent one.
      outcome: Overrides the outcome of the class.
    """
    try:
        known = ErrorCode(code)
    except ValueError:
        known, detail = ErrorCode.UNKNOWN_SERVER_ERROR, detail or f"error code {code}"
    cls = ERROR_CLASSES.get(known, UnknownServerError)
    said = f": {detail}" if detail else ""
    remedy = _REMEDIES.get(known, _REMEDIES[ErrorCode.UNKNOWN_SERVER_ERROR])
    is_explained = detail and (known in _SELF_EXPLAINING or "`insync " in detail)
    advice = "" if is_explained else f"; {remedy}"
    error = cls(f"{thing}: {known.name}{said}{advice}", outcome=outcome)
    error.retriable = known.retriable
    return error

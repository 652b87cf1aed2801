"""MessagePack for requests and answers, JSON for records: both by msgspec, straight from the attrs classes.

Fields travel by name, so that a newer peer may add some: unknown names are skipped, missing ones take their
defaults. A body that is no such message is refused with `WireError`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ..core import messages as m
from ..core.messages import groups as gm
from ..core.messages import transactions as tm
from ..errors import ReplicationError

R = TypeVar("R")

REQUEST_TYPES: dict[int, type] = {
    m.Kind.PRODUCE: m.ProduceRequest,
    m.Kind.FETCH: m.FetchRequest,
    m.Kind.LIST_OFFSETS: m.ListOffsetsRequest,
    m.Kind.METADATA: m.MetadataRequest,
    m.Kind.CREATE_TOPIC: m.CreateTopicRequest,
    m.Kind.DELETE_RECORDS: m.DeleteRecordsRequest,
    m.Kind.DELETE_TOPIC: m.DeleteTopicRequest,
    m.Kind.CREATE_PARTITIONS: m.CreatePartitionsRequest,
    m.Kind.ALTER_CONFIG: m.AlterConfigRequest,
    m.Kind.INIT_PRODUCER_ID: m.InitProducerIdRequest,
    m.Kind.DESCRIBE_PRODUCERS: m.DescribeProducersRequest,
    m.Kind.OFFSET_COMMIT: m.OffsetCommitRequest,
    m.Kind.OFFSET_FETCH: m.OffsetFetchRequest,
    m.Kind.ELECT_LEADERS: m.ElectLeadersRequest,
    m.Kind.ALTER_PARTITION_REASSIGNMENTS: m.AlterReassignmentsRequest,
    m.Kind.ALTER_CLIENT_QUOTAS: m.AlterQuotasRequest,
    m.Kind.DESCRIBE_USERS: m.DescribeUsersRequest,
    m.Kind.ALTER_USER: m.AlterUserRequest,
    m.Kind.VERIFY_USER: m.VerifyUserRequest,
    m.Kind.DESCRIBE_NODE: m.DescribeNodeRequest,
    m.Kind.DESCRIBE_CHANGES: m.DescribeChangesRequest,
    m.Kind.DESCRIBE_PARTITIONS: m.DescribePartitionsRequest,
    m.Kind.READ_INDEX: m.ReadIndexRequest,
    m.Kind.OFFSET_FOR_LEADER_EPOCH: m.EpochEndsRequest,
    m.Kind.GET_REPLICA_LOG_INFO: m.GetReplicaLogInfoRequest,
    m.Kind.IS_SILENT: m.IsSilentRequest,
    m.Kind.INIT_TRANSACTIONS: tm.InitTransactionsRequest,
    m.Kind.ADD_PARTITIONS_TO_TXN: tm.AddPartitionsRequest,
    m.Kind.END_TXN: tm.EndTransactionRequest,
    m.Kind.WRITE_TXN_MARKERS: tm.WriteMarkersRequest,
    m.Kind.TXN_OFFSET_COMMIT: gm.TxnOffsetCommitRequest,
    m.Kind.DESCRIBE_TRANSACTIONS: tm.DescribeTransactionsRequest,
    m.Kind.LIST_TRANSACTIONS: tm.ListTransactionsRequest,
    m.Kind.ABORT_TRANSACTION: tm.AbortTransactionRequest,
    m.Kind.FIND_COORDINATOR: gm.FindCoordinatorRequest,
    m.Kind.JOIN_GROUP: gm.JoinGroupRequest,
    m.Kind.HEARTBEAT: gm.HeartbeatRequest,
    m.Kind.LEAVE_GROUP: gm.LeaveGroupRequest,
    m.Kind.SYNC_GROUP: gm.SyncGroupRequest,
    m.Kind.DESCRIBE_GROUPS: gm.DescribeGroupsRequest,
    m.Kind.LIST_GROUPS: gm.ListGroupsRequest,
    m.Kind.DELETE_GROUPS: gm.DeleteGroupRequest,
    m.Kind.OFFSET_DELETE: gm.DeleteGroupOffsetsRequest,
    m.Kind.CONSUMER_GROUP_HEARTBEAT: gm.ConsumerGroupHeartbeatRequest,
    m.Kind.CONSUMER_GROUP_DESCRIBE: gm.ConsumerGroupDescribeRequest,
    m.Kind.COMMIT_GROUP_OFFSETS: gm.CommitGroupOffsetsRequest,
    m.Kind.GROUP_OFFSETS: gm.GroupOffsetsRequest,
}
RESPONSE_TYPES: dict[int, type] = {
    m.Kind.PRODUCE: m.ProduceResponse,
    m.Kind.FETCH: m.FetchResponse,
    m.Kind.LIST_OFFSETS: m.ListOffsetsResponse,
    m.Kind.METADATA: m.MetadataResponse,
    m.Kind.CREATE_TOPIC: m.CreateTopicResponse,
    m.Kind.DELETE_RECORDS: m.DeleteRecordsResponse,
    m.Kind.DELETE_TOPIC: m.TopicChanged,
    m.Kind.CREATE_PARTITIONS: m.TopicChanged,
    m.Kind.ALTER_CONFIG: m.TopicChanged,
    m.Kind.INIT_PRODUCER_ID: m.InitProducerIdResponse,
    m.Kind.DESCRIBE_PRODUCERS: m.DescribeProducersResponse,
    m.Kind.OFFSET_COMMIT: m.OffsetsResponse,
    m.Kind.OFFSET_FETCH: m.OffsetsResponse,
    m.Kind.ELECT_LEADERS: m.ElectLeadersResponse,
    m.Kind.ALTER_PARTITION_REASSIGNMENTS: m.AlterReassignmentsResponse,
    m.Kind.ALTER_CLIENT_QUOTAS: m.AlterQuotasResponse,
    m.Kind.DESCRIBE_USERS: m.DescribeUsersResponse,
    m.Kind.ALTER_USER: m.AlterUserResponse,
    m.Kind.VERIFY_USER: m.VerifyUserResponse,
    m.Kind.DESCRIBE_NODE: m.DescribeNodeResponse,
    m.Kind.DESCRIBE_CHANGES: m.DescribeChangesResponse,
    m.Kind.DESCRIBE_PARTITIONS: m.DescribePartitionsResponse,
    m.Kind.READ_INDEX: m.ReadIndexResponse,
    m.Kind.OFFSET_FOR_LEADER_EPOCH: m.EpochEndsResponse,
    m.Kind.GET_REPLICA_LOG_INFO: m.GetReplicaLogInfoResponse,
    m.Kind.IS_SILENT: m.IsSilentResponse,
    m.Kind.INIT_TRANSACTIONS: tm.ProducerIdResponse,
    m.Kind.ADD_PARTITIONS_TO_TXN: tm.AddPartitionsResponse,
    m.Kind.END_TXN: tm.ProducerIdResponse,
    m.Kind.WRITE_TXN_MARKERS: tm.WriteMarkersResponse,
    m.Kind.TXN_OFFSET_COMMIT: gm.CommitGroupOffsetsResponse,
    m.Kind.DESCRIBE_TRANSACTIONS: tm.DescribeTransactionsResponse,
    m.Kind.LIST_TRANSACTIONS: tm.ListTransactionsResponse,
    m.Kind.ABORT_TRANSACTION: tm.AbortTransactionResponse,
    m.Kind.FIND_COORDINATOR: gm.FindCoordinatorResponse,
    **{kind: gm.RESPONSES[cls] for kind, cls in REQUEST_TYPES.items() if cls in gm.RESPONSES},
}


class WireError(ReplicationError):
    """Bytes that are not the message they claim to be."""


_MALFORMED = (KeyError, msgspec.DecodeError, ValueError, RecursionError)
"""RecursionError: values within values without end, in a field that nobody knows."""
_encoder = msgspec.msgpack.Encoder()
_requests: dict[int, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(cls) for kind, cls in REQUEST_TYPES.items()
}
_responses: dict[int, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(cls) for kind, cls in RESPONSE_TYPES.items()
}
_record_encoder = msgspec.json.Encoder()
_RECORD_SEAL = re.compile(rb',?"crc32":"([0-9a-f]{8})"}\Z')
_record_decoders: dict[type, msgspec.json.Decoder] = {}


encode: Callable[[object], bytes] = _encoder.encode
"""The body of a request or an answer."""


def decode_request(kind: int, body: bytes | memoryview) -> Any:
    """The request of `kind` in `body`.

    Raises:
      WireError: The kind is unknown or the body is not such a request.
    """
    try:
        return _requests[kind].decode(body)
    except _MALFORMED as error:
        raise _undecoded(_requests, "request", kind, error) from error


def decode_response(kind: int, body: bytes | memoryview) -> Any:
    """The answer to a request of `kind` in `body`; raises `WireError` as `decode_request` does."""
    try:
        return _responses[kind].decode(body)
    except _MALFORMED as error:
        raise _undecoded(_responses, "answer", kind, error) from error


def _undecoded(decoders: dict[int, Any], what: str, kind: int, error: Exception) -> WireError:
    if kind in decoders:
        return WireError(f"malformed {what} of kind {kind}: {error}")
    return WireError(f"unknown {what} kind {kind}; the peer speaks a newer version or another protocol")


def encode_record(record: object) -> bytes:
    """A metadata record as JSON, readable with any tool. Its last member is a CRC-32 of what stands before."""
    body = _record_encoder.encode(record)[:-1]
    return b'%b%b"crc32":"%08x"}' % (body, b"," if body != b"{" else b"", zlib.crc32(body))


def decode_record(cls: type[R], value: bytes) -> R:
    """The record of class `cls` in `value`. One of an earlier release, or from a person's hand, has no checksum.

    Raises:
      WireError: The value is not such a record, or not as it was written.
    """
    seal = _RECORD_SEAL.search(value)
    if seal is not None and int(seal[1], 16) != zlib.crc32(value[: seal.start()]):
        raise WireError(f"malformed {cls.__name__} in the metadata store: its checksum does not match")
    decoder = _record_decoders.get(cls)
    if decoder is None:
        decoder = _record_decoders[cls] = msgspec.json.Decoder(cls)
    try:
        return decoder.decode(value)
    except _MALFORMED as error:
        raise WireError(f"malformed {cls.__name__} in the metadata store: {error}") from error

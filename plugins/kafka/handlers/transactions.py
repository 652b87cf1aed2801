"""Transactions of Kafka's producers, by both versions of their protocol.

In the first one (KIP-98) a producer names partitions before it writes to them. In the second one (KIP-890) the
leader has a partition added when it is first written to, and the end of each transaction gives the epoch of the
next. The version of a request says by which of them its sender goes, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from insync.replication.core import messages as m
from insync.replication.core.coordination.routing import partition_for_group
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.core.messages import transactions as tm
from insync.replication.node.requests.authorisation import ALSO, Operation
from insync.replication.node.service import ServiceError

from ..client import Client
from ..core.directory import INTERNAL_TOPICS
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from .table import Exchange, Offer, Refused, answer_of

_Init = message("InitProducerIdResponse")
_AddPartitions = message("AddPartitionsToTxnResponse")
_AddOffsets = message("AddOffsetsToTxnResponse")
_End = message("EndTxnResponse")
_Commit = message("TxnOffsetCommitResponse")
FIRST, SECOND = 1, 2
_SECOND_SINCE = {Api.PRODUCE: 12, Api.END_TXN: 5, Api.TXN_OFFSET_COMMIT: 5}
"""The first version of each API that only a producer of the second protocol sends."""
_ABORTABLE_SINCE = {Api.PRODUCE: 11, Api.END_TXN: 4, Api.TXN_OFFSET_COMMIT: 4, Api.ADD_PARTITIONS_TO_TXN: 5}
"""The first version of each API that knows TRANSACTION_ABORTABLE (KIP-890)."""
_OFFSETS = "__consumer_offsets"
_FENCED_SINCE = {
    Api.INIT_PRODUCER_ID: 4,
    Api.ADD_PARTITIONS_TO_TXN: 2,
    Api.ADD_OFFSETS_TO_TXN: 2,
    Api.END_TXN: 2,
}
"""The first version of each API that knows PRODUCER_FENCED (KIP-588)."""


_NOT_ALLOWED = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def ask(client: Client, request: object) -> Any:
    """The coordinator's answer, or why there is none; both have an `error`."""
    try:
        return (await client.service.ask(client, request)).message
    except ServiceError as error:
        return answer_of(error, _NOT_ALLOWED)


def version_of(api: Api, version: int) -> int:
    """The version of the protocol by which the sender of a request goes."""
    return SECOND if version >= _SECOND_SINCE.get(api, version + 1) else FIRST


def known_error(api: Api, version: int, error: int) -> int:
    """An error as the sender of a request knows it."""
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE.get(api, 0):
        return ErrorCode.INVALID_TXN_STATE
    if (
        error == ErrorCode.TRANSACTION_ABORTED
    ):  # by its timeout; Kafka's coordinator takes the epoch away then
        error = ErrorCode.PRODUCER_FENCED
    return _error(api, version, error)


def _error(api: Api, version: int, error: int) -> int:
    if error == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE.get(api, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# An id for an idempotent producer, always a new one; with a transactional id its own, and the next epoch


def _ask_for_id(client: Client, request: Struct, version: int) -> object:
    if (refused := _nameless(request.transactional_id)) is not None:
        return refused
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return Refused(ErrorCode.INVALID_REQUEST, "a producer has an id and an epoch, or neither")
    if request.transactional_id is None:
        # The node gives ids to everybody; a Kafka tells a producer here that it may write nowhere.
        may = client.may(Operation.PRODUCE)
        return m.InitProducerIdRequest() if may else Refused(_NOT_ALLOWED, "this user may not produce")
    return tm.InitTransactionsRequest(
        transactional_id=request.transactional_id,
        timeout_ms=request.transaction_timeout_ms,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )


def _tell_id(found: Any, request: Struct, version: int) -> Struct:
    error = found.error
    if request.transactional_id is None and error == _NOT_ALLOWED:
        error = KafkaError.CLUSTER_AUTHORIZATION_FAILED
    if error:
        return _Init(
            error_code=_error(Api.INIT_PRODUCER_ID, version, error), producer_id=-1, producer_epoch=-1
        )
    return _Init(producer_id=found.producer_id, producer_epoch=found.producer_epoch)


def _nameless(name: str | None) -> Refused | None:
    return Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty") if name == "" else None


# Partitions that the transaction is about to write to: all of them, or none


@attrs.frozen
class _NotAdded(Refused):
    """`errors`: of the partitions that cannot be added; no other is, either."""

    errors: Mapping[tuple[str, int], int]


def _not_addable(client: Client, request: Struct) -> Mapping[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for topic in request.v3_and_below_topics:
        known = client.view.topics.get(topic.name)
        for index in topic.partitions:
            if topic.name in INTERNAL_TOPICS:
                found[topic.name, index] = KafkaError.TOPIC_AUTHORIZATION_FAILED
            elif known is None or not 0 <= index < known.partitions:
                # Clients ask again: this node may not know yet what was made a moment ago.
                found[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return found


def _ask_to_add(client: Client, request: Struct, version: int) -> object:
    if (refused := _nameless(request.v3_and_below_transactional_id)) is not None:
        return refused
    if client.may(Operation.PRODUCE) and (errors := _not_addable(client, request)):
        return _NotAdded(KafkaError.OPERATION_NOT_ATTEMPTED, "other partitions cannot be added", errors)
    return tm.AddPartitionsRequest(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        partitions=[
            m.PartitionName(topic=topic.name, partition=index)
            for topic in request.v3_and_below_topics
            for index in topic.partitions
        ],
        view_revision=client.view.revision,
        version=FIRST,
    )


def _tell_added(found: Any, request: Struct, version: int) -> Struct:
    error = known_error(Api.ADD_PARTITIONS_TO_TXN, version, found.error)
    errors = found.errors if isinstance(found, _NotAdded) else {}
    return _AddPartitions(
        results_by_topic_v3_and_below=[
            _AddPartitions.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    _AddPartitions.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=errors.get((topic.name, index), error)
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


# The offsets of a group are about to be written by the transaction


def _may_not_commit(client: Client) -> Refused | None:
    """Of a client that may produce: whether it may not move offsets of groups. Others are refused as producers."""
    if not client.may(Operation.PRODUCE) or any(map(client.may, ALSO[m.Kind.TXN_OFFSET_COMMIT])):
        return None
    return Refused(KafkaError.GROUP_AUTHORIZATION_FAILED, "this user may not commit offsets of groups")


def _ask_to_add_offsets(client: Client, request: Struct, version: int) -> object:
    if (refused := _may_not_commit(client)) is not None:
        return refused
    topic = client.view.topics.get(_OFFSETS)
    if topic is None:
        return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    index = partition_for_group(request.group_id, topic.partitions)
    return tm.AddPartitionsRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        partitions=[m.PartitionName(topic=_OFFSETS, partition=index)],
        view_revision=client.view.revision,
        version=FIRST,
    )


def _tell_offsets_added(found: Any, request: Struct, version: int) -> Struct:
    return _AddOffsets(error_code=_error(Api.ADD_OFFSETS_TO_TXN, version, found.error))


# Commit or abort; in the second version of the protocol with the epoch of the next transaction


def _ask_to_end(client: Client, request: Struct, version: int) -> object:
    if (refused := _nameless(request.transactional_id)) is not None:
        return refused
    return tm.EndTransactionRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        committed=request.committed,
        version=version_of(Api.END_TXN, version),
    )


def _tell_ended(found: Any, request: Struct, version: int) -> Struct:
    if found.error or version_of(Api.END_TXN, version) == FIRST:
        return _End(error_code=known_error(Api.END_TXN, version, found.error))
    return _End(producer_id=found.producer_id, producer_epoch=found.producer_epoch)


# Offsets of a group that count when the transaction does (KIP-447)


def _ask_to_commit(client: Client, request: Struct, version: int) -> object:
    if (refused := _may_not_commit(client)) is not None:
        return refused
    return gm.TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        group=request.group_id,
        member_id=request.member_id,
        epoch=request.generation_id_or_member_epoch,
        instance_id=request.group_instance_id,
        offsets=[
            gm.GroupOffset(
                topic=topic.name,
                partition=part.partition_index,
                offset=part.committed_offset,
                leader_epoch=part.committed_leader_epoch,
                metadata=part.committed_metadata or "",
            )
            for topic in request.topics
            for part in topic.partitions
        ],
        version=version_of(Api.TXN_OFFSET_COMMIT, version),
    )


def _tell_committed(found: Any, request: Struct, version: int) -> Struct:
    failure = known_error(Api.TXN_OFFSET_COMMIT, version, found.error)
    errors = {} if failure else {(each.topic, each.partition): each.error for each in found.partitions}
    return _Commit(
        topics=[
            _Commit.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    _Commit.TxnOffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=failure
                        or errors.get((topic.name, part.partition_index), ErrorCode.UNKNOWN_SERVER_ERROR),
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


OFFERS = (
    Offer(Api.INIT_PRODUCER_ID, 0, 5, Exchange(_ask_for_id, _tell_id, _NOT_ALLOWED)),
    Offer(Api.ADD_PARTITIONS_TO_TXN, 0, 3, Exchange(_ask_to_add, _tell_added, _NOT_ALLOWED)),
    Offer(Api.ADD_OFFSETS_TO_TXN, 0, 4, Exchange(_ask_to_add_offsets, _tell_offsets_added, _NOT_ALLOWED)),
    Offer(Api.END_TXN, 0, 5, Exchange(_ask_to_end, _tell_ended, _NOT_ALLOWED)),
    Offer(Api.TXN_OFFSET_COMMIT, 0, 5, Exchange(_ask_to_commit, _tell_committed, _NOT_ALLOWED)),
)

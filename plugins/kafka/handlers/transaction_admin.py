"""Transactions as tools look at them: which there are, what each holds up, who has written (KIP-664)."""

from __future__ import annotations

from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import transactions as tm
from insync.replication.node.requests.authorisation import Operation
from insync.replication.node.service import NotAllowedError, ServiceError

from ..client import Client
from ..core.directory import is_legal
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from .again import TOO_OFTEN, Again
from .table import Offer, Refused
from .transactions import ask

_Producers = message("DescribeProducersResponse")
_Described = message("DescribeTransactionsResponse")
_Listed = message("ListTransactionsResponse")
_Marked = message("WriteTxnMarkersResponse")
_STATES = {
    "EMPTY": "Empty",
    "ONGOING": "Ongoing",
    "PREPARE_COMMIT": "PrepareCommit",
    "PREPARE_ABORT": "PrepareAbort",
    "COMPLETE_COMMIT": "CompleteCommit",
    "COMPLETE_ABORT": "CompleteAbort",
    "DEAD": "Dead",
}
"""Kafka's names by ours."""
_OURS = {theirs: ours for ours, theirs in _STATES.items()}
_NEVER = "PrepareEpochFence"
"""A state of Kafka's that no transaction is in here."""


async def describe_producers(client: Client, request: Struct, version: int) -> Struct:
    """All producers that partitions know. Clients ask leaders, and tools the replicas of one node."""
    places = dict.fromkeys(
        (topic.name, index) for topic in request.topics for index in topic.partition_indexes
    )
    found: dict[tuple[str, int], m.DescribeProducersResult] = {}
    error, text = 0, ""
    left = [m.PartitionName(topic=topic, partition=index) for topic, index in places]
    while left and not error:
        wanted = m.DescribeProducersRequest(producer_id=m.EVERY_PRODUCER, partitions=left, any_replica=True)
        try:
            answer = (await client.service.ask(client, wanted)).message
        except NotAllowedError as refused:
            error, text = int(KafkaError.TOPIC_AUTHORIZATION_FAILED), str(refused)
            break
        except ServiceError as refused:
            error, text = refused.code, str(refused)
            break
        assert isinstance(answer, m.DescribeProducersResponse)
        found |= {(each.topic, each.partition): each for each in answer.partitions}
        # One answer has room for so many producers; the partitions that it leaves out are asked for again.
        left = [each for each in left if (each.topic, each.partition) not in found]
    told = {place: _producers(place, found.get(place), error, text) for place in places}
    parts = {place: len(each.active_producers) for place, each in told.items()}
    again = Again()
    return _Producers(
        topics=[
            _Producers.TopicResponse(
                name=topic.name,
                partitions=again.descriptions(
                    [(topic.name, index) for index in topic.partition_indexes], told, parts, _asked_too_often
                ),
            )
            for topic in request.topics
        ]
    )


def _asked_too_often(place: tuple[str, int]) -> Struct:
    return _Producers.PartitionResponse(
        partition_index=place[1], error_code=ErrorCode.INVALID_REQUEST, error_message=TOO_OFTEN
    )


def _producers(
    place: tuple[str, int], found: m.DescribeProducersResult | None, error: int, text: str
) -> Struct:
    part = _Producers.PartitionResponse(partition_index=place[1])
    if not is_legal(place[0]):
        part.error_code = ErrorCode.INVALID_TOPIC
        return part
    if found is None or found.error:
        part.error_code, part.error_message = found.error if found is not None else error, text or None
        return part
    part.active_producers = [
        _Producers.ProducerState(
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            last_sequence=each.last_sequence,
            last_timestamp=each.last_timestamp_ms,
            coordinator_epoch=each.coordinator_epoch,
            current_txn_start_offset=each.start_offset,
        )
        for each in found.producers
    ]
    return part


async def describe_transactions(client: Client, request: Struct, version: int) -> Struct:
    """Transactional ids as coordinators know them; each by itself, since others may be at other nodes.

    An id that is named often is asked about once.
    """
    names = dict.fromkeys(request.transactional_ids)
    found = {name: await _transaction(client, name) for name in names}
    parts = {name: sum(len(topic.partitions) for topic in told.topics) for name, told in found.items()}
    return _Described(
        transaction_states=Again().descriptions(request.transactional_ids, found, parts, _refused)
    )


def _refused(name: str) -> Struct:
    return _Described.TransactionState(transactional_id=name, error_code=ErrorCode.INVALID_REQUEST)


async def _transaction(client: Client, name: str) -> Struct:
    if not name:
        return _refused(name)
    found = await ask(client, tm.DescribeTransactionsRequest(transactional_ids=[name]))
    if isinstance(found, Refused) or found.error:
        return _Described.TransactionState(transactional_id=name, error_code=found.error)
    (each,) = found.transactions
    if each.error:
        return _Described.TransactionState(transactional_id=name, error_code=each.error)
    topics: dict[str, list[int]] = {}
    for part in each.partitions:
        topics.setdefault(part.topic, []).append(part.partition)
    return _Described.TransactionState(
        transactional_id=name,
        transaction_state=_STATES.get(each.status, each.status),
        transaction_timeout_ms=each.timeout_ms,
        transaction_start_time_ms=each.start_ms,
        producer_id=each.producer_id,
        producer_epoch=each.producer_epoch,
        topics=[
            _Described.TopicData(topic=topic, partitions=sorted(indexes)) for topic, indexes in topics.items()
        ],
    )


async def list_transactions(client: Client, request: Struct, version: int) -> Struct:
    """Those that this node coordinates; a client asks every node."""
    unknown = [each for each in request.state_filters if each not in _OURS and each != _NEVER]
    known = [_OURS[each] for each in request.state_filters if each in _OURS]
    answer = _Listed(unknown_state_filters=unknown)
    if request.state_filters and not known:
        return answer
    found = await ask(
        client,
        tm.ListTransactionsRequest(
            statuses=known,
            producer_ids=list(request.producer_id_filters),
            longer_than_ms=request.duration_filter,
        ),
    )
    if isinstance(found, Refused) or found.error:
        answer.error_code = found.error
        return answer
    answer.transaction_states = [
        _Listed.TransactionState(
            transactional_id=each.transactional_id,
            producer_id=each.producer_id,
            transaction_state=_STATES.get(each.status, each.status),
        )
        for each in found.transactions
    ]
    return answer


async def write_markers(client: Client, request: Struct, version: int) -> Struct:
    """Abort transactions that hang, as `kafka-transactions abort` asks (KIP-664); each partition by itself.

    Coordinators of this cluster write their markers otherwise: nobody commits by this request.
    """
    return _Marked(
        markers=[
            _Marked.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    _Marked.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            _Marked.WritableTxnMarkerPartitionResult(
                                partition_index=index,
                                error_code=await _abort(client, marker, topic.name, index),
                            )
                            for index in dict.fromkeys(topic.partition_indexes)
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


async def _abort(client: Client, marker: Struct, topic: str, partition: int) -> int:
    if not client.may(Operation.ADMIN):
        return KafkaError.CLUSTER_AUTHORIZATION_FAILED
    is_possible = marker.producer_id >= 0 and marker.producer_epoch >= 0 and marker.coordinator_epoch >= 0
    if marker.transaction_result or not is_possible:
        return ErrorCode.INVALID_REQUEST
    wanted = tm.AbortTransactionRequest(
        topic=topic,
        partition=partition,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        start_offset=-1,
        coordinator_epoch=marker.coordinator_epoch,
    )
    error: int = (await ask(client, wanted)).error
    return error


OFFERS = (
    Offer(Api.WRITE_TXN_MARKERS, 1, 2, write_markers),
    Offer(Api.DESCRIBE_PRODUCERS, 0, 0, describe_producers),
    Offer(Api.DESCRIBE_TRANSACTIONS, 0, 0, describe_transactions),
    # Version 2 has a regular expression of the client's, which might keep the event loop busy for ever.
    Offer(Api.LIST_TRANSACTIONS, 0, 1, list_transactions),
)

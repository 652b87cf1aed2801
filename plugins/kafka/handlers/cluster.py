"""Descriptions: metadata, brokers, partitions; and topics that are made because somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import trio

from insync.replication.core import messages as m
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.errors import ErrorCode
from insync.replication.core.types import PartitionId
from insync.replication.metadata import MetadataError
from insync.replication.node.requests.authorisation import Operation
from insync.replication.node.service import ServiceError

from ..client import Client
from ..core.directory import INTERNAL_TOPICS, error_of_absent, id_of
from ..protocol import Encoded, Struct, message
from ..protocol.apis import Api, KafkaError
from ..protocol.structs import NO_ID
from .table import Offer, encoded, joined

CREATION_TIMEOUT = 2.0
"""Seconds that an answer waits for a topic that is made because somebody asked for it."""
MOST_PARTITIONS = 2000
"""In one answer to DescribeTopicPartitions."""
_NULL_NAMES_SINCE = 12
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = 3, 4, 5, 6, 7, 8, 9
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 10, 11, 12
_BROKERS = 1

_Metadata = message("MetadataResponse")
_Cluster = message("DescribeClusterResponse")
_Described = message("DescribeTopicPartitionsResponse")


async def metadata(client: Client, request: Struct, version: int) -> Struct:
    """Brokers, and the topics that are named; unknown names are looked for in the store before that is said."""
    asked = request.topics
    wants_all = asked is None or (version == 0 and not asked)
    answer = _Metadata(cluster_id=client.service.cluster_id)
    missing = ErrorCode.NONE
    if not wants_all:
        missing = await _find([each.name for each in asked], [each.topic_id for each in asked], client)
        may_create = client.options.auto_create_topics and (version < 4 or request.allow_auto_topic_creation)
        if may_create:
            await _create_missing(client, [each.name for each in asked if each.name is not None])
    visible = client.may_see_topics()
    topics: list[Struct] | Encoded
    if not visible:
        topics = [] if wants_all else [_refused(each.name, each.topic_id, version) for each in asked]
    else:
        found: list[str | Struct] = (
            sorted(client.view.topics)
            if wants_all
            # A topic that is named twice is told of once, as by Kafka: thousands of times would be gigabytes.
            else [_asked(client, each, version, missing) for each in _once(asked)]
        )
        if version >= 8 and request.include_topic_authorized_operations:
            doubted = client.service.doubted()
            topics = [
                _topic(client, each, version, doubted) if isinstance(each, str) else each for each in found
            ]
            for topic in topics:
                topic.topic_authorized_operations = _topic_operations(client)
        else:
            topics = _encoded(client, found, version)
    if 8 <= version <= 10 and request.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = _cluster_operations(client)
    view = client.view
    answer.controller_id = client.directory.controller(view, client.service.node_id)
    answer.brokers = [
        _Metadata.MetadataResponseBroker(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
        for each in client.directory.listed(view)
    ]
    answer.topics = topics
    return answer


def _once(asked: Sequence[Struct]) -> Iterable[Struct]:
    return {(each.name, each.topic_id): each for each in asked}.values()


def _encoded(client: Client, found: Sequence[str | Struct], version: int) -> Encoded:
    """Encode the topics of an answer, in order.

    `found` gives a topic that exists by its name, any other as the struct that refuses it. Topics that exist are
    encoded once for each view, version and set of doubted nodes. The first error of a topic is the error of the
    array.
    """
    doubted = client.service.doubted()
    known = client.directory.encoded.of(client.view, version, doubted)
    elements: list[Encoded] = []
    refused: list[Struct] = []
    for each in found:
        if not isinstance(each, str):
            refused.append(each)
            continue
        if refused:
            elements.append(encoded(_Metadata, "topics", refused, version))
            refused = []
        element = known.get(each)
        if element is None:
            element = known[each] = encoded(
                _Metadata, "topics", [_topic(client, each, version, doubted)], version
            )
        elements.append(element)
    if refused:
        elements.append(encoded(_Metadata, "topics", refused, version))
    return joined(elements)


async def _find(names: Sequence[str | None], ids: Sequence[bytes], client: Client) -> ErrorCode:
    """A topic that the view lacks may have been made a moment ago, at another node; the error for it if not."""
    view, directory = client.view, client.directory
    missing = any(
        name not in view.topics if name is not None else directory.name_of(view, topic_id) is None
        for name, topic_id in zip(names, ids, strict=True)
    )
    if missing:
        try:
            await client.service.confirm_view()
        except MetadataError:
            return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _create_missing(client: Client, names: Sequence[str]) -> None:
    missing = [name for name in dict.fromkeys(names) if name not in client.view.topics]
    for name in missing:
        if name in INTERNAL_TOPICS:
            continue
        request = m.CreateTopicRequest(
            name=name, partitions=client.options.num_partitions, replication_factor=default_factor(client)
        )
        with trio.move_on_after(CREATION_TIMEOUT):
            try:
                made = (await client.service.ask(client, request)).message
            except ServiceError:
                continue  # it is answered as unknown
            assert isinstance(made, m.CreateTopicResponse)
            if made.error == ErrorCode.NONE:
                with suppress(MetadataError):
                    await client.service.confirm_view()


def default_factor(client: Client) -> int:
    """Replicas of a topic for which nobody says how many."""
    return client.options.default_replication_factor or max(1, min(3, len(client.view.live)))


def _asked(client: Client, asked: Struct, version: int, missing: ErrorCode) -> str | Struct:
    """A topic that a request names or gives the id of: its name; or what is said of one that is not there."""
    name: str | None = asked.name
    if name is None or (version >= 10 and asked.topic_id != NO_ID):
        found = client.directory.name_of(client.view, asked.topic_id)
        if found is None:
            return _Metadata.MetadataResponseTopic(
                error_code=KafkaError.UNKNOWN_TOPIC_ID, name=_no_name(version), topic_id=asked.topic_id
            )
        name = found
    if name not in client.view.topics:
        return _Metadata.MetadataResponseTopic(error_code=error_of_absent(name, missing), name=name)
    return name


def _no_name(version: int) -> str | None:
    """Of a topic of which only the id is known: a name may be null from version 12 on."""
    return None if version >= _NULL_NAMES_SINCE else ""


def _refused(name: str | None, topic_id: bytes, version: int) -> Struct:
    if name is None:
        return _Metadata.MetadataResponseTopic(
            error_code=KafkaError.UNKNOWN_TOPIC_ID, name=_no_name(version), topic_id=topic_id
        )
    return _Metadata.MetadataResponseTopic(error_code=KafkaError.TOPIC_AUTHORIZATION_FAILED, name=name)


def _topic(client: Client, name: str, version: int, doubted: frozenset[int]) -> Struct:
    view = client.view
    record = view.topics[name]
    partitions = []
    for index in range(record.partitions):
        versioned = view.partitions.get(PartitionId(name, index))
        if versioned is not None:
            partitions.append(_partition(client, versioned.record, version, doubted))
    return _Metadata.MetadataResponseTopic(
        name=name, topic_id=id_of(record), is_internal=name in INTERNAL_TOPICS, partitions=partitions
    )


def _partition(client: Client, record: PartitionRecord, version: int, doubted: frozenset[int]) -> Struct:
    leader, error = _leader(client, record)
    if leader in doubted:
        # librdkafka asks again after 0.1 s if there is no leader, but only after a second if the answer names the
        # leader that it has just lost.
        leader, error = -1, ErrorCode.LEADER_NOT_AVAILABLE
    if error == KafkaError.LISTENER_NOT_FOUND and version < 6:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    return _Metadata.MetadataResponsePartition(
        error_code=error,
        partition_index=record.partition,
        leader_id=leader,
        leader_epoch=record.leader_epoch,
        replica_nodes=list(record.replicas),
        isr_nodes=list(record.isr),
        offline_replicas=_offline(client, record),
    )


def _leader(client: Client, record: PartitionRecord) -> tuple[int, int]:
    """The leader, and why clients cannot go there."""
    if record.leader < 0 or record.leader not in client.view.nodes:
        return -1, ErrorCode.LEADER_NOT_AVAILABLE
    if record.leader not in client.directory.brokers(client.view):
        return -1, KafkaError.LISTENER_NOT_FOUND
    return record.leader, ErrorCode.NONE


def _offline(client: Client, record: PartitionRecord) -> list[int]:
    nodes = client.view.nodes
    return [each for each in record.replicas if each not in nodes or record.id in nodes[each].offline]


def _bits(*operations: int) -> int:
    return sum(1 << each for each in operations)


def _topic_operations(client: Client) -> int:
    bits = 0
    if client.may(Operation.PRODUCE):
        bits |= _bits(_WRITE, _DESCRIBE)
    if client.may(Operation.CONSUME):
        bits |= _bits(_READ, _DESCRIBE)
    if client.may(Operation.ADMIN):
        bits |= _bits(_CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
    return bits


def _cluster_operations(client: Client) -> int:
    bits = _bits(_IDEMPOTENT_WRITE) if client.may(Operation.PRODUCE) else 0
    if client.may(Operation.ADMIN):
        bits |= _bits(_CREATE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
    return bits


async def describe_cluster(client: Client, request: Struct, version: int) -> Struct:
    """Brokers and the controller (KIP-700)."""
    answer = _Cluster(cluster_id=client.service.cluster_id, endpoint_type=request.endpoint_type)
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == 2
        answer.error_code = (
            KafkaError.MISMATCHED_ENDPOINT_TYPE if known else KafkaError.UNSUPPORTED_ENDPOINT_TYPE
        )
        answer.error_message = "the addresses here are those of brokers, endpoint type 1"
        return answer
    answer.controller_id = client.directory.controller(client.view, client.service.node_id)
    answer.brokers = [
        _Cluster.DescribeClusterBroker(broker_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
        for each in client.directory.brokers(client.view).values()
    ]
    if request.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = _cluster_operations(client)
    return answer


async def describe_topic_partitions(client: Client, request: Struct, version: int) -> Struct:
    """Topics in pages, with the replicas that may be elected (KIP-966)."""
    named = [each.name for each in request.topics]
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < 0 or (named and cursor.topic_name not in named)):
        return _Described(topics=[_not_described(name, ErrorCode.INVALID_REQUEST) for name in named])
    visible = client.may_see_topics()
    missing = await _find(named, [NO_ID] * len(named), client) if visible else ErrorCode.NONE
    view = client.view
    names = sorted(set(named)) if named or not visible else sorted(view.topics)
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    left = max(1, min(request.response_partition_limit, MOST_PARTITIONS))
    answer = _Described(next_cursor=None)
    for name in names:
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if left <= 0:
            answer.next_cursor = _Described.Cursor(topic_name=name, partition_index=first)
            break
        topic = view.topics.get(name)
        error: int = ErrorCode.NONE
        if not visible:
            error, topic = KafkaError.TOPIC_AUTHORIZATION_FAILED, None
        elif topic is None:
            error = error_of_absent(name, missing)
        described = _not_described(name, error)
        answer.topics.append(described)
        if topic is None:
            continue
        described.topic_id, described.is_internal = id_of(topic), name in INTERNAL_TOPICS
        described.topic_authorized_operations = _topic_operations(client)
        first = min(first, topic.partitions)
        last = min(topic.partitions, first + left)
        for index in range(first, last):
            versioned = view.partitions.get(PartitionId(name, index))
            if versioned is not None:
                described.partitions.append(_described(client, versioned.record))
        left -= last - first
        if last < topic.partitions:
            answer.next_cursor = _Described.Cursor(topic_name=name, partition_index=last)
            break
    return answer


def _not_described(name: str, error: int) -> Struct:
    return _Described.DescribeTopicPartitionsResponseTopic(name=name, error_code=error)


def _described(client: Client, record: PartitionRecord) -> Struct:
    leader, error = _leader(client, record)
    return _Described.DescribeTopicPartitionsResponsePartition(
        error_code=error,
        partition_index=record.partition,
        leader_id=leader,
        leader_epoch=record.leader_epoch,
        replica_nodes=list(record.replicas),
        isr_nodes=list(record.isr),
        eligible_leader_replicas=list(record.elr),
        last_known_elr=list(record.last_known_elr),
        offline_replicas=_offline(client, record),
    )


OFFERS = (
    Offer(Api.METADATA, 0, 13, metadata),
    Offer(Api.DESCRIBE_CLUSTER, 0, 2, describe_cluster),
    Offer(Api.DESCRIBE_TOPIC_PARTITIONS, 0, 0, describe_topic_partitions),
)

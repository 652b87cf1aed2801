"""Topics made, deleted, grown; leaders elected; replicas moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import trio

from insync.replication.core import messages as m
from insync.replication.core.control.records import TopicConfig
from insync.replication.core.errors import ErrorCode
from insync.replication.core.types import PartitionId
from insync.replication.core.wording import counted
from insync.replication.metadata import MetadataError
from insync.replication.node.requests.authorisation import Operation
from insync.replication.node.service import NotAllowedError, ServiceError

from ..client import NOT_ALLOWED, Client
from ..core import configs
from ..core.directory import INTERNAL_TOPICS, id_of
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from ..protocol.structs import NO_ID
from .cluster import default_factor
from .table import IN_A_TURN, Offer

_Create = message("CreateTopicsResponse")
_Delete = message("DeleteTopicsResponse")
_Grow = message("CreatePartitionsResponse")
_Elect = message("ElectLeadersResponse")
_Reassign = message("AlterPartitionReassignmentsResponse")
_Moves = message("ListPartitionReassignmentsResponse")
_PREFERRED, _UNCLEAN = 0, 1
_METADATA_TOPIC = "__cluster_metadata"
"""Kafka's own log of the cluster's state. Here none is kept under that name, and nobody shall take one for it."""
CONTROLLER_PATIENCE = 10.0
"""Seconds for which a request, whatever it asks for, waits at most for a controller to be elected."""
_CONTROLLER_PAUSE = 0.1
"""Seconds between two attempts."""


def patience(timeout_ms: float = CONTROLLER_PATIENCE * 1000) -> float:
    """Until when a request that comes now waits for a controller, by trio's clock.

    timeout_ms: how long it wants to wait, by what it says itself.
    """
    return trio.current_time() + min(max(timeout_ms, 0) / 1000, CONTROLLER_PATIENCE)


async def ask(
    client: Client, request: object, until: float, refused: int = KafkaError.TOPIC_AUTHORIZATION_FAILED
) -> Any:
    """The controller's answer; one that is an error as a whole has an `error` and a `message`, too.

    While there is no controller it is asked again, as Kafka's brokers do: librdkafka and kafka-python do not. From
    `until` on it is not, but what it has begun by then is waited for: it may take effect.
    """
    while True:
        answer = await _ask_once(client, request, refused)
        left = until - trio.current_time()
        if answer.error != ErrorCode.NOT_CONTROLLER or left <= 0:
            return answer
        await trio.sleep(min(_CONTROLLER_PAUSE, left))


async def _ask_once(client: Client, request: object, refused: int) -> Any:
    try:
        return (await client.service.ask(client, request)).message
    except NotAllowedError as error:
        return m.TopicChanged(error=refused, message=str(error))
    except ServiceError as error:
        return m.TopicChanged(error=error.code, message=str(error))


async def seen(client: Client) -> None:
    """This node shows what was changed before, at whichever node; if the store can be read within a second."""
    with trio.move_on_after(1.0), suppress(MetadataError):
        await client.service.confirm_view()


async def create_topics(client: Client, request: Struct, version: int) -> Struct:
    """Each topic by itself: one that is refused refuses no other."""
    answer, until = _Create(), patience(request.timeout_ms)
    named = Counter(each.name for each in request.topics)
    if not client.may(Operation.ADMIN):
        refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
        answer.topics = [_not_created(name, refused, NOT_ALLOWED) for name in named]
        return answer
    for name, wanted in {each.name: each for each in request.topics}.items():
        if named[name] > 1:
            answer.topics.append(_not_created(name, ErrorCode.INVALID_REQUEST, "the request names it twice"))
        else:
            answer.topics.append(await _create(client, wanted, until, validate_only=request.validate_only))
    return answer


def _not_created(name: str, error: int, text: str) -> Struct:
    return _Create.CreatableTopicResult(name=name, error_code=error, error_message=text or None)


async def _create(client: Client, wanted: Struct, until: float, *, validate_only: bool) -> Struct:
    name = wanted.name
    try:
        for each in wanted.configs:
            if each.value is None:
                raise configs.ConfigError(f"{each.name} is null: leave it out, or give a value")
        given = configs.parsed({each.name: each.value for each in wanted.configs})
    except configs.ConfigError as error:
        return _not_created(name, ErrorCode.INVALID_CONFIG, str(error))
    partitions, factor = wanted.num_partitions, wanted.replication_factor
    assignments: list[list[int]] = []
    if wanted.assignments:
        if (partitions, factor) != (-1, -1):
            text = "the assignment says how many partitions and replicas there are: leave the numbers at -1"
            return _not_created(name, ErrorCode.INVALID_REQUEST, text)
        by_index = {each.partition_index: list(each.broker_ids) for each in wanted.assignments}
        if sorted(by_index) != list(range(len(wanted.assignments))):
            text = "the assignment must name each partition once, from 0 on"
            return _not_created(name, ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        assignments = [by_index[index] for index in range(len(by_index))]
        partitions, factor = len(assignments), len(assignments[0])
        if not factor:
            return _not_created(
                name, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partition 0 is assigned to no node"
            )
    if name == _METADATA_TOPIC:
        return _not_created(name, ErrorCode.INVALID_REQUEST, "the name is kept for Kafka's metadata")
    if name in INTERNAL_TOPICS:
        there = name in client.view.topics
        code = ErrorCode.TOPIC_ALREADY_EXISTS if there else ErrorCode.INVALID_TOPIC
        return _not_created(name, code, "the cluster creates its internal topics itself")
    partitions = client.options.num_partitions if partitions == -1 else partitions
    factor = default_factor(client) if factor == -1 else factor
    made = await ask(
        client,
        m.CreateTopicRequest(
            name=name,
            partitions=partitions,
            replication_factor=factor,
            config=given,
            assignments=assignments,
            validate_only=validate_only,
        ),
        until,
    )
    if made.error:
        return _not_created(name, made.error, configs.in_kafkas_names(made.message))
    if validate_only:
        return _made(name, "", partitions, factor, TopicConfig(**given))  # type: ignore[arg-type]
    with suppress(MetadataError):  # it is made: what is told of it is what was asked for
        await client.service.confirm_view()
    topic = client.view.topics.get(name)
    config = topic.config if topic is not None else TopicConfig(**given)  # type: ignore[arg-type]
    if topic is not None:
        partitions, factor = topic.partitions, topic.replication_factor
    return _made(name, made.topic_id, partitions, factor, config)


def _made(name: str, topic_id: str, partitions: int, factor: int, config: TopicConfig) -> Struct:
    return _Create.CreatableTopicResult(
        name=name,
        topic_id=bytes.fromhex(topic_id) if topic_id else NO_ID,
        error_message=None,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[
            _Create.CreatableTopicConfigs(
                name=each.name, value=each.value, read_only=each.read_only, config_source=each.source
            )
            for each in configs.described(config)
        ],
    )


async def delete_topics(client: Client, request: Struct, version: int) -> Struct:
    """By name, or by id (KIP-516): then no other topic of that name is deleted."""
    answer, until = _Delete(), patience(request.timeout_ms)
    if version >= 6:
        wanted = [(each.name, each.topic_id) for each in request.topics]
    else:
        wanted = [(name, NO_ID) for name in request.topic_names]
    if not client.may(Operation.ADMIN):  # who may not delete is told no name for an id, and no id for a name
        answer.responses = [
            _Delete.DeletableTopicResult(
                name=name,
                topic_id=topic_id,
                error_code=KafkaError.TOPIC_AUTHORIZATION_FAILED,
                error_message=NOT_ALLOWED,
            )
            for name, topic_id in dict.fromkeys(wanted)
        ]
        return answer
    wanted, refused = _told_apart(wanted)
    known = client.view
    if any(
        (name or client.directory.name_of(known, topic_id)) not in known.topics for name, topic_id in wanted
    ):
        try:
            await client.service.confirm_view()
        except MetadataError as error:
            raise ServiceError(ErrorCode.LEADER_NOT_AVAILABLE, str(error)) from error
    by_name = {name for name, _ in wanted if name is not None}
    named_twice: set[_Wanted] = set()
    for name, topic_id in wanted:
        found = None if name is not None else client.directory.name_of(client.view, topic_id)
        if found in by_name:
            named_twice |= {(name, topic_id), (found, NO_ID)}
            refused.append((found, topic_id, "the request names the topic, and has its id, too"))
    answer.responses = [
        _Delete.DeletableTopicResult(
            name=name, topic_id=topic_id, error_code=ErrorCode.INVALID_REQUEST, error_message=text
        )
        for name, topic_id, text in refused
    ]
    for index, (name, topic_id) in enumerate(wanted):
        if not index % IN_A_TURN:
            await trio.lowlevel.checkpoint()
        if (name, topic_id) not in named_twice:
            answer.responses.append(await _delete(client, name, topic_id, until))
    return answer


_Wanted = tuple[str | None, bytes]
"""A topic's name, or its id."""


def _told_apart(wanted: list[_Wanted]) -> tuple[list[_Wanted], list[tuple[str | None, bytes, str]]]:
    """Topics that are named once, by a name or an id; and the others with what is wrong, which are not deleted."""
    good: list[_Wanted] = []
    refused: list[tuple[str | None, bytes, str]] = []
    for (name, topic_id), count in Counter(wanted).items():
        if name is not None and topic_id != NO_ID:
            refused.append(
                (name, topic_id, "the request has a name and an id for one topic: give one of them")
            )
        elif name is None and topic_id == NO_ID:
            refused.append((name, topic_id, "the request has neither a name nor an id for a topic"))
        elif count > 1:
            refused.append((name, topic_id, "the request names the topic more than once"))
        else:
            good.append((name, topic_id))
    return good, refused


async def _delete(client: Client, name: str | None, topic_id: bytes, until: float) -> Struct:
    def told(error: int, text: str = "") -> Struct:
        return _Delete.DeletableTopicResult(
            name=name, topic_id=topic_id, error_code=error, error_message=text or None
        )

    if name is None:
        name = client.directory.name_of(client.view, topic_id)
        if name is None:
            return told(KafkaError.UNKNOWN_TOPIC_ID)
        wanted_id = topic_id.hex()
    else:
        topic = client.view.topics.get(name)
        wanted_id, topic_id = "", id_of(topic) if topic is not None else NO_ID
    if name in INTERNAL_TOPICS:
        return told(ErrorCode.INVALID_TOPIC, "the cluster needs its internal topics")
    changed = await ask(client, m.DeleteTopicRequest(name=name, topic_id=wanted_id), until)
    return told(changed.error, changed.message)


async def create_partitions(client: Client, request: Struct, version: int) -> Struct:
    """More partitions (KIP-195); an assignment that is null or empty leaves their places to the cluster."""
    answer, until = _Grow(), patience(request.timeout_ms)
    if may_ask := client.may(Operation.ADMIN):
        await seen(client)
    counts = Counter(each.name for each in request.topics)
    for each in {each.name: each for each in request.topics}.values():
        if counts[each.name] > 1:
            answer.results.append(
                _Grow.CreatePartitionsTopicResult(
                    name=each.name,
                    error_code=ErrorCode.INVALID_REQUEST,
                    error_message="the request names the topic more than once",
                )
            )
            continue
        topic = client.view.topics.get(each.name)
        if may_ask and topic is not None and topic.partitions == each.count:
            # The cluster's own clients may repeat this; Kafka's rely on being refused.
            text = f"topic {each.name!r} has {counted(each.count, 'partition')} already: ask for more"
            refused = ErrorCode.INVALID_PARTITIONS
            answer.results.append(
                _Grow.CreatePartitionsTopicResult(name=each.name, error_code=refused, error_message=text)
            )
            continue
        changed = await ask(
            client,
            m.CreatePartitionsRequest(
                name=each.name,
                partitions=each.count,
                assignments=[list(new.broker_ids) for new in each.assignments or ()],
                validate_only=request.validate_only,
            ),
            until,
        )
        error, text = changed.error, changed.message
        answer.results.append(
            _Grow.CreatePartitionsTopicResult(name=each.name, error_code=error, error_message=text or None)
        )
    return answer


async def elect_leaders(client: Client, request: Struct, version: int) -> Struct:
    """Preferred or unclean elections (KIP-460)."""
    named = None
    if request.topic_partitions is not None:
        named = [
            m.PartitionName(topic=each.topic, partition=index)
            for each in request.topic_partitions
            for index in each.partitions
        ]
    kind = request.election_type if version >= 1 else _PREFERRED
    if kind not in (_PREFERRED, _UNCLEAN):
        text = f"election type {kind} is neither 0, the preferred leader, nor 1, an unclean one"
        refused = [
            m.PartitionOutcome(
                topic=each.topic, partition=each.partition, error=ErrorCode.INVALID_REQUEST, message=text
            )
            for each in named or ()
        ]
        return _elected(request, refused, ErrorCode.INVALID_REQUEST)
    done = await ask(
        client,
        m.ElectLeadersRequest(unclean=kind == _UNCLEAN, partitions=named),
        patience(request.timeout_ms),
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )
    if done.error:
        return _Elect(error_code=done.error)
    # Of all partitions only those are told of that an election was needed for.
    return _elected(
        request,
        [
            each
            for each in done.partitions
            if named is not None or each.error != ErrorCode.ELECTION_NOT_NEEDED
        ],
    )


def _elected(request: Struct, outcomes: Sequence[m.PartitionOutcome], error: int = 0) -> Struct:
    """Of the partitions that a request names, in its order; or of all that there are outcomes of."""
    by_topic = _by_topic(outcomes)
    if request.topic_partitions is not None:
        known = {(each.topic, each.partition): each for each in outcomes}
        by_topic = {}
        for each in request.topic_partitions:
            by_topic.setdefault(each.topic, []).extend(
                known[each.topic, index] for index in each.partitions if (each.topic, index) in known
            )
    return _Elect(
        error_code=error,
        replica_election_results=[
            _Elect.ReplicaElectionResult(
                topic=topic,
                partition_result=[
                    _Elect.PartitionResult(
                        partition_id=each.partition,
                        error_code=each.error,
                        error_message=each.message if each.error else None,
                    )
                    for each in told
                ],
            )
            for topic, told in by_topic.items()
        ],
    )


def _by_topic(outcomes: Sequence[m.PartitionOutcome]) -> dict[str, list[m.PartitionOutcome]]:
    found: dict[str, list[m.PartitionOutcome]] = {}
    for each in outcomes:
        found.setdefault(each.topic, []).append(each)
    return found


async def alter_reassignments(client: Client, request: Struct, version: int) -> Struct:
    """Replicas to be moved, or moves to be given up (KIP-455)."""
    allows = version < 1 or request.allow_replication_factor_change
    answer = _Reassign(error_message=None, allow_replication_factor_change=allows)
    if not client.may(Operation.ADMIN):
        answer.error_code, answer.error_message = KafkaError.CLUSTER_AUTHORIZATION_FAILED, NOT_ALLOWED
        return answer
    wanted = [
        m.PartitionReassignment(topic=topic.name, partition=part.partition_index, replicas=part.replicas)
        for topic in request.topics
        for part in topic.partitions
    ]
    counts = Counter((each.topic, each.partition) for each in wanted)
    moves: list[m.PartitionReassignment] = []
    outcomes: dict[tuple[str, int], m.PartitionOutcome] = {}
    for each in wanted:
        key = each.topic, each.partition
        if counts[key] > 1:
            error, text = ErrorCode.INVALID_REQUEST, "the request names the partition more than once"
        elif not allows and _changes_factor(client, each):
            error = ErrorCode.INVALID_REPLICATION_FACTOR
            text = "the request allows no change of the replication factor"
        else:
            moves.append(each)
            continue
        outcomes[key] = m.PartitionOutcome(
            topic=each.topic, partition=each.partition, error=error, message=text
        )
    if moves:
        done = await ask(
            client,
            m.AlterReassignmentsRequest(partitions=moves),
            patience(request.timeout_ms),
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        )
        if done.error:
            answer.error_code, answer.error_message = done.error, done.message or None
            return answer
        outcomes |= {(each.topic, each.partition): each for each in done.partitions}
    for topic in request.topics:
        told = _Reassign.ReassignableTopicResponse(name=topic.name)
        for part in topic.partitions:
            outcome = outcomes.get((topic.name, part.partition_index))
            told.partitions.append(
                _Reassign.ReassignablePartitionResponse(
                    partition_index=part.partition_index,
                    error_code=outcome.error if outcome is not None else ErrorCode.UNKNOWN_SERVER_ERROR,
                    error_message=(outcome.message or None) if outcome is not None else None,
                )
            )
        answer.responses.append(told)
    return answer


def _changes_factor(client: Client, move: m.PartitionReassignment) -> bool:
    known = client.view.partitions.get(PartitionId(move.topic, move.partition))
    return known is not None and move.replicas is not None and len(move.replicas) != len(known.record.target)


async def list_reassignments(client: Client, request: Struct, version: int) -> Struct:
    """The moves that are under way."""
    answer = _Moves(error_message=None)
    if not client.may(Operation.ADMIN):
        answer.error_code = KafkaError.CLUSTER_AUTHORIZATION_FAILED
        return answer
    await seen(client)  # who has begun a move asks any node whether it is over
    named = None
    if request.topics is not None:
        named = {(each.name, index) for each in request.topics for index in each.partition_indexes}
    by_topic: dict[str, Struct] = {}
    for key, versioned in sorted(client.view.partitions.items()):
        record = versioned.record
        if not record.reassigning or (named is not None and (key.topic, key.partition) not in named):
            continue
        topic = by_topic.setdefault(key.topic, _Moves.OngoingTopicReassignment(name=key.topic))
        topic.partitions.append(
            _Moves.OngoingPartitionReassignment(
                partition_index=key.partition,
                replicas=list(record.replicas),
                adding_replicas=list(record.adding),
                removing_replicas=list(record.removing),
            )
        )
    answer.topics = list(by_topic.values())
    return answer


OFFERS = (
    Offer(Api.CREATE_TOPICS, 2, 7, create_topics),
    Offer(Api.DELETE_TOPICS, 1, 6, delete_topics),
    Offer(Api.CREATE_PARTITIONS, 0, 3, create_partitions),
    Offer(Api.ELECT_LEADERS, 0, 2, elect_leaders),
    Offer(Api.ALTER_PARTITION_REASSIGNMENTS, 0, 1, alter_reassignments),
    Offer(Api.LIST_PARTITION_REASSIGNMENTS, 0, 0, list_reassignments),
)

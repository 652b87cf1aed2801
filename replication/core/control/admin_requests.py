"""Clients' requests to the controller: each request becomes the writes that grant it, or a refusal.

Planning is pure and may be repeated: after a conflict, or when nobody knows whether the writes were done, the
controller looks at the store again and plans anew, so a plan takes what is there already for granted.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import structs

from .. import messages as m
from ..errors import ErrorCode
from ..types import NO_LEADER, PartitionId
from ..wording import counted
from . import given_assignments, internal_topics, quotas, topic_changes, transitions, users
from .capacity import check_room, room
from .elections import POLICIES, AskLogs, Elect, Policy, Situation, most_complete
from .records import (
    PartitionRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
    partition_key,
    quota_key,
    topic_key,
    user_key,
)
from .topic_changes import ChangeTopicRequest
from .topics import TopicError, check_request
from .view import ClusterView

Request = (
    m.CreateTopicRequest
    | ChangeTopicRequest
    | m.ElectLeadersRequest
    | m.AlterReassignmentsRequest
    | m.AlterQuotasRequest
    | m.AlterUserRequest
)
Response = (
    m.CreateTopicResponse
    | m.TopicChanged
    | m.ElectLeadersResponse
    | m.AlterReassignmentsResponse
    | m.AlterQuotasResponse
    | m.AlterUserResponse
)


class AdminRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request, forwarded by any node. `fresh_id` is a unique id from the host."""

    request_id: int
    request: Request
    fresh_id: str = ""


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """One key to write, or to delete if `record` is None; `version` is the one it must have now (0: none)."""

    key: str
    record: object | None
    version: int
    ephemeral: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Write `puts` in one transaction; once they are stored the answer is `response`."""

    puts: tuple[Put, ...]
    response: Response
    reason: str


class LogsNeeded(msgspec.Struct, frozen=True, kw_only=True):
    """The request can be planned only when these replicas have told of their logs."""

    partitions: Mapping[PartitionId, AskLogs]


class Knowledge(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a plan. `situation`: a partition that has no leader, with what is known of its logs.

    `may_ask`: replicas have not been asked for this request yet. `process`: see `transitions.above`.
    """

    view: ClusterView
    situation: Callable[[PartitionRecord], Situation]
    policies: Mapping[str, Policy] = POLICIES
    internal: Mapping[str, internal_topics.InternalTopic] = internal_topics.STANDARD
    may_ask: bool = True
    process: str = ""


Planned = Plan | LogsNeeded | Response

MOST_QUOTAS = 2_000
"""Entities with limits of their own: each node knows all of them, and one answer tells them."""
MOST_USERS = 2_000
"""Each node knows all of them, and one answer tells them."""
BROKEN = "internal error of the controller, please report it: "
"""How the refusal of a request begins whose planning has raised."""


def plan(admin_request: AdminRequest, known: Knowledge) -> Planned:
    """The plan that grants a request; a response right away if there is nothing to write."""
    try:
        planned = _plan(admin_request, known)
    except Exception as error:  # noqa: BLE001 - a client that found it would end one controller after the other
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{BROKEN}{error!r} in {place.name}, line {place.lineno}"
        return refusal(admin_request.request, ErrorCode.UNKNOWN_SERVER_ERROR, text)
    spoilt = (
        [put.key for put in planned.puts if put.key in known.view.unreadable]
        if isinstance(planned, Plan)
        else []
    )
    if not spoilt:
        return planned
    text = f"{spoilt[0]} in the metadata store cannot be read (see the logs of the nodes): correct it or delete it"
    return refusal(admin_request.request, ErrorCode.UNKNOWN_SERVER_ERROR, text)


def _plan(admin_request: AdminRequest, known: Knowledge) -> Planned:
    match admin_request.request:
        case m.CreateTopicRequest():
            return _create_topic(admin_request.request, admin_request.fresh_id, known)
        case m.DeleteTopicRequest() | m.CreatePartitionsRequest() | m.AlterConfigRequest():
            return _change_topic(admin_request.request, known)
        case m.ElectLeadersRequest(unclean=False):
            return _elect_preferred(admin_request.request, known.view)
        case m.ElectLeadersRequest():
            return _elect_unclean(admin_request.request, known)
        case m.AlterReassignmentsRequest():
            return _alter_reassignments(admin_request.request, known.view)
        case m.AlterQuotasRequest():
            return _alter_quotas(admin_request.request, known.view)
        case m.AlterUserRequest():
            return _alter_user(admin_request.request, known.view)


def refusal(request: Request, error: ErrorCode, message: str) -> Response:
    """The answer to a request of any kind that is not granted as a whole."""
    match request:
        case m.CreateTopicRequest():
            return m.CreateTopicResponse(error=error, message=message)
        case m.DeleteTopicRequest() | m.CreatePartitionsRequest() | m.AlterConfigRequest():
            return m.TopicChanged(error=error, message=message)
        case m.ElectLeadersRequest():
            return m.ElectLeadersResponse(error=error, message=message)
        case m.AlterReassignmentsRequest():
            return m.AlterReassignmentsResponse(error=error, message=message)
        case m.AlterQuotasRequest():
            return m.AlterQuotasResponse(error=error, message=message)
        case m.AlterUserRequest():
            return m.AlterUserResponse(error=error, message=message)


def within(
    admin_request: AdminRequest, planned: Plan, known: Knowledge, takes: Callable[[Sequence[Put]], bool]
) -> Plan | Response:
    """The plan, if the metadata store takes it in one transaction; else a refusal that says how much it would take.

    A topic stays so small that one transaction can write all its partitions: it is set and deleted whole.
    """
    request = admin_request.request
    if takes(_all_of_topic(planned, request, known.view)):
        if isinstance(request, m.CreateTopicRequest | m.CreatePartitionsRequest) and request.validate_only:
            return planned.response
        return planned
    text = (
        f"{planned.reason}: the metadata store does not accept {len(planned.puts)} changes in one transaction"
    )
    if not isinstance(request, m.CreateTopicRequest | m.CreatePartitionsRequest):
        return refusal(request, ErrorCode.POLICY_VIOLATION, f"{text}: ask for fewer at a time")
    fits, too_many = 0, request.partitions
    while too_many - fits > 1:
        half = (fits + too_many) // 2
        fewer = _with_partitions(request, half, known.view)
        smaller = _plan(structs.replace(admin_request, request=fewer), known)
        if isinstance(smaller, Plan) and not takes(_all_of_topic(smaller, fewer, known.view)):
            too_many = half
        else:
            fits = half
    return refusal(
        request,
        ErrorCode.INVALID_PARTITIONS,
        f"{text}: a topic can have at most {counted(fits, 'partition')} there",
    )


def _with_partitions(
    request: m.CreateTopicRequest | m.CreatePartitionsRequest, count: int, view: ClusterView
) -> m.CreateTopicRequest | m.CreatePartitionsRequest:
    there = view.topics[request.name].partitions if isinstance(request, m.CreatePartitionsRequest) else 0
    return structs.replace(
        request, partitions=count, assignments=request.assignments[: max(0, count - there)]
    )


def _all_of_topic(planned: Plan, request: Request, view: ClusterView) -> Sequence[Put]:
    if not isinstance(request, m.CreatePartitionsRequest):
        return planned.puts
    there = topic_changes.partitions_of(view.topics[request.name], view)
    return (*planned.puts, *(replace(known.record, known, view) for _, known in there))


# Topics


def _create_topic(request: m.CreateTopicRequest, topic_id: str, known: Knowledge) -> Planned:
    view = known.view
    existing = view.topics.get(request.name)
    if existing is not None and _is_made_by(existing, request, topic_id):
        return m.CreateTopicResponse(error=ErrorCode.NONE, topic_id=existing.topic_id)
    if existing is not None:
        return m.CreateTopicResponse(
            error=ErrorCode.TOPIC_ALREADY_EXISTS,
            message=f"topic {request.name!r} exists already: choose another name, or use it as it is",
        )
    try:
        internal = known.internal.get(request.name)
        if internal is not None:
            view = internal_topics.able(request.name, view)
            request = structs.replace(internal.request(request, view), assignments=[])
        live = sorted(view.staying)
        config = check_request(request, live, known.policies)
        if request.assignments:
            if len(request.assignments) != request.partitions:
                raise TopicError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"topic {request.name!r} asks for {counted(request.partitions, 'partition')}, and assignments "
                    f"are given for {len(request.assignments)}: leave the number out, or give one assignment for "
                    "each partition",
                )
            given_assignments.check(request.name, request.assignments, request.replication_factor, view)
        else:
            check_room(request.name, request.replication_factor, request.partitions, view)
    except TopicError as error:
        return m.CreateTopicResponse(error=error.code, message=error.message)
    return Plan(
        puts=tuple(_topic_puts(request, topic_id, config, view)),
        response=m.CreateTopicResponse(
            error=ErrorCode.NONE, topic_id="" if request.validate_only else topic_id
        ),
        reason=f"create topic {request.name}",
    )


def _is_made_by(topic: TopicRecord, request: m.CreateTopicRequest, topic_id: str) -> bool:
    """Whether a topic is the work of this very request, or of an earlier attempt of the same client at it."""
    return topic.topic_id == topic_id or topic.creation_id == request.creation_id != ""


def _topic_puts(
    request: m.CreateTopicRequest, topic_id: str, config: TopicConfig, view: ClusterView
) -> Iterable[Put]:
    topic = TopicRecord(
        name=request.name,
        topic_id=topic_id,
        partitions=request.partitions,
        replication_factor=request.replication_factor,
        config=config,
        was_compacted=config.compacts,
        creation_id=request.creation_id,
    )
    yield Put(key=topic_key(request.name), record=topic, version=0)
    for record in topic_changes.new_partitions(topic, range(request.partitions), view, request.assignments):
        yield Put(key=partition_key(record.id), record=record, version=0)


def _change_topic(request: ChangeTopicRequest, known: Knowledge) -> Planned:
    topic = known.view.topics.get(request.name)
    try:
        if request.name in known.internal:
            internal_topics.check_change(request.name, request)
        changes = topic_changes.plan(request, topic, known.view, known.policies)
    except TopicError as error:
        return m.TopicChanged(error=error.code, message=error.message)
    changed = next((record for _, record, _ in changes if isinstance(record, TopicRecord)), topic)
    config = structs.asdict(changed.config) if changed is not None else {}
    done = m.TopicChanged(error=ErrorCode.NONE, config=config)
    if not changes:
        return done
    puts = tuple([Put(key=key, record=record, version=version) for key, record, version in changes])
    return Plan(puts=puts, response=done, reason=f"{type(request).__name__} {request.name}")


# Elections


def _elect_preferred(request: m.ElectLeadersRequest, view: ClusterView) -> Planned:
    """Leadership goes to the preferred replicas, where it may (KIP-183, KIP-460); the others are told why not."""
    results, changes = [], []
    for named in _named(request.partitions, view):
        versioned = view.partitions.get(named)
        error, message = ErrorCode.NONE, ""
        if versioned is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            record, preferred = versioned.record, versioned.record.replicas[0]
            elected = transitions.prefer(record, view.live_for(named))
            if elected is not None:
                changes.append((elected, versioned))
            elif record.leader == preferred:
                error = ErrorCode.ELECTION_NOT_NEEDED
            else:
                error = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
                message = _why_not(record, preferred, view)
        results.append(_result(named, error, message))
    response = m.ElectLeadersResponse(error=ErrorCode.NONE, partitions=results)
    return _plan_or_answer(changes, response, view, "partitions are led by their preferred replica")


def _why_not(record: PartitionRecord, preferred: int, view: ClusterView) -> str:
    if record.leader == NO_LEADER:
        return "the partition has no leader to take over from"
    node = view.nodes.get(preferred)
    if node is None:
        return f"node {preferred} is not alive"
    if node.leaving:
        return f"node {preferred} is about to stop"
    if record.id in node.offline:
        return f"the log directory of node {preferred} that has it is offline"
    return f"node {preferred} is not in the ISR {list(record.isr)}"


def _elect_unclean(request: m.ElectLeadersRequest, known: Knowledge) -> Planned:
    """The most complete of the living replicas leads, whatever the policy of the topic (KIP-460).

    Only where nobody has everything: an unclean election is the last resort, not a choice.
    """
    view = known.view
    results, changes = [], []
    needed: dict[PartitionId, AskLogs] = {}
    for named in _named(request.partitions, view):
        versioned = view.partitions.get(named)
        error, message = ErrorCode.NONE, ""
        if versioned is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif named.topic in known.internal:
            error = ErrorCode.POLICY_VIOLATION
            message = f"topic {named.topic!r} is internal: an unclean election could lose acknowledged state"
        elif why := _why_not_needed(versioned.record, view):
            error, message = ErrorCode.ELECTION_NOT_NEEDED, why
        else:
            situation = known.situation(versioned.record)
            is_over = situation.asked and not known.may_ask
            verdict = most_complete(structs.replace(situation, asked=is_over))
            if isinstance(verdict, AskLogs) and not is_over:
                needed[named] = verdict
                continue
            chosen = verdict.node if isinstance(verdict, Elect) else NO_LEADER
            elected = transitions.elect(versioned.record, situation.live, chosen, known.process)
            if elected is None or elected.leader == NO_LEADER:
                error = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
                message = f"none of its replicas {list(versioned.record.replicas)} is alive and answers"
            else:
                changes.append((elected, versioned))
                message = _what_is_done(elected, situation)
        results.append(_result(named, error, message))
    if needed:
        return LogsNeeded(partitions=needed)
    response = m.ElectLeadersResponse(error=ErrorCode.NONE, partitions=results)
    return _plan_or_answer(changes, response, view, "partitions are led uncleanly on request")


def _why_not_needed(record: PartitionRecord, view: ClusterView) -> str:
    """Why an unclean election would change nothing, and what may help; empty if it is needed."""
    if record.leader != NO_LEADER:
        leader, epoch = record.leader, record.leader_epoch
        begun = ", which an unclean election began" if record.unclean_epoch == epoch else ""
        return (
            f"node {leader} leads it in leader epoch {epoch}{begun}: there is nothing to elect; if it serves "
            f"nobody, see `insync health --node {leader}`, or restart the node"
        )
    clean = transitions.elect(record, view.live_for(record.id))
    if clean is None or clean.leader == NO_LEADER:
        return ""
    return (
        f"node {clean.leader} has all that was committed and is about to lead it: there is nothing to elect; see "
        "`insync topic describe` in a moment"
    )


def _what_is_done(elected: PartitionRecord, situation: Situation) -> str:
    """Names the leader, its log, and the logs of the other replicas."""

    def held(node: int) -> str:
        info = situation.logs.get(node)
        if info is not None:
            return f"last epoch {info.last_epoch}, end {info.log_end_offset}"
        return "is alive and did not answer" if node in situation.live else "is not alive"

    others = [f"node {node}: {held(node)}" for node in elected.replicas if node != elected.leader]
    return (
        f"node {elected.leader} leads in leader epoch {elected.leader_epoch}, elected uncleanly with its log "
        f"({held(elected.leader)}); " + ("; ".join(others) if others else "there is no other replica")
    )


def _named(partitions: list[m.PartitionName] | None, view: ClusterView) -> list[PartitionId]:
    if partitions is None:
        return sorted(view.partitions)
    return list(dict.fromkeys(PartitionId(named.topic, named.partition) for named in partitions))


def _result(partition: PartitionId, error: ErrorCode, message: str) -> m.PartitionOutcome:
    return m.PartitionOutcome(
        topic=partition.topic, partition=partition.partition, error=error, message=message
    )


def _plan_or_answer(
    changes: list[tuple[PartitionRecord, Versioned]], response: Response, view: ClusterView, what: str
) -> Planned:
    if not changes:
        return response
    return Plan(
        puts=tuple([replace(record, versioned, view) for record, versioned in changes]),
        response=response,
        reason=f"{len(changes)} {what}",
    )


def replace(record: PartitionRecord, known: Versioned, view: ClusterView) -> Put:
    """Write a partition record over the one that it was made from."""
    record = transitions.evolve(record, controller_epoch=view.controller_epoch)
    return Put(key=partition_key(record.id), record=record, version=known.version)


# Reassignments


def _alter_reassignments(request: m.AlterReassignmentsRequest, view: ClusterView) -> Planned:
    """Each partition for itself, as in KIP-455: one that cannot be moved does not keep the others from it."""
    results, changes = [], []
    free = room(view)
    for named, wanted in {
        PartitionId(each.topic, each.partition): each for each in request.partitions
    }.items():
        versioned = view.partitions.get(named)
        if versioned is None:
            error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""
        elif wanted.replicas is None:
            error, message = _cancellable(versioned.record)
        else:
            error, message = check_target(wanted.replicas, versioned.record, view.nodes.keys())
            if error == ErrorCode.NONE:
                error, message = _take_room(wanted.replicas, versioned.record, free)
        if versioned is not None and error == ErrorCode.NONE:
            record = versioned.record
            target = record.origin if wanted.replicas is None else wanted.replicas
            moved = transitions.reassign(record, target)
            if moved is not None:
                changes.append((moved, versioned))
        results.append(_result(named, error, message))
    response = m.AlterReassignmentsResponse(error=ErrorCode.NONE, partitions=results)
    return _plan_or_answer(changes, response, view, "partitions are reassigned")


def _take_room(target: list[int], record: PartitionRecord, free: dict[int, int]) -> tuple[ErrorCode, str]:
    """Whether the nodes that a move adds take one replica more (max_partitions_per_node)."""
    added = [node for node in target if node not in record.replicas]
    assert all(node in free for node in added), "a target without a replica is alive"
    full = [node for node in added if free[node] < 1]
    if full:
        return (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"node {full[0]} has no room for more replicas: choose another, or raise its max_partitions_per_node",
        )
    for node in added:
        free[node] -= 1
    return ErrorCode.NONE, ""


def _cancellable(record: PartitionRecord) -> tuple[ErrorCode, str]:
    if record.reassigning:
        return ErrorCode.NONE, ""
    return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"its replicas are {list(record.replicas)}"


def check_target(target: list[int], record: PartitionRecord, live: Collection[int]) -> tuple[ErrorCode, str]:
    """Whether a partition may be moved to `target`: named once each, and alive unless they are replicas already."""
    message = ""
    strangers = [node for node in target if node not in live and node not in record.origin]
    if not target:
        message = "name at least one node"
    elif len(set(target)) != len(target):
        message = f"{target} names a node twice: name each once"
    elif strangers:
        message = f"node {strangers[0]} is not alive: start it, or choose among {sorted(live)}"
    return (ErrorCode.INVALID_REPLICA_ASSIGNMENT, message) if message else (ErrorCode.NONE, "")


# Quotas


def _alter_quotas(request: m.AlterQuotasRequest, view: ClusterView) -> Planned:
    key = quota_key(request.entity_type, request.name)
    known, version = view.quotas.get(key, (None, 0))
    try:
        record = quotas.changed(request, known)
    except TopicError as error:
        return m.AlterQuotasResponse(error=error.code, message=error.message)
    done = m.AlterQuotasResponse(error=ErrorCode.NONE, limits=record.limits)
    if record == known or (known is None and not record.limits):
        return done
    if known is None and len(view.quotas) >= MOST_QUOTAS:
        return m.AlterQuotasResponse(
            error=ErrorCode.POLICY_VIOLATION,
            message=f"{len(view.quotas)} users, client ids and nodes have limits: use defaults, or remove some",
        )
    put = Put(key=key, record=record if record.limits else None, version=version)
    return Plan(
        puts=(put,), response=done, reason=f"limits of {quotas.Entity(request.entity_type, request.name)}"
    )


# Users


def _alter_user(request: m.AlterUserRequest, view: ClusterView) -> Planned:
    known, version = view.users.get(request.name, (None, 0))
    try:
        record = users.changed(request, known)
    except TopicError as error:
        return m.AlterUserResponse(error=error.code, message=error.message)
    done = m.AlterUserResponse(error=ErrorCode.NONE)
    if record == known:
        return done
    if known is None and len(view.users) >= MOST_USERS:
        return m.AlterUserResponse(
            error=ErrorCode.POLICY_VIOLATION,
            message=f"there are {len(view.users)} users, which is the maximum: delete some",
        )
    put = Put(key=user_key(request.name), record=record, version=version)
    return Plan(puts=(put,), response=done, reason=f"user {request.name}")

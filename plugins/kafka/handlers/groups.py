"""Members of groups: who coordinates, the classic protocol, and the consumer protocol of KIP-848."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import uuid4

from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.node.requests.authorisation import Operation
from insync.replication.node.service import NotAllowedError, ServiceError

from ..client import Client
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from .table import Offer, Refused

_Find = message("FindCoordinatorResponse")
_Join = message("JoinGroupResponse")
_Sync = message("SyncGroupResponse")
_Beat = message("HeartbeatResponse")
_Leave = message("LeaveGroupResponse")
_ConsumerBeat = message("ConsumerGroupHeartbeatResponse")
_MEMBER_ID_SINCE, _MEMBERS_SINCE, _OWN_ID_SINCE = 4, 3, 1
_KEYS_SINCE = 4


class _Rights(NamedTuple):
    """A client with none of the operations gets the error."""

    any_of: tuple[Operation, ...]
    refused: KafkaError


_RIGHTS = {
    # A producer's transaction may commit the offsets of a group, and finds that group's coordinator.
    gm.GROUP: _Rights(
        (Operation.CONSUME, Operation.PRODUCE, Operation.ADMIN), KafkaError.GROUP_AUTHORIZATION_FAILED
    ),
    gm.TRANSACTION: _Rights(
        (Operation.PRODUCE, Operation.ADMIN), KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    ),
}
"""Rights to find a coordinator, by the type of the key. Some clients tell of a missing right only if they get the
error here: kafka-python describes a group that it may not see as one without a state.
"""


async def ask(client: Client, request: object) -> Any:
    """The coordinator's answer; one that the node gives instead has `error` and `message` alone."""
    try:
        return (await client.service.ask(client, request)).message
    except NotAllowedError as error:
        return Refused(KafkaError.GROUP_AUTHORIZATION_FAILED, str(error))
    except ServiceError as error:
        return Refused(error.code, str(error))


async def find_coordinator(client: Client, request: Struct, version: int) -> Struct:
    """The nodes that coordinate groups, or transactions."""
    keys = request.coordinator_keys if version >= _KEYS_SINCE else [request.key]
    rights = _RIGHTS.get(request.key_type)
    if rights is None:
        text = f"groups (0) and transactions (1) have coordinators here, keys of type {request.key_type} have none"
        told = [_none(key, ErrorCode.INVALID_REQUEST, text) for key in keys]
    elif not any(map(client.may, rights.any_of)):
        told = [_none(key, rights.refused, "") for key in keys]
    else:
        found = await ask(client, gm.FindCoordinatorRequest(keys=keys, key_type=request.key_type))
        told = [_coordinator(client, key, found, index) for index, key in enumerate(keys)]
    answer = _Find(coordinators=told)
    if version < _KEYS_SINCE:
        (one,) = told
        answer.error_code, answer.error_message = one.error_code, one.error_message
        answer.node_id, answer.host, answer.port = one.node_id, one.host, one.port
    return answer


def _none(key: str, error: int, text: str) -> Struct:
    return _Find.Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=text or None)


def _coordinator(client: Client, key: str, found: Any, index: int) -> Struct:
    if isinstance(found, Refused):
        return _none(key, found.error, found.message)
    one = found.coordinators[index]
    if one.error:
        return _none(key, one.error, one.message)
    broker = client.directory.brokers(client.view).get(one.node_id)
    if broker is None:
        text = f"node {one.node_id} coordinates it, and has no listener for clients of this one"
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
    return _Find.Coordinator(
        key=key, node_id=broker.node_id, host=broker.host, port=broker.port, error_message=None
    )


async def join_group(client: Client, request: Struct, version: int) -> Struct:
    """Become a member of a group of the classic protocol; answered when all have come."""
    timeout = request.rebalance_timeout_ms
    found = await ask(
        client,
        gm.JoinGroupRequest(
            group=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=timeout if version >= 1 and timeout >= 0 else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=[
                gm.GroupProtocol(name=each.name, metadata=each.metadata) for each in request.protocols
            ],
            known_member_id=version >= _MEMBER_ID_SINCE,
            client_id=client.client_id,
            client_host=client.host,
        ),
    )
    if isinstance(found, Refused):
        return _Join(
            error_code=found.error,
            protocol_name=None if version >= 7 else "",
            member_id=request.member_id,
        )
    return _Join(
        error_code=found.error,
        generation_id=found.generation,
        protocol_type=found.protocol_type or None,
        protocol_name=found.protocol or (None if version >= 7 else ""),
        leader=found.leader_id,
        skip_assignment=found.skip_assignment,
        member_id=found.member_id or request.member_id,
        members=[
            _Join.JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata
            )
            for each in found.members
        ],
    )


async def sync_group(client: Client, request: Struct, version: int) -> Struct:
    """The leader's assignment for a member; from the leader itself all assignments."""
    found = await ask(
        client,
        gm.SyncGroupRequest(
            group=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            assignments=[
                gm.MemberAssignment(member_id=each.member_id, assignment=each.assignment)
                for each in request.assignments
            ],
        ),
    )
    if isinstance(found, Refused):
        return _Sync(error_code=found.error)
    return _Sync(
        error_code=found.error,
        protocol_type=found.protocol_type or None,
        protocol_name=found.protocol or None,
        assignment=found.assignment,
    )


async def heartbeat(client: Client, request: Struct, version: int) -> Struct:
    """A classic member lives."""
    found = await ask(
        client,
        gm.HeartbeatRequest(
            group=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
        ),
    )
    return _Beat(error_code=found.error)


async def leave_group(client: Client, request: Struct, version: int) -> Struct:
    """Members go; from version 3 on several, each with an outcome of its own."""
    if version >= _MEMBERS_SINCE:
        members = [(each.member_id, each.group_instance_id) for each in request.members]
    else:
        members = [(request.member_id, None)]
    found = await ask(
        client,
        gm.LeaveGroupRequest(
            group=request.group_id,
            members=[
                gm.LeavingMember(member_id=member, instance_id=instance) for member, instance in members
            ],
        ),
    )
    if found.error:
        return _Leave(error_code=found.error)
    if version < _MEMBERS_SINCE:
        return _Leave(error_code=found.errors[0])
    return _Leave(
        members=[
            _Leave.MemberResponse(member_id=member, group_instance_id=instance, error_code=error)
            for (member, instance), error in zip(members, found.errors, strict=True)
        ]
    )


async def consumer_group_heartbeat(client: Client, request: Struct, version: int) -> Struct:
    """Everything that a member of the consumer protocol says, and what it is to have."""
    member_id = request.member_id
    if not member_id and version < _OWN_ID_SINCE and request.member_epoch == gm.JOIN:
        member_id = str(uuid4())  # from version 1 on members make it themselves (KIP-1082)
    found = await ask(
        client,
        gm.ConsumerGroupHeartbeatRequest(
            group=request.group_id,
            member_id=member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=request.subscribed_topic_names,
            regex=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=_lists(request.topic_partitions),
            client_id=client.client_id,
            client_host=client.host,
        ),
    )
    if isinstance(found, Refused) or found.error:
        error = found.error if request.group_id else ErrorCode.INVALID_REQUEST
        return _ConsumerBeat(error_code=error, error_message=found.message or None)
    answer = _ConsumerBeat(
        error_message=None,
        member_id=found.member_id or None,
        member_epoch=found.member_epoch,
        heartbeat_interval_ms=found.heartbeat_interval_ms,
        assignment=None,
    )
    if found.assignment is not None:
        answer.assignment = _ConsumerBeat.Assignment(
            topic_partitions=[
                _ConsumerBeat.TopicPartitions(
                    topic_id=bytes.fromhex(each.topic_id), partitions=each.partitions
                )
                for each in found.assignment
            ]
        )
    return answer


def _lists(owned: list[Struct] | None) -> list[gm.TopicPartitionList] | None:
    if owned is None:
        return None
    return [gm.TopicPartitionList(topic_id=each.topic_id.hex(), partitions=each.partitions) for each in owned]


OFFERS = (
    Offer(Api.FIND_COORDINATOR, 0, 6, find_coordinator),
    Offer(Api.JOIN_GROUP, 0, 9, join_group),
    Offer(Api.HEARTBEAT, 0, 4, heartbeat),
    Offer(Api.LEAVE_GROUP, 0, 5, leave_group),
    Offer(Api.SYNC_GROUP, 0, 5, sync_group),
    Offer(Api.CONSUMER_GROUP_HEARTBEAT, 0, 1, consumer_group_heartbeat),
)

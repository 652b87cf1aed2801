"""Groups, listed, described and deleted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.node.requests.authorisation import Operation

from ..client import Client
from ..protocol import Struct, message
from ..protocol.apis import Api
from .again import TOO_OFTEN, Again, parts_of
from .groups import ask
from .table import Offer, Refused

_List = message("ListGroupsResponse")
_Describe = message("DescribeGroupsResponse")
_Delete = message("DeleteGroupsResponse")
_Consumer = message("ConsumerGroupDescribeResponse")
_SAID_SINCE = 6
"""The first version of DescribeGroups in which a group that is not there is an error."""
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1
_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8  # read, delete, describe


async def list_groups(client: Client, request: Struct, version: int) -> Struct:
    """Those that this node coordinates; a client asks every node. Offsets without members are classic groups."""
    found = await ask(client, gm.ListGroupsRequest())
    if isinstance(found, Refused):
        return _List(error_code=found.error)
    states = {each.lower() for each in request.states_filter or ()}
    types = {each.lower() for each in request.types_filter or ()}
    answer = _List(error_code=found.error)
    for each in found.groups:
        kind = "classic" if each.type == "simple" else each.type
        if (not states or each.state.lower() in states) and (not types or kind in types):
            answer.groups.append(
                _List.ListedGroup(
                    group_id=each.group,
                    protocol_type=each.protocol_type,
                    group_state=each.state,
                    group_type="Consumer" if kind == "consumer" else "Classic",
                )
            )
    return answer


async def describe_groups(client: Client, request: Struct, version: int) -> Struct:
    """Groups of the classic protocol, with what members and assignors said to each other."""
    found = await ask(client, gm.DescribeGroupsRequest(groups=request.groups))
    if isinstance(found, Refused):
        refused = [_Describe.DescribedGroup(group_id=each, error_code=found.error) for each in request.groups]
        return _Describe(groups=refused)
    told = {each.group: _classic(each, version) for each in found.groups}
    if request.include_authorized_operations and client.may(Operation.CONSUME):
        for group in told.values():
            group.authorized_operations = _OPERATIONS
    parts = {each.group: sum(map(_parts_of_classic, each.members)) for each in found.groups}
    refuse = partial(_refused, _Describe.DescribedGroup)
    return _Describe(groups=Again().descriptions(request.groups, told, parts, refuse))


def _classic(each: gm.DescribedGroup, version: int) -> Struct:
    told: Struct
    if each.error == ErrorCode.GROUP_ID_NOT_FOUND or (not each.error and each.type == "consumer"):
        told = _Describe.DescribedGroup(group_id=each.group, group_state="Dead", error_message=None)
        if version >= _SAID_SINCE:
            told.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            told.error_message = f"group {each.group} is not found among classic groups"
        return told
    told = _Describe.DescribedGroup(
        error_code=each.error,
        error_message=None,
        group_id=each.group,
        group_state=each.state,
        protocol_type=each.protocol_type,
        protocol_data=each.protocol,
        members=[
            _Describe.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.subscription,
                member_assignment=member.assignment,
            )
            for member in each.members
        ],
    )
    return told


def _parts_of_classic(member: gm.DescribedMember) -> int:
    return 2 + parts_of(len(member.subscription) + len(member.assignment))


def _refused(kind: type[Struct], group: str) -> Struct:
    return kind(group_id=group, error_code=ErrorCode.INVALID_REQUEST, error_message=TOO_OFTEN)


async def consumer_group_describe(client: Client, request: Struct, version: int) -> Struct:
    """Groups of the consumer protocol, with what members own and are to own."""
    found = await ask(client, gm.ConsumerGroupDescribeRequest(groups=request.group_ids))
    if isinstance(found, Refused):
        return _Consumer(
            groups=[
                _Consumer.DescribedGroup(group_id=each, error_code=found.error, error_message=found.message)
                for each in request.group_ids
            ]
        )
    told: dict[str, Struct] = {}
    for each in found.groups:
        text = None
        if each.error == ErrorCode.GROUP_ID_NOT_FOUND:
            text = f"group {each.group} is not found among consumer groups"
        group = told[each.group] = _Consumer.DescribedGroup(
            error_code=each.error,
            error_message=text,
            group_id=each.group,
            group_state=each.state,
            group_epoch=max(0, each.epoch),
            assignment_epoch=max(0, each.target_epoch),
            assignor_name=each.protocol,
            members=[_member(client, member) for member in each.members],
        )
        if request.include_authorized_operations and client.may(Operation.CONSUME):
            group.authorized_operations = _OPERATIONS
    parts = {each.group: sum(map(_parts_of_consumer, each.members)) for each in found.groups}
    refuse = partial(_refused, _Consumer.DescribedGroup)
    return _Consumer(groups=Again().descriptions(request.group_ids, told, parts, refuse))


def _parts_of_consumer(member: gm.DescribedMember) -> int:
    return 2 + len(member.topics) + sum(1 + len(each.partitions) for each in (*member.owned, *member.target))


def _member(client: Client, member: gm.DescribedMember) -> Struct:
    return _Consumer.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=None,
        assignment=_assignment(client, member.owned),
        target_assignment=_assignment(client, member.target),
        member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    )


def _assignment(client: Client, lists: Sequence[gm.TopicPartitionList]) -> Struct:
    made: Struct = _Consumer.Assignment(
        topic_partitions=[
            _Consumer.TopicPartitions(
                topic_id=bytes.fromhex(each.topic_id),
                topic_name=client.directory.name_of(client.view, bytes.fromhex(each.topic_id)) or "",
                partitions=each.partitions,
            )
            for each in lists
        ]
    )
    return made


async def delete_groups(client: Client, request: Struct, version: int) -> Struct:
    """Groups without members, with their offsets."""
    answer = _Delete()
    for group in dict.fromkeys(request.groups_names):
        found = await ask(client, gm.DeleteGroupRequest(group=group))
        answer.results.append(
            _Delete.DeletableGroupResult(
                group_id=group, error_code=found.error, error_message=found.message or None
            )
        )
    return answer


OFFERS = (
    Offer(Api.LIST_GROUPS, 0, 5, list_groups),
    Offer(Api.DESCRIBE_GROUPS, 0, 6, describe_groups),
    Offer(Api.CONSUMER_GROUP_DESCRIBE, 0, 1, consumer_group_describe),
    Offer(Api.DELETE_GROUPS, 0, 2, delete_groups),
)

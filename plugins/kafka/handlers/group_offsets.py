"""The committed offsets of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm

from ..client import Client
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from ..protocol.structs import NO_ID
from .again import Again, parts_of
from .groups import ask
from .table import Offer

_Commit = message("OffsetCommitResponse")
_Fetch = message("OffsetFetchResponse")
_Delete = message("OffsetDeleteResponse")
_BY_ID = 10
"""The first version of commits and of questions that names topics by their ids."""
_GROUPS_SINCE, _ERROR_SINCE = 8, 2
_STALE_SINCE = 9
"""The first version of commits, and of questions, that knows STALE_MEMBER_EPOCH."""


def _name(client: Client, topic: Struct, version: int) -> str | None:
    if version < _BY_ID:
        return str(topic.name)
    return client.directory.name_of(client.view, topic.topic_id)


async def offset_commit(client: Client, request: Struct, version: int) -> Struct:
    """Keep offsets; each partition has an outcome of its own."""
    named = [(topic, _name(client, topic, version)) for topic in request.topics]
    offsets = [
        gm.GroupOffset(
            topic=name,
            topic_id=topic.topic_id.hex() if version >= _BY_ID else "",
            partition=part.partition_index,
            offset=part.committed_offset,
            leader_epoch=part.committed_leader_epoch,
            metadata=part.committed_metadata or "",
        )
        for topic, name in named
        if name is not None
        for part in topic.partitions
    ]
    found = await ask(
        client,
        gm.CommitGroupOffsetsRequest(
            group=request.group_id,
            member_id=request.member_id,
            epoch=request.generation_id_or_member_epoch,
            instance_id=request.group_instance_id,
            offsets=offsets,
        ),
    )
    errors: Mapping[tuple[str, int], int] = {}
    if not found.error:
        errors = {(each.topic, each.partition): each.error for each in found.partitions}
    answer = _Commit()
    for topic, name in named:
        told = _Commit.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        for part in topic.partitions:
            error = found.error
            if name is None:
                error = KafkaError.UNKNOWN_TOPIC_ID
            elif not error:
                error = errors.get((name, part.partition_index), ErrorCode.UNKNOWN_SERVER_ERROR)
            if error == ErrorCode.STALE_MEMBER_EPOCH and version < _STALE_SINCE:
                error = KafkaError.UNSUPPORTED_VERSION
            told.partitions.append(
                _Commit.OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=error)
            )
        answer.topics.append(told)
    return answer


async def offset_fetch(client: Client, request: Struct, version: int) -> Struct:
    """Offsets of one group, or from version 8 on of several."""
    if version >= _GROUPS_SINCE:
        again = Again()
        return _Fetch(
            groups=[
                await _group(client, each, request.require_stable, version, again) for each in request.groups
            ]
        )
    found = await _ask(client, request, "", -1, request.require_stable, version)
    answer = _Fetch(error_code=found.error)
    if found.error and version < _ERROR_SINCE:
        # The oldest version has no place for an error but at the partitions.
        answer.topics = _topics(request, {}, found.error)
    elif not found.error:
        answer.topics = _topics(request, found, 0)
    return answer


async def _group(client: Client, wanted: Struct, require_stable: bool, version: int, again: Again) -> Struct:
    group, member = wanted.group_id, wanted.member_id or ""
    told: Struct = _Fetch.OffsetFetchResponseGroup(group_id=group)
    if not again.may_tell(group):
        told.error_code = ErrorCode.INVALID_REQUEST
        return told
    found = await _ask(client, wanted, member, wanted.member_epoch, require_stable, version)
    told.error_code = found.error
    if not found.error:
        told.topics = _topics_of_group(client, wanted, found, version, again)
    again.tells(group, sum([len(topic.partitions) for topic in told.topics]))
    return told


async def _ask(
    client: Client, wanted: Struct, member: str, epoch: int, require_stable: bool, version: int
) -> Any:
    partitions = None
    if wanted.topics is not None:
        partitions = [
            gm.TopicPartitionName(topic=name, partition=index)
            for topic in wanted.topics
            if (name := _name(client, topic, version)) is not None
            for index in topic.partition_indexes
        ]
    return await ask(
        client,
        gm.GroupOffsetsRequest(
            group=wanted.group_id,
            member_id=member,
            epoch=epoch,
            partitions=partitions,
            require_stable=require_stable,
        ),
    )


def _by_place(found: Any) -> dict[tuple[str, int], gm.CommittedOffset]:
    return {(each.topic, each.partition): each for each in found.offsets}


def _topics(wanted: Struct, found: Any, error: int) -> list[Struct]:
    """Of a single group, by names."""
    offsets = _by_place(found) if found else {}
    told, again = [], Again()
    if wanted.topics is None:
        asked = _all(offsets)
    else:
        asked = [(each.name, each.partition_indexes) for each in wanted.topics]
    for name, indexes in asked:
        parts = [
            _partition(
                _Fetch.OffsetFetchResponsePartition, index, offsets.get((name, index)), error, again, ""
            )
            for index in indexes
        ]
        told.append(_Fetch.OffsetFetchResponseTopic(name=name, partitions=parts))
    return told


def _all(offsets: Mapping[tuple[str, int], object]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for name, index in sorted(offsets):
        topics.setdefault(name, []).append(index)
    return list(topics.items())


def _topics_of_group(client: Client, wanted: Struct, found: Any, version: int, again: Again) -> list[Struct]:
    """Of one of several groups, by names or ids."""
    offsets, told = _by_place(found), []
    if wanted.topics is None:
        known = client.view.topics
        asked: list[tuple[str, bytes, str | None, list[int]]] = [
            (name, bytes.fromhex(known[name].topic_id) if name in known else NO_ID, name, indexes)
            for name, indexes in _all(offsets)
            if version < _BY_ID or name in known
        ]
    else:
        asked = [
            (each.name, each.topic_id, _name(client, each, version), each.partition_indexes)
            for each in wanted.topics
        ]
    for name, topic_id, found_name, indexes in asked:
        error = KafkaError.UNKNOWN_TOPIC_ID if found_name is None else 0
        parts = [
            _partition(
                _Fetch.OffsetFetchResponsePartitions,
                index,
                offsets.get((found_name or "", index)),
                error,
                again,
                wanted.group_id,
            )
            for index in indexes
        ]
        told.append(_Fetch.OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=parts))
    return told


def _partition(
    kind: Any, index: int, found: gm.CommittedOffset | None, error: int, again: Again, group: str
) -> Any:
    if found is not None and found.metadata:
        place = (group, found.topic, index)
        if again.may_tell(place):
            again.tells(place, parts_of(len(found.metadata)))
        else:
            found, error = None, ErrorCode.INVALID_REQUEST
    if found is None:
        return kind(partition_index=index, committed_offset=-1, metadata="", error_code=error)
    return kind(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=error or found.error,
    )


async def offset_delete(client: Client, request: Struct, version: int) -> Struct:
    """Forget offsets of topics that nobody in the group reads."""
    partitions = [
        gm.TopicPartitionName(topic=topic.name, partition=part.partition_index)
        for topic in request.topics
        for part in topic.partitions
    ]
    found = await ask(client, gm.DeleteGroupOffsetsRequest(group=request.group_id, partitions=partitions))
    if found.error:
        return _Delete(error_code=found.error)
    errors = {(each.topic, each.partition): each.error for each in found.partitions}
    return _Delete(
        topics=[
            _Delete.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    _Delete.OffsetDeleteResponsePartition(
                        partition_index=part.partition_index,
                        error_code=errors.get(
                            (topic.name, part.partition_index), ErrorCode.UNKNOWN_SERVER_ERROR
                        ),
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


OFFERS = (
    Offer(Api.OFFSET_COMMIT, 2, 10, offset_commit),
    Offer(Api.OFFSET_FETCH, 1, 10, offset_fetch),
    Offer(Api.OFFSET_DELETE, 0, 0, offset_delete),
)

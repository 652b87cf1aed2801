"""Offsets by time, and deletion of records."""

from __future__ import annotations

from collections import Counter

from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.node.requests.authorisation import Operation

from ..client import Client
from ..protocol import Struct, message
from ..protocol.apis import Api, KafkaError
from .table import Offer

_ListOffsets = message("ListOffsetsResponse")
_DeleteRecords = message("DeleteRecordsResponse")
_EpochEnds = message("OffsetForLeaderEpochResponse")
_LATEST, _EARLIEST, _EARLIEST_LOCAL = -1, -2, -4
_Found = tuple[int, int, int, int]
"""Error, offset, epoch and time of a record; of the ends of a log there is no time."""
_TIERED = (-5, -6)
"""Offsets of what has been moved to remote storage: there is none."""
_SINCE = {_LATEST: 1, _EARLIEST: 1, -3: 7, _EARLIEST_LOCAL: 8, -5: 9, -6: 11}
"""The first version of ListOffsets that knows what a negative number asks for."""


async def list_offsets(client: Client, request: Struct, version: int) -> Struct:
    """The first or the next offset, or the first of a time; of partitions that this node leads.

    As at Kafka, a partition that is named twice is refused, and answered once.
    """
    named = [
        (topic.name, part.partition_index, part.timestamp, part.current_leader_epoch)
        for topic in request.topics
        for part in topic.partitions
    ]
    counts = Counter((topic, index) for topic, index, _, _ in named)
    if request.replica_id >= 0 or not client.may_see_topics():
        return _offsets(dict.fromkeys(counts, (KafkaError.TOPIC_AUTHORIZATION_FAILED, -1, -1, -1)))
    wanted = [place for place in named if counts[place[:2]] == 1]
    asked = [
        m.ListOffsetsPartition(
            topic=topic,
            partition=index,
            timestamp=m.EARLIEST_TIMESTAMP if time == _EARLIEST_LOCAL else time,
            leader_epoch=epoch,
        )
        for topic, index, time, epoch in wanted
        if time not in _TIERED and _is_known(time, version)
    ]
    answer: m.ListOffsetsResponse = (
        await client.service.ask(client, _list(asked, request.isolation_level))
    ).message  # type: ignore[assignment]
    came = iter(answer.partitions)
    found: dict[tuple[str, int], _Found] = {
        place: (ErrorCode.INVALID_REQUEST, -1, -1, -1) for place, count in counts.items() if count > 1
    }
    for topic, index, time, epoch in wanted:
        if not _is_known(time, version):
            found[topic, index] = (KafkaError.UNSUPPORTED_VERSION, -1, -1, -1)
            continue
        if time in _TIERED:
            found[topic, index] = (ErrorCode.NONE, -1, -1, -1)
            continue
        result = next(came)
        error = result.error
        if error == ErrorCode.NONE and 0 <= epoch < result.leader_epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif error == ErrorCode.NONE and epoch > result.leader_epoch:
            error = ErrorCode.UNKNOWN_LEADER_EPOCH
        elif error == ErrorCode.OFFSET_NOT_AVAILABLE and version <= 4:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        # Of the offset and not of the leader, so that OffsetForLeaderEpoch agrees later (KIP-320).
        found[topic, index] = (error, result.offset, result.offset_epoch, result.timestamp)
    return _offsets(found)


def _is_known(time: int, version: int) -> bool:
    return time >= 0 or version >= _SINCE.get(time, version + 1)


def _list(partitions: list[m.ListOffsetsPartition], isolation_level: int) -> m.ListOffsetsRequest:
    isolation = m.READ_COMMITTED if isolation_level else m.READ_UNCOMMITTED
    return m.ListOffsetsRequest(partitions=partitions, isolation_level=isolation)


def _offsets(found: dict[tuple[str, int], _Found]) -> Struct:
    topics: dict[str, Struct] = {}
    for (topic, index), (error, offset, epoch, time) in found.items():
        made = _ListOffsets.ListOffsetsPartitionResponse(partition_index=index, error_code=error)
        if error == ErrorCode.NONE:
            made.offset, made.leader_epoch = offset, epoch if offset >= 0 else -1
            made.timestamp = time
        if topic not in topics:
            topics[topic] = _ListOffsets.ListOffsetsTopicResponse(name=topic)
        topics[topic].partitions.append(made)
    return _ListOffsets(topics=list(topics.values()))


async def offset_for_leader_epoch(client: Client, request: Struct, version: int) -> Struct:
    """Where leader epochs end: a consumer whose position is behind that has read what was lost (KIP-320)."""
    may = client.may_see_topics() and request.replica_id < 0
    asked = [
        m.EpochEndPartition(
            topic=topic.topic,
            partition=part.partition,
            leader_epoch=part.leader_epoch,
            current_leader_epoch=part.current_leader_epoch,
        )
        for topic in request.topics
        for part in topic.partitions
    ]
    found: list[m.EpochEndResult] = []
    if may:
        told = (await client.service.ask(client, m.EpochEndsRequest(partitions=asked))).message
        assert isinstance(told, m.EpochEndsResponse)
        found = told.partitions
    answer, results = _EpochEnds(), iter(found)
    for topic in request.topics:
        made = _EpochEnds.OffsetForLeaderTopicResult(topic=topic.topic)
        for part in topic.partitions:
            end = _EpochEnds.EpochEndOffset(partition=part.partition)
            if may:
                result = next(results)
                end.error_code, end.leader_epoch = result.error, result.epoch
                end.end_offset = result.end_offset
            else:
                end.error_code = KafkaError.TOPIC_AUTHORIZATION_FAILED
            made.partitions.append(end)
        answer.topics.append(made)
    return answer


async def delete_records(client: Client, request: Struct, version: int) -> Struct:
    """Move the beginning of partitions (KIP-107)."""
    answer = _DeleteRecords()
    may = client.may(Operation.ADMIN)
    places = {
        (topic.name, part.partition_index): part.offset
        for topic in request.topics
        for part in topic.partitions
    }
    asked = [
        m.DeleteRecordsPartition(topic=topic, partition=index, offset=offset)
        for (topic, index), offset in places.items()
    ]
    found: dict[tuple[str, int], m.DeleteRecordsResult] = {}
    if may:
        response: m.DeleteRecordsResponse = (
            await client.service.ask(
                client, m.DeleteRecordsRequest(timeout_ms=max(0, request.timeout_ms), partitions=asked)
            )
        ).message  # type: ignore[assignment]
        found = {(each.topic, each.partition): each for each in response.partitions}
    for topic in request.topics:
        told = _DeleteRecords.DeleteRecordsTopicResult(name=topic.name)
        for index in dict.fromkeys(part.partition_index for part in topic.partitions):
            result = found.get((topic.name, index))
            error = KafkaError.TOPIC_AUTHORIZATION_FAILED if result is None else result.error
            low = -1 if result is None else result.low_watermark
            told.partitions.append(
                _DeleteRecords.DeleteRecordsPartitionResult(
                    partition_index=index, error_code=error, low_watermark=low
                )
            )
        answer.topics.append(told)
    return answer


OFFERS = (
    Offer(Api.LIST_OFFSETS, 1, 11, list_offsets),
    Offer(Api.DELETE_RECORDS, 0, 2, delete_records),
    Offer(Api.OFFSET_FOR_LEADER_EPOCH, 2, 4, offset_for_leader_epoch),
)

"""What a client is told by the version that it speaks: racks of brokers, and errors that older ones do not know."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from insync.plugins.kafka.handlers import fetch as fetching
from insync.plugins.kafka.handlers import group_offsets
from insync.plugins.kafka.handlers import produce as producing
from insync.plugins.kafka.handlers.offsets import list_offsets
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm

from .test_listener import client_of, fetch, node_at

Metadata, Cluster = message("MetadataRequest"), message("DescribeClusterRequest")
Listed, OffsetFetch = message("ListOffsetsRequest"), message("OffsetFetchRequest")


@pytest.mark.parametrize(("rack", "told"), [("room-7", "room-7"), ("", None)])
async def test_clients_are_told_the_rack_of_each_broker(tmp_path: Path, rack: str, told: str | None) -> None:
    """By which they find replicas nearby (KIP-392) and are assigned partitions (KIP-881)."""
    async with node_at(tmp_path, rack=rack) as node, client_of(node) as client:
        for version in (1, 8, 9, 13):
            answer = await client.ask(Api.METADATA, version, Metadata(topics=[]))
            assert [each.rack for each in answer.brokers] == [told]
        answer = await client.ask(Api.DESCRIBE_CLUSTER, 0, Cluster())
        assert [each.rack for each in answer.brokers] == [told]


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (4, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (6, ErrorCode.KAFKA_STORAGE_ERROR),
        (11, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_fetch_of_before_kip_112_is_told_to_look_for_another_leader(version: int, told: int) -> None:
    """Its client does not know the error of a disk, and would give up; of another leader it asks again."""
    answers = []
    waiting = fetching._Asked(
        client=cast(Any, None),
        request=fetch(),
        version=version,
        session=None,
        questions={("t", 0): m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=1)},
        is_full=True,
        done=lambda answer, parts, pause: answers.append(answer),
        put_off=lambda work: work(),
    )
    result = m.FetchResult(topic="t", partition=0, error=ErrorCode.KAFKA_STORAGE_ERROR)
    waiting.tell({("t", 0): result}, (), 0)
    assert [part.error_code for part in answers[0].responses[0].partitions] == [told]


@pytest.mark.parametrize(
    ("epoch", "told"),
    [
        (-1, ErrorCode.NONE),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (3, ErrorCode.NONE),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_who_asks_for_an_offset_is_told_that_it_knows_another_leader_epoch(
    epoch: int, told: int
) -> None:
    """Epoch 0 is one like all others: it is -1 that says nothing of the leader (KIP-320)."""

    async def ask(client: object, asked: m.ListOffsetsRequest) -> SimpleNamespace:
        result = m.ListOffsetsResult(
            topic="t", partition=0, error=ErrorCode.NONE, offset=7, leader_epoch=3, offset_epoch=1
        )
        return SimpleNamespace(message=m.ListOffsetsResponse(partitions=[result]))

    client = SimpleNamespace(may_see_topics=lambda: True, service=SimpleNamespace(ask=ask))
    asked = Listed.ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=-1)
    topic = Listed.ListOffsetsTopic(name="t", partitions=[asked])
    answer = await list_offsets(cast(Any, client), Listed(replica_id=-1, topics=[topic]), 7)
    (part,) = answer.topics[0].partitions
    assert part.error_code == told
    assert (part.offset, part.leader_epoch) == ((7, 1) if told == ErrorCode.NONE else (-1, -1))


@pytest.mark.parametrize(
    ("version", "told"), [(3, ErrorCode.NOT_LEADER_OR_FOLLOWER), (4, ErrorCode.KAFKA_STORAGE_ERROR)]
)
def test_a_produce_of_before_kip_112_is_told_likewise(version: int, told: int) -> None:
    wanted = producing._Wanted("t", bytes(16), 0, None, 0)
    result = m.ProduceResult(topic="t", partition=0, error=ErrorCode.KAFKA_STORAGE_ERROR)
    assert producing._partition(wanted, result, version, {}).error_code == told


def test_records_stand_behind_their_partitions_where_topics_alternate() -> None:
    """A session keeps the order in which partitions were first asked for, and an answer names each topic once."""
    answers: list[Any] = []
    places = [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    waiting = fetching._Asked(
        client=cast(Any, None),
        request=fetch(),
        version=11,
        session=None,
        questions={
            place: m.FetchPartition(topic=place[0], partition=place[1], fetch_offset=0, max_bytes=1)
            for place in places
        },
        is_full=True,
        done=lambda *answer: answers.append(answer),
        put_off=lambda work: work(),
    )
    results = {
        (topic, index): m.FetchResult(topic=topic, partition=index, error=0, size=2)
        for topic, index in reversed(places)
    }
    waiting.tell(results, [f"{topic}{index}".encode() for topic, index in results], 0)
    ((told, ranges, _),) = answers
    parts = [(topic.topic, part.partition_index) for topic in told.responses for part in topic.partitions]
    assert parts == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert ranges == [f"{topic}{index}".encode() for topic, index in parts]


@pytest.mark.parametrize(("version", "at_partitions"), [(1, [[ErrorCode.NOT_COORDINATOR]]), (2, [])])
async def test_why_no_offsets_of_a_group_are_told_stands_at_the_partitions_only_before_version_2(
    version: int, at_partitions: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(client: object, asked: object) -> gm.GroupOffsetsResponse:
        return gm.GroupOffsetsResponse(error=ErrorCode.NOT_COORDINATOR)

    monkeypatch.setattr(group_offsets, "ask", refused)
    wanted = OffsetFetch.OffsetFetchRequestTopic(name="t", partition_indexes=[3])
    asked = OffsetFetch(group_id="g", topics=[wanted])
    answer = await group_offsets.offset_fetch(cast(Any, None), asked, version)
    found = [[part.error_code for part in topic.partitions] for topic in answer.topics]
    assert (answer.error_code, found) == (ErrorCode.NOT_COORDINATOR, at_partitions)


@pytest.mark.parametrize(
    ("version", "told"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
async def test_a_leader_that_does_not_know_its_end_yet_is_told_as_the_version_can_say_it(
    version: int, told: int
) -> None:
    async def ask(client: object, asked: m.ListOffsetsRequest) -> SimpleNamespace:
        result = m.ListOffsetsResult(topic="t", partition=0, error=ErrorCode.OFFSET_NOT_AVAILABLE, offset=-1)
        return SimpleNamespace(message=m.ListOffsetsResponse(partitions=[result]))

    client = SimpleNamespace(may_see_topics=lambda: True, service=SimpleNamespace(ask=ask))
    asked = Listed.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    topic = Listed.ListOffsetsTopic(name="t", partitions=[asked])
    answer = await list_offsets(cast(Any, client), Listed(replica_id=-1, topics=[topic]), version)
    assert [part.error_code for part in answer.topics[0].partitions] == [told]


async def test_an_offset_that_is_asked_for_twice_is_refused_and_the_others_are_told() -> None:
    """As at Kafka, and once; nor does a leader look for it."""
    wanted: list[tuple[str, int]] = []

    async def ask(client: object, asked: m.ListOffsetsRequest) -> SimpleNamespace:
        wanted.extend((each.topic, each.partition) for each in asked.partitions)
        results = [
            m.ListOffsetsResult(topic=topic, partition=index, error=0, offset=7, leader_epoch=3)
            for topic, index in wanted
        ]
        return SimpleNamespace(message=m.ListOffsetsResponse(partitions=results))

    client = SimpleNamespace(may_see_topics=lambda: True, service=SimpleNamespace(ask=ask))

    def topic(name: str, *places: tuple[int, int]) -> object:
        parts = [Listed.ListOffsetsPartition(partition_index=at, timestamp=time) for at, time in places]
        return Listed.ListOffsetsTopic(name=name, partitions=parts)

    request = Listed(replica_id=-1, topics=[topic("t", (0, -1), (1, -1), (0, -2)), topic("u", (0, -1))])
    answer = await list_offsets(cast(Any, client), request, 7)
    told = {
        (topic.name, part.partition_index): (part.error_code, part.offset)
        for topic in answer.topics
        for part in topic.partitions
    }
    assert told == {("t", 0): (ErrorCode.INVALID_REQUEST, -1), ("t", 1): (0, 7), ("u", 0): (0, 7)}
    assert sum(len(topic.partitions) for topic in answer.topics) == 3
    assert wanted == [("t", 1), ("u", 0)]


@pytest.mark.parametrize(("version", "told"), [(9, [("gone", 3), ("t", 4)]), (10, [("t", 4)])])
async def test_offsets_of_a_deleted_topic_are_told_by_its_name_alone(
    version: int, told: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From version 10 on topics have ids, and nobody knows that of one that is not there."""

    async def answered(client: object, asked: gm.GroupOffsetsRequest) -> gm.GroupOffsetsResponse:
        assert asked.partitions is None, "all of them"
        kept = [
            gm.CommittedOffset(topic=name, partition=0, offset=at) for name, at in (("t", 4), ("gone", 3))
        ]
        return gm.GroupOffsetsResponse(offsets=kept)

    monkeypatch.setattr(group_offsets, "ask", answered)
    client = SimpleNamespace(view=SimpleNamespace(topics={"t": SimpleNamespace(topic_id="ab" * 16)}))
    group = OffsetFetch.OffsetFetchRequestGroup(group_id="g", topics=None, member_epoch=-1)
    answer = await group_offsets.offset_fetch(cast(Any, client), OffsetFetch(groups=[group]), version)
    topics = answer.groups[0].topics
    assert [(each.name, each.partitions[0].committed_offset) for each in topics] == told
    assert topics[-1].topic_id == bytes.fromhex("ab" * 16)

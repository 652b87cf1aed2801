"""Questions about a topic that was deleted are answered when a node knows of it, not when the time is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import structs

from insync.replication import wire
from insync.replication.client import (
    Admin,
    BatchProducer,
    Consumer,
    Producer,
    RequestTimeoutError,
    UnknownTopicError,
)
from insync.replication.client._settings import ProducerSettings
from insync.replication.client.connection._cluster import NOBODY, Leader, Topic
from insync.replication.client.producer._partitioning import TopicQueues
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from tests.processes import cluster as real_cluster

from ..fake_cluster import FakeCluster, FakeNode, fake_cluster

PROMPT = 3.0
"""Seconds; all these would otherwise ask for 30."""

Ask = Callable[[Any], Awaitable[object]]
QUESTIONS: dict[str, tuple[type, Ask]] = {
    "beginning_offsets": (Consumer, lambda c: c.beginning_offsets([("t", 0)])),
    "end_offsets": (Consumer, lambda c: c.end_offsets([("t", 0)])),
    "offsets_for_times": (Consumer, lambda c: c.offsets_for_times({("t", 0): 5})),
    "assign_topic": (Consumer, lambda c: c.assign_topic("t")),
    "prepare": (Producer, lambda c: c.prepare("t")),
    "delete_records": (Admin, lambda c: c.delete_records({("t", 0): -1})),
    "written": (BatchProducer, lambda c: c.written(7, [("t", 0)])),
    "partitions": (BatchProducer, lambda c: c.partitions("t")),
}


async def test_a_question_about_many_partitions_is_asked_in_parts() -> None:
    """The body of a request has at most 1 MiB, whatever the length of a topic's name."""
    sizes: list[int] = []

    def answer(_: FakeNode, request: Any) -> bool:
        asked = wire.decode_request(Kind.DELETE_RECORDS, request.body).partitions
        sizes.append(len(asked))
        results = [
            m.DeleteRecordsResult(
                topic=each.topic, partition=each.partition, error=0, low_watermark=each.partition
            )
            for each in asked
        ]
        request.reply(wire.encode(m.DeleteRecordsResponse(partitions=results)))
        return True

    name = "t" * 249
    async with fake_cluster(nodes=1, **{name: 5000}) as cluster, Admin(cluster.urls) as admin:
        cluster.nodes[0].script(Kind.DELETE_RECORDS, *[answer] * 100)
        told = await admin.delete_records({(name, number): -1 for number in range(5000)})
    assert told == {(name, number): number for number in range(5000)}
    assert sum(sizes) == 5000 and max(sizes) <= 1000


def delete(cluster: FakeCluster, *knowing: int) -> None:
    """The topic is gone, and these nodes (all by default) have read so in the metadata store."""
    del cluster.topics["t"]
    for node_id in knowing or range(len(cluster.nodes)):
        cluster.nodes[node_id].revision += 1


@pytest.mark.parametrize("what", QUESTIONS)
async def test_who_knew_the_topic_is_told_promptly_that_it_is_gone(what: str) -> None:
    client_class, ask = QUESTIONS[what]
    async with fake_cluster(t=1) as cluster, client_class(cluster.urls) as client:
        await client._cluster.topic("t", timeout=5)
        delete(cluster)
        # What a question finds out by itself, and what a look has found out before it.
        for _ in range(2):
            with trio.fail_after(PROMPT), pytest.raises(UnknownTopicError, match="UNKNOWN_TOPIC") as caught:
                if what in ("assign_topic", "prepare", "partitions"):
                    await client._cluster.refresh()
                await ask(client)
            assert "insync topic list" in str(caught.value)


@pytest.mark.parametrize("what", ["end_offsets", "offsets_for_times", "prepare"])
async def test_a_topic_that_never_was_is_told_promptly(what: str) -> None:
    client_class, ask = QUESTIONS[what]
    async with fake_cluster(u=1) as cluster, client_class(cluster.urls) as client:
        with trio.fail_after(PROMPT), pytest.raises(UnknownTopicError):
            await ask(client)


async def test_who_leads_it_need_not_know() -> None:
    """One that has not read so far says that it knows no such topic, which proves nothing; others are asked."""
    async with fake_cluster(t=1) as cluster, Consumer(cluster.urls) as consumer:
        await consumer.end_offsets([("t", 0)])
        delete(cluster, 1, 2)
        with trio.fail_after(PROMPT), pytest.raises(UnknownTopicError, match="its topic was deleted"):
            await consumer.end_offsets([("t", 0)])


async def test_nodes_that_are_behind_do_not_make_a_new_topic_unknown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with fake_cluster(t=1) as cluster, Consumer(cluster.urls, request_timeout_ms=400) as consumer:
        for node in cluster.nodes:
            node.revision = 5
        await consumer.end_offsets([("t", 0)])
        delete(cluster, 0)
        for node in cluster.nodes:
            node.revision = 4
        with pytest.raises(RequestTimeoutError):
            await consumer.end_offsets([("t", 0)])
        # And when it is there after all, it is found.
        cluster.create("t", 1)
        assert await consumer.end_offsets([("t", 0)]) == {("t", 0): 0}


async def test_a_topic_that_is_made_anew_is_known_again() -> None:
    async with fake_cluster(t=1) as cluster, Consumer(cluster.urls) as consumer:
        await consumer.end_offsets([("t", 0)])
        delete(cluster)
        with pytest.raises(UnknownTopicError):
            await consumer.end_offsets([("t", 0)])
        cluster.create("t", 2)
        for node in cluster.nodes:
            node.revision += 1
        with trio.fail_after(PROMPT):
            assert await consumer.end_offsets([("t", 0), ("t", 1)]) == {("t", 0): 0, ("t", 1): 0}


async def test_leaders_of_a_topic_that_is_made_again_count_whatever_their_epochs() -> None:
    """Epochs begin at 0 again; of one topic the leader of the highest epoch is the latest."""
    async with fake_cluster(t=1) as cluster, Admin(cluster.urls) as admin:
        (info,) = await admin.describe_topics(["t"])
        (there,) = info.partitions
        known = admin._cluster
        for topic_id, epoch, leader in (("first", 7, 0), ("first", 6, 1), ("second", 0, 2)):
            part = structs.replace(there, leader=leader, leader_epoch=epoch)
            known._apply_topic(structs.replace(info, topic_id=topic_id, partitions=[part]), revision=1)
            expected = Leader(2, 0) if topic_id == "second" else Leader(0, 7)
            assert known.topics["t"].leaders == [expected]


async def test_a_node_that_is_behind_does_not_bring_it_back() -> None:
    """What it still knows of the topic is older than that it was deleted."""
    async with fake_cluster(nodes=1, t=1) as cluster, Consumer(cluster.urls) as consumer:
        await consumer.end_offsets([("t", 0)])
        delete(cluster)
        with pytest.raises(UnknownTopicError):
            await consumer.end_offsets([("t", 0)])
        cluster.create("t", 1)
        cluster.nodes[0].revision = 1
        await consumer._cluster.refresh()
        assert consumer._cluster.topics["t"].deleted
        cluster.nodes[0].revision = 3
        await consumer._cluster.refresh()
        assert not consumer._cluster.topics["t"].deleted


async def test_a_reader_without_a_position_is_told_and_asks_no_more() -> None:
    """It would otherwise look for a beginning that nobody can tell, again and again."""

    def unknown(node: FakeNode, request: Any) -> bool:
        asked = wire.decode_request(request.kind, request.body)
        if "t" in cluster.topics:
            del cluster.topics["t"]
            for each in cluster.nodes:
                each.revision += 1
        results = [
            m.ListOffsetsResult(
                topic=p.topic, partition=p.partition, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            for p in asked.partitions
        ]
        request.reply(wire.encode(m.ListOffsetsResponse(partitions=results)))
        return True

    async with fake_cluster(t=1) as cluster, Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
        for node in cluster.nodes:
            node.script(Kind.LIST_OFFSETS, *[unknown] * 1000)
        consumer.assign([("t", 0)])
        with trio.fail_after(PROMPT), pytest.raises(UnknownTopicError, match="t-0"):
            await consumer.poll(30_000)
        asked = sum(node.seen[Kind.LIST_OFFSETS] for node in cluster.nodes)
        with pytest.raises(UnknownTopicError):
            await consumer.poll(200)
        assert sum(node.seen[Kind.LIST_OFFSETS] for node in cluster.nodes) == asked < 50


@pytest.mark.slow
async def test_real_nodes_say_so_too(tmp_path: Path) -> None:
    with real_cluster(tmp_path) as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin, Consumer(servers) as consumer:
            await admin.create_topic("t", 2, 3)
            both = [("t", 0), ("t", 1)]
            assert await consumer.end_offsets(both) == dict.fromkeys(both, 0)
            await admin.delete_topic("t")
            with trio.fail_after(60), pytest.raises(UnknownTopicError, match="insync topic list"):
                await consumer.end_offsets(both)
            with trio.fail_after(60), pytest.raises(UnknownTopicError):
                await consumer.offsets_for_times(dict.fromkeys(both, 0))
            await admin.create_topic("t", 2, 3)
            with trio.fail_after(60):
                assert await consumer.end_offsets(both) == dict.fromkeys(both, 0)


def test_of_two_answers_from_one_revision_that_which_knows_the_topic_is_believed() -> None:
    """A revision has the topic or not; a node that says of it that there is none has not looked as far yet."""
    topic = Topic("t", "id", [])
    topic.told(5, exists=True)
    topic.told(5, exists=False)
    assert not topic.deleted
    topic.told(6, exists=False)
    assert topic.deleted
    topic.told(6, exists=True)
    assert not topic.deleted


def test_a_partition_that_the_topic_lacks_since_it_was_made_again_has_no_leader() -> None:
    topic = Topic("t", "first", [Leader(1, 0), Leader(2, 0)])
    one, two = TopicQueues(topic, ProducerSettings()).queues
    assert (one.leader, two.leader) == (Leader(1, 0), Leader(2, 0))
    topic.topic_id, topic.leaders = "second", [Leader(3, 1)]
    assert (one.leader, two.leader) == (Leader(3, 1), NOBODY)

"""A reader is told which records it will never see, and what became of them."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from insync.replication import wire
from insync.replication.client import Consumer, OffsetOutOfRangeError
from insync.replication.client.consumer._losses import deleted
from insync.replication.core import messages as m
from insync.replication.core.messages import Kind
from insync.replication.core.types import EpochEnd, PartitionId

from ..fake_cluster import FakeCluster, FakeNode, Fault, fake_cluster
from .test_consumer import fill, read


async def told(consumer: Consumer) -> OffsetOutOfRangeError:
    with trio.fail_after(5), pytest.raises(OffsetOutOfRangeError) as caught:
        while True:
            await consumer.poll(500)
    return caught.value


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"retention_ms": 60000, "retention_bytes": -1}, r"retention \(retention_ms=60000\) or"),
        ({"retention_ms": -1, "retention_bytes": -1}, r"deleted by `insync topic delete-records`"),
        ({"cleanup_policy": "compact", "retention_ms": 5}, r"deleted by `insync topic delete-records`"),
        ({}, "deleted by retention or"),
    ],
)
def test_what_was_deleted_is_named_with_what_may_have_deleted_it(config, said):
    error = deleted(PartitionId("t", 0), 5, 20, 40, config)
    assert (error.by, error.lost, error.offset) == ("deletion", (5, 20), 5)
    with pytest.raises(OffsetOutOfRangeError, match=said):
        raise error


async def test_nobody_knows_what_was_past_the_end():
    async with fake_cluster(t=1) as cluster:
        fill(cluster.topics["t"][0], 10)
        async with Consumer(cluster.urls, auto_offset_reset="none") as consumer:
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), 12)
            error = await told(consumer)
            assert (error.by, error.lost, error.offset, error.end_offset) == ("", None, 12, 10)


def cut_at(end: int, epoch: int = 3) -> Fault:
    """The leader's log has something else from `end` on than what was read."""

    def fault(node: FakeNode, request: object) -> bool:
        asked = wire.decode_request(Kind.FETCH, request.body)  # type: ignore[attr-defined]
        (part,) = asked.partitions
        assert part.last_fetched_epoch >= 0
        log = node.cluster.topics[part.topic][part.partition]
        while log.bases and log.bases[-1] >= end:
            log.bases.pop()
            log.batches.pop()
        log.end = end
        # There are others in their places, and more: nobody would notice by the offsets.
        fill(log, 20)
        result = m.FetchResult(
            topic=part.topic,
            partition=part.partition,
            error=0,
            high_watermark=log.end,
            log_start_offset=0,
            diverging=EpochEnd(epoch, end),
        )
        request.reply(wire.encode(m.FetchResponse(partitions=[result])))  # type: ignore[attr-defined]
        return True

    return fault


async def read_and_cut(cluster: FakeCluster, consumer: Consumer, end: int) -> None:
    fill(cluster.topics["t"][0], 40)
    consumer.assign([("t", 0)])
    consumer.seek(("t", 0), 0)
    assert len(await read(consumer, 40)) == 40
    await trio.testing.wait_all_tasks_blocked(0.05)
    cluster.nodes[0].script(Kind.FETCH, cut_at(end))
    # The poll that waits at the node is given up, and the next one finds out.
    consumer.resume()


async def test_what_was_read_and_is_no_longer_there_is_told():
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Consumer(cluster.urls, auto_offset_reset="none") as consumer,
    ):
        await read_and_cut(cluster, consumer, 30)
        error = await told(consumer)
        assert (error.by, error.lost, error.end_offset) == ("truncation", (30, 40), 50)
        consumer.seek(("t", 0), 30)
        assert [each.offset for each in await read(consumer, 20)] == list(range(30, 50))


async def test_with_a_reset_reading_goes_on_where_the_logs_part():
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Consumer(cluster.urls, auto_offset_reset="latest") as consumer,
    ):
        await read_and_cut(cluster, consumer, 30)
        assert [each.offset for each in await read(consumer, 20)] == list(range(30, 50))


@pytest.mark.parametrize("reset", ["none", "latest"])
async def test_another_topic_of_the_same_name_is_not_taken_for_the_former_one(reset):
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Consumer(cluster.urls, auto_offset_reset=reset) as consumer,
    ):
        fill(cluster.topics["t"][0], 40)
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
        assert len(await read(consumer, 40)) == 40
        cluster.create("t", 1)
        fill(cluster.topics["t"][0], 50)
        cluster.appended()
        if reset == "none":
            error = await told(consumer)
            assert (error.by, error.offset) == ("recreation", 40)
        else:
            assert [each.offset for each in await read(consumer, 50)][:50] == list(range(50))


async def test_a_position_of_a_new_topic_is_read_by_a_consumer_that_knows_the_former_one():
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Consumer(cluster.urls, auto_offset_reset="none") as consumer,
    ):
        fill(cluster.topics["t"][0], 40)
        former = cluster.topic_id("t")
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0, topic_id=former)
        assert len(await read(consumer, 40)) == 40
        cluster.create("t", 1)
        fill(cluster.topics["t"][0], 50)
        present = cluster.topic_id("t")
        consumer.assign([])
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 20, topic_id=present)
        assert [each.offset for each in await read(consumer, 30)] == list(range(20, 50))
        consumer.seek(("t", 0), 20, topic_id=former)
        error = await told(consumer)
        assert (error.by, error.offset, error.topic_ids) == ("recreation", 20, (former, present))
        assert former in str(error) and present in str(error)
        # Without an id an offset is of whichever topic there is.
        consumer.seek(("t", 0), 49)
        assert [each.offset for each in await read(consumer, 1)] == [49]


async def test_a_position_keeps_its_topic_where_the_log_was_cut():
    """And the topic was made again right then: where the logs part says nothing about the new one."""
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Consumer(cluster.urls, auto_offset_reset="latest") as consumer,
    ):

        def cut_and_made_again(node: FakeNode, request: object) -> bool:
            cut_at(30)(node, request)
            cluster.create("t", 1)
            fill(cluster.topics["t"][0], 50)
            # A look that was under way has told of it.
            consumer._cluster.topics["t"].topic_id = cluster.topic_id("t")
            return True

        fill(cluster.topics["t"][0], 40)
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0, topic_id=cluster.topic_id("t"))
        assert len(await read(consumer, 40)) == 40
        await trio.testing.wait_all_tasks_blocked(0.05)
        cluster.nodes[0].script(Kind.FETCH, cut_and_made_again)
        consumer.resume()
        assert [each.offset for each in await read(consumer, 20)][:20] == list(range(20))

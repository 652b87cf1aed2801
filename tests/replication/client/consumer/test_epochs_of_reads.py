"""A fetch tells the epoch of the record before it: by that a leader finds out that logs have parted (KIP-320)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from insync.replication import wire
from insync.replication.client import Consumer
from insync.replication.core import messages as m
from insync.replication.core.messages import Kind
from tests.storage.building import marker

from ..fake_cluster import FakeCluster, FakeNode, fake_cluster
from ..patience import PATIENCE
from .test_consumer import fill
from .test_isolation import batch, put


def questions(cluster: FakeCluster) -> list[m.FetchPartition]:
    """All that the cluster will be asked for."""
    asked: list[m.FetchPartition] = []

    def look(node: FakeNode, request: Any) -> bool:
        if request.kind == Kind.FETCH:
            asked.extend(wire.decode_request(Kind.FETCH, request.body).partitions)
        return False

    cluster.chaos = look
    return asked


async def read_to(consumer: Consumer, end: int) -> None:
    with trio.fail_after(PATIENCE):
        while consumer.position(("t", 0)) != end:
            await consumer.poll(500)


async def until_asked_from(asked: list[m.FetchPartition], offset: int, consumer: Consumer) -> set[int]:
    """The epochs that questions from this offset on have told."""
    with trio.fail_after(PATIENCE):
        while not (found := {each.last_fetched_epoch for each in asked if each.fetch_offset == offset}):
            await consumer.poll(20)
    return found


async def test_who_reads_elsewhere_tells_no_epoch_of_where_it_was() -> None:
    """An old epoch has ended before the place where reading goes on: the leader would call that a lost log."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        fill(cluster.topics["t"][0], 20)
        asked = questions(cluster)
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            await read_to(consumer, 20)
            assert await until_asked_from(asked, 20, consumer) == {0}
            consumer.seek(("t", 0), 10)
            assert await until_asked_from(asked, 10, consumer) == {-1}
            consumer.seek_to_beginning([("t", 0)])
            asked.clear()
            assert await until_asked_from(asked, 0, consumer) == {-1}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
async def test_of_an_answer_with_several_epochs_the_last_is_told(isolation: str) -> None:
    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        for log.epoch in (0, 1, 2):
            fill(log, 10)
        asked = questions(cluster)
        options: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": isolation}
        async with Consumer(cluster.urls, **options) as consumer:
            consumer.assign([("t", 0)])
            await read_to(consumer, 30)
            assert await until_asked_from(asked, 30, consumer) == {2}


async def test_the_epoch_of_a_batch_that_was_aborted_counts_as_well() -> None:
    """Nothing of it is handed out; a leader that lacks it is not the one that was read from."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        put(cluster, batch(b"a"), batch(b"x", by=5), marker(commit=False, producer_id=5), batch(b"b"))
        asked = questions(cluster)
        options: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        # One batch in each answer.
        async with Consumer(cluster.urls, max_partition_fetch_bytes=1, **options) as consumer:
            consumer.assign([("t", 0)])
            await read_to(consumer, 4)
            assert {each.fetch_offset for each in asked} >= {0, 1, 2, 3}
            told = {each.fetch_offset: each.last_fetched_epoch for each in asked}
            assert told[0] == -1 and [told[offset] for offset in (1, 2, 3)] == [0, 0, 0]

"""Consumers of a group against the real machine of groups on fake nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio

from insync.replication.client import Consumer, ConsumerRecord
from insync.replication.core.types import PartitionId

from ..fake_coordinator import group_cluster
from .test_consumer import fill

QUICK: dict[str, Any] = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "fetch_max_wait_ms": 50,
    "session_timeout_ms": 3_000,
    "heartbeat_interval_ms": 100,
}
PROTOCOLS = pytest.mark.parametrize(
    "settings",
    [
        pytest.param(QUICK, id="consumer"),
        pytest.param(QUICK | {"group_protocol": "classic"}, id="eager"),
        pytest.param(
            QUICK | {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
            id="cooperative",
        ),
    ],
)


@attrs.define
class Heard:
    """A listener that notes what it hears."""

    said: list[tuple[str, list[int]]] = attrs.Factory(list)

    def on_assigned(self, partitions: list[PartitionId]) -> None:
        self.said.append(("assigned", [each.partition for each in partitions]))

    async def on_revoked(self, partitions: list[PartitionId]) -> None:
        await trio.lowlevel.checkpoint()
        self.said.append(("revoked", [each.partition for each in partitions]))

    def on_lost(self, partitions: list[PartitionId]) -> None:
        self.said.append(("lost", [each.partition for each in partitions]))


async def poll_until(
    condition: Callable[[], bool], *consumers: Consumer, seconds: float = 20.0
) -> list[list[ConsumerRecord]]:
    """Poll them in turn; what each was given."""
    taken: list[list[ConsumerRecord]] = [[] for _ in consumers]
    with trio.fail_after(seconds):
        while not condition():
            for consumer, records in zip(consumers, taken, strict=True):
                records.extend(await consumer.poll(20))
    return taken


@PROTOCOLS
async def test_a_member_reads_all_and_the_next_one_goes_on_where_it_committed(
    settings: dict[str, Any],
) -> None:
    async with group_cluster(t=3) as (cluster, coordinator):
        for log in cluster.topics["t"]:
            fill(log, 10)
        heard = Heard()
        async with Consumer(cluster.urls, **settings, enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"], listener=heard)
            records: list[ConsumerRecord] = []
            with trio.fail_after(10):
                while len(records) < 30:
                    records += await consumer.poll(1000)
            assert heard.said == [("assigned", [0, 1, 2])]
            assert coordinator.committed() == {}
            await consumer.commit()
            assert coordinator.committed() == {0: 10, 1: 10, 2: 10}
            assert await consumer.committed([("t", 1)]) == {("t", 1): 10}
            assert await consumer.lag() == {("t", n): 0 for n in range(3)}
        assert heard.said[1:] == [("revoked", [0, 1, 2])]
        assert coordinator.members() == []
        for log in cluster.topics["t"]:
            fill(log, 1)
        async with Consumer(cluster.urls, **settings) as consumer:
            consumer.subscribe(["t"])
            records = []
            with trio.fail_after(10):
                while len(records) < 3:
                    records += await consumer.poll(1000)
            assert sorted((each.partition, each.offset) for each in records) == [(0, 10), (1, 10), (2, 10)]


@PROTOCOLS
async def test_partitions_go_to_one_member_each_and_come_back(settings: dict[str, Any]) -> None:
    async with group_cluster(t=4) as (cluster, _coordinator):
        first, second = Heard(), Heard()
        async with Consumer(cluster.urls, **settings) as one:
            one.subscribe(["t"], listener=first)
            await poll_until(lambda: len(one.assignment()) == 4, one)
            async with Consumer(cluster.urls, **settings) as other:
                other.subscribe(["t"], listener=second)
                await poll_until(lambda: len(one.assignment()) == len(other.assignment()) == 2, one, other)
                assert not set(one.assignment()) & set(other.assignment())
                for log in cluster.topics["t"]:
                    fill(log, 5)
                cluster.appended()
                mine = [each.partition for each in one.assignment()]
                got: list[ConsumerRecord] = []
                with trio.fail_after(10):
                    while len(got) < 10:
                        got += await one.poll(100)
                assert sorted({each.partition for each in got}) == sorted(mine)
            await poll_until(lambda: len(one.assignment()) == 4, one)

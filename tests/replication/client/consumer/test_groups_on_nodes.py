"""Consumer groups on real nodes: the same program on trio, asyncio and threads; coordinators that die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import insync.replication.asyncio as bridge
from insync.replication.client import Admin, BlockingConsumer, Consumer, GroupIdNotFoundError, Producer
from tests.processes import STEADY, NodeProcess, cluster

ORDERS = 60


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Three nodes with topic `orders` of three partitions and 60 records."""
    with cluster(tmp_path_factory.mktemp("groups"), 3, *STEADY) as nodes:
        urls = [node.endpoint for node in nodes]
        trio.run(_fill, urls)
        yield urls


async def _fill(urls: list[str]) -> None:
    async with Admin(urls) as admin, Producer(urls) as producer:
        await admin.create_topic("orders", 3, 3, {"min_insync_replicas": 2})
        for partition in range(3):
            values = [b"%d" % n for n in range(partition * 20, partition * 20 + 20)]
            await (await producer.send_many("orders", values, partition=partition)).wait()


def settings(group: str) -> dict[str, object]:
    return {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}


async def offsets_of(servers: list[str], group: str) -> dict[int, int]:
    async with Admin(servers) as admin:
        return {at.partition: offset for at, offset in (await admin.group_offsets(group)).items()}


async def test_the_program_on_trio(servers: list[str]) -> None:
    charged = []
    with trio.fail_after(60):
        async with Consumer(servers, **settings("billing-trio")) as consumer:
            consumer.subscribe(["orders"])
            while len(charged) < ORDERS:
                for record in await consumer.poll(timeout_ms=1000):
                    charged.append(record.value)
                await consumer.commit()
    assert sorted(charged, key=int) == [b"%d" % n for n in range(ORDERS)]
    assert await offsets_of(servers, "billing-trio") == {0: 20, 1: 20, 2: 20}


def test_the_program_on_asyncio(servers: list[str]) -> None:
    charged = []

    async def main() -> None:
        async with asyncio.timeout(60), bridge.Consumer(servers, **settings("billing-asyncio")) as consumer:
            await consumer.subscribe(["orders"])
            while len(charged) < ORDERS:
                for record in await consumer.poll(timeout_ms=1000):
                    charged.append(record.value)
                await consumer.commit()

    asyncio.run(main())
    assert sorted(charged, key=int) == [b"%d" % n for n in range(ORDERS)]
    assert trio.run(offsets_of, servers, "billing-asyncio") == {0: 20, 1: 20, 2: 20}


def test_the_program_on_threads(servers: list[str]) -> None:
    charged = []
    with BlockingConsumer(servers, **settings("billing-threads")) as consumer:
        consumer.subscribe(["orders"])
        while len(charged) < ORDERS:
            for record in consumer.poll(timeout_ms=1000):
                charged.append(record.value)
            consumer.commit()
    assert sorted(charged, key=int) == [b"%d" % n for n in range(ORDERS)]
    assert trio.run(offsets_of, servers, "billing-threads") == {0: 20, 1: 20, 2: 20}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_an_operator_sees_and_changes_a_group(servers: list[str], protocol: str) -> None:
    group = f"seen-{protocol}"
    async with Admin(servers) as admin:
        with pytest.raises(GroupIdNotFoundError, match=group):
            await admin.describe_groups([group])
        async with Consumer(servers, **settings(group), group_protocol=protocol) as consumer:
            consumer.subscribe(["orders"])
            with trio.fail_after(30):
                while len(consumer.assignment()) < 3:
                    await consumer.poll(100)
            await consumer.commit({("orders", 0): 5})
            (found,) = await admin.describe_groups([group])
            assert (found.type, found.state, len(found.members)) == (protocol, "Stable", 1)
            assert found.members[0].partitions == [("orders", n) for n in range(3)]
            [first, second, _] = found.partitions
            assert (first.committed, first.end_offset, first.lag) == (5, 20, 15)
            assert (second.committed, second.lag, second.member_id) == (
                None,
                None,
                found.members[0].member_id,
            )
            assert group in [each.group for each in await admin.list_groups(["Stable"])]
            with pytest.raises(Exception, match="has members; stop its consumers"):
                await admin.set_group_offsets(group, {("orders", 1): 3})
            with pytest.raises(Exception, match="stop its consumers"):
                await admin.delete_group(group)
            with pytest.raises(Exception, match="stop the consumers that subscribe"):
                await admin.delete_group_offsets(group, [("orders", 0)])
        assert group in [each.group for each in await admin.list_groups(["Empty"], [protocol])]
        plan = await admin.plan_group_reset(group, "shift", -7)
        assert plan == {("orders", 0): 0}
        every = [("orders", n) for n in range(3)]
        assert await admin.plan_group_reset(group, "offset", 99, partitions=every) == dict.fromkeys(every, 20)
        assert await admin.plan_group_reset(group, "time", 1, partitions=every) == dict.fromkeys(every, 0)
        await admin.set_group_offsets(group, dict.fromkeys(every, 19))
        async with Consumer(servers, **settings(group)) as consumer:
            consumer.subscribe(["orders"])
            read = []
            with trio.fail_after(30):
                while len(read) < 3:
                    read += await consumer.poll(500)
            assert [each.offset for each in read] == [19, 19, 19]
        await admin.delete_group_offsets(group, [("orders", 0)])
        assert set(await admin.group_offsets(group)) == {("orders", 1), ("orders", 2)}
        await admin.delete_group(group)
        assert await admin.group_offsets(group) == {}


@pytest.mark.slow
async def test_a_coordinator_that_is_killed_costs_no_partition_and_no_commit(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        urls = [node.endpoint for node in nodes]
        await _fill(urls)
        async with Admin(urls) as admin, Consumer(urls, **settings("g"), max_poll_records=10) as consumer:
            lost = []

            class Listener:
                def on_lost(self, partitions: object) -> None:
                    lost.append(partitions)

            consumer.subscribe(["orders"], listener=Listener())
            read = []
            with trio.fail_after(30):
                while len(read) < 30:
                    read += await consumer.poll(500)
            await consumer.commit()
            (found,) = await admin.describe_groups(["g"])
            _node(nodes, found.coordinator).kill()
            with trio.fail_after(60):
                await consumer.commit()
                while len(read) < ORDERS:
                    read += await consumer.poll(500)
                await consumer.commit()
            assert sorted(int(each.value) for each in read) == list(range(ORDERS))
            assert await consumer.committed([("orders", n) for n in range(3)]) == {
                ("orders", n): 20 for n in range(3)
            }
            assert lost == []


def _node(nodes: list[NodeProcess], node_id: int) -> NodeProcess:
    return next(each for each in nodes if each.node_id == node_id)

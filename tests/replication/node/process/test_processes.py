"""Nodes as processes, killed all at once."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Consumer, Producer, ReplicationError
from tests.processes import NodeProcess, cluster, kept_address

from ..test_cluster import full_isr, until

PARTITIONS = 3


async def load(servers: list[str], acked: list[bytes], enough: trio.Event, stop: trio.Event) -> None:
    """Produce until told to stop, remembering what was acknowledged; 2,000 records are enough."""
    number = 0
    async with Producer(servers, delivery_timeout_ms=2000, request_timeout_ms=1000) as producer:
        while not stop.is_set():
            values = [b"%d" % (number + n) for n in range(100)]
            number += 100
            deliveries = await producer.send_many("t", values, keys=values)
            with contextlib.suppress(ReplicationError):
                await deliveries.wait()
            acked += [value for value, each in zip(values, deliveries, strict=True) if each.error is None]
            if len(acked) >= 2000:
                enough.set()


async def read_all(servers: list[str]) -> list[bytes]:
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        partitions = await consumer.assign_topic("t")
        ends = await consumer.end_offsets(partitions)
        found: list[bytes] = []
        with trio.fail_after(60):
            while any((consumer.position(each) or 0) < ends[each] for each in partitions):
                found += [record.value or b"" for record in await consumer.poll(timeout_ms=200)]
        return found


@pytest.mark.slow
async def test_all_nodes_killed_at_once_come_back_by_themselves(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        servers = [node.endpoint for node in nodes]
        acked: list[bytes] = []
        enough, stop = trio.Event(), trio.Event()
        async with Admin(servers) as admin:
            await admin.create_topic("t", PARTITIONS, 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, servers, acked, enough, stop)
            with trio.fail_after(60):
                await enough.wait()
            for node in nodes:
                node.process.kill()
            for node in nodes:
                node.process.wait()
            stop.set()
        nodes[:] = [NodeProcess.start(node.node_id, tmp_path) for node in nodes]
        servers = [node.endpoint for node in nodes]
        async with Producer(servers, delivery_timeout_ms=60_000) as producer:
            after = [await producer.send("t", b"after", partition=each) for each in range(PARTITIONS)]
            for delivery in after:
                await delivery.wait()
        found = await read_all(servers)
        assert [record for record in found if record == b"after"] == [b"after"] * PARTITIONS
        assert not set(acked) - set(found), "an acknowledged record is lost"
        assert len(set(found) - {b"after"}) == len(found) - PARTITIONS, "a record is there twice"
        for node in nodes:
            assert node.stop() == 0


@pytest.mark.slow
async def test_a_rolling_restart_fails_no_write(tmp_path: Path) -> None:
    """Each node is stopped as an operator does it, one after the other, under load with acks=all."""
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(cluster(tmp_path, 0))
        addresses = [stack.enter_context(kept_address()) for _ in range(3)]
        for number, address in enumerate(addresses, 1):
            nodes.append(NodeProcess.start(number, tmp_path, "--listen", address, "--listen", "shm://@"))
        servers = [node.endpoint for node in nodes]
        failed: list[ReplicationError] = []
        acked: list[int] = []
        stop = trio.Event()

        async def write(producer: Producer, partition: int) -> None:
            number = 0
            while not stop.is_set():
                try:
                    metadata = await (
                        await producer.send("t", b"%d %d" % (partition, number), partition=partition)
                    ).wait()
                except ReplicationError as error:
                    failed.append(error)
                else:
                    acked.append(metadata.offset)
                number += 1

        async with Admin(servers) as admin:
            await admin.create_topic("t", PARTITIONS, 3)

            async def all_in_sync() -> None:
                await until(lambda: full_isr(admin, "t", 3), 20)

            async def more_than(before: int) -> bool:
                await trio.sleep(0.01)
                return len(acked) > before

            async with trio.open_nursery() as nursery, Producer(servers, acks="all") as producer:
                for partition in range(PARTITIONS):
                    nursery.start_soon(write, producer, partition)
                for index, node in enumerate(list(nodes)):
                    await all_in_sync()
                    before = len(acked)
                    assert await trio.to_thread.run_sync(node.stop) == 0
                    nodes[index] = await trio.to_thread.run_sync(
                        NodeProcess.start, node.node_id, tmp_path, "--listen", addresses[index]
                    )
                    await until(partial(more_than, before))
                await all_in_sync()
                stop.set()
        assert not failed
        logs = [(tmp_path / f"node-{node.node_id}.err").read_text() for node in nodes]
        assert not [line for log in logs for line in log.splitlines() if "no replica may lead" in line]
        found = await read_all([node.endpoint for node in nodes])
        assert len(found) == len(acked) == len(set(found))

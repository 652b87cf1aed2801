"""Nodes as processes, killed all at once."""

from __future__ import annotations

import contextlib
from pathlib import Path

import trio

from insync.replication import Admin, Consumer, Producer, ReplicationError
from tests.processes import NodeProcess, cluster

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
        with trio.fail_after(30):
            while any((consumer.position(each) or 0) < ends[each] for each in partitions):
                found += [record.value or b"" for record in await consumer.poll(timeout_ms=200)]
        return found


async def test_all_nodes_killed_at_once_come_back_by_themselves(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        servers = [node.endpoint for node in nodes]
        acked: list[bytes] = []
        enough, stop = trio.Event(), trio.Event()
        async with Admin(servers) as admin:
            await admin.create_topic("t", PARTITIONS, 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, servers, acked, enough, stop)
            with trio.fail_after(30):
                await enough.wait()
            for node in nodes:
                node.process.kill()
            for node in nodes:
                node.process.wait()
            stop.set()
        nodes[:] = [NodeProcess.start(node.node_id, tmp_path) for node in nodes]
        servers = [node.endpoint for node in nodes]
        async with Producer(servers, delivery_timeout_ms=20000) as producer:
            after = [await producer.send("t", b"after", partition=each) for each in range(PARTITIONS)]
            for delivery in after:
                await delivery.wait()
        found = await read_all(servers)
        assert [record for record in found if record == b"after"] == [b"after"] * PARTITIONS
        assert not set(acked) - set(found), "an acknowledged record is lost"
        assert len(set(found) - {b"after"}) == len(found) - PARTITIONS, "a record is there twice"
        for node in nodes:
            assert node.stop() == 0

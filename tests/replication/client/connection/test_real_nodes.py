"""Clients against processes of real nodes that are killed, frozen and started again."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from insync.replication.client import Admin, Consumer, Deliveries, Producer
from tests.processes import NodeProcess, cluster

PARTITIONS = 3
CHUNK = 200


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Ask again and again, at the pace of the answers."""
    with trio.fail_after(seconds):
        while not await condition():
            await trio.lowlevel.checkpoint()


async def leader_of(admin: Admin, partition: int) -> int:
    (topic,) = await admin.describe_topics(["t"])
    return topic.partitions[partition].leader


async def full(admin: Admin) -> bool:
    (topic,) = await admin.describe_topics(["t"])
    return all(len(p.isr) == 3 for p in topic.partitions)


async def produce_until(producer: Producer, stop: trio.Event, sent: list[Deliveries]) -> None:
    """Numbered chunks, to the partitions in turn."""
    while not stop.is_set():
        start = len(sent) * CHUNK
        values = [b"%d" % n for n in range(start, start + CHUNK)]
        sent.append(await producer.send_many("t", values, partition=len(sent) % PARTITIONS))
        await sent[-1].wait() if len(sent) % 8 == 0 else await trio.lowlevel.checkpoint()


async def acknowledged_after(sent: list[Deliveries], partition: int) -> float:
    """Seconds until a chunk for the partition that is handed over from now on is acknowledged."""
    began, first = trio.current_time(), len(sent)
    while True:
        for deliveries in sent[first:]:
            if deliveries.done and deliveries[0].partition == partition:
                return trio.current_time() - began
        await trio.lowlevel.checkpoint()


async def read_all(servers: list[str], counts: dict[int, int]) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = {n: [] for n in range(PARTITIONS)}
    async with Consumer(servers, auto_offset_reset="earliest", max_poll_records=5000) as consumer:
        await consumer.assign_topic("t")
        with trio.fail_after(60):
            while sum(map(len, found.values())) < sum(counts.values()):
                for record in await consumer.poll(500):
                    assert record.offset == len(found[record.partition])
                    found[record.partition].append(record.value)
        assert await consumer.end_offsets([("t", n) for n in range(PARTITIONS)]) == {
            ("t", n): count for n, count in counts.items()
        }
    return found


async def test_exactly_once_in_order_through_a_kill_a_freeze_and_a_restart(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        servers = [node.endpoint for node in nodes]
        sent: list[Deliveries] = []
        stop = trio.Event()
        async with Admin(servers) as admin, Producer(servers, linger_ms=1) as producer:
            await admin.create_topic("t", PARTITIONS, 3, {"min_insync_replicas": 2})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce_until, producer, stop, sent)
                await acknowledged_after(sent, 0)
                first = await leader_of(admin, 0)
                nodes[first - 1].kill()
                with trio.fail_after(60):
                    await acknowledged_after(sent, 0)
                nodes[first - 1] = NodeProcess.start(first, tmp_path)
                await until(lambda: full(admin))
                frozen = await leader_of(admin, 1)
                nodes[frozen - 1].process.send_signal(signal.SIGSTOP)
                try:
                    with trio.fail_after(60):
                        await acknowledged_after(sent, 1)
                finally:
                    nodes[frozen - 1].process.send_signal(signal.SIGCONT)
                stop.set()
            with trio.fail_after(60):
                await producer.flush()
        expected: dict[int, list[bytes]] = {n: [] for n in range(PARTITIONS)}
        for chunk, deliveries in enumerate(sent):
            results = await deliveries.wait()
            mine = expected[chunk % PARTITIONS]
            assert [r.offset for r in results] == list(range(len(mine), len(mine) + CHUNK))
            mine += [b"%d" % n for n in range(chunk * CHUNK, (chunk + 1) * CHUNK)]
        counts = {n: len(values) for n, values in expected.items()}
        assert await read_all([node.endpoint for node in nodes], counts) == expected

"""Failover at scale: three node processes, many partitions, and SIGKILL for the one that leads most of them.

What counts is the time from the kill until the last partition has taken an acks=all write again.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import trio

from insync.replication import Admin, Producer

from ..processes import NodeProcess, cluster
from .report import Result, at_most

TOPIC = "bench"
PATIENCE = 60.0


async def _whole(admin: Admin, partitions: int) -> None:
    """Wait until every replica is in sync and every preferred one leads."""
    with trio.fail_after(PATIENCE):
        while True:
            (info,) = await admin.describe_topics([TOPIC])
            in_sync = all(len(each.isr) == 3 for each in info.partitions)
            if in_sync and len(info.partitions) == partitions:
                if all(each.leader == each.replicas[0] for each in info.partitions):
                    return
                await admin.elect_leaders()
            await trio.sleep(0.05)


async def _leads_most(admin: Admin) -> tuple[int, int]:
    (info,) = await admin.describe_topics([TOPIC])
    ((node, count),) = Counter(each.leader for each in info.partitions).most_common(1)
    return node, count


async def _write_everywhere(producer: Producer, partitions: int) -> list[float]:
    """Seconds until each partition has acknowledged one record, in rising order."""
    taken: list[float] = []
    start = trio.current_time()

    async def write(partition: int) -> None:
        delivery = await producer.send(TOPIC, b"x" * 100, partition=partition)
        await delivery.wait()
        taken.append(trio.current_time() - start)

    async with trio.open_nursery() as nursery:
        for partition in range(partitions):
            nursery.start_soon(write, partition)
    return sorted(taken)


async def _round(
    folder: Path, nodes: dict[int, NodeProcess], partitions: int
) -> tuple[int, list[float], list[float]]:
    """How many leaderships were lost, and how long writes took before and after."""
    servers = [node.endpoint for node in nodes.values()]
    async with Admin(servers) as admin:
        await _whole(admin, partitions)
        victim, count = await _leads_most(admin)
        others = [node.endpoint for number, node in nodes.items() if number != victim]
        async with Producer(others, linger_ms=0) as producer:
            await producer.prepare(TOPIC)
            before = await _write_everywhere(producer, partitions)
            nodes[victim].process.kill()
            after = await _write_everywhere(producer, partitions)
    nodes[victim].kill()
    nodes[victim] = await trio.to_thread.run_sync(NodeProcess.start, victim, folder)
    return count, before, after


async def _create(servers: list[str], partitions: int) -> None:
    async with Admin(servers) as admin:
        await admin.create_topic(TOPIC, partitions=partitions, replication_factor=3)


def run(*, smoke: bool) -> Sequence[Result]:
    partitions, rounds = (12, 1) if smoke else (100, 10)
    lost, last, middle, quiet = [], [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with cluster(folder) as started:
            nodes = {node.node_id: node for node in started}
            try:
                trio.run(_create, [node.endpoint for node in started], partitions)
                for _ in range(rounds):
                    count, before, after = trio.run(_round, folder, nodes, partitions)
                    lost.append(count)
                    quiet.append(before[-1])
                    last.append(after[-1])
                    middle.append(statistics.median(after))
            finally:
                for node in nodes.values():
                    if node.process.poll() is None:
                        node.kill()
    return [
        at_most("last partition writable again, median", statistics.median(last), "s", 1.0),
        at_most("last partition writable again, worst", max(last), "s", 3.0),
        Result(
            name="half of the partitions again, median", value=round(statistics.median(middle), 3), unit="s"
        ),
        Result(name="all partitions without a failure", value=round(statistics.median(quiet), 3), unit="s"),
        Result(name="leaderships lost at once", value=statistics.median(lost), unit="partitions"),
    ]

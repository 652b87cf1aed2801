"""What nodes cost that have nothing to do: many partitions on three nodes, which nobody writes to."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import trio

from insync.replication import Admin

from ..processes import NodeProcess, cluster
from ._processor import seconds_of
from .report import Result, at_most

TOPIC = "bench"
PATIENCE = 300.0


async def _create(servers: Sequence[str], partitions: int) -> None:
    """Make them, and wait until all replicas are in sync."""
    async with Admin(servers) as admin:
        await admin.create_topic(TOPIC, partitions=partitions, replication_factor=3)
        with trio.fail_after(PATIENCE):
            while True:
                (info,) = await admin.describe_topics([TOPIC])
                if len(info.partitions) == partitions and all(len(each.isr) == 3 for each in info.partitions):
                    return
                await trio.sleep(0.2)


def _shares(nodes: Sequence[NodeProcess], seconds: float) -> list[float]:
    """Of a core, of each node, in percent."""
    before, start = [seconds_of([node.process.pid]) for node in nodes], time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - start
    after = [seconds_of([node.process.pid]) for node in nodes]
    return [100 * (last - first) / elapsed for first, last in zip(before, after, strict=True)]


def run(*, smoke: bool) -> Sequence[Result]:
    partitions, settling, seconds = (50, 1.0, 3.0) if smoke else (1000, 10.0, 30.0)
    with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as nodes:
        empty = max(_shares(nodes, seconds))
        trio.run(_create, [node.endpoint for node in nodes], partitions)
        time.sleep(settling)
        idle = max(_shares(nodes, seconds))
    return [
        at_most(f"{partitions} idle partitions, greatest of three nodes", idle, "% core", 5),
        Result(name="no partitions", value=round(empty, 3), unit="% core"),
    ]

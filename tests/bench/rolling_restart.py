"""A rolling restart under load: every node stopped in good order and started again, one after the other.

A producer with acks=all writes at a steady rate all the while. What counts is how long its writes take: once with
the default settings of a producer, and once with `linger_ms=0`, where each record is a request of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import attrs
import trio

from insync.replication import Admin, Producer
from insync.replication.client.producer.delivery import Delivery

from ..processes import NodeProcess, cluster
from .report import Result, at_most

TOPIC = "bench"
PARTITIONS = 12
RATE = 1_000
PATIENCE = 60.0


@attrs.define
class Load:
    """RATE records a second to all partitions in turn, until `stopping`."""

    servers: Sequence[str]
    options: dict[str, int]
    taken: list[float] = attrs.Factory(list)
    failed: int = 0
    stopping: bool = False

    async def write(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with Producer(self.servers, **self.options) as producer:
            await producer.prepare(TOPIC)
            task_status.started()
            begun, count = trio.current_time(), 0
            while not self.stopping:
                count += 1
                await trio.sleep_until(begun + count / RATE)
                told = partial(self._done, trio.current_time())
                await producer.send(TOPIC, b"x" * 100, partition=count % PARTITIONS, on_delivery=told)
            await producer.flush()

    def _done(self, sent_at: float, delivery: Delivery) -> None:
        self.failed += delivery.error is not None
        self.taken.append(trio.current_time() - sent_at)


async def _whole(admin: Admin) -> None:
    """Wait until every replica is in sync."""
    with trio.fail_after(PATIENCE):
        while True:
            (info,) = await admin.describe_topics([TOPIC])
            if all(len(each.isr) == 3 for each in info.partitions):
                return
            await trio.sleep(0.05)


async def _restart(folder: Path, nodes: dict[int, NodeProcess], admin: Admin) -> None:
    for number, node in nodes.items():
        status = await trio.to_thread.run_sync(node.stop)
        if status != 0:
            raise RuntimeError(f"node {number} ended with status {status}")
        again = partial(NodeProcess.start, number, folder, "--listen", node.endpoint.partition("?")[0])
        nodes[number] = await trio.to_thread.run_sync(again)
        await _whole(admin)


async def _measure(folder: Path, nodes: dict[int, NodeProcess], rounds: int, options: dict[str, int]) -> Load:
    load = Load([node.endpoint for node in nodes.values()], options)
    async with Admin(load.servers) as admin, trio.open_nursery() as nursery:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        await nursery.start(load.write)
        for _ in range(rounds):
            await _restart(folder, nodes, admin)
        load.stopping = True
    return load


def _run(rounds: int, options: dict[str, int]) -> Load:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with cluster(folder) as started:
            nodes = {node.node_id: node for node in started}
            try:
                return trio.run(_measure, folder, nodes, rounds, options)
            finally:
                for node in nodes.values():
                    if node.process.poll() is None:
                        node.kill()


def _results(load: Load, settings: str) -> list[Result]:
    taken = sorted(load.taken)
    return [
        at_most(f"failed acks=all writes{settings}", load.failed, "records", 0),
        at_most(f"slowest write{settings}", taken[-1], "s", 2.0),
        at_most(f"write p99{settings}", taken[int(len(taken) * 0.99)] * 1000, "ms", 200),
        Result(name=f"write p50{settings}", value=round(taken[len(taken) // 2] * 1000, 3), unit="ms"),
        Result(name=f"writes{settings}", value=len(taken), unit="records"),
    ]


def run(*, smoke: bool) -> Sequence[Result]:
    rounds = 1 if smoke else 3
    return [*_results(_run(rounds, {}), ""), *_results(_run(rounds, {"linger_ms": 0}), ", linger_ms=0")]

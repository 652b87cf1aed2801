"""End to end: one producer, three node processes, replication factor 3, acks=all, idempotent.

The floor and each run write to files of their own, which go afterwards, and find the machine alike: see `settle`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from insync.replication import Admin, Producer
from insync.replication.client.producer.delivery import Delivery

from ..processes import cluster
from ._page_cache import settle
from ._peers import floor as _floor
from ._processor import seconds_of
from ._warm_up import warm_up
from .report import Result, against, at_least, at_most

MIB = 1 << 20
PARTITIONS = REPLICAS = 3
ROUNDS = 3
RATE = 1_000
CHUNK = 2000
NAMED = str.maketrans(" ,", "--")
"""Of a figure to the name of its topic."""


async def produce(servers: list[str], topic: str, size: int, total: int, options: dict[str, int]) -> float:
    """Records of `size` bytes, `total` bytes in all; bytes per second until the last is acknowledged."""
    values = [bytes([index % 251]) * size for index in range(CHUNK)]
    async with Producer(servers, **options) as producer:
        await producer.prepare(topic)
        start = time.perf_counter()
        sent = 0
        while sent < total:
            await producer.send_many(topic, values)
            sent += CHUNK * size
        await producer.flush()
        return sent / (time.perf_counter() - start)


async def latency(servers: list[str], topic: str, count: int) -> list[float]:
    """Seconds from `send` to the acknowledgement, at 1,000 records a second without lingering.

    The first second (`warm_up`) is not counted: connections are made in it.
    One task sends them all. A task for each would come out of the processor time that the nodes share with it, and
    to start them all puts the first ones behind time, to be sent in one burst.
    """
    warm = warm_up(count, RATE)
    taken: list[float] = []
    early: list[float] = []

    def note(begun: float, into: list[float], delivery: Delivery) -> None:
        if delivery.error is None:
            into.append(time.perf_counter() - begun)

    async with Producer(servers, linger_ms=0) as producer:
        await producer.prepare(topic)
        start = trio.current_time()
        for index in range(warm + count):
            await trio.sleep_until(start + index / RATE)
            told = partial(note, time.perf_counter(), early if index < warm else taken)
            await producer.send(topic, b"x" * 100, partition=index % PARTITIONS, on_delivery=told)
        await producer.flush()
    if len(taken) < count:
        raise RuntimeError(f"{count - len(taken)} records were not acknowledged")
    return sorted(taken)


async def _create(servers: list[str], topic: str) -> None:
    async with Admin(servers) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS)


async def _delete(servers: list[str], topic: str) -> None:
    async with Admin(servers) as admin:
        await admin.delete_topic(topic)


def run(*, smoke: bool) -> Sequence[Result]:
    # The fastest of them then takes half a second: the first requests of a producer are small.
    big, small, count = (4 * MIB, MIB, 200) if smoke else (512 * MIB, 256 * MIB, 5000)
    rounds = 1 if smoke else ROUNDS
    floors: list[float] = []
    figures: dict[str, list[float]] = {}
    fast = {"batch_size": 512 << 10, "linger_ms": 20, "max_request_size": MIB, "buffer_memory": 64 * MIB}
    runs: list[tuple[str, int, int, dict[str, int]]] = [
        ("1 KiB, batch 512 KiB", 1024, big, fast),
        ("1 KiB, defaults", 1024, big // 2, {}),
        ("100 B, batch 512 KiB", 100, small, fast),
        ("100 B, defaults", 100, small, {}),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with cluster(folder) as nodes:
            servers = [node.endpoint for node in nodes]
            trio.run(_create, servers, "bench")
            for number in range(rounds):
                settle(folder, REPLICAS * big)
                floors.append(_floor.measure(folder, big, 512 << 10))
                for figure, size, total, options in runs:
                    topic = f"{figure.translate(NAMED)}-{number}"
                    trio.run(_create, servers, topic)
                    settle(folder, REPLICAS * total)
                    rate = trio.run(produce, servers, topic, size, total, options)
                    trio.run(_delete, servers, topic)
                    figures.setdefault(figure, []).append(rate)
            settle(folder, 0)
            processes = [os.getpid(), *(node.process.pid for node in nodes)]
            before = seconds_of(processes)
            delays = trio.run(latency, servers, "bench", count)
            used, sent = seconds_of(processes) - before, warm_up(count, RATE) + count
    floor = statistics.median(floors) / 1e6
    rates = {figure: statistics.median(values) for figure, values in figures.items()}
    return [
        against("1 KiB, batch 512 KiB", rates["1 KiB, batch 512 KiB"] / 1e6, "MB/s", floor, 0.5),
        against(
            "1 KiB, defaults",
            rates["1 KiB, defaults"] / 1e6,
            "MB/s",
            rates["1 KiB, batch 512 KiB"] / 1e6,
            0.8,
        ),
        at_least("100 B, batch 512 KiB", rates["100 B, batch 512 KiB"] / 100, "records/s", 250_000),
        against(
            "100 B, defaults",
            rates["100 B, defaults"] / 100,
            "records/s",
            rates["100 B, batch 512 KiB"] / 100,
            0.8,
        ),
        at_most("latency p50 at 1,000/s", delays[len(delays) // 2] * 1000, "ms", 3),
        at_most("latency p99 at 1,000/s", delays[int(len(delays) * 0.99)] * 1000, "ms", 15),
        Result(name="processor time of a record at 1,000/s", value=round(used / sent * 1000, 3), unit="ms"),
    ]

"""Listeners with an empty handler: records a second from a cluster of three node processes, by each face.

A run begins when the first record is handled (joining takes time), and ends when the last one is committed
and the group is left.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from insync.replication import Admin, Producer
from insync.replication.listeners import AckMode, Listener
from insync.replication.listeners import asyncio as in_asyncio
from insync.replication.listeners import blocking as in_threads

from ..processes import cluster
from .report import Result, at_least

BAR = 50_000.0
PARTITIONS = 4
SIZE = 100


class _Count:
    """How many were handled, and when the first was."""

    def __init__(self, listener: Any, total: int) -> None:
        self._listener = listener
        self._left = total
        self._lock = threading.Lock()
        self.began = 0.0

    def add(self, count: int) -> None:
        with self._lock:
            self.began = self.began or time.monotonic()
            self._left -= count
        if self._left <= 0:
            self._listener.stop()


def run(*, smoke: bool) -> Sequence[Result]:
    total = 8_000 if smoke else 400_000
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)) as nodes:
        servers = [node.endpoint for node in nodes]
        trio.run(_fill, servers, total)
        found = []
        for name, measure in _MEASURES.items():
            rate = measure(servers, name.replace(" ", "-").replace(",", ""), total)
            found.append(
                at_least(name, rate, "records/s", BAR)
                if name == _BARRED
                else Result(name=name, value=round(rate, 1), unit="records/s")
            )
        return found


async def _fill(servers: list[str], total: int) -> None:
    async with Admin(servers) as admin:
        await admin.wait_for_nodes(3)
        await admin.create_topic("t", PARTITIONS, 3)
    async with Producer(servers) as producer:
        value = bytes(SIZE)
        step = min(total, 20_000)
        for _ in range(total // step):
            for partition in range(PARTITIONS):
                await producer.send_many("t", [value] * (step // PARTITIONS), partition=partition)
        await producer.flush()


def _in_trio(*, batches: bool = False, **options: Any) -> Callable[[list[str], str, int], float]:
    def measure(servers: list[str], group: str, total: int) -> float:
        listener = Listener(servers, group_id=group, topics=["t"], **options)
        count = _Count(listener, total)

        async def handle(record: Any) -> None:
            count.add(1)

        async def handle_all(records: list[Any]) -> None:
            count.add(len(records))

        (listener.batch_handler if batches else listener.handler)(handle_all if batches else handle)
        trio.run(listener.run)
        return total / (time.monotonic() - count.began)

    return measure


def _asyncio(servers: list[str], group: str, total: int) -> float:
    listener = in_asyncio.Listener(servers, group_id=group, topics=["t"])
    count = _Count(listener, total)

    @listener.handler
    async def handle(record: Any) -> None:
        count.add(1)

    asyncio.run(listener.run())
    return total / (time.monotonic() - count.began)


def _threads(servers: list[str], group: str, total: int) -> float:
    listener = in_threads.Listener(servers, group_id=group, topics=["t"])
    count = _Count(listener, total)

    @listener.handler
    def handle(record: Any) -> None:
        count.add(1)

    listener.run()
    return total / (time.monotonic() - count.began)


_BARRED = "BATCH, trio"
_MEASURES = {
    _BARRED: _in_trio(),
    "BATCH, asyncio": _asyncio,
    "BATCH, threads": _threads,
    "BATCH, trio, batch handler": _in_trio(batches=True),
    "COUNT of 1000, trio": _in_trio(ack_mode=AckMode.COUNT, ack_count=1000),
    "TIME of 100 ms, trio, four at a time": _in_trio(ack_mode=AckMode.TIME, ack_time_ms=100, concurrency=4),
}

"""A producer that waits for nothing and is faster than the disk: what waits is bounded, and nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from insync.replication import Admin, Node, wire
from insync.replication.core import messages as m
from insync.replication.core.broker.producing import producing
from insync.storage.batch import build_batch
from insync.transport import Connection, Identity, Response, TransportError, connect
from insync.transport.frames import Limits

from ..conftest import Device
from ..test_cluster import produce, settings, until


@attrs.define
class Flood:
    """Sends the same batch again and again with acks=0, and counts answers."""

    connection: Connection
    batch: bytes
    sent: int = 0
    answered: int = 0
    failed: int = 0

    def send(self, count: int) -> None:
        wanted = m.ProducePartition(topic="t", partition=0, size=len(self.batch))
        body = wire.encode(m.ProduceRequest(acks=0, timeout_ms=60_000, partitions=[wanted]))
        for _ in range(count):
            self.sent += 1
            self.connection.request_nowait(m.Kind.PRODUCE, body, [self.batch], timeout=60, on_done=self._done)

    def _done(self, outcome: Response | TransportError) -> None:
        self.answered += 1
        if isinstance(outcome, TransportError):
            self.failed += 1
            return
        with outcome:
            answer: m.ProduceResponse = wire.decode_response(m.Kind.PRODUCE, outcome.body)
        self.failed += any(result.error for result in answer.partitions)


@asynccontextmanager
async def flooded(folder: Path, device: Device, batch: bytes) -> AsyncIterator[tuple[Node, Flood]]:
    """A node whose disk hangs from now on, and a connection to it."""
    async with trio.open_nursery() as nursery, Node(settings(folder, 1)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"first"])
        connection = await connect(
            node.endpoints[0], identity=Identity(), lane="data", nursery=nursery, timeout=5
        )
        device.hang(folder / "node-1")
        try:
            yield node, Flood(connection, batch)
        finally:
            device.heal()
        connection.abort("the test is over")
        nursery.cancel_scope.cancel()


async def settled(flood: Flood) -> int:
    """The number of answers when no more of them come."""
    seen, quiet = -1, 0
    while quiet < 10:
        await trio.sleep(0.02)
        quiet = quiet + 1 if seen == flood.answered else 0
        seen = flood.answered
    return seen


async def all_answered(flood: Flood) -> bool:
    await trio.sleep(0.01)
    return flood.answered == flood.sent


def end_offset(node: Node) -> int:
    assert node._driver is not None
    ((_, host),) = node._driver.hosts.items()
    return host.replica.log.log_end_offset


async def all_written(node: Node, count: int) -> None:
    async def written() -> bool:
        await trio.sleep(0.01)
        return end_offset(node) == count + 1

    await until(written, 30)


async def test_small_batches_are_answered_late_when_many_wait(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "MOST_QUEUED", 100)
    batch = build_batch([None], [b"x"], timestamps_ms=0)
    async with flooded(tmp_path, device, batch) as (node, flood):
        flood.send(3 * Limits().max_in_flight)
        answered = await settled(flood)
        assert node._driver is not None
        (home,) = node._driver.directories
        assert answered == 100, "those that found the queue short"
        assert home.writer.queued == 100 + Limits().max_in_flight, "and those that may be unanswered"
        device.heal()
        await all_written(node, flood.sent)
        await until(partial(all_answered, flood))
        assert flood.failed == 0


async def test_large_batches_wait_at_the_producers_end(tmp_path: Path, device: Device) -> None:
    """Their payloads are held until they are written, and a connection has credit for a window of them."""
    batch = build_batch([None], [b"x" * 500_000], timestamps_ms=0)
    window = Limits().window_bytes
    count = 2 * window // len(batch)
    async with flooded(tmp_path, device, batch) as (node, flood):
        flood.send(count)
        answered = await settled(flood)
        assert window // 2 < answered * len(batch) <= window
        device.heal()
        await all_written(node, flood.sent)
        await until(partial(all_answered, flood))
        assert flood.failed == 0


async def test_without_a_slow_disk_nobody_waits(tmp_path: Path, device: Device) -> None:
    batch = build_batch([None], [b"x"], timestamps_ms=0)
    async with flooded(tmp_path, device, batch) as (node, flood):
        device.heal()

        for _ in range(20):
            flood.send(100)
            await until(partial(all_answered, flood))
        assert (flood.answered, flood.failed) == (2000, 0)
        await all_written(node, 2000)

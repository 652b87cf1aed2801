"""Our own client, as a program would use it, in the race with others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from insync.replication import Admin, BlockingProducer, Consumer, Producer, asyncio
from insync.replication.client.producer.delivery import Delivery

from ._warm_up import warm_up

CHUNK = 2000
LARGE: dict[str, Any] = {
    "batch_size": 512 << 10,
    "linger_ms": 20,
    "max_request_size": 1 << 20,
    "buffer_memory": 64 << 20,
}


async def create(
    servers: list[str], topic: str, partitions: int, config: Mapping[str, str | int] | None = None
) -> None:
    """A topic of three replicas."""
    async with Admin(servers) as admin:
        await admin.create_topic(topic, partitions, 3, config)


async def delete(servers: list[str], topic: str) -> None:
    """Its files are gone soon after."""
    async with Admin(servers) as admin:
        await admin.delete_topic(topic)


async def produce(
    servers: list[str], topic: str, count: int, size: int, *, many: bool, options: dict[str, Any]
) -> float:
    """Records a second until the last is acknowledged by all."""
    value = b"x" * size
    values = [value] * CHUNK
    async with Producer(servers, **options) as producer:
        await producer.prepare(topic)
        start = time.perf_counter()
        for _ in range(max(1, count // CHUNK)):
            if many:
                await producer.send_many(topic, values)
            else:
                for each in values:
                    await producer.send(topic, each)
        await producer.flush()
        return max(1, count // CHUNK) * CHUNK / (time.perf_counter() - start)


def produce_by_a_thread(servers: list[str], topic: str, count: int, size: int) -> float:
    """The same with `send` for each record, by a producer for threads."""
    value = b"x" * size
    with BlockingProducer(servers) as producer:
        producer.prepare(topic)
        start = time.perf_counter()
        for _ in range(count):
            producer.send(topic, value)
        producer.flush()
        return count / (time.perf_counter() - start)


async def produce_on_asyncio(servers: list[str], topic: str, count: int, size: int) -> float:
    """The same on asyncio."""
    value = b"x" * size
    async with asyncio.Producer(servers) as producer:
        await producer.prepare(topic)
        start = time.perf_counter()
        for _ in range(count):
            await producer.send(topic, value)
        await producer.flush()
        return count / (time.perf_counter() - start)


async def latency(
    servers: list[str], topic: str, count: int, per_second: int, busy_poll_us: int = 0, size: int = 100
) -> list[float]:
    """Seconds from `send` to the acknowledgement by all, sorted, at a rate, without lingering.

    The first second (`warm_up`) is not counted: connections are made in it.
    """
    warm = warm_up(count, per_second)
    taken: list[float] = []
    early: list[float] = []

    def note(begun: float, into: list[float], delivery: Delivery) -> None:
        if delivery.error is None:
            into.append(time.perf_counter() - begun)

    async with Producer(servers, linger_ms=0, busy_poll_us=busy_poll_us) as producer:
        await producer.prepare(topic)
        start = trio.current_time()
        for index in range(warm + count):
            await trio.sleep_until(start + index / per_second)
            heard = partial(note, time.perf_counter(), early if index < warm else taken)
            await producer.send(topic, b"x" * size, on_delivery=heard)
        await producer.flush()
    if len(taken) < count:
        raise RuntimeError(f"{count - len(taken)} records were not acknowledged")
    return sorted(taken)


async def consume(servers: list[str], topic: str, count: int, size: int) -> float:
    """Bytes a second of one consumer from the beginning of a topic, record by record as `poll` gives them."""
    async with Consumer(servers, auto_offset_reset="earliest", max_poll_records=10_000) as consumer:
        await consumer.assign_topic(topic)
        found, start = 0, time.perf_counter()
        while found < count:
            found += len(await consumer.poll())
        return found * size / (time.perf_counter() - start)

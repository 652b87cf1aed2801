"""From topic to topic, exactly once: each order in `in` becomes one line in `out`, whatever dies meanwhile.

    python etl.py trio tcp://127.0.0.1:9092 worker-1

Start as many as there is work for, each under a name of its own, with trio, asyncio or threads.
"""

from __future__ import annotations

import asyncio
import sys

import trio

from insync.replication import BlockingConsumer, BlockingProducer, Consumer, Producer
from insync.replication import asyncio as bridge
from insync.replication.client import ClientError, ConsumerSettings, ProducerFencedError

READING = ConsumerSettings(
    group_id="etl",
    isolation_level="read_committed",
    enable_auto_commit=False,
    auto_offset_reset="earliest",
)


def transform(value: bytes | None) -> bytes:
    return b"<%s>" % (value or b"")


async def work(servers: str, worker: str) -> None:
    async with (
        Consumer(servers, settings=READING) as consumer,
        Producer(servers, transactional_id=f"etl-{worker}") as producer,
    ):
        consumer.subscribe(["in"])
        while True:
            records = await consumer.poll(timeout_ms=1000)
            async with producer.transaction() as txn:
                for record in records:
                    await producer.send("out", transform(record.value), key=record.key)
                await txn.send_offsets(consumer.positions(), consumer.group_metadata())


async def work_asyncio(servers: str, worker: str) -> None:
    async with (
        bridge.Consumer(servers, settings=READING) as consumer,
        bridge.Producer(servers, transactional_id=f"etl-{worker}") as producer,
    ):
        await consumer.subscribe(["in"])
        while True:
            records = await consumer.poll(timeout_ms=1000)
            async with producer.transaction() as txn:
                for record in records:
                    await producer.send("out", transform(record.value), key=record.key)
                await txn.send_offsets(await consumer.positions(), await consumer.group_metadata())


def work_threads(servers: str, worker: str) -> None:
    with (
        BlockingConsumer(servers, settings=READING) as consumer,
        BlockingProducer(servers, transactional_id=f"etl-{worker}") as producer,
    ):
        consumer.subscribe(["in"])
        while True:
            records = consumer.poll(timeout_ms=1000)
            with producer.transaction() as txn:
                for record in records:
                    producer.send("out", transform(record.value), key=record.key)
                txn.send_offsets(consumer.positions(), consumer.group_metadata())


def main(face: str, servers: str, worker: str) -> None:
    while True:
        try:
            if face == "trio":
                trio.run(work, servers, worker)
            elif face == "asyncio":
                asyncio.run(work_asyncio(servers, worker))
            else:
                work_threads(servers, worker)
        except ProducerFencedError:
            # Another process has this one's name by now.
            raise
        except ClientError as error:
            # Nothing of the transaction counts: new clients begin where the group has come to.
            print(f"{worker} begins again: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""aiokafka at a cluster: `aio.py SERVERS NAME`; ends with `done`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aiokafka

servers, name = sys.argv[1], sys.argv[2]
PATIENCE = 60.0


async def produce(topic: str, count: int, **options: Any) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, **options)
    await producer.start()
    told = [await producer.send(topic, b"v%d" % each, b"k", partition=0) for each in range(count)]
    offsets = [(await each).offset for each in told]
    await producer.stop()
    assert offsets == list(range(count)), f"{topic}: {offsets}"


async def read(topic: str, count: int, **options: Any) -> list[bytes]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False, **options
    )
    await consumer.start()
    if "group_id" in options:
        consumer.subscribe([topic])
    else:
        consumer.assign([aiokafka.TopicPartition(topic, 0)])
    found = [(await asyncio.wait_for(consumer.getone(), PATIENCE)).value for _ in range(count)]
    if "group_id" in options:
        await consumer.commit()
    await consumer.stop()
    return found


async def transact(topic: str) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name)
    await producer.start()
    for number in range(3):
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"%d" % number, partition=0)
        await (producer.abort_transaction() if number == 1 else producer.commit_transaction())
    await producer.stop()
    assert await read(topic, 2, isolation_level="read_committed") == [b"0", b"2"]


async def main() -> None:
    wanted = [b"v%d" % each for each in range(100)]
    cases: dict[str, dict[str, Any]] = {
        "gzip": {"compression_type": "gzip"},
        "idempotent": {"enable_idempotence": True},
        "acks-1": {"acks": 1},
        "acks-all": {"acks": "all"},
    }
    for case, options in cases.items():
        await produce(f"{name}-{case}", 100, **options)
        assert await read(f"{name}-{case}", 100) == wanted
    group = {"group_id": f"{name}-group"}
    assert await read(f"{name}-gzip", 60, **group) == wanted[:60]
    assert await read(f"{name}-gzip", 40, **group) == wanted[60:]
    await transact(f"{name}-transactions")
    print(aiokafka.__version__)
    print("done")


asyncio.run(main())

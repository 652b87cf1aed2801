"""Reading a topic and doing something with each record: at most once, at least once, exactly once.

What makes the difference is where the position is kept, and when it is written: before, after, or with the result.

    python delivery.py exactly_once tcp://127.0.0.1:9092 orders results.db
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from insync.replication import Consumer, Producer
from insync.replication.client import ConsumerRecord

Servers = str | Sequence[str]
Handle = Callable[[ConsumerRecord], Awaitable[None]]
PARTITION = 0
SOURCE = "source-offset"
"""Header of an output record: the offset of the input that it was made of."""


async def at_most_once(servers: Servers, topic: str, position: Path, handle: Handle) -> None:
    """The position is written before the record is handled: after a crash in between, the record is skipped."""
    async with _reader(servers, topic, _read_position(position)) as consumer:
        async for record in consumer:
            _write_position(position, record.offset + 1)
            await handle(record)


async def at_least_once(servers: Servers, topic: str, position: Path, handle: Handle) -> None:
    """The position is written after the record was handled: after a crash in between, it is handled again."""
    async with _reader(servers, topic, _read_position(position)) as consumer:
        async for record in consumer:
            await handle(record)
            _write_position(position, record.offset + 1)


async def exactly_once(servers: Servers, topic: str, database: Path) -> None:
    """Position and result are one transaction of the database: either both are there or neither is."""
    with sqlite3.connect(database) as results:
        results.execute("CREATE TABLE IF NOT EXISTS results (source INTEGER, value BLOB)")
        results.execute("CREATE TABLE IF NOT EXISTS position (next INTEGER)")
        if results.execute("SELECT count(*) FROM position").fetchone() == (0,):
            results.execute("INSERT INTO position VALUES (0)")
    (start,) = results.execute("SELECT next FROM position").fetchone()
    async with _reader(servers, topic, start) as consumer:
        while True:
            records = await consumer.poll()
            with results:
                rows = [(each.offset, process(each.value)) for each in records]
                results.executemany("INSERT INTO results VALUES (?, ?)", rows)
                if records:
                    results.execute("UPDATE position SET next = ?", (records[-1].offset + 1,))


async def exactly_once_to_topic(servers: Servers, topic: str, output: str) -> None:
    """Every output record says of which input it was made; the last one is the position.

    The producer is idempotent: what it repeats is not there twice, and nothing is out of order. And it has a name:
    from its mark on no process writes to the output that was opened under that name before, though it still runs.
    """
    async with Producer(servers, producer_name=f"{topic} to {output}") as producer:
        # All that former processes have written stands before the mark, and nothing of theirs ever behind it.
        mark = await (await producer.send(output, None, partition=PARTITION)).wait()
        start = 0
        async with _reader(servers, output, 0) as outputs:
            async for record in outputs:
                start = max(start, _source(record) + 1)
                if record.offset == mark.offset:
                    break
        async with _reader(servers, topic, start) as consumer:
            async for record in consumer:
                headers = [(SOURCE, b"%d" % record.offset)]
                await producer.send(output, process(record.value), headers=headers, partition=PARTITION)


def process(value: bytes) -> bytes:
    """What is made of a record; the same whenever it is made again."""
    return value.upper()


def _source(record: ConsumerRecord) -> int:
    return next((int(value or 0) for name, value in record.headers if name == SOURCE), -1)


@asynccontextmanager
async def _reader(servers: Servers, topic: str, start: int) -> AsyncIterator[Consumer]:
    """A consumer of one partition that begins at an offset, and fails if what comes next is gone."""
    async with Consumer(servers, auto_offset_reset="none") as consumer:
        consumer.assign([(topic, PARTITION)])
        consumer.seek((topic, PARTITION), start)
        yield consumer


def _read_position(file: Path) -> int:
    return int(file.read_text()) if file.exists() else 0


def _write_position(file: Path, offset: int) -> None:
    draft = file.with_suffix(".new")
    draft.write_text(str(offset))
    draft.replace(file)


if __name__ == "__main__":
    _, how, servers_, topic_, target = sys.argv
    if how == "exactly_once":
        trio.run(exactly_once, servers_, topic_, Path(target))
    else:
        trio.run(exactly_once_to_topic, servers_, topic_, target)

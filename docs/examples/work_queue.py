"""A work queue: any number of workers share the jobs of a topic; what a worker leaves when it dies, others do.

    python work_queue.py work tcp://127.0.0.1:9092 results.db      (start as many as you like, kill any)
    python work_queue.py add tcp://127.0.0.1:9092 "first job" "second job"

Each job is done at least once: a worker that dies between doing one and saying so (`commit`) leaves it to the next.
So what a job does must be harmless when it is done twice; here a result has the place of its job as its key.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from insync.replication import Consumer, Producer
from insync.replication.client import ConsumerRecord, StaleMemberEpochError

TOPIC, GROUP = "jobs", "workers"
AT_ONCE = 20
"""Jobs that one worker takes before it says that they are done; at most so many are done twice when it dies."""


async def add(servers: str | Sequence[str], jobs: Sequence[str]) -> None:
    """Put jobs into the queue; when this is over, they are safe."""
    async with Producer(servers) as producer:
        await (await producer.send_many(TOPIC, [job.encode() for job in jobs])).wait()


async def work(servers: str | Sequence[str], results: Path) -> None:
    """Do jobs until cancelled."""
    database = sqlite3.connect(results, timeout=30)
    with database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS results "
            "(partition INT, offset INT, result TEXT, PRIMARY KEY (partition, offset))"
        )
    async with Consumer(
        servers,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=AT_ONCE,
    ) as consumer:
        consumer.subscribe([TOPIC])
        while True:
            jobs = await consumer.poll()
            for job in jobs:
                with database:
                    # Done again by another worker it is the same row.
                    row = (job.partition, job.offset, do(job))
                    database.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", row)
            try:
                await consumer.commit()
            except StaleMemberEpochError:
                # This worker stood still for too long: others do these jobs again, and the next poll gets new ones.
                continue


def do(job: ConsumerRecord) -> str:
    """The work."""
    return job.value.decode().upper()


if __name__ == "__main__":
    _, what, servers_, *rest = sys.argv
    if what == "work":
        trio.run(work, servers_, Path(rest[0]))
    else:
        trio.run(add, servers_, rest)

"""Bills orders, in trio: `python listen.py SERVERS`. SIGTERM ends it."""

from __future__ import annotations

import sys

import trio

from insync.replication.client import ConsumerRecord
from insync.replication.listeners import AckMode, Listener

listener = Listener(
    sys.argv[1],
    group_id="billing",
    topics=["orders"],
    ack_mode=AckMode.RECORD,
    concurrency=4,
    retries=2,
    retry_topics={"orders.retry": 1000},
    dead_letter="orders.dlt",
)


@listener.handler
async def charge(record: ConsumerRecord) -> None:
    if record.value == b"":
        raise ValueError("an order of nothing")
    print("charged", record.value.decode(), flush=True)


trio.run(listener.run)
print("left", flush=True)

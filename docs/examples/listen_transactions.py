"""An invoice for each order, exactly once: `python listen_transactions.py SERVERS NAME`. SIGTERM ends it."""

from __future__ import annotations

import sys

import trio

from insync.replication import Producer
from insync.replication.client import ConsumerRecord
from insync.replication.listeners import Listener

listener = Listener(
    sys.argv[1],
    group_id="invoices",
    topics=["orders"],
    transactional_id_prefix=f"invoices-{sys.argv[2]}",
    dead_letter="orders.dlt",
)


@listener.handler
async def invoice(record: ConsumerRecord, producer: Producer) -> None:
    if record.value == b"":
        raise ValueError("an order of nothing")
    await producer.send("invoices", b"invoice for " + record.value, key=record.key)


trio.run(listener.run)
print("left", flush=True)

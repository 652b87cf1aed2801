"""Packs orders, in threads, and says itself which are done: `python listen_threads.py SERVERS`. SIGTERM ends it."""

from __future__ import annotations

import sys

from insync.replication.client import ConsumerRecord
from insync.replication.listeners import AckMode
from insync.replication.listeners.blocking import Acknowledgment, Listener

listener = Listener(
    sys.argv[1],
    group_id="packing",
    topics=["orders"],
    ack_mode=AckMode.MANUAL_IMMEDIATE,
    concurrency=4,
    order="key",
)


@listener.handler
def pack(record: ConsumerRecord, ack: Acknowledgment) -> None:
    print(f"packed {record.value.decode()}\n", end="", flush=True)
    ack.acknowledge()


listener.run()
print("left", flush=True)

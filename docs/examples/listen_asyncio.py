"""Mails orders, in asyncio, many at a time: `python listen_asyncio.py SERVERS`. SIGTERM ends it."""

from __future__ import annotations

import asyncio
import sys

from insync.replication.client import ConsumerRecord
from insync.replication.listeners import RecordFailedError
from insync.replication.listeners.asyncio import Listener


async def main() -> None:
    listener = Listener(sys.argv[1], group_id="mail", topics=["orders"], on_failure="skip", retries=1)

    @listener.batch_handler
    async def mail(records: list[ConsumerRecord]) -> None:
        for index, record in enumerate(records):
            if record.value == b"":
                raise RecordFailedError(index)
            print("mailed", record.value.decode(), flush=True)

    await listener.run()
    print("left", flush=True)


asyncio.run(main())

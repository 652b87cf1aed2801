"""A process that consumes, transforms and produces in transactions, and writes down what it asks and is told.

A line of JSON for each thing, in a file of its own, written before anything follows from it:

    {"what": "began", "at": s}   SIGTERM is heard from now on
    {"what": "opening" | "opened", "id": name, "since": s, "at": s}   a producer: before it is asked for, and open
    {"what": "begun", "transaction": name}
    {"what": "read", "transaction": name, "of": [name], "at": s}   it was given records that these had written
    {"what": "asked", "transaction": name, "inputs": {partition: [number]}}   all is sent, it is to be committed
    {"what": "committed" | "aborted", "transaction": name}   as it was told, for certain
    {"what": "fenced", "id": name, "opened": s, "at": s}   it was told that another producer has the name
    {"what": "error", "said": text}   whatever else it was told
    {"what": "left", "at": s}   it has closed what it had

Times are of the machine's monotonic clock. SIGTERM: finish what is at hand, and leave. Whoever is fenced by a
process that has its name now ends by itself.
"""

from __future__ import annotations

import argparse
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from insync.replication import Consumer, Producer, ReplicationError
from insync.replication.client import (
    ConsumerRecord,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
)

from .told_to_stop import Noting
from .transaction_history import COPIES, Output

_POLL_MS = 100
_ABORTED_ON_PURPOSE = 0.08
_BLOCK_MS = 15_000


class DeliberateError(Exception):
    """The transaction is left by an error of its program."""


class Worker(Noting):
    """Reads, makes and writes until it is told to stop."""

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given.log)
        self.given = given
        self.random = random.Random(given.seed)
        self._count = 0
        self._opened = 0.0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.stop_on_signal)
            self.note("began")
            while not self.stopping:
                try:
                    await self._work()
                except ProducerFencedError as error:
                    self.note("fenced", id=self.given.id, opened=self._opened, said=str(error))
                    self.stopping = True
                except ReplicationError as error:
                    self._said(error)
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        self.note("left")

    def _said(self, error: BaseException) -> None:
        self.note("error", said=f"{type(error).__name__}: {error}")

    async def _work(self) -> None:
        """With one consumer and one producer, until something fails after which new ones are better."""
        servers = self.given.servers.split(",")
        reading: dict[str, Any] = {
            "group_id": self.given.group,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "enable_auto_commit": False,
            "max_poll_records": 200,
            "max_poll_interval_ms": 20_000,
            "request_timeout_ms": 10_000,
        }
        writing: dict[str, Any] = {
            "transactional_id": self.given.id,
            "transaction_timeout_ms": self.given.timeout_ms,
            "max_block_ms": _BLOCK_MS,
            "request_timeout_ms": 5_000,
            "delivery_timeout_ms": 10_000,
        }
        since = time.monotonic()
        # Whoever is fenced may be so by this one, even if it never hears that it is open.
        self.note("opening", id=self.given.id, since=since)
        async with Producer(servers, **writing) as producer:
            self._opened = time.monotonic()
            self.note("opened", id=self.given.id, since=since)
            async with Consumer(servers, **reading) as consumer:
                consumer.subscribe([self.given.source])
                async with Consumer(servers, isolation_level="read_committed") as reader:
                    reader.assign([(self.given.target, at) for at in range(self.given.partitions)])
                    while not self.stopping and await self._one(consumer, producer, reader):
                        pass

    async def _one(self, consumer: Consumer, producer: Producer, reader: Consumer) -> bool:
        """A poll and its transaction; False if new clients are needed. reader: of what all transactions write."""
        records = await consumer.poll(_POLL_MS)
        if not records:
            return True
        self._count += 1
        name = f"{self.given.name}.{self._count}"
        self.note("begun", transaction=name)
        asked = False
        try:
            async with producer.transaction() as transaction:
                await self._write(producer, records, name)
                if read := sorted(
                    {Output.decode(each.value or b"").transaction for each in await reader.poll(0)}
                ):
                    self.note("read", transaction=name, of=read)
                await transaction.send_offsets(consumer.positions(), consumer.group_metadata())
                if self.random.random() < _ABORTED_ON_PURPOSE:
                    raise DeliberateError
                asked = True
                self.note("asked", transaction=name, inputs=_numbers(records))
        except TransactionOutcomeUnknownError as error:
            self._said(error)
            if not asked or not await self._asked_again(producer):
                return False
        except (TransactionAbortableError, TransactionAbortedError) as error:
            self._said(error)
            self.note("aborted", transaction=name)
            return await self._gone_back(consumer)
        except ProducerFencedError:
            raise
        except (ReplicationError, DeliberateError) as error:
            self._said(error)
            if not asked:
                self.note("aborted", transaction=name)
            return await self._gone_back(consumer)
        self.note("committed", transaction=name)
        return True

    async def _write(self, producer: Producer, records: Sequence[ConsumerRecord], name: str) -> None:
        for record in records:
            partition, number = map(int, (record.value or b"").split(b":"))
            for copy in range(COPIES):
                at = (partition + number + copy) % self.given.partitions
                value = Output(partition, number, copy, name).encode()
                await producer.send(self.given.target, value, partition=at)

    async def _asked_again(self, producer: Producer) -> bool:
        """Whether the commit is made, as it is told in the end; False if this process is to stop before."""
        while not self.stopping:
            try:
                await producer.commit()
            except TransactionOutcomeUnknownError as error:
                self._said(error)
            else:
                return True
        return False

    async def _gone_back(self, consumer: Consumer) -> bool:
        """Every second time on with new clients; else from where the group has come to."""
        if self.random.random() < 0.5:
            return False
        for at, offset in (await consumer.committed(consumer.assignment())).items():
            consumer.seek(at, offset or 0)
        return True


def _numbers(records: Sequence[ConsumerRecord]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in records:
        partition, number = map(int, (record.value or b"").split(b":"))
        found.setdefault(partition, []).append(number)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--timeout-ms", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    # It is heard from "began" on. What comes when this process is leaving anyhow changes nothing.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trio.run(Worker(parser.parse_args()).run)


if __name__ == "__main__":
    main()

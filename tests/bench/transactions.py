"""Transactions: how many a second, how long a commit takes, what they cost beside the same producer without them.

Three node processes, a topic of three partitions, replication factor 3, records of 1 KiB. One producer, one
transaction after the other, its records shared among all partitions. Beside Kafka: librdkafka with the same
settings at one Kafka broker and at one node of ours behind `kafka://`, replication factor 1, in turn.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import trio

from insync.replication import Admin, Producer

from ..processes import cluster
from .report import Result, against, interleaved

PARTITIONS = 3
SIZE = 1024
COUNTS = (1, 100, 1_000)
ROUNDS = 5
PLAIN_BAR, KAFKA_BAR = 0.8, 1.0
_PATIENCE = 30.0


@attrs.frozen
class Rate:
    """Transactions per second, and of each the seconds that its commit took, sorted."""

    per_second: float
    commits: Sequence[float]

    def at(self, share: float) -> float:
        return self.commits[min(len(self.commits) - 1, int(share * len(self.commits)))]


async def _send(producer: Producer, count: int) -> None:
    """Records in turn to all partitions, a run of them to each."""
    for partition in range(PARTITIONS):
        share = count // PARTITIONS + (partition < count % PARTITIONS)
        if share:
            await producer.send_many("bench", [b"x" * SIZE] * share, partition=partition)


async def _transactions(servers: Sequence[str], count: int, seconds: float) -> Rate:
    commits = []
    async with Producer(list(servers), transactional_id=f"bench-{uuid4()}") as producer:
        await producer.prepare("bench")
        async with producer.transaction():
            await _send(producer, count)
        begun = time.perf_counter()
        while (now := time.perf_counter()) < begun + seconds or not commits:
            producer.begin()
            await _send(producer, count)
            # What is left of the time is that of the records themselves.
            await producer.flush()
            before = time.perf_counter()
            await producer.commit()
            commits.append(time.perf_counter() - before)
        return Rate(len(commits) / (now - begun), sorted(commits))


async def _whole(servers: Sequence[str], count: int, seconds: float, transactional: bool) -> float:
    """Records a second, `count` at a time: until each lot is acknowledged, or committed."""
    options: dict[str, Any] = {"transactional_id": f"bench-{uuid4()}"} if transactional else {}
    async with Producer(list(servers), **options) as producer:
        await producer.prepare("bench")
        begun, lots = time.perf_counter(), 0
        while (now := time.perf_counter()) < begun + seconds or not lots:
            if transactional:
                async with producer.transaction():
                    await _send(producer, count)
            else:
                await _send(producer, count)
                await producer.flush()
            lots += 1
        return lots * count / (now - begun)


async def _without_end(servers: Sequence[str], seconds: float) -> float:
    """Records a second of a producer that waits for nothing before the end."""
    async with Producer(list(servers)) as producer:
        await producer.prepare("bench")
        begun, sent = time.perf_counter(), 0
        while time.perf_counter() < begun + seconds or not sent:
            await _send(producer, COUNTS[-1])
            sent += COUNTS[-1]
        await producer.flush()
        return sent / (time.perf_counter() - begun)


async def _create(servers: Sequence[str], replication_factor: int) -> None:
    async with Admin(list(servers)) as admin:
        await admin.create_topic("bench", partitions=PARTITIONS, replication_factor=replication_factor)


# Beside Kafka


def _librdkafka(count: int, seconds: float, address: str) -> float:
    """Transactions a second of librdkafka."""
    from confluent_kafka import Producer as Librdkafka

    producer = Librdkafka(
        {
            "bootstrap.servers": address,
            "transactional.id": f"bench-{uuid4()}",
            "linger.ms": 0,
            "message.max.bytes": 1 << 20,
            "log_level": 0,
        }
    )
    producer.init_transactions(_PATIENCE)
    begun, done, value = time.perf_counter(), 0, b"x" * SIZE
    while (now := time.perf_counter()) < begun + seconds or not done:
        producer.begin_transaction()
        for number in range(count):
            producer.produce("bench", value, partition=number % PARTITIONS)
        producer.commit_transaction(_PATIENCE)
        done += 1
    return done / (now - begun)


@contextmanager
def _both(folder: Path) -> Iterator[tuple[str, str]]:
    """Addresses of a Kafka broker and of a node of ours, each with the topic; raises ImportError without a part."""
    from confluent_kafka.admin import AdminClient, NewTopic

    from ..interop.kafka import Java, broker, resolve
    from ..plugins.kafka.conftest import running_cluster

    pom = Path(__file__).parents[1] / "interop" / "pom.xml"
    with ExitStack() as stack:
        java = Java(resolve(pom, online=True), options=("-XX:+UseG1GC", "-Xshare:auto"))
        kafka = stack.enter_context(broker(java, folder, heap="1g"))
        ours = stack.enter_context(running_cluster("--nodes", "1"))
        for address in (kafka.address, ours.servers):
            admin = AdminClient({"bootstrap.servers": address})
            (made,) = admin.create_topics([NewTopic("bench", PARTITIONS, 1)]).values()
            made.result(_PATIENCE)
        yield kafka.address, ours.servers


def _beside_kafka(folder: Path, seconds: float, rounds: int) -> list[Result]:
    found = []
    with _both(folder) as (kafka, ours):
        for count in COUNTS:
            measures: list[Callable[[], float]] = [
                partial(_librdkafka, count, seconds, address) for address in (ours, kafka)
            ]
            for warming in measures:
                warming()
            mine, theirs = interleaved(rounds, *measures)
            name = f"librdkafka at one node, {count} records each"
            found.append(against(name, mine, "txn/s", theirs, KAFKA_BAR))
    return found


def run(*, smoke: bool) -> Sequence[Result]:
    """All figures; `smoke`: small, and without Kafka, to show that it runs."""
    seconds, rounds = (0.3, 1) if smoke else (3.0, ROUNDS)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as name:
        with cluster(Path(name)) as nodes:
            servers = [node.endpoint for node in nodes]
            trio.run(_create, servers, 3)
            trio.run(_transactions, servers, 1, seconds)
            for count in COUNTS:
                rate = trio.run(_transactions, servers, count, seconds * (1 if smoke else 3))
                what = f"{count} records each"
                results.append(Result(name=what, value=round(rate.per_second, 1), unit="txn/s"))
                for share, label in ((0.5, "p50"), (0.99, "p99")):
                    took = round(1000 * rate.at(share), 3)
                    results.append(Result(name=f"commit {label}, {what}", value=took, unit="ms"))
            with_them, lots, without_end = interleaved(
                rounds,
                partial(trio.run, _whole, servers, COUNTS[-1], seconds, True),
                partial(trio.run, _whole, servers, COUNTS[-1], seconds, False),
                partial(trio.run, _without_end, servers, seconds),
            )
        results += [
            against(
                "1,000 records each, beside lots that are flushed", with_them, "records/s", lots, PLAIN_BAR
            ),
            against("1,000 records each, beside records without end", with_them, "records/s", without_end),
        ]
        if not smoke:
            try:
                results += _beside_kafka(Path(name), seconds, rounds)
            except ImportError as error:
                print(f"not beside Kafka: {error}", file=sys.stderr)
    return results

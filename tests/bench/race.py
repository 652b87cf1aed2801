"""Our client at three nodes, librdkafka at three brokers of Kafka, and JetStream with three servers, in turn.

Each with its own client, replication factor 3, acknowledged by all; processor time and memory of the servers. Needs
Java, Maven, confluent-kafka and Go.

Each run that is measured writes to a topic of its own, which is deleted after it. It finds the machine as all the
others do: nothing is left to be written back, and memory for what it writes was in use a moment ago.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from ..interop.brokers import Brokers, brokers
from ..interop.kafka import POM, Java, resolve
from ..processes import NodeProcess, cluster
from . import _race_ours as ours
from ._kafka import clients as theirs
from ._page_cache import settle
from ._peers.go_servers import Servers, jetstream
from ._polling import BUSY_POLL_US, ENV, TITLE
from ._processor import resident, seconds_of
from ._warm_up import warm_up
from .report import Result, beside_each, in_turn

PARTITIONS = 6
REPLICAS = 3
LARGE = {"batch_size": 512 << 10, "linger_ms": 20}
SOON = "log.segment.delete.delay.ms=1000\n"
"""Kafka keeps the files of a deleted topic for a minute by default, and with them the memory that holds them."""
_POLLING = f"ours, {TITLE}"


@attrs.frozen
class Field:
    """Who takes part. `folder`: on the device that all of them write to.

    pids: our nodes.
    polling: more of them, which poll instead of sleeping.
    """

    servers: list[str]
    pids: tuple[int, ...]
    polling: list[NodeProcess]
    kafka: Brokers
    nats: Servers
    folder: Path
    _topics: Iterator[str] = attrs.field(factory=lambda: (f"many-{n}" for n in itertools.count()))

    def into_ours(self, count: int, size: int, *, many: bool, options: dict[str, Any]) -> float:
        """Records a second into a topic of its own."""
        return self._into_ours(
            count,
            size,
            lambda *of: trio.run(partial(ours.produce, *of, many=many, options=options)),
        )

    def by_a_thread(self, count: int, size: int) -> float:
        return self._into_ours(count, size, ours.produce_by_a_thread)

    def on_asyncio(self, count: int, size: int) -> float:
        return self._into_ours(count, size, lambda *of: asyncio.run(ours.produce_on_asyncio(*of)))

    def _into_ours(
        self, count: int, size: int, produce: Callable[[list[str], str, int, int], float]
    ) -> float:
        return into_ours(self.servers, self.folder, next(self._topics), count, size, produce)

    def into_kafka(self, count: int, size: int, options: dict[str, Any]) -> float:
        """The same."""
        return into_kafka(self.kafka.servers, self.folder, next(self._topics), count, size, options)

    def into_nats(self, count: int, size: int) -> float:
        """The same: its program makes a stream of its own and deletes it."""
        settle(self.folder, REPLICAS * count * size)
        return self.nats.measure("rate", size, count=count)["rate"]


def into_ours(
    servers: list[str],
    folder: Path,
    topic: str,
    count: int,
    size: int,
    produce: Callable[[list[str], str, int, int], float],
    config: Mapping[str, str] | None = None,
) -> float:
    """Records a second into a topic that is made for it, and deleted."""
    trio.run(ours.create, servers, topic, PARTITIONS, config)
    settle(folder, REPLICAS * count * size)
    rate = produce(servers, topic, count, size)
    trio.run(ours.delete, servers, topic)
    return rate


def into_kafka(
    servers: str,
    folder: Path,
    topic: str,
    count: int,
    size: int,
    options: dict[str, Any],
    config: Mapping[str, str] = {},
) -> float:
    """The same."""
    theirs.create(servers, topic, PARTITIONS, config)
    settle(folder, REPLICAS * count * size)
    rate = theirs.produce(servers, topic, count, size, acks="all", enable_idempotence=True, **options)
    theirs.delete(servers, topic)
    return rate


@contextmanager
def field(folder: Path) -> Iterator[Field]:
    """All of them, started; topics are made."""
    java = Java(resolve(POM, online=True), ())
    with ExitStack() as stack:
        nats = stack.enter_context(jetstream(folder))
        nodes = stack.enter_context(cluster(folder))
        kafka = stack.enter_context(brokers(java, folder / "kafka", heap="1g", more=SOON))
        servers = [each.endpoint for each in nodes]
        (folder / "polling").mkdir()
        polling = stack.enter_context(cluster(folder / "polling", env=ENV))
        for each in (servers, [each.endpoint for each in polling]):
            trio.run(ours.create, each, "late", 1)
        theirs.create(kafka.servers, "late", 1)
        yield Field(servers, pids_of(nodes), polling, kafka, nats, folder)


def pids_of(nodes: list[NodeProcess]) -> tuple[int, ...]:
    return tuple(each.process.pid for each in nodes)


def run(*, smoke: bool) -> list[Result]:
    """All rows; about six minutes on four quiet cores. smoke: small, to show that it runs."""
    rounds, scale = (1, 100) if smoke else (3, 1)
    with tempfile.TemporaryDirectory() as name, field(Path(name)) as all_:
        results = _throughput(all_, rounds, scale)
        for rate in (1000, 100):
            results += _latency(all_, rounds, rate, max(20, 3 * rate // scale))
        results += _consume(all_, rounds, scale)
        for who, pid in (
            ("ours", all_.pids[0]),
            ("Kafka", all_.kafka.pids[0]),
            ("JetStream", all_.nats.pids[0]),
        ):
            results.append(
                Result(name=f"memory of a server, {who}", value=round(resident(pid) / 1e6, 1), unit="MB")
            )
    return results


def _throughput(all_: Field, rounds: int, scale: int) -> list[Result]:
    rows: list[tuple[str, int, int, bool, dict[str, Any], dict[str, Any], bool, float | None]] = [
        ("1 KiB, 512 KiB batches, send_many", 1024, 400_000, True, ours.LARGE, LARGE, False, 4.0),
        ("1 KiB, 512 KiB batches, send each", 1024, 400_000, False, ours.LARGE, LARGE, False, None),
        ("100 B, 512 KiB batches, send_many", 100, 4_000_000, True, ours.LARGE, LARGE, False, 3.0),
        ("1 KiB, defaults, send each", 1024, 400_000, False, {}, {}, True, 2.0),
        ("100 B, defaults, send each", 100, 2_000_000, False, {}, {}, True, 2.0),
        ("1 KiB, defaults, send_many", 1024, 400_000, True, {}, {}, False, None),
        ("100 B, defaults, send_many", 100, 4_000_000, True, {}, {}, False, None),
    ]
    results = []
    for title, size, count, many, mine, other, beside_nats, bar in rows:
        count = max(ours.CHUNK, count // scale)
        measures: dict[str, Callable[[], float]] = {
            "ours": partial(all_.into_ours, count, size, many=many, options=mine),
            "Kafka": partial(all_.into_kafka, count, size, other),
        }
        if beside_nats:
            measures["JetStream"] = partial(all_.into_nats, max(100, 100_000 // scale), size)
        results += beside_each(title, "records/s", in_turn(rounds, measures), bar)
    for face, own in (("a thread", all_.by_a_thread), ("asyncio", all_.on_asyncio)):
        count = max(ours.CHUNK, 1_000_000 // scale)
        measures = {"ours": partial(own, count, 100), "Kafka": partial(all_.into_kafka, count, 100, {})}
        title = f"100 B, defaults, send each by {face}"
        results += beside_each(title, "records/s", in_turn(rounds, measures), None)
    return results


def _latency(all_: Field, rounds: int, rate: int, count: int) -> list[Result]:
    found: dict[str, dict[str, list[float]]] = {"p50": {}, "p99": {}}
    used: dict[str, float] = {}

    def note(who: str, pids: tuple[int, ...], measure: Callable[[], tuple[float, float]]) -> None:
        before = seconds_of(pids)
        for what, value in zip(("p50", "p99"), measure(), strict=True):
            found[what].setdefault(who, []).append(value * 1000)
        used[who] = used.get(who, 0.0) + seconds_of(pids) - before

    def nats() -> tuple[float, float]:
        said = all_.nats.measure("latency", 100, count=count, per_second=rate, warm=warm_up(count, rate))
        return said["p50"], said["p99"]

    def own(servers: list[str], busy_poll_us: int = 0) -> tuple[float, float]:
        return both(trio.run(ours.latency, servers, "late", count, rate, busy_poll_us))

    polling = [each.endpoint for each in all_.polling]
    for _ in range(rounds):
        note("ours", all_.pids, partial(own, all_.servers))
        note(_POLLING, pids_of(all_.polling), partial(own, polling, BUSY_POLL_US))
        note("Kafka", all_.kafka.pids, lambda: both(theirs.latency(all_.kafka.servers, "late", count, rate)))
        note("JetStream", all_.nats.pids, nats)
    results = []
    for what, bar in (("p50", 1.0), ("p99", 0.5)):
        medians = {who: theirs.median(values) for who, values in found[what].items()}
        least = bar if rate == 1000 or what == "p50" else None
        title = f"latency at {rate}/s, {what}"
        polled = medians.pop(_POLLING)
        results += beside_each(title, "ms", medians, least, less_is_better=True)
        also = {**medians, "ours": polled}
        results += beside_each(f"{title}, {TITLE}", "ms", also, least, less_is_better=True)
    sent = rounds * (warm_up(count, rate) + count)
    for who, seconds in used.items():
        value = round(seconds / sent * 1000, 3)
        limit = 0.8 if who == "ours" and rate == 1000 else None
        name = f"servers' processor time of a record at {rate}/s, {who}"
        results.append(Result(name=name, value=value, unit="ms", bar=limit, holds=limit and value <= limit))
    return results


def both(taken: list[float]) -> tuple[float, float]:
    return theirs.at(taken, 0.5), theirs.at(taken, 0.99)


def _consume(all_: Field, rounds: int, scale: int) -> list[Result]:
    count = 200_000 // scale
    trio.run(ours.create, all_.servers, "read", PARTITIONS)
    theirs.create(all_.kafka.servers, "read", PARTITIONS)
    written = max(count, ours.CHUNK)
    settle(all_.folder, 2 * REPLICAS * written * 1024)
    trio.run(partial(ours.produce, all_.servers, "read", written, 1024, many=True, options=ours.LARGE))
    theirs.produce(all_.kafka.servers, "read", written, 1024, acks="all", **LARGE)
    measures = {
        "ours": lambda: trio.run(ours.consume, all_.servers, "read", count, 1024) / 1e6,
        "Kafka": lambda: theirs.consume(all_.kafka.servers, "read", count, 1024) / 1e6,
    }
    return beside_each("consume 1 KiB, one consumer", "MB/s", in_turn(rounds, measures), None)

"""Records that a device of each replica has before they are acknowledged, beside others that promise it.

Topics with `durability=flushed`, Kafka's with `flush.messages=1`, JetStream with `sync_interval: always`, and etcd:
each with its own client at three servers, in turn, on one device. Then a bare file, and `replicated` topics.
Needs Java, Maven, confluent-kafka and Go. A smoke run has none of the peers.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from ..interop.brokers import brokers
from ..interop.kafka import POM, Java, resolve
from ..processes import cluster
from . import _race_ours as ours
from ._kafka import clients as theirs
from ._many_producers import Load, measure
from ._page_cache import settle
from ._peers.go_servers import Servers, etcd, jetstream
from ._warm_up import warm_up
from .race import LARGE, PARTITIONS, REPLICAS, SOON, both, into_kafka, into_ours
from .report import Result, beside_each, in_turn, within

SIZE = 1024
RATE = 100
EACH = {"flush.messages": "1"}
REPLICATED, BARE = "ours, replicated", "fdatasync"


@attrs.frozen(kw_only=True)
class Scale:
    """count, few: records of one producer in a run, of those that bring many to the device at once, and few.

    producers, seconds: of a run of many with one record in flight each. late: records of a run at RATE.
    """

    rounds: int = 3
    count: int = 100_000
    few: int = 5_000
    producers: int = 100
    seconds: float = 5.0
    late: int = 5 * RATE


@attrs.frozen(kw_only=True)
class Party:
    """One of those that are measured.

    one: records a second of a producer with all that it can have in flight; by_default: with its default settings.
    many: of producers with one record in flight each. latency: p50 and p99 at RATE, in seconds.
    """

    one: Callable[[], float]
    latency: Callable[[], tuple[float, float]]
    by_default: Callable[[], float] | None = None
    many: Callable[[], float] | None = None


def run(*, smoke: bool) -> list[Result]:
    """All rows; some ten minutes on two quiet cores. smoke: small, and without the peers."""
    scale = Scale(rounds=1, count=4_000, few=100, producers=2, seconds=0.5, late=50) if smoke else Scale()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        peers = {} if smoke else stack.enter_context(_peers(folder, scale))
        nodes = stack.enter_context(cluster(folder))
        servers = [node.endpoint for node in nodes]
        parties = {
            "ours": _of_ours(servers, folder, scale, "flushed"),
            **peers,
            REPLICATED: _of_ours(servers, folder, scale, "replicated"),
            BARE: _of_file(folder, scale),
        }
        return _rates(parties, scale) + _latency(parties, scale.rounds)


@contextmanager
def _peers(folder: Path, scale: Scale) -> Iterator[dict[str, Party]]:
    java = Java(resolve(POM, online=True), ())
    with (
        jetstream(folder, sync_always=True) as nats,
        etcd(folder) as put,
        brokers(java, folder / "kafka", heap="1g", more=SOON) as kafka,
    ):
        yield {
            "Kafka": _of_kafka(kafka.servers, folder, scale),
            "JetStream": _of_go(nats, folder, scale.count // 2, scale),
            "etcd": _of_go(put, folder, 4 * scale.few, scale),
        }


def _of_ours(servers: list[str], folder: Path, scale: Scale, durability: str) -> Party:
    def create(topic: str, partitions: int) -> None:
        trio.run(ours.create, servers, topic, partitions, {"durability": durability})

    def one(options: dict[str, Any]) -> float:
        def produce(*of: Any) -> float:
            rate: float = trio.run(partial(ours.produce, *of, many=True, options=options))
            return rate

        topic = f"one-{durability}-{time.monotonic_ns()}"
        return into_ours(servers, folder, topic, scale.count, SIZE, produce, {"durability": durability})

    def latency() -> tuple[float, float]:
        return both(trio.run(partial(ours.latency, servers, late, scale.late, RATE, size=SIZE)))

    many, late = f"many-{durability}", f"late-{durability}"
    create(many, PARTITIONS)
    create(late, 1)
    return Party(
        one=partial(one, ours.LARGE),
        latency=latency,
        by_default=partial(one, {}),
        many=partial(_many, "ours", ",".join(servers), many, scale),
    )


def _of_kafka(servers: str, folder: Path, scale: Scale) -> Party:
    def one(options: dict[str, Any]) -> float:
        topic = f"one-{time.monotonic_ns()}"
        return into_kafka(servers, folder, topic, scale.count, SIZE, options, EACH)

    theirs.create(servers, "many", PARTITIONS, EACH)
    theirs.create(servers, "late", 1, EACH)
    return Party(
        one=partial(one, LARGE),
        latency=lambda: both(theirs.latency(servers, "late", scale.late, RATE, SIZE)),
        by_default=partial(one, {}),
        many=partial(_many, "kafka", servers, "many", scale),
    )


def _of_go(servers: Servers, folder: Path, count: int, scale: Scale) -> Party:
    def one() -> float:
        settle(folder, REPLICAS * count * SIZE)
        return servers.measure("rate", SIZE, count=count)["rate"]

    def latency() -> tuple[float, float]:
        warm = warm_up(scale.late, RATE)
        said = servers.measure("latency", SIZE, count=scale.late, per_second=RATE, warm=warm)
        return said["p50"], said["p99"]

    def many() -> float:
        return servers.measure("many", SIZE, clients=scale.producers, seconds=scale.seconds)["rate"]

    return Party(one=one, latency=latency, many=many)


def _of_file(folder: Path, scale: Scale) -> Party:
    """One thread that appends a record and waits for the device, one after the other."""

    def write(count: int, per_second: float) -> list[float]:
        record, taken = b"x" * SIZE, []
        with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
            start = time.perf_counter()
            for index in range(count):
                time.sleep(max(0.0, start + index / per_second - time.perf_counter()))
                begun = time.perf_counter()
                file.write(record)
                os.fdatasync(file.fileno())
                taken.append(time.perf_counter() - begun)
        return taken

    return Party(
        one=lambda: scale.few / sum(write(scale.few, math.inf)),
        latency=lambda: both(sorted(write(scale.late, RATE))),
    )


def _many(whose: str, servers: str, topic: str, scale: Scale) -> float:
    load = Load(
        servers=servers,
        topic=topic,
        partitions=PARTITIONS,
        producers=scale.producers,
        seconds=scale.seconds,
        size=SIZE,
    )
    return len(measure(whose, load)) / scale.seconds


def _rates(parties: dict[str, Party], scale: Scale) -> list[Result]:
    rows: list[tuple[str, Callable[[Party], Callable[[], float] | None], float | None]] = [
        ("one producer, 512 KiB batches", lambda party: party.one, 5.0),
        ("one producer, defaults", lambda party: party.by_default, None),
        (f"{scale.producers} producers, one record each", lambda party: party.many, 5.0),
    ]
    results = []
    for title, way, bar in rows:
        measures = {who: found for who, party in parties.items() if (found := way(party)) is not None}
        results += beside_each(title, "records/s", in_turn(scale.rounds, measures), bar)
    return results


def _latency(parties: dict[str, Party], rounds: int) -> list[Result]:
    found: dict[str, list[tuple[float, float]]] = {who: [] for who in parties}
    for _ in range(rounds):
        for who, party in parties.items():
            os.sync()
            found[who].append(party.latency())
    results = []
    for place, what in enumerate(("p50", "p99")):
        medians = {who: theirs.median([pair[place] * 1000 for pair in found[who]]) for who in found}
        results += beside_each(f"{what} at {RATE}/s", "ms", medians, None, less_is_better=True)
        if what == "p50":
            least = 2 * medians[BARE] + medians[REPLICATED]
            title = f"p50 at {RATE}/s, beside two of {BARE} and {REPLICATED}"
            results.append(within(title, medians["ours"], "ms", least, 1.3))
    return results

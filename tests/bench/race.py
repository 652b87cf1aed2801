"""Our client at three nodes, librdkafka at three brokers of Kafka, and JetStream with three servers, in turn.

Each with its own client, replication factor 3, acknowledged by all; processor time and memory of the servers. Needs
Java, Maven, confluent-kafka and Go.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from ..interop.brokers import Brokers, brokers
from ..interop.kafka import POM, Java, resolve
from ..processes import cluster
from . import _kafka_clients as theirs
from . import _race_ours as ours
from ._jetstream import JetStream, build, jetstream
from ._processor import resident, seconds_of
from .report import Result

PARTITIONS = 6
LARGE = {"batch_size": 512 << 10, "linger_ms": 20}


@attrs.frozen
class Field:
    """Who takes part. `pids`: our nodes."""

    servers: list[str]
    pids: tuple[int, ...]
    kafka: Brokers
    nats: JetStream


@contextmanager
def field(folder: Path) -> Iterator[Field]:
    """All of them, started; topics are made."""
    java = Java(resolve(POM, online=True), ())
    built = build(folder)
    with ExitStack() as stack:
        nodes = stack.enter_context(cluster(folder))
        kafka = stack.enter_context(brokers(java, folder / "kafka", heap="1g"))
        nats = stack.enter_context(jetstream(built, folder / "nats"))
        servers = [each.endpoint for each in nodes]
        for topic, partitions in (("many", PARTITIONS), ("late", 1)):
            trio.run(ours.create, servers, topic, partitions)
            theirs.create(kafka.servers, topic, partitions)
        yield Field(servers, tuple(each.process.pid for each in nodes), kafka, nats)


def run(*, smoke: bool) -> list[Result]:
    """All rows; about five minutes on four quiet cores. smoke: small, to show that it runs."""
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
        ("1 KiB, 512 KiB batches, send_many", 1024, 200_000, True, ours.LARGE, LARGE, False, 4.0),
        ("1 KiB, 512 KiB batches, send each", 1024, 200_000, False, ours.LARGE, LARGE, False, None),
        ("100 B, 512 KiB batches, send_many", 100, 1_000_000, True, ours.LARGE, LARGE, False, 3.0),
        ("1 KiB, defaults, send each", 1024, 100_000, False, {}, {}, True, 2.0),
        ("100 B, defaults, send each", 100, 400_000, False, {}, {}, True, 2.0),
    ]
    results = []
    for title, size, count, many, mine, other, beside_nats, bar in rows:
        count = max(ours.CHUNK, count // scale)
        produce = partial(ours.produce, all_.servers, "many", count, size, many=many, options=mine)
        measures: dict[str, Callable[[], float]] = {
            "ours": partial(trio.run, produce),
            "Kafka": partial(
                theirs.produce,
                all_.kafka.servers,
                "many",
                count,
                size,
                acks="all",
                enable_idempotence=True,
                **other,
            ),
        }
        if beside_nats:
            measures["JetStream"] = lambda size=size: all_.nats.measure("rate", 20_000 // scale + 10, size)[
                "rate"
            ]
        results += _rows(title, "records/s", _taken(rounds, measures), bar)
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
        said = all_.nats.measure("latency", count, 100, rate)
        return said["p50"], said["p99"]

    for _ in range(rounds):
        note("ours", all_.pids, lambda: _both(trio.run(ours.latency, all_.servers, "late", count, rate)))
        note("Kafka", all_.kafka.pids, lambda: _both(theirs.latency(all_.kafka.servers, "late", count, rate)))
        note("JetStream", all_.nats.pids, nats)
    results = []
    for what, bar in (("p50", 1.0), ("p99", 0.5)):
        medians = {who: theirs.median(values) for who, values in found[what].items()}
        least = bar if rate == 1000 or what == "p50" else None
        results += _rows(f"latency at {rate}/s, {what}", "ms", medians, least, less_is_better=True)
    for who, seconds in used.items():
        value = round(seconds / rounds / count * 1000, 3)
        limit = 0.8 if who == "ours" and rate == 1000 else None
        name = f"servers' processor time of a record at {rate}/s, {who}"
        results.append(Result(name=name, value=value, unit="ms", bar=limit, holds=limit and value <= limit))
    return results


def _both(taken: list[float]) -> tuple[float, float]:
    return theirs.at(taken, 0.5), theirs.at(taken, 0.99)


def _consume(all_: Field, rounds: int, scale: int) -> list[Result]:
    count = 200_000 // scale
    trio.run(ours.create, all_.servers, "read", PARTITIONS)
    theirs.create(all_.kafka.servers, "read", PARTITIONS)
    written = max(count, ours.CHUNK)
    trio.run(partial(ours.produce, all_.servers, "read", written, 1024, many=True, options=ours.LARGE))
    theirs.produce(all_.kafka.servers, "read", written, 1024, acks="all", **LARGE)
    measures = {
        "ours": lambda: trio.run(ours.consume, all_.servers, "read", count, 1024) / 1e6,
        "Kafka": lambda: theirs.consume(all_.kafka.servers, "read", count, 1024) / 1e6,
    }
    return _rows("consume 1 KiB, one consumer", "MB/s", _taken(rounds, measures), None)


def _taken(rounds: int, measures: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The median of each, in turn."""
    found: dict[str, list[float]] = {who: [] for who in measures}
    for _ in range(rounds):
        for who, measure in measures.items():
            found[who].append(measure())
    return {who: theirs.median(values) for who, values in found.items()}


def _rows(
    title: str, unit: str, medians: dict[str, float], bar: float | None, *, less_is_better: bool = False
) -> list[Result]:
    """One row for each of the others, with ours beside it; the bar is for Kafka's."""
    results = []
    for who, value in medians.items():
        if who == "ours":
            continue
        ratio, least = medians["ours"] / value, bar if who == "Kafka" else None
        results.append(
            Result(
                name=f"{title}, beside {who}",
                value=round(medians["ours"], 3),
                unit=unit,
                beside=round(value, 3),
                ratio=round(ratio, 3),
                bar=least,
                holds=None if least is None else (ratio <= least if less_is_better else ratio >= least),
            )
        )
    return results

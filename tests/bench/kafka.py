"""Kafka's clients at three nodes of ours and at three brokers of Kafka, in turn, replication factor 3; and what the
gateway itself costs. Needs Java, Maven and confluent-kafka.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import attrs

from ..interop.brokers import brokers
from ..interop.kafka import Java, resolve
from ..plugins.kafka.conftest import running_cluster
from ._kafka_clients import at, consume, create, latency, leader_of, longest_gap, median, perf_test, produce
from ._kafka_gateway import costs
from ._processor import seconds_of
from .report import Result, against, at_most

TOOLS = Path(__file__).parent.parent / "plugins" / "kafka" / "tools.xml"
PRODUCE_BAR, FETCH_BAR = 200.0, 180.0
IDLE_BAR = 32.0
CONNECTIONS = 1000
LARGE = ("acks=all", "batch.size=524288", "linger.ms=20", "buffer.memory=67108864")
DEFAULTS = ("acks=all",)


@attrs.frozen
class Side:
    """A running cluster. `pids`: its servers, by their ids from 1 on."""

    servers: str
    pids: tuple[int, ...]


@contextmanager
def both(java: Java, folder: Path) -> Iterator[tuple[Side, Side]]:
    """Ours, and Kafka's, with heaps as operators of small machines give them."""
    with ExitStack() as stack:
        ours = stack.enter_context(running_cluster())
        theirs = stack.enter_context(brokers(attrs.evolve(java, options=()), folder / "kafka", heap="1g"))
        yield Side(ours.servers, ours.pids), Side(theirs.servers, theirs.pids)


def in_turn(rounds: int, measure: Callable[[Side], float], ours: Side, theirs: Side) -> tuple[float, float]:
    """The medians of both."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, into in zip((ours, theirs), found, strict=True):
            into.append(measure(side))
    return median(found[0]), median(found[1])


def run(*, smoke: bool) -> list[Result]:
    """All figures; about six minutes on four quiet cores. smoke: small, to show that it runs."""
    rounds, scale = (1, 50) if smoke else (3, 1)
    java = Java(resolve(TOOLS, online=True))
    made, fetched = costs(20 if smoke else 500)
    results = [
        at_most("gateway, produce of 6 x 16 KiB", made, "us", PRODUCE_BAR),
        at_most("gateway, fetch of 50 partitions", fetched, "us", FETCH_BAR),
    ]
    with tempfile.TemporaryDirectory() as name, both(java, Path(name)) as (ours, theirs):
        for side in (ours, theirs):
            create(side.servers, "bench", 6)
            create(side.servers, "small", 6)
            create(side.servers, "late", 1)
        results += _throughput(java, rounds, scale, ours, theirs)
        results += _latency(60 if smoke else 3000, rounds, ours, theirs)
        results.append(_idle(ours, 50 if smoke else CONNECTIONS))
        results.append(_failover(1 if smoke else 3, 3.0 if smoke else 6.0))
    return results


def _throughput(java: Java, rounds: int, scale: int, ours: Side, theirs: Side) -> list[Result]:
    results = []
    for title, settings, bar in (("512 KiB batches", LARGE, 1.0), ("defaults", DEFAULTS, 0.5)):
        count = (400_000 if settings is LARGE else 200_000) // scale

        def perf(side: Side, count: int = count, settings: tuple[str, ...] = settings) -> float:
            return perf_test(java, side.servers, "bench", count, 1024, *settings)

        results.append(
            against(
                f"producer-perf-test, 1 KiB, {title}",
                *_apart(in_turn(rounds, perf, ours, theirs), "MB/s", bar),
            )
        )
    used = {ours: 0.0, theirs: 0.0}

    def small(side: Side) -> float:
        before = seconds_of(side.pids)
        rate = produce(side.servers, "small", 1_000_000 // scale, 100, acks="all")
        used[side] += seconds_of(side.pids) - before
        return rate

    results.append(
        against(
            "librdkafka, 100 B, defaults", *_apart(in_turn(rounds, small, ours, theirs), "records/s", 0.8)
        )
    )
    share = used[theirs] / max(used[ours], 0.01)
    results.append(Result(name="processor time of servers, Kafka's / ours", value=round(share, 2), unit="x"))

    def read(side: Side) -> float:
        return consume(side.servers, "bench", 300_000 // scale, 1024) / 1e6

    results.append(
        against("librdkafka consumer, 1 KiB", *_apart(in_turn(rounds, read, ours, theirs), "MB/s", 0.9))
    )
    return results


def _apart(pair: tuple[float, float], unit: str, bar: float) -> tuple[float, str, float, float]:
    return pair[0], unit, pair[1], bar


def _latency(count: int, rounds: int, ours: Side, theirs: Side) -> list[Result]:
    results = []
    for rate in (1000, 100):
        p50: dict[Side, list[float]] = {ours: [], theirs: []}
        p99: dict[Side, list[float]] = {ours: [], theirs: []}
        for _ in range(rounds):
            for side in (ours, theirs):
                taken = latency(side.servers, "late", count if rate == 1000 else count // 4, rate)
                p50[side].append(at(taken, 0.5) * 1000)
                p99[side].append(at(taken, 0.99) * 1000)
        for title, found, bar in (("p50", p50, 1.5), ("p99", p99, 1.0)):
            mine, other = median(found[ours]), median(found[theirs])
            ratio = mine / other
            results.append(
                Result(
                    name=f"acknowledged at {rate}/s, {title}",
                    value=round(mine, 3),
                    unit="ms",
                    beside=round(other, 3),
                    ratio=round(ratio, 3),
                    bar=bar,
                    holds=ratio <= bar,
                )
            )
    return results


def _idle(ours: Side, count: int) -> Result:
    """KiB of memory of each connection that says nothing."""
    host, _, port = ours.servers.split(",")[0].partition(":")
    before, open_ = _resident(ours.pids[0]), []
    try:
        open_ += [socket.create_connection((host, int(port)), 10) for _ in range(count)]
        time.sleep(1)
        each = (_resident(ours.pids[0]) - before) / count / 1024
    finally:
        for connection in open_:
            connection.close()
    return at_most("memory of an idle connection", each, "KiB", IDLE_BAR)


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _failover(rounds: int, seconds: float) -> Result:
    """The longest silence of an idempotent producer whose leader is killed."""
    gaps = []
    for _ in range(rounds):
        with running_cluster() as cluster:
            create(cluster.servers, "kill", 1)
            leader = leader_of(cluster.servers, "kill")
            hit = partial(os.kill, cluster.pids[leader - 1], signal.SIGKILL)
            gaps.append(longest_gap(cluster.servers, "kill", seconds, hit))
    return at_most("SIGKILL of a leader, librdkafka idempotent", median(gaps), "s", 0.5)

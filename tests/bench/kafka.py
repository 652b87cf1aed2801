"""Kafka's clients at three nodes of ours and at three brokers of Kafka, in turn, replication factor 3; what the
codec and the gateway themselves cost. Needs Java, Maven and confluent-kafka.

Each run that writes has a topic of its own, which is deleted after it, and finds the machine as all the others do.

A figure that cannot be measured ends the run with what was wrong: none is left out.
"""

from __future__ import annotations

import itertools
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
import trio

from ..interop.brokers import Brokers, brokers
from ..interop.kafka import Java, resolve
from ..plugins.kafka.conftest import Cluster, running_cluster
from . import cluster as native
from ._kafka import codec as _kafka_codec
from ._kafka.clients import (
    at,
    consume,
    consumer_perf_test,
    create,
    delete,
    end_to_end,
    latency,
    leader_of,
    longest_gap,
    longest_gap_of_java,
    median,
    perf_test,
    produce,
)
from ._kafka.fetches import seconds_a_gib
from ._kafka.gateway import costs, metadata_cost
from ._page_cache import settle
from ._peers.far_end import far_process
from ._polling import ENV, TITLE
from ._processor import resident, seconds_of, share_of
from .report import Result, against, at_least, at_most, interleaved, within

TOOLS = Path(__file__).parent.parent / "plugins" / "kafka" / "programs" / "tools.xml"
CLIENTS = Path(__file__).parent.parent / "plugins" / "kafka" / "pom.xml"
LOAD = Path(__file__).parent.parent / "chaos" / "KafkaLoad.java"
PRODUCE_BAR, FETCH_BAR = 200.0, 180.0
IDLE_BAR = 32.0
METADATA_PARTITIONS = 10_000
CODEC_BAR = 2.0
"""Times what each message took, beside `struct`, when the codec was designed."""
CONNECTIONS = 1000
PARTITIONS, REPLICAS = 6, 3
AS_TOOLS = ("-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""How the scripts of Kafka's tools start Java. Compiled only as far as short programs need it (`Java.options`), its
producer takes twice the processor time."""
SOON = "log.segment.delete.delay.ms=1000\n"
"""Kafka keeps the files of a deleted topic for a minute by default, and with them the memory that holds them."""
LARGE = ("acks=all", "batch.size=524288", "linger.ms=20", "buffer.memory=67108864")
DEFAULTS = ("acks=all",)
OWN = {"batch_size": 512 << 10, "linger_ms": 20, "max_request_size": 1 << 20, "buffer_memory": 64 << 20}
"""The same of our own producer."""
OWN_UNGROWN = {**OWN, "max_request_size": (512 << 10) + 4096}
"""Its batches grow while they wait, up to a request; with these settings they stay as large as those of Kafka's."""


@attrs.frozen
class Side:
    """A running cluster. `pids`: its servers, by their ids from 1 on. `native`: for our own clients, of ours."""

    servers: str
    pids: tuple[int, ...]
    native: tuple[str, ...] = ()


class Topics:
    """A new topic for each run that writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    @contextmanager
    def new(self, side: Side, size: int) -> Iterator[str]:
        """Its name; `size` bytes are about to be written. It is deleted when the block is left."""
        topic = f"run-{next(self._numbers)}"
        create(side.servers, topic, PARTITIONS)
        self.settle(size)
        yield topic
        delete(side.servers, topic)

    def settle(self, size: int) -> None:
        settle(self._folder, REPLICAS * size)


@contextmanager
def both(java: Java, folder: Path) -> Iterator[tuple[Side, Side]]:
    """Ours, and Kafka's, with heaps as operators of small machines give them."""
    with ExitStack() as stack:
        ours = stack.enter_context(running_cluster())
        theirs = stack.enter_context(
            brokers(attrs.evolve(java, options=()), folder / "kafka", heap="1g", more=SOON)
        )
        yield Side(ours.servers, ours.pids, ours.native), Side(theirs.servers, theirs.pids)


def in_turn(rounds: int, measure: Callable[[Side], float], ours: Side, theirs: Side) -> tuple[float, float]:
    """The medians of both."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, into in zip((ours, theirs), found, strict=True):
            into.append(measure(side))
    return median(found[0]), median(found[1])


def run(*, smoke: bool) -> list[Result]:
    """All figures; about twelve minutes on four quiet cores. smoke: small, to show that it runs."""
    rounds, scale = (1, 50) if smoke else (3, 1)
    java = Java(resolve(TOOLS, online=True), AS_TOOLS)
    made, fetched = costs(20 if smoke else 500)
    results = [
        within(name, taken, "us", floor, CODEC_BAR * designed)
        for name, taken, floor, designed in _kafka_codec.rows(scale)
    ]
    results += [
        at_most("gateway, produce of 6 x 16 KiB", made, "us", PRODUCE_BAR),
        at_most("gateway, fetch of 50 partitions", fetched, "us", FETCH_BAR),
        at_most("metadata of 10,000 partitions", metadata_cost(METADATA_PARTITIONS, 20), "ms", 3.0),
    ]
    with tempfile.TemporaryDirectory() as name, both(java, Path(name)) as (ours, theirs):
        topics = Topics(Path(name))
        for side in (ours, theirs):
            create(side.servers, "late", 1)
        results += _throughput(java, topics, rounds, scale, ours, theirs)
        for side in (ours, theirs):
            create(side.servers, "bench", PARTITIONS)
            perf_test(java, side.servers, "bench", 400_000 // scale, 1024, *LARGE)
        results += _reading(java, Path(name), rounds, scale, ours, theirs)
        with running_cluster(env=ENV) as polling:
            create(polling.servers, "late", 1)
            sides = {"": ours, f", {TITLE}": Side(polling.servers, polling.pids)}
            results += _latency(60 if smoke else 3000, 1 if smoke else 5, sides, theirs)
        results += _idle(ours, 50 if smoke else CONNECTIONS, 2.0 if smoke else 20.0)
    results += _failover(1 if smoke else 5, 3.0 if smoke else 6.0, attrs.evolve(java, options=()))
    return results


def _throughput(
    java: Java, topics: Topics, rounds: int, scale: int, ours: Side, theirs: Side
) -> list[Result]:
    results = []
    for title, settings, bar in (("512 KiB batches", LARGE, 1.0), ("defaults", DEFAULTS, 0.5)):
        count = (1_000_000 if settings is LARGE else 400_000) // scale

        def perf(side: Side, count: int = count, settings: tuple[str, ...] = settings) -> float:
            with topics.new(side, count * 1024) as topic:
                return perf_test(java, side.servers, topic, count, 1024, *settings)

        pair = in_turn(rounds, perf, ours, theirs)
        results.append(against(f"producer-perf-test, 1 KiB, {title}", *_apart(pair, "MB/s", bar)))
        if settings is LARGE:
            results += _beside_ours(java, topics, count, rounds, (512 << 20) // scale, ours)
    used = {ours: 0.0, theirs: 0.0}

    def small(side: Side) -> float:
        count = 1_000_000 // scale
        with topics.new(side, count * 100) as topic:
            before = seconds_of(side.pids)
            rate = produce(side.servers, topic, count, 100, acks="all")
            used[side] += seconds_of(side.pids) - before
        return rate

    pair = in_turn(rounds, small, ours, theirs)
    results.append(against("librdkafka, 100 B, defaults", *_apart(pair, "records/s", 0.8)))
    results.append(at_least("librdkafka, 100 B, by itself", pair[0], "records/s", 250_000))
    share = used[theirs] / max(used[ours], 0.01)
    results.append(Result(name="processor time of servers, Kafka's / ours", value=round(share, 2), unit="x"))
    return results


def _beside_ours(java: Java, topics: Topics, count: int, rounds: int, total: int, ours: Side) -> list[Result]:
    """Kafka's producer, which sends `count` records, at our nodes, beside our own one there, which sends `total`.

    And where nothing but Kafka's producer can be slow: at a sink that answers at once, and at the floor behind
    Kafka's protocol. Processor time is in seconds a GiB, of all nodes together, and of the producer (of Kafka's
    with the start of its JVM).
    """
    nodes: dict[str, list[float]] = {}
    clients: dict[str, list[float]] = {}

    def kafkas(topic: str) -> float:
        return perf_test(java, ours.servers, topic, count, 1024, *LARGE)

    def own(settings: dict[str, int], topic: str) -> float:
        return trio.run(native.produce, list(ours.native), topic, 1024, total, settings) / 1e6

    def spent(who: str, sent: int, measure: Callable[[str], float]) -> float:
        with topics.new(ours, sent) as topic:
            before, client = seconds_of(ours.pids), _seconds_of_clients()
            rate = measure(topic)
            nodes.setdefault(who, []).append((seconds_of(ours.pids) - before) * (1 << 30) / sent)
            clients.setdefault(who, []).append((_seconds_of_clients() - client) * (1 << 30) / sent)
        return rate

    def sink(*, is_floor: bool) -> float:
        with tempfile.TemporaryDirectory() as place:
            topics.settle(count * 1024)
            with far_process("_kafka.sink", *([place] if is_floor else [])) as servers:
                return perf_test(java, servers, "sink", count, 1024, *LARGE)

    theirs, mine, ungrown, answered, floor = interleaved(
        rounds,
        partial(spent, "kafka", count * 1024, kafkas),
        partial(spent, "own", total, partial(own, OWN)),
        partial(spent, "ungrown", total, partial(own, OWN_UNGROWN)),
        partial(sink, is_floor=False),
        partial(sink, is_floor=True),
    )
    title = "producer-perf-test beside our own producer"
    results = [
        against(title, theirs, "MB/s", mine, 0.9),
        against(f"{title}, its batches 512 KiB at most", theirs, "MB/s", ungrown),
        against(f"{title}, at a sink that answers at once", answered, "MB/s", mine),
        against(f"{title}, at the floor", floor, "MB/s", mine),
        against("producer-perf-test beside itself at the floor", theirs, "MB/s", floor),
    ]
    for what, found in (("nodes", nodes), ("the producer", clients)):
        kafka = median(found["kafka"])
        for who, text in (("own", ""), ("ungrown", ", 512 KiB at most")):
            name = f"processor time of {what} for a GiB, the same{text}"
            results.append(within(name, kafka, "s", max(0.01, median(found[who]))))
    return results


def _seconds_of_clients() -> float:
    """Processor time of this process and of the children that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _reading(java: Java, folder: Path, rounds: int, scale: int, ours: Side, theirs: Side) -> list[Result]:
    """Warm: what is read was written a moment ago. A node's processor time without what it takes to be idle.

    That is measured last: before, nodes are still busy with what was written.
    """
    count = 300_000 // scale

    def read(side: Side) -> float:
        return consume(side.servers, "bench", count, 1024) / 1e6

    def perf(side: Side) -> float:
        return consumer_perf_test(java, side.servers, "bench", count)

    results = [
        against("librdkafka consumer, 1 KiB", *_apart(in_turn(rounds, read, ours, theirs), "MB/s", 0.9)),
        against("consumer-perf-test, 1 KiB", *_apart(in_turn(rounds, perf, ours, theirs), "MB/s", 0.9)),
    ]
    size, idle = (1 << 30, 5.0) if scale == 1 else (256 << 20, 2.0)
    node, floor = seconds_a_gib(ours.servers, ours.pids, "bench", folder, size, rounds, idle)
    results.append(within("processor time of a node for a GiB, beside sendfile", node, "s", floor, 1.2))
    return results


def _apart(pair: tuple[float, float], unit: str, bar: float) -> tuple[float, str, float, float]:
    return pair[0], unit, pair[1], bar


def _latency(count: int, rounds: int, ours: dict[str, Side], theirs: Side) -> list[Result]:
    """Kafka's side has had all records of `_throughput` by now: its machine code is made.

    ours: by what the names of their rows end with.
    """
    results = []
    cases = (
        ("end to end at 1000/s", end_to_end, 1000, count),
        ("acknowledged at 1000/s", latency, 1000, count),
        ("acknowledged at 100/s", latency, 100, count // 4),
    )
    for title, measure, rate, records in cases:
        sides = (*ours.values(), theirs)
        p50: dict[Side, list[float]] = {side: [] for side in sides}
        p99: dict[Side, list[float]] = {side: [] for side in sides}
        for number in range(rounds):
            for side in sides[:: -1 if number % 2 else 1]:
                taken = measure(side.servers, "late", records, rate)
                p50[side].append(at(taken, 0.5) * 1000)
                p99[side].append(at(taken, 0.99) * 1000)
        for share, found, bar in (("p50", p50, 1.5), ("p99", p99, 1.0)):
            beside = median(found[theirs])
            results += [
                within(f"{title}, {share}{end}", median(found[side]), "ms", beside, bar)
                for end, side in ours.items()
            ]
    return results


def _idle(ours: Side, count: int, seconds: float) -> list[Result]:
    """What connections that say nothing cost one node: KiB of memory each, percent of a core all together."""
    node, host_port = ours.pids[:1], ours.servers.split(",")[0]
    host, _, port = host_port.partition(":")

    without = share_of(node, seconds)
    before, open_ = resident(node[0]), []
    try:
        open_ += [socket.create_connection((host, int(port)), 10) for _ in range(count)]
        time.sleep(1)
        each = (resident(node[0]) - before) / count / 1024
        more = 100 * (share_of(node, seconds) - without)
    finally:
        for connection in open_:
            connection.close()
    return [
        at_most("memory of an idle connection", each, "KiB", IDLE_BAR),
        at_most(f"processor time of {count} idle connections", max(0.0, more), "% a core", 1.0),
    ]


def _failover(rounds: int, seconds: float, kafka: Java) -> list[Result]:
    """The longest silence of an idempotent producer whose leader is killed: median and worst of the Java client.

    Beside it Kafka's, once: its brokers miss a dead one when its session ends.
    """
    java = Java(resolve(CLIENTS, online=True))
    gaps: dict[str, list[float]] = {"java": [], "librdkafka": []}
    theirs: dict[str, float] = {}

    def measure(client: str, cluster: Cluster | Brokers) -> float:
        create(cluster.servers, "kill", 1)
        leader = leader_of(cluster.servers, "kill")
        hit = partial(os.kill, cluster.pids[leader - 1], signal.SIGKILL)
        if client == "java":
            given = ("write", cluster.servers, "kill", "gap", "all", "1")
            return longest_gap_of_java(java.command(str(LOAD), *given), seconds, hit)
        return longest_gap(cluster.servers, "kill", seconds, hit)

    for _ in range(rounds):
        for client, found in gaps.items():
            with running_cluster() as cluster:
                found.append(measure(client, cluster))
    for client in gaps:
        with (
            tempfile.TemporaryDirectory() as name,
            brokers(kafka, Path(name) / "kafka", heap="1g") as running,
        ):
            theirs[client] = measure(client, running)

    def row(name: str, client: str, value: float, bar: float) -> Result:
        beside = theirs[client]
        found = at_most(f"SIGKILL of a leader, {name}", value, "s", bar)
        return attrs.evolve(found, beside=round(beside, 3), ratio=round(value / beside, 3))

    return [
        row("Java idempotent, median", "java", median(gaps["java"]), 0.5),
        row("Java idempotent, worst", "java", max(gaps["java"]), 1.5),
        row("librdkafka idempotent", "librdkafka", median(gaps["librdkafka"]), 0.5),
    ]

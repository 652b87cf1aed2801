"""Groups on real nodes: rebalances as members see them, commits a second, and what a new coordinator loads.

Members speak the wire by themselves, many in one process; committers are processes of their own: what is measured
is the coordinator. Rebalances of librdkafka's members at three brokers of a real Kafka stand beside ours, if Java,
Maven and confluent-kafka are there.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import attrs
import trio

from insync.replication import Admin, Node, NodeSettings
from tests.replication.node.coordination.group_clients import Caller, Member, calling

from ..interop.brokers import brokers
from ..interop.kafka import POM, Java, resolve
from ..processes import cluster
from ._committers import commit_of, committers
from ._kafka import groups as _kafka_groups
from ._kafka.clients import create
from ._processor import seconds_of
from .report import Result, at_least, at_most

LOAD_BAR, COMMITS_BAR, IDLE_BAR, KAFKA_BAR = 20.0, 10_000.0, 5.0, 0.1
SESSION_MS, HEARTBEAT_MS = 6_000, 2_000
"""For rebalances; who is killed is missed after its session."""
PARTITIONS_OF_OFFSETS = 3
GROUPS, COMMITTERS = 300, 2
"""Each group commits one offset after the other; so many processes share them."""


def run(*, smoke: bool) -> list[Result]:
    """All figures; `smoke`: small, to show that it runs."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "c").mkdir()
        members, partitions = (8, 40) if smoke else (100, 1000)
        theirs = {} if smoke else _beside(place / "kafka", members, partitions)
        return [
            *trio.run(_of_three, place / "a", members, partitions, 0.5 if smoke else 5.0, theirs),
            *trio.run(_idle, place / "c", *((20, 2.0) if smoke else (1000, 30.0))),
            *trio.run(_load, place / "b", *((20_000, 50) if smoke else (1_000_000, 1000))),
        ]


def _settings(folder: Path, node_id: int) -> NodeSettings:
    folder.mkdir(exist_ok=True)
    return NodeSettings(
        node_id=node_id,
        data_dir=folder / f"node-{node_id}",
        store=f"sqlite://{folder}/meta.db",
        group_consumer_session_timeout_ms=SESSION_MS,
        group_consumer_heartbeat_interval_ms=HEARTBEAT_MS,
        offsets_topic_num_partitions=PARTITIONS_OF_OFFSETS,
        controlled_shutdown_timeout_ms=0,
    )


@asynccontextmanager
async def _cluster(folder: Path, count: int, partitions: int) -> AsyncIterator[tuple[list[Node], Caller]]:
    """Nodes in processes of their own, with a topic `t`."""
    async with trio.open_nursery() as nodes_nursery:
        nodes: list[Node] = []
        stop = trio.Event()

        async def live(node_id: int, task_status: trio.TaskStatus[Node] = trio.TASK_STATUS_IGNORED) -> None:
            async with Node(_settings(folder, node_id), own_process=count > 1) as node:
                task_status.started(node)
                await stop.wait()

        for node_id in range(1, count + 1):
            nodes.append(await nodes_nursery.start(live, node_id))
        async with trio.open_nursery() as nursery:
            with calling([each.endpoints[0] for each in nodes], nursery) as caller:
                async with Admin(caller.servers) as admin:
                    if "t" not in {each.name for each in await admin.describe_topics()}:
                        await admin.create_topic("t", partitions=partitions, replication_factor=min(3, count))
                yield nodes, caller
            nursery.cancel_scope.cancel()
        stop.set()


async def _of_three(
    folder: Path, members: int, partitions: int, seconds: float, theirs: _Beside
) -> list[Result]:
    """On three nodes."""
    async with _cluster(folder, 3, partitions) as (_, caller):
        return [*await _rebalances(caller, members, partitions, theirs), *await _commits(caller, seconds)]


# Rebalances

_Beside = Mapping[str, Mapping[str, float]]
"""Seconds, by what has happened and by what was measured."""


def _beside(folder: Path, members: int, partitions: int) -> _Beside:
    """The same at a Kafka; nothing if there is none here."""
    if not (shutil.which("java") and shutil.which("mvn") and find_spec("confluent_kafka")):
        return {}
    java = Java(resolve(POM, online=True), ())
    more = _kafka_groups.settings(SESSION_MS, HEARTBEAT_MS)
    with brokers(java, folder, heap="1g", more=more) as kafka:
        create(kafka.servers, _kafka_groups.TOPIC, partitions)
        return _kafka_groups.rebalances(kafka.servers, members, partitions)


def _figure(name: str, seconds: float, theirs: float | None, bar: float | None) -> Result:
    """`bar`: the greatest share of the time that it takes beside."""
    unit, scale = ("s", 1.0) if name.endswith("again") else ("ms", 1000.0)
    ratio = None if theirs is None else seconds / theirs
    return Result(
        name=name,
        value=round(scale * seconds, 3),
        unit=unit,
        beside=None if theirs is None else round(scale * theirs, 3),
        ratio=None if ratio is None else round(ratio, 4),
        bar=bar if theirs is not None else None,
        holds=None if ratio is None or bar is None else ratio <= bar,
    )


@attrs.define(eq=False)
class _Watch:
    """Since when each partition has no owner, and for how long it had none."""

    owners: dict[tuple[str, int], str] = attrs.Factory(dict)
    lost: dict[tuple[str, int], float] = attrs.Factory(dict)
    gaps: list[float] = attrs.Factory(list)

    def holds(self, member: Member, before: set[tuple[str, int]]) -> None:
        now = time.monotonic()
        mine = {(topic, number) for topic, numbers in member.owned.items() for number in numbers}
        for place in before - mine:
            if self.owners.get(place) == member.member_id:
                del self.owners[place]
                self.lost[place] = now
        for place in mine - before:
            self.owners[place] = member.member_id
            if place in self.lost:
                self.gaps.append(now - self.lost.pop(place))


async def _live(member: Member, watch: _Watch, living: trio.CancelScope, killed: set[str]) -> None:
    """Heartbeats that wait for news, until the member is to leave, or says nothing any more."""
    with living:
        await _beat_on(member, watch)
    # Whether it leaves or is killed: from here on nobody reads what it had.
    before = {(topic, number) for topic, numbers in member.owned.items() for number in numbers}
    member.owned = {}
    watch.holds(member, before)
    if member.member_id not in killed:
        await member.beat(member_epoch=-1)


async def _beat_on(member: Member, watch: _Watch) -> None:
    said: set[tuple[str, int]] | None = None
    while True:
        before = {(topic, number) for topic, numbers in member.owned.items() for number in numbers}
        changes = {} if said != before else {"owned": None, "topics": None, "rebalance_timeout_ms": -1}
        said = before
        await member.beat(max_wait_ms=5000, **changes)
        watch.holds(member, before)


async def _rebalances(caller: Caller, members: int, partitions: int, theirs: _Beside) -> list[Result]:
    results: list[Result] = []
    async with trio.open_nursery() as nursery:
        watch, found, stops, killed = _Watch(), [], [], set[str]()

        def start() -> None:
            member, stop = Member(caller, "g", ["t"]), trio.CancelScope()
            found.append(member)
            stops.append(stop)
            nursery.start_soon(_live, member, watch, stop, killed)

        async def until(count: int) -> None:
            """Until all is owned, in fair shares."""
            least = partitions // count
            with trio.fail_after(120):
                while True:
                    living = [m for m, stop in zip(found, stops, strict=True) if not stop.cancel_called]
                    if sum(m.count for m in living) == partitions and all(m.count >= least for m in living):
                        return
                    await trio.sleep(0.002)

        async def measure(what: str, name: str, act: Callable[[], None], count: int) -> None:
            watch.gaps.clear()
            began = time.monotonic()
            act()
            await until(count)
            took, gaps = time.monotonic() - began, sorted(watch.gaps)
            beside = theirs.get(what, {})
            # Who is killed is missed after its session here and there.
            bar = None if what == "killed" else KAFKA_BAR
            results.append(_figure(f"{name}: all is shared again", took, beside.get("all"), bar))
            if gaps:
                for label, value in (
                    ("median", statistics.median(gaps)),
                    ("p99", gaps[int(len(gaps) * 0.99)]),
                ):
                    told = f"{name}: a partition without an owner, {label}"
                    results.append(_figure(told, value, beside.get(label), bar))

        def kill() -> None:
            killed.add(found[1].member_id)
            stops[1].cancel()

        for _ in range(members):
            start()
        await until(members)
        await measure("joins", f"1 joins {members} over {partitions} partitions", start, members + 1)
        await measure("leaves", f"1 of {members + 1} leaves", stops[0].cancel, members)
        name = f"1 of {members} is killed, session {SESSION_MS / 1000:g} s"
        await measure("killed", name, kill, members - 1)
        nursery.cancel_scope.cancel()
    return results


# Groups in which nothing happens


async def _idle(folder: Path, groups: int, seconds: float) -> list[Result]:
    """Groups of one member each, which only gives signs of life; nodes as they are set by default."""
    with cluster(folder) as nodes:
        servers, pids = [node.endpoint for node in nodes], [node.process.pid for node in nodes]
        async with trio.open_nursery() as nursery:
            with calling(servers, nursery) as caller:
                async with Admin(servers) as admin:
                    await admin.create_topic("t", partitions=1, replication_factor=3)
                members = [Member(caller, f"idle-{number}", ["t"]) for number in range(groups)]
                with trio.fail_after(120):
                    for each in members:
                        while not each.count:
                            await each.beat()
                for each in members:
                    nursery.start_soon(_beat_on, each, _Watch())
                await trio.sleep(min(5.0, seconds))
                before, began = [seconds_of([pid]) for pid in pids], time.monotonic()
                await trio.sleep(seconds)
                spent = [seconds_of([pid]) - first for pid, first in zip(pids, before, strict=True)]
                share = 100 * max(spent) / (time.monotonic() - began)
                nursery.cancel_scope.cancel()
    return [at_most(f"{groups} idle groups, greatest of three nodes", share, "% core", IDLE_BAR)]


# Offsets


async def _commits(caller: Caller, seconds: float) -> list[Result]:
    """How many there are, and who is busy: a generator at its limit would measure itself."""
    nodes = _children("insync.replication.node.process._child")
    with committers(COMMITTERS, GROUPS, seconds, caller.servers) as running:
        before, began = [seconds_of([each]) for each in nodes], time.monotonic()
        told = await trio.to_thread.run_sync(running.run)
        took = time.monotonic() - began
        spent = [seconds_of([each]) - first for each, first in zip(nodes, before, strict=True)]
    rate = sum(commits for commits, _ in told) / seconds
    name = f"commits of one offset, {GROUPS} groups, 3 nodes"
    return [
        at_least(name, rate, "1/s", COMMITS_BAR),
        Result(name="commits: the busiest node", value=round(100 * max(spent) / took, 1), unit="% core"),
        Result(
            name=f"commits: the busier of {COMMITTERS} generators",
            value=round(100 * max(busy for _, busy in told), 1),
            unit="% core",
        ),
        Result(
            name="commits for a second of the nodes' processors",
            value=round(rate * took / sum(spent)),
            unit="1",
        ),
    ]


def _children(name: str) -> list[int]:
    """Processes that this one has started, by a word of their commands."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
            command = (place / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if parent == str(os.getpid()) and name.encode() in command:
            found.append(int(place.name))
    return found


async def _load(folder: Path, records: int, partitions: int) -> list[Result]:
    """One node, so that all groups load at its start."""
    async with _cluster(folder, 1, partitions) as (_, caller):
        for number in range(records // partitions):
            reply = await caller.ask(commit_of(f"group-{number}", 1, partitions))
            assert not reply.error, reply
    async with _cluster(folder, 1, partitions) as (nodes, _):
        replicas = nodes[0]._driver
        assert replicas is not None
        with trio.fail_after(300):
            while True:
                facts = replicas.broker.shards.facts()
                if len(facts) == PARTITIONS_OF_OFFSETS and all(each.active for each in facts):
                    break
                await trio.sleep(0.01)
        loaded = sum(each.loaded_records for each in facts)
        assert loaded >= records, (loaded, records)
        longest = max(each.load_seconds for each in facts)
    return [at_most(f"load of {records} offset records", longest, "s", LOAD_BAR)]

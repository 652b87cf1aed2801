"""Groups on real nodes: rebalances as members see them, commits a second, and what a new coordinator loads.

Members and committers speak the wire by themselves, many in one process: what is measured is the coordinator.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from insync.replication import Admin, Node, NodeSettings
from insync.replication.core.coordination import group_messages as gm
from tests.replication.node.group_clients import Caller, Member, calling

from ..processes import cluster
from ._processor import seconds_of
from .report import Result, at_least, at_most

LOAD_BAR, COMMITS_BAR, IDLE_BAR = 20.0, 10_000.0, 5.0
SESSION_MS, HEARTBEAT_MS = 6_000, 2_000
"""For rebalances; who is killed is missed after its session."""
PARTITIONS_OF_OFFSETS = 3
GROUPS = 300
"""Each commits one offset after the other."""


def run(*, smoke: bool) -> list[Result]:
    """All figures; `smoke`: small, to show that it runs."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "c").mkdir()
        return [
            *trio.run(_of_three, place / "a", *((8, 40, 0.5) if smoke else (100, 1000, 5.0))),
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


async def _of_three(folder: Path, members: int, partitions: int, seconds: float) -> list[Result]:
    """On three nodes."""
    async with _cluster(folder, 3, partitions) as (_, caller):
        return [*await _rebalances(caller, members, partitions), *await _commits(caller, seconds)]


# Rebalances


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


async def _rebalances(caller: Caller, members: int, partitions: int) -> list[Result]:
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

        async def measure(name: str, act: Callable[[], None], count: int) -> None:
            watch.gaps.clear()
            began = time.monotonic()
            act()
            await until(count)
            took, gaps = time.monotonic() - began, sorted(watch.gaps)
            results.append(Result(name=f"{name}: all is shared again", value=round(took, 3), unit="s"))
            if gaps:
                for label, value in (
                    ("median", statistics.median(gaps)),
                    ("p99", gaps[int(len(gaps) * 0.99)]),
                ):
                    told = f"{name}: a partition without an owner, {label}"
                    results.append(Result(name=told, value=round(1000 * value, 1), unit="ms"))

        def kill() -> None:
            killed.add(found[1].member_id)
            stops[1].cancel()

        for _ in range(members):
            start()
        await until(members)
        await measure(f"1 joins {members} over {partitions} partitions", start, members + 1)
        await measure(f"1 of {members + 1} leaves", stops[0].cancel, members)
        await measure(f"1 of {members} is killed, session {SESSION_MS / 1000:g} s", kill, members - 1)
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


def _commit(group: str, offset: int, partitions: int = 1) -> gm.CommitGroupOffsetsRequest:
    offsets = [gm.GroupOffset(topic="t", partition=number, offset=offset) for number in range(partitions)]
    return gm.CommitGroupOffsetsRequest(group=group, offsets=offsets)


async def _commits(caller: Caller, seconds: float) -> list[Result]:
    done, end = 0, 0.0

    async def commit(number: int) -> None:
        nonlocal done
        group, offset = f"group-{number}", 0
        while time.monotonic() < end:
            offset += 1
            reply = await caller.ask(_commit(group, offset))
            assert not reply.error, reply
            done += 1

    for number in range(GROUPS):
        await caller.find(f"group-{number}")
    end = time.monotonic() + seconds
    async with trio.open_nursery() as nursery:
        for number in range(GROUPS):
            nursery.start_soon(commit, number)
    return [at_least(f"commits of one offset, {GROUPS} groups, 3 nodes", done / seconds, "1/s", COMMITS_BAR)]


async def _load(folder: Path, records: int, partitions: int) -> list[Result]:
    """One node, so that all groups load at its start."""
    async with _cluster(folder, 1, partitions) as (_, caller):
        for number in range(records // partitions):
            reply = await caller.ask(_commit(f"group-{number}", 1, partitions))
            assert not reply.error, reply
    async with _cluster(folder, 1, partitions) as (nodes, _):
        replicas = nodes[0]._replicas
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

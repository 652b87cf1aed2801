"""Retention in a running node: by a thread of the log directory, never above the high watermark."""

from __future__ import annotations

import re
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from msgspec import structs

from insync.replication import Admin, Node
from insync.replication.core.broker.effects import DeleteLog, SetLogAside
from insync.replication.core.broker.membership.assignments import Assignments
from insync.replication.core.control.records import TopicConfig
from insync.replication.core.faces import ClockVerdict, WallClocks
from insync.replication.core.types import PartitionId
from insync.replication.node import driver
from insync.replication.node.logs import _maintenance_thread
from insync.replication.node.logs._maintenance_thread import LogKeeper, Progress, log_settings
from insync.storage import Log, LogDirectory, LogSettings, StorageFullError, Stray
from insync.storage.batch import build_batch

from ....storage.building import SMALL, append, batch
from ..test_cluster import consume, produce, replicas_agree, settings, until

SOON = {"log_maintenance_interval_ms": 30}


async def starts(admin: Admin, topic: str) -> set[tuple[int, int]]:
    """Log start of every replica, by node."""
    return {
        (report.node_id, replica.log_start_offset)
        for report in await admin.describe_replicas([topic])
        for replica in report.replicas
    }


@pytest.mark.slow
async def test_old_segments_go_on_every_replica_and_readers_go_on(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n, **SOON))) for n in (1, 2)]
        servers = [url for node in nodes for url in node.endpoints]
        admin = await stack.enter_async_context(Admin(servers))
        config = {"segment_bytes": 1024, "retention_bytes": 3000, "file_delete_delay_ms": 0}
        await admin.create_topic("t", 1, 2, config=config)
        for number in range(40):
            await produce(servers, "t", [b"%03d" % number * 60])

        first = 28
        """Four records fill a segment, and three segments are the least that 3,000 bytes fit in."""

        async def deleted() -> bool:
            """A follower may hear of its leader's start before its own keeper comes by and deletes."""
            folders = [tmp_path / f"node-{number}" / "t-0" for number in (1, 2)]
            oldest = {min(path.name for path in folder.glob("*.log")) for folder in folders}
            raised = await starts(admin, "t") == {(1, first), (2, first)}
            return raised and oldest == {f"{first:020}.log"}

        await until(deleted)
        await until(lambda: replicas_agree(admin, "t", 2))
        values = await consume(servers, "t", 1, 40 - first)
        assert values == [b"%03d" % number * 60 for number in range(first, 40)]
        for number in (1, 2):
            kept = sum(path.stat().st_size for path in (tmp_path / f"node-{number}" / "t-0").glob("*.log"))
            assert 3000 <= kept < 3000 + 2 * 1024
            checkpoint = (tmp_path / f"node-{number}" / "log-start-offset-checkpoint").read_text()
            assert f"t 0 {first}" in checkpoint
    async with Node(settings(tmp_path, 1, **SOON)) as one, Node(settings(tmp_path, 2, **SOON)):
        assert await consume(one.endpoints, "t", 1, 40 - first) == values


@pytest.mark.parametrize("question", ["high_watermark", "leads"])
async def test_the_keeper_may_ask_while_a_replica_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """It is a thread: it also looks between the end of a replica and that of its log."""
    if question == "leads":
        monkeypatch.setattr(driver.Driver, "high_watermark", lambda self, partition: 0)
    answer, remove = getattr(driver.Driver, question), Assignments._remove
    asked = threading.Semaphore(0)

    def ask(self: driver.Driver, partition: PartitionId) -> object:
        try:
            return answer(self, partition)
        finally:
            asked.release()

    def remove_and_wait(self: Assignments, partition: PartitionId, effect: DeleteLog | SetLogAside) -> None:
        remove(self, partition, effect)
        while asked.acquire(blocking=False):
            pass
        for _ in range(2):  # The first question may have begun before.
            assert asked.acquire(timeout=30), "the keeper's thread has ended"

    monkeypatch.setattr(driver.Driver, question, ask)
    monkeypatch.setattr(Assignments, "_remove", remove_and_wait)
    options = {"log_maintenance_interval_ms": 5}
    async with Node(settings(tmp_path, 1, **options)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await admin.delete_topic("t")
        await admin.create_topic("u", 1, 1)
        await produce(node.endpoints, "u", [b"1"])


class Told:
    """What a keeper tells, and the high watermark that it is told."""

    def __init__(self, mark: int | None, *, leads: bool = True) -> None:
        self.mark = mark
        self.is_leader = leads
        self.difference = 0.0
        self.doubts: list[float] = []
        self.asked = self.looked = 0
        self.raised: list[PartitionId] = []
        self.failed: list[str] = []
        self.succeeded: list[PartitionId] = []
        self.strays: list[list[Stray]] = []
        self.progress = Progress(
            self.raised.append,
            lambda _, error: self.failed.append(str(error)),
            lambda partition, _: self.succeeded.append(partition),
            lambda verdict: self.doubts.append(verdict.difference),
            self.strays.append,
            lambda error: None,
        )

    def high_watermark(self, partition: PartitionId) -> int | None:
        self.asked += 1
        return self.mark

    def leads(self, partition: PartitionId) -> bool:
        return self.is_leader

    def judge_clocks(self, now_ms: int) -> ClockVerdict:
        self.looked += 1
        return ClockVerdict(difference=self.difference)


@pytest.mark.parametrize(("mark", "most"), [(None, 0), (0, 0), (7, 7), (20, 20)])
async def test_nothing_at_or_above_the_high_watermark_goes(
    tmp_path: Path, mark: int | None, most: int
) -> None:
    directory = LogDirectory(
        tmp_path, cluster_id="c", node_id=1, settings=attrs.evolve(SMALL, retention_bytes=0)
    )
    log = directory.open_log("t", 0, create=True)
    for _ in range(20):
        append(log, batch(1, size=400))
    told = Told(mark)
    keeper = LogKeeper(directory, 10, None, -1, told, told.progress)
    keeper.start()
    with trio.fail_after(60):
        while told.asked < 5:
            await trio.lowlevel.checkpoint()
        await keeper.stop()
    assert log.log_start_offset <= most
    assert (log.log_start_offset > 0) == (most > 0) == bool(told.raised)
    directory.close()


async def test_what_fails_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1)
    log = directory.open_log("t", 0, create=True)

    def fail(*_: Any, **__: Any) -> None:
        raise StorageFullError("no room for a compaction")

    told = Told(0)
    keeper = LogKeeper(directory, 10, None, -1, told, told.progress)
    with monkeypatch.context() as patch, trio.fail_after(60):
        patch.setattr(type(log), "maintain", fail)
        keeper.start()
        while len(told.failed) < 3:
            await trio.lowlevel.checkpoint()
        assert not told.succeeded
    with trio.fail_after(60):
        while not told.succeeded:
            await trio.lowlevel.checkpoint()
        asked = told.asked
        while told.asked < asked + 3:
            await trio.lowlevel.checkpoint()
        await keeper.stop()
    assert {*told.failed} == {"no room for a compaction"}
    assert told.succeeded == [PartitionId("t", 0)], "once"
    directory.close()


@pytest.mark.parametrize(("leads", "doubted"), [(False, False), (True, True), (True, False)])
async def test_only_a_leader_whose_clock_is_right_deletes_what_is_old(
    tmp_path: Path, leads: bool, doubted: bool
) -> None:
    directory = LogDirectory(
        tmp_path, cluster_id="c", node_id=1, settings=attrs.evolve(SMALL, retention_ms=1000)
    )
    log = directory.open_log("t", 0, create=True)
    for _ in range(20):
        append(log, batch(1, size=400))
    told = Told(20, leads=leads)
    told.difference = 7.0 if doubted else 0.0
    keeper = LogKeeper(directory, 10, None, -1, told, told.progress)
    keeper.start()
    with trio.fail_after(60):
        while told.looked < 5:
            await trio.lowlevel.checkpoint()
        if leads and not doubted:
            assert log.log_start_offset == 20
        else:
            assert log.log_start_offset == 0
            log.advance_log_start_offset(11)
            while not doubted and log.segment_base_offsets[0] < 10:
                await trio.lowlevel.checkpoint()
        if doubted:
            assert told.asked == 0 and len(log.segment_base_offsets) > 5
            told.difference = 0.0
            while log.segment_base_offsets[0] < 20:
                await trio.lowlevel.checkpoint()
        await keeper.stop()
    assert told.doubts == ([7.0, 0.0] if doubted else [])
    directory.close()


async def test_a_clock_in_doubt_deletes_no_stray_log(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1)
    directory.close()
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1)
    directory.open_log("t", 0, create=True)
    stray = directory.set_aside(("t", 0), "why", 1)
    told = Told(None)
    told.difference = 7.0
    keeper = LogKeeper(directory, 10, None, 1000, told, told.progress)
    keeper.start()
    with trio.fail_after(60):
        while len(told.strays) < 3:
            await trio.lowlevel.checkpoint()
        assert told.strays == [[stray]] * len(told.strays)
        told.difference = 0.0
        while told.strays[-1]:
            await trio.lowlevel.checkpoint()
        await keeper.stop()
    directory.close()


@pytest.mark.parametrize("is_right", [True, False])
async def test_a_clock_that_is_set_between_two_looks_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_right: bool
) -> None:
    """The time by which records are old is the one that was compared with the other nodes'."""
    whole = _maintenance_thread.wall_clock_ms()
    looks = 0

    def clock() -> int:
        nonlocal looks
        looks += 1
        return whole if (looks % 2 == 1) == is_right else whole + 3 * 86_400_000

    monkeypatch.setattr(_maintenance_thread, "wall_clock_ms", clock)

    class Set(Told):
        def judge_clocks(self, now_ms: int) -> ClockVerdict:
            self.looked += 1
            return ClockVerdict(difference=(now_ms - whole) / 1000)

    directory = LogDirectory(
        tmp_path, cluster_id="c", node_id=1, settings=attrs.evolve(SMALL, retention_ms=86_400_000)
    )
    log = directory.open_log("t", 0, create=True)
    for _ in range(20):
        append(log, build_batch([None], [bytes(400)], timestamps_ms=whole))
    told = Set(20)
    keeper = LogKeeper(directory, 10, None, -1, told, told.progress)
    keeper.start()
    with trio.fail_after(60):
        while told.looked < 6:
            await trio.lowlevel.checkpoint()
        await keeper.stop()
    assert told.asked and any(told.doubts) and log.log_start_offset == 0
    directory.close()


async def test_a_clock_that_jumps_deletes_no_young_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leads: the followers' clocks say that it is wrong, and followers delete nothing by themselves."""
    ahead = {"ms": 0}
    whole = _maintenance_thread.wall_clock_ms
    monkeypatch.setattr(_maintenance_thread, "wall_clock_ms", lambda: whole() + ahead["ms"])
    for module in (driver,):
        monkeypatch.setattr(module, "wall_clock_ms", lambda: whole() + ahead["ms"])
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n, **SOON))) for n in (1, 2)]
        servers = [url for node in nodes for url in node.endpoints]
        admin = await stack.enter_async_context(Admin(servers))
        await admin.create_topic("t", 1, 2, config={"segment_bytes": 1024, "retention_ms": 86_400_000})
        await produce(servers, "t", [b"%03d" % number * 60 for number in range(40)])
        ahead["ms"] = 3 * 86_400_000

        async def told() -> bool:
            nodes = await admin.describe_nodes()
            details = [check.detail for each in nodes for check in each.checks if check.name == "maintenance"]
            return any("no majority shows which are wrong, so nothing is deleted" in each for each in details)

        await until(told)
        assert {start for _, start in await starts(admin, "t")} == {0}
        ahead["ms"] = 0

        async def well() -> bool:
            return all(check.ok for each in await admin.describe_nodes() for check in each.checks)

        await until(well)
        assert {start for _, start in await starts(admin, "t")} == {0}
        assert len(await consume(servers, "t", 1, 40)) == 40


@pytest.mark.slow
async def test_one_clock_that_is_behind_is_named_and_stops_retention_on_its_own_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three. All nodes of this process have the same clock, so the report of node 3's is changed."""
    behind_ms = 30 * 86_400_000
    hear, judge = WallClocks.heard, driver.Driver.judge_clocks

    def heard(clocks: WallClocks, node_id: int, distance: float) -> None:
        hear(clocks, node_id, distance - (behind_ms / 1000 if node_id == 3 else 0))

    def judged(replicas: driver.Driver, now_ms: int) -> ClockVerdict:
        return judge(replicas, now_ms - (behind_ms if replicas.settings.node_id == 3 else 0))

    monkeypatch.setattr(WallClocks, "heard", heard)
    monkeypatch.setattr(driver.Driver, "judge_clocks", judged)
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n, **SOON))) for n in (1, 2, 3)]
        servers = [url for node in nodes for url in node.endpoints]
        admin = await stack.enter_async_context(Admin(servers))
        config = {"segment_bytes": 1024, "retention_bytes": 3000}
        for leader, others in ((1, (2, 3)), (3, (1, 2))):
            await admin.create_topic(f"t{leader}", assignments=[(leader, *others)], config=config)

        async def told() -> bool:
            checks = {
                each.node_id: check
                for each in await admin.describe_nodes()
                for check in each.checks
                if check.name == "maintenance"
            }
            own = r"this node's clock is 259\d{4} s behind those of most nodes, so nothing is deleted"
            named = r"the clock of node 3 is 259\d{4} s behind those of most nodes: set it right there"
            return (
                [checks[each].ok for each in (1, 2, 3)] == [True, True, False]
                and re.search(own, checks[3].detail) is not None
                and re.search(named, checks[1].detail) is not None
            )

        await until(told)
        assert "the clock of node 3 is" in caplog.text
        for topic in ("t3", "t1"):
            for number in range(30):
                await produce(servers, topic, [b"%03d" % number * 60])

        async def deleted() -> bool:
            return all(start > 0 for _, start in await starts(admin, "t1"))

        await until(deleted)
        assert {start for _, start in await starts(admin, "t3")} == {0}


def test_a_topic_has_its_own_settings_and_the_node_those_it_does_not_name() -> None:
    base = LogSettings(flush_interval_messages=7, segment_bytes=4096)
    found = log_settings(base, TopicConfig(retention_ms=5, cleanup_policy="compact", segment_bytes=2048))
    assert (found.retention_ms, found.cleanup_policy, found.segment_bytes) == (5, "compact", 2048)
    assert found.flush_interval_messages == 7
    assert log_settings(base, TopicConfig(segment_bytes=1)) is base


async def test_changed_settings_of_a_topic_reach_its_logs(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 2, 1)
            await admin.create_topic("u", 1, 1)
        await produce(node.endpoints, "t", [b"x"] * 4)
        await produce(node.endpoints, "u", [b"x"] * 4)
        replicas = node._driver
        assert replicas is not None
        topic = replicas.view.topics["t"]
        changed = structs.replace(topic, config=structs.replace(topic.config, retention_ms=77))
        replicas.apply(attrs.evolve(replicas.view, topics={**replicas.view.topics, "t": changed}))
        logs: dict[PartitionId, Log] = {key: host.log for key, host in replicas.hosts.items() if host.log}
        with trio.fail_after(60):
            while {logs[PartitionId("t", n)].settings.retention_ms for n in (0, 1)} != {77}:
                await trio.lowlevel.checkpoint()
        assert logs[PartitionId("u", 0)].settings.retention_ms == topic.config.retention_ms

"""News of logs at their node: failures, deletions, retention, at moments that whole nodes meet too seldom."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from msgspec import structs

from insync.replication.core.control import records as rec
from insync.replication.core.control.view import ClusterView
from insync.replication.core.types import PartitionId
from insync.replication.node import NodeSettings
from insync.replication.node._replica_host import opened_event
from insync.replication.node.driver import Driver
from insync.replication.node.gateways._service import Service
from insync.replication.node.logs._log_writer import CallWork
from insync.replication.node.logs._startup_scan import Found
from insync.replication.node.service import Metric
from insync.storage import (
    CorruptLogError,
    LogClosedError,
    LogDirectory,
    ProducedBatch,
    ProducerSnapshot,
    StorageBrokenError,
    StorageError,
    find_strays,
)
from insync.transport import turn
from tests.storage.building import append, batch
from tests.storage.memory_log import MemoryLog

HERE, ABSENT = PartitionId("t", 0), PartitionId("absent", 0)


@asynccontextmanager
async def hosting(tmp_path: Path, *, directories: int = 1) -> AsyncIterator[Driver]:
    """A node that has a replica of `HERE`, whose leader is away, with an empty log; its threads run."""
    folders = [tmp_path / str(number) for number in range(directories)]
    settings = NodeSettings(node_id=1, data_dir=folders[0], store="memory://")
    found = Found([LogDirectory(folder, cluster_id="c", node_id=1) for folder in folders])
    async with trio.open_nursery() as nursery:
        node = Driver(settings, found, 1, nursery)
        node.directories.start()
        node.apply(view(1))
        with trio.fail_after(30):
            while node.hosts[HERE].log is None:
                await trio.lowlevel.checkpoint()
        try:
            yield node
        finally:
            with trio.CancelScope(shield=True):
                await node.directories.stop_threads()
                for home in node.directories.all:
                    home.directory.close()
            nursery.cancel_scope.cancel()


def view(revision: int, *, is_there: bool = True, is_deleted: bool = True) -> ClusterView:
    """is_deleted: whether the store says why the topic is not there."""
    deleted = rec.DeletedTopicRecord(name="t", topic_id="x" * 32, number=1)
    topic = rec.TopicRecord(
        name="t", topic_id="x" * 32, partitions=1, replication_factor=2, config=rec.TopicConfig()
    )
    record = rec.PartitionRecord(
        topic="t", partition=0, topic_id="x" * 32, replicas=(1, 2), isr=(2,), leader=2, min_insync_replicas=1
    )
    return ClusterView(
        revision=revision,
        topics={"t": topic} if is_there else {},
        partitions={HERE: rec.Versioned(record, 1)} if is_there else {},
        deleted={} if is_there or not is_deleted else {"x" * 32: (deleted, 1)},
    )


async def test_a_failure_of_one_log_is_its_own(tmp_path: Path) -> None:
    async with hosting(tmp_path) as node:
        node.log_failed(ABSENT, StorageError("of another"))
        node.log_failed(HERE, LogClosedError("closed"))
        assert not node.offline.partitions and not node.hosts[HERE].lane.closed
        node.log_failed(HERE, StorageError("no more"))
        assert HERE in node.offline.partitions and node.hosts[HERE].lane.closed
        assert node.hosts[HERE].replica.failure == "no more"
        assert node.failure is None, "the directory works"


async def test_settings_that_change_while_a_log_is_made_are_those_of_the_log(tmp_path: Path) -> None:
    """The writer comes to the change before the event loop, which is busy, has heard of the log."""
    here, tid = PartitionId("u", 0), "y" * 32
    async with hosting(tmp_path) as node:
        old = view(2)
        topic = structs.replace(old.topics["t"], name="u", topic_id=tid)
        record = structs.replace(old.partitions[HERE].record, topic="u", topic_id=tid)
        partitions = {**old.partitions, here: rec.Versioned(record, 1)}
        node.apply(attrs.evolve(old, topics={**old.topics, "u": topic}, partitions=partitions))
        topic = structs.replace(topic, config=structs.replace(topic.config, retention_ms=77))
        node.apply(attrs.evolve(old, revision=3, topics={**old.topics, "u": topic}, partitions=partitions))
        host, passed, settled = node.hosts[here], threading.Event(), trio.Event()
        host.submit(CallWork(host.lane, passed.set, lambda _: None))
        assert passed.wait(30) and host.log is None
        with trio.fail_after(30):
            while host.log is None:
                await trio.lowlevel.checkpoint()
            host.submit(CallWork(host.lane, lambda: None, lambda _: settled.set()))
            await settled.wait()
        assert host.log.settings.retention_ms == 77


@pytest.mark.parametrize("directories", [1, 2])
async def test_a_node_stops_with_its_last_directory(tmp_path: Path, directories: int) -> None:
    async with hosting(tmp_path, directories=directories) as node:
        node.went_offline([ABSENT], "not here")
        assert node.failure is None
        node.log_failed(HERE, StorageBrokenError("the device is broken"))
        assert "the device is broken" in str(node.hosts[HERE].replica.failure)
        assert (node.failure is None) == (directories == 2)
        if node.failure is not None:
            assert "no log directory works" in str(node.failure)


async def test_retention_tells_where_the_log_begins(tmp_path: Path) -> None:
    async with hosting(tmp_path) as node:
        host = node.hosts[HERE]
        assert host.log is not None
        append(host.log, *[batch() for _ in range(4)])
        host.step(opened_event(host.log, 4))
        node.directories.troubles.found_damaged(HERE, CorruptLogError("a file", 7, 2, "rotten"))
        host.log.advance_log_start_offset(1)
        node.log_start_raised(ABSENT)
        node.log_start_raised(HERE)
        assert host.replica.log.log_start_offset == 1
        assert HERE in node.directories.troubles.damaged, "the damage is there still"
        host.log.advance_log_start_offset(2)
        node.log_start_raised(HERE)
        assert HERE in node.directories.troubles.damaged, "the log begins with it"
        host.log.advance_log_start_offset(3)
        node.log_start_raised(HERE)
        assert host.replica.log.log_start_offset == 3
        assert HERE not in node.directories.troubles.damaged
        node.log_failed(HERE, StorageError("no more"))
        host.log.advance_log_start_offset(4)
        node.log_start_raised(HERE)
        assert host.replica.log.log_start_offset == 3, "nothing is told of a log that was given up"


@pytest.mark.parametrize("is_offline", [False, True])
async def test_a_replica_that_has_gone_is_deleted_and_may_come_again(
    tmp_path: Path, is_offline: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In a directory that is offline the log stays, and nobody waits for its deletion."""
    async with hosting(tmp_path, directories=2) as node:
        host = node.hosts[HERE]
        assert host.home is not None and host.log is not None
        folder = host.home.directory.path / "t-0"
        if is_offline:
            node.log_failed(HERE, StorageBrokenError("the device is broken"))
        node.apply(view(2, is_there=False))
        assert HERE not in node.hosts and host.lane.broken and host.lane.closed
        assert "t-0: its topic was deleted" in caplog.text
        with trio.fail_after(30):
            while node.directories.home_of(HERE) is not None:
                await trio.lowlevel.checkpoint()
        assert folder.exists() == is_offline and not node.offline.partitions
        with trio.fail_after(30):
            while bool([*folder.parent.glob("t-0*")]) != is_offline:
                await trio.lowlevel.checkpoint()
        node.apply(view(3))
        with trio.fail_after(30):
            while node.hosts[HERE].log is None:
                await trio.lowlevel.checkpoint()
        again = node.hosts[HERE]
        assert again is not host and again.log is not host.log and not again.lane.closed


async def test_a_log_that_cannot_be_deleted_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("it does not go away")

    monkeypatch.setattr(LogDirectory, "delete_log", fail)
    monkeypatch.setattr(LogDirectory, "delete_logs", fail)
    async with hosting(tmp_path) as node:
        node.apply(view(2, is_there=False))
        with trio.fail_after(30):
            while HERE not in node.offline.partitions:
                await trio.lowlevel.checkpoint()
        assert node.failure is None


@pytest.mark.parametrize("fails", [False, True])
async def test_a_replica_whose_topic_is_forgotten_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("it does not go away")

    if fails:
        monkeypatch.setattr(LogDirectory, "set_aside", fail)
    async with hosting(tmp_path) as node:
        home = node.hosts[HERE].home
        assert home is not None
        node.apply(view(2, is_there=False, is_deleted=False))
        with trio.fail_after(30):
            while HERE not in node.offline.partitions if fails else not home.strays:
                await trio.lowlevel.checkpoint()
        assert bool(find_strays(home.path)) != fails
        assert (node.directories.home_of(HERE) is None) != fails
        assert node.failure is None


async def test_what_is_to_be_settled_waits_for_the_end_of_the_turn(tmp_path: Path) -> None:
    async with hosting(tmp_path) as node:
        context = node.broker.context
        context.is_unsettled = True
        node.settle_later()
        assert not context.is_unsettled, "no turn is open"
        with turn():
            context.is_unsettled = True
            node.settle_later()
            assert context.is_unsettled
        assert not context.is_unsettled


async def test_news_of_a_log_is_settled_at_once(tmp_path: Path) -> None:
    """No turn may be open that would settle it: these come from the threads of a log directory."""
    async with hosting(tmp_path) as node:
        context, home = node.broker.context, node.directories.all[0]
        for news in (
            lambda: node.log_start_raised(HERE),
            lambda: node.went_offline([HERE], "no more"),
            lambda: node._freed(ABSENT, home.add_stray, None),
        ):
            context.is_unsettled = True
            news()
            assert not context.is_unsettled


async def test_a_gateway_takes_its_metrics_back(tmp_path: Path) -> None:
    def read() -> list[Metric]:
        return []

    async with hosting(tmp_path) as node:
        unused: Any = SimpleNamespace()
        service = Service("c", node, unused, unused, unused, unused, unused)
        forget, forget_other = service.tell_metrics(read), service.tell_metrics(read)
        assert list(node.gateway_metrics.values()) == [read, read]
        for _ in range(2):
            assert forget() is None
            assert list(node.gateway_metrics.values()) == [read], "its own, once"
        forget_other()
        assert not node.gateway_metrics


def test_the_core_hears_of_producers_that_there_is_something_to_compare_with() -> None:
    """Of their sequences, of their coordinator's epoch, or of the transaction that they are in."""
    states = [
        ProducerSnapshot(1, 11, (ProducedBatch(5, 6, 10, 11),), 1000),
        ProducerSnapshot(2, 12, (), 1000, coordinator_epoch=0),
        ProducerSnapshot(3, 13, (), 1000, first_offset=0),
        ProducerSnapshot(4, 14, (), 1000),
    ]

    class Log(MemoryLog):
        def producer_states(self) -> tuple[ProducerSnapshot, ...]:
            return tuple(states)

    found = opened_event(Log("t", 0), 0).producers
    assert [(each.producer_id, each.producer_epoch) for each in found] == [(1, 11), (2, 12), (3, 13)]
    assert [(len(each.batches), each.coordinator_epoch, each.first_offset) for each in found] == [
        (1, -1, -1),
        (0, 0, -1),
        (0, -1, 0),
    ]


async def test_what_the_time_asks_for_is_asked_for_in_one_turn(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Else each of thousands of logs wakes its writer by itself."""
    seen: list[bool] = []
    async with hosting(tmp_path) as node, trio.open_nursery() as nursery:
        ticked = trio.Event()

        def look() -> None:
            seen.append(turn().is_open)
            ticked.set()

        node.coordination.look_at_clock = look  # type: ignore[method-assign]
        node.broker.context.timers.call_at(trio.current_time(), lambda: None)
        nursery.start_soon(node.tick_broker)
        await ticked.wait()
        nursery.cancel_scope.cancel()
    assert seen and all(seen)

"""Consumers of a group on threads and asyncio mean what those on trio do; callbacks run where the caller is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

import insync.replication.asyncio as bridge
from insync.replication.client import (
    BlockingConsumer,
    ClosedError,
    InvalidArgumentError,
    Listener,
    NotAssignedError,
    SubscriptionError,
)

from ..consumer.test_consumer import fill
from ..consumer.test_groups import QUICK
from ..fake_coordinator import FakeCoordinator, group_cluster
from ..threaded_cluster import ThreadedCluster


class GroupThread(ThreadedCluster):
    """A fake cluster with a coordinator, in a thread; topic t has two partitions of ten records."""

    coordinator: FakeCoordinator

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with group_cluster(scheme="tcp", t=2) as (self.cluster, self.coordinator):
            for log in self.cluster.topics["t"]:
                fill(log, 10)
            self._up.set()
            await self._stop.wait()


@contextmanager
def group_thread() -> Iterator[GroupThread]:
    cluster = GroupThread()
    try:
        yield cluster
    finally:
        cluster.close()


def test_from_threads() -> None:
    heard: list[tuple[str, int, bool]] = []
    here = threading.get_ident()

    def note(what: str) -> Any:
        return lambda partitions: heard.append((what, len(partitions), threading.get_ident() == here))

    listener = Listener(on_assigned=note("assigned"), on_revoked=note("revoked"))
    with group_thread() as cluster:
        with BlockingConsumer(cluster.urls, **QUICK, enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"], listener=listener)
            got = 0
            while got < 20:
                got += len(consumer.poll(1000))
            consumer.commit()
            assert cluster.coordinator.committed() == {0: 10, 1: 10}
            assert consumer.committed([("t", 0)]) == {("t", 0): 10}
            told: list[Any] = []
            done = threading.Event()
            consumer.commit_nowait(
                {("t", 0): 4}, lambda offsets, error: (told.append((offsets, error)), done.set())
            )
            assert done.wait(10)
            assert told == [({("t", 0): 4}, None)]
            assert consumer.group_metadata().epoch > 0
        assert heard == [("assigned", 2, True), ("revoked", 2, True)]
        assert cluster.coordinator.members() == []


def test_a_loop_commits_what_it_has_come_to() -> None:
    with group_thread() as cluster, BlockingConsumer(cluster.urls, **QUICK) as consumer:
        consumer.subscribe(["t"])
        for seen, record in enumerate(consumer, 1):
            if seen == 13:
                consumer.commit()
                assert cluster.coordinator.committed()[record.partition] == record.offset + 1
                assert sum(cluster.coordinator.committed().values()) == 13
                break
        # What the loop did not come to comes again.
        left = []
        while len(left) < 7:
            left += consumer.poll(1000)
        assert len(left) == 7


def test_a_loop_that_is_left_is_done_with_all_but_its_last_record() -> None:
    with group_thread() as cluster:
        with BlockingConsumer(cluster.urls, **QUICK) as consumer:
            consumer.subscribe(["t"])
            for seen, _ in enumerate(consumer, 1):
                if seen == 13:
                    break
        assert sum(cluster.coordinator.committed().values()) == 12


@pytest.mark.parametrize("end", ["unsubscribe", "close"])
def test_a_loop_hands_out_nothing_of_a_group_that_was_left(end: str) -> None:
    """Another member may have the partitions by now."""
    with group_thread() as cluster, BlockingConsumer(cluster.urls, **QUICK) as consumer:
        consumer.subscribe(["t"])
        records = iter(consumer)
        next(records)
        getattr(consumer, end)()
        with pytest.raises((NotAssignedError, ClosedError)):
            next(records)
        assert cluster.coordinator.members() == []


def test_async_callbacks_are_not_for_threads() -> None:
    async def on_assigned(partitions: object) -> None: ...

    with group_thread() as cluster, BlockingConsumer(cluster.urls, **QUICK) as consumer:
        with pytest.raises(InvalidArgumentError, match="on_assigned"):
            consumer.subscribe(["t"], listener=Listener(on_assigned=on_assigned))
        with (
            BlockingConsumer(cluster.urls) as alone,
            pytest.raises(SubscriptionError, match="group_id"),
        ):
            alone.subscribe(["t"])


def test_on_asyncio() -> None:
    async def main(cluster: GroupThread) -> None:
        heard: list[tuple[str, int]] = []
        tasks = set()

        async def on_assigned(partitions: list[Any]) -> None:
            await asyncio.sleep(0)
            tasks.add(asyncio.current_task())
            heard.append(("assigned", len(partitions)))

        def on_revoked(partitions: list[Any]) -> None:
            heard.append(("revoked", len(partitions)))

        listener = Listener(on_assigned=on_assigned, on_revoked=on_revoked)
        async with bridge.Consumer(cluster.urls, **QUICK, enable_auto_commit=False) as consumer:
            await consumer.subscribe(["t"], listener=listener)
            seen = 0
            async for record in consumer:
                seen += 1
                if seen == 7:
                    await consumer.commit()
                    assert cluster.coordinator.committed()[record.partition] == record.offset + 1
                    assert sum(cluster.coordinator.committed().values()) == 7
                if seen == 20:
                    break
            told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            await consumer.commit_nowait(None, lambda offsets, error: told.set_result((offsets, error)))
            assert await told == ({("t", 0): 10, ("t", 1): 10}, None)
            assert tasks == {asyncio.current_task()}
        assert heard == [("assigned", 2), ("revoked", 2)]

    with group_thread() as cluster:
        asyncio.run(main(cluster))
        assert cluster.coordinator.members() == []

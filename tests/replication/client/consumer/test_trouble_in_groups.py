"""Members whose coordinator falls silent, and whose callbacks fail while they leave."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import trio

from insync.replication.client import ClientError, Consumer, Listener
from insync.replication.client.consumer import _member
from insync.replication.core.messages import groups as gm

from ..fake_coordinator import group_cluster
from ..patience import PATIENCE
from .test_consumer import fill
from .test_groups import QUICK, poll_until
from .test_leaving import PATIENT


async def test_a_commit_that_was_sent_and_not_answered_may_have_been_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed, told = 0.0, list[Exception | None]()
    monkeypatch.setattr(_member, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    async with group_cluster(t=1, settings=PATIENT) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 5)
        async with Consumer(cluster.urls, **QUICK, enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])
            await poll_until(lambda: consumer.positions() == {("t", 0): 5}, consumer)
            coordinator.deaf = True
            consumer.commit_nowait(on_commit=lambda _, error: told.append(error))
            with trio.fail_after(PATIENCE):
                while not any(isinstance(each, gm.CommitGroupOffsetsRequest) for each in coordinator.seen):
                    await trio.lowlevel.checkpoint()
            passed = 3600.0
            with trio.fail_after(PATIENCE):
                while not told:
                    await consumer.poll(20)
            (error,) = told
            assert isinstance(error, ClientError) and error.outcome == "unknown"
            coordinator.deaf = False


async def test_a_callback_that_fails_at_the_end_keeps_no_partition_from_the_others() -> None:
    def broken(partitions: object) -> None:
        raise RuntimeError("mine")

    async with (
        group_cluster(t=1, settings=PATIENT) as (cluster, coordinator),
        Consumer(cluster.urls, **QUICK) as consumer,
    ):
        consumer.subscribe(["t"], listener=Listener(on_revoked=broken))
        await poll_until(lambda: bool(consumer.assignment()), consumer)
        assert len(coordinator.members()) == 1
        with pytest.raises(RuntimeError, match="mine"):
            await consumer.close()
        # Its session would last for ten minutes.
        assert coordinator.members() == []


async def test_a_coordinator_that_is_gone_is_looked_for_again() -> None:
    async with group_cluster(nodes=2, t=1) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 5)
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.assign([("t", 0)])
            await consumer.commit({("t", 0): 3})
            cluster.move("t", 0, 1)
            coordinator.move(1)
            await cluster.nodes[0].stop()
            assert await consumer.committed([("t", 0)]) == {("t", 0): 3}
            await consumer.commit({("t", 0): 4})
        assert coordinator.committed() == {0: 4}

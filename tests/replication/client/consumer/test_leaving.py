"""How memberships end: within the time that was given, and with nothing of them left behind."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import structs

from insync.replication.client import AuthorizationError, Consumer, RequestTimeoutError
from insync.replication.client.consumer import _member

from ..fake_coordinator import SETTINGS, group_cluster
from .test_groups import PROTOCOLS, QUICK, poll_until

PATIENT = structs.replace(SETTINGS, consumer_session_timeout_ms=600_000, max_session_timeout_ms=600_000)


async def test_the_time_to_close_counts_from_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last poll was a minute ago; ten seconds for the end begin now."""
    passed = 0.0
    monkeypatch.setattr(_member, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    async with group_cluster(t=1, settings=PATIENT) as (cluster, coordinator):
        async with Consumer(cluster.urls, **QUICK) as consumer:
            consumer.subscribe(["t"])
            await poll_until(lambda: bool(consumer.positions()), consumer)
            assert len(coordinator.members()) == 1
            passed = 60.0
            await consumer.close()
        assert coordinator.members() == []


@PROTOCOLS
async def test_a_membership_that_is_over_hears_of_no_topics(settings: dict[str, Any]) -> None:
    async with group_cluster(t=1) as (cluster, _), Consumer(cluster.urls, **settings) as consumer:
        before = list(consumer._cluster.listeners)
        for _ in range(2):
            consumer.subscribe(["t"])
            await poll_until(lambda: bool(consumer.positions()), consumer)
            assert len(consumer._cluster.listeners) == len(before) + 1
            await consumer.unsubscribe()
            await trio.testing.wait_all_tasks_blocked()
            assert consumer._cluster.listeners == before


async def test_a_pattern_that_is_replaced_is_looked_for_no_more() -> None:
    """Each look describes every topic; the same pattern again is not looked for twice as often."""
    async with group_cluster(t1=1, u1=1) as (cluster, _), Consumer(cluster.urls, **QUICK) as consumer:

        def looking() -> int:
            return sum("_watch_topics" in task.name for task in consumer._nursery.child_tasks)

        for pattern in ("t.*", "u.*", "u.*", "u.*"):
            consumer.subscribe(pattern=pattern)
            await poll_until(lambda: bool(consumer.positions()), consumer)
            await trio.testing.wait_all_tasks_blocked()
            assert looking() == 1
        await poll_until(lambda: consumer.subscription() == ["u1"], consumer)
        consumer.subscribe(["t1"])
        await trio.testing.wait_all_tasks_blocked()
        assert looking() == 0 and consumer.subscription() == ["t1"]
        consumer.subscribe(pattern="u.*")
        await consumer.unsubscribe()
        await trio.testing.wait_all_tasks_blocked()
        assert looking() == 0


async def test_a_pattern_goes_on_after_silence_and_a_refusal_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [RequestTimeoutError("nobody answers"), AuthorizationError("not yours")]
    right = _member.whole_metadata

    async def listed(*asked: Any) -> Any:
        if failures:
            raise failures.pop(0)
        return await right(*asked)

    monkeypatch.setattr(_member, "whole_metadata", listed)
    async with group_cluster(t=1) as (cluster, _), Consumer(cluster.urls, **QUICK) as consumer:
        consumer.subscribe(pattern="t")
        with pytest.raises(AuthorizationError, match="not yours"), trio.fail_after(30):
            while True:
                await consumer.poll(50)


@PROTOCOLS
async def test_what_was_revoked_is_not_held_any_more(settings: dict[str, Any]) -> None:
    """Topics come and go while one consumer lives: it keeps nothing of those that it does not read."""
    async with group_cluster(t=2, u=1) as (cluster, _), Consumer(cluster.urls, **settings) as consumer:
        for topic in ("t", "u"):
            consumer.subscribe([topic])
            await poll_until(
                lambda topic=topic: {at.topic for at in consumer.positions()} == {topic},  # type: ignore[misc]
                consumer,
                seconds=60,
            )
            assert consumer._member is not None
            assert {at.topic for at in consumer._member.held} == {topic}

"""Rules of the consumer that show only in one particular order of events, one test for each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import wire
from insync.replication.client import (
    AuthorizationError,
    Consumer,
    CorruptMessageError,
    PolicyViolationError,
    RequestTimeoutError,
)
from insync.replication.client._settings import ConsumerSettings
from insync.replication.client.consumer._fetcher import Fetcher, _Poll
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from insync.replication.core.types import EpochEnd
from insync.transport import NotAuthorisedError
from insync.transport.requests import Response

from ..fake_cluster import FakeNode, fake_cluster
from ..faults import fail_with
from .test_consumer import fill, read
from .test_hostile_data import rotten, spoil

SLOW = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
"""What is tried again more than twenty times in a row is tried slowly."""


async def test_a_node_that_asks_for_a_pause_is_asked_nothing_until_it_is_over(autojump_clock):
    def throttled(node: FakeNode, request: Any) -> bool:
        result, data = node._fetch_one(wire.decode_request(Kind.FETCH, request.body).partitions[0])
        answer = m.FetchResponse(partitions=[result], throttle_time_ms=3000)
        request.reply(wire.encode(answer), [data])
        return True

    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 10)
        cluster.nodes[0].script(Kind.FETCH, throttled)
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            assert consumer.throttled_ms(("t", 0)) == 0
            await read(consumer, 10)
            assert 2900 < consumer.throttled_ms(("t", 0)) <= 3000
            fill(log, 10)
            assert await consumer.poll(2000) == []
            assert cluster.nodes[0].seen[Kind.FETCH] == 1
            assert 900 < consumer.throttled_ms(("t", 0)) <= 1000
            assert len(await read(consumer, 10)) == 10
            assert consumer.throttled_ms(("t", 0)) == 0


async def test_a_fetch_says_which_epoch_its_leader_is_taken_for():
    """So that a former leader refuses it (KIP-320)."""
    asked: list[m.FetchPartition] = []

    def look(node: FakeNode, request: Any) -> bool:
        if request.kind == Kind.FETCH:
            asked.extend(wire.decode_request(Kind.FETCH, request.body).partitions)
        return False

    async with fake_cluster(t=1) as cluster:
        fill(cluster.topics["t"][0], 10)
        for node_id in (1, 2, 1):
            cluster.move("t", 0, node_id)
        cluster.chaos = look
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            await read(consumer, 10)
    assert {each.leader_epoch for each in asked} == {3}


async def test_a_log_that_was_cut_below_its_start_is_read_from_there():
    def cut(node: FakeNode, request: Any) -> bool:
        result = m.FetchResult(
            topic="t",
            partition=0,
            error=0,
            high_watermark=40,
            log_start_offset=20,
            diverging=EpochEnd(0, 10),
        )
        request.reply(wire.encode(m.FetchResponse(partitions=[result])))
        return True

    async with fake_cluster(nodes=1, t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 40)
        async with Consumer(cluster.urls, auto_offset_reset="latest") as consumer:
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), 0)
            await read(consumer, 40)
            log.drop_before(20)
            cluster.nodes[0].script(Kind.FETCH, cut)
            await trio.testing.wait_all_tasks_blocked(0.01)
            consumer.resume()
            assert [each.offset for each in await read(consumer, 20)] == list(range(20, 40))


async def test_the_next_leader_is_asked_at_once_however_long_the_last_one_has_failed(autojump_clock):
    async with fake_cluster(t=1) as cluster:
        fill(cluster.topics["t"][0], 10)
        cluster.nodes[0].script(Kind.FETCH, *[fail_with(ErrorCode.KAFKA_STORAGE_ERROR)] * 1000)
        async with Consumer(cluster.urls, auto_offset_reset="earliest", **SLOW) as consumer:
            consumer.assign([("t", 0)])
            assert await consumer.poll(10_000) == []
            cluster.move("t", 0, 1)
            await consumer._cluster.refresh()
            with trio.fail_after(2):
                assert len(await consumer.poll(60_000)) == 10


async def test_failures_that_are_over_do_not_slow_the_next_ones_down(autojump_clock):
    failing = [fail_with(ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Consumer(cluster.urls, auto_offset_reset="earliest", **SLOW) as consumer,
    ):
        consumer.assign([("t", 0)])
        began = trio.current_time()
        for _ in range(4):
            cluster.nodes[0].script(Kind.FETCH, *failing * 12)
            fill(cluster.topics["t"][0], 10)
            cluster.appended()
            await read(consumer, 10)
        assert trio.current_time() - began < 10


async def test_a_long_poll_at_a_former_leader_is_not_sat_out(autojump_clock):
    async with fake_cluster(t=1) as cluster:
        log = cluster.topics["t"][0]
        fill(log, 10)
        async with Consumer(cluster.urls, auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as consumer:
            consumer.assign([("t", 0)])
            await read(consumer, 10)
            await trio.testing.wait_all_tasks_blocked()
            # Nobody tells the node; it stays silent, as one that was cut off does.
            log.leader, log.epoch = 1, 1
            fill(log, 10)
            await consumer._cluster.refresh()
            with trio.fail_after(2):
                assert len(await consumer.poll(60_000)) == 10


async def test_a_question_for_offsets_says_that_there_is_no_leader(autojump_clock):
    async with fake_cluster(t=1) as cluster:
        cluster.move("t", 0, -1)
        async with Consumer(cluster.urls, request_timeout_ms=1000) as consumer:
            with pytest.raises(RequestTimeoutError, match="LEADER_NOT_AVAILABLE"):
                await consumer.end_offsets([("t", 0)])


def refused(code: ErrorCode, leader: int = -1) -> Any:
    def fault(node: FakeNode, request: Any) -> bool:
        result = m.ListOffsetsResult(
            topic="t", partition=0, error=code, offset=-1, leader=leader, leader_epoch=9
        )
        request.reply(wire.encode(m.ListOffsetsResponse(partitions=[result])))
        return True

    return fault


async def test_a_refusal_that_no_repetition_changes_is_told_at_once(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster, Consumer(cluster.urls) as consumer:
        cluster.nodes[0].script(Kind.LIST_OFFSETS, *[refused(ErrorCode.POLICY_VIOLATION)] * 1000)
        with trio.fail_after(1), pytest.raises(PolicyViolationError):
            await consumer.end_offsets([("t", 0)])


async def test_who_may_not_read_is_told_at_once(autojump_clock):
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Consumer(cluster.urls, auto_offset_reset="earliest", fetch_max_wait_ms=500) as consumer,
    ):
        consumer.assign([("t", 0)])
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def refuse() -> None:
                await trio.testing.wait_all_tasks_blocked()
                (poll,) = consumer._fetcher._polls.values()
                consumer._fetcher._answered(poll, NotAuthorisedError(0, "client may not consume"))

            with pytest.raises(AuthorizationError, match="may not consume"):
                await consumer.poll(60_000)
        assert trio.current_time() - began < 0.3


@pytest.mark.parametrize(
    ("error", "is_suspected"),
    [(ErrorCode.OFFSET_NOT_AVAILABLE, False), (ErrorCode.NOT_LEADER_OR_FOLLOWER, True)],
)
async def test_who_says_what_only_a_leader_says_is_not_suspected(
    error, is_suspected, autojump_clock, monkeypatch
):
    suspected = []
    async with fake_cluster(nodes=1, t=1) as cluster, Consumer(cluster.urls) as consumer:
        assert await consumer.end_offsets([("t", 0)]) == {("t", 0): 0}
        monkeypatch.setattr(consumer._cluster, "suspect", lambda *at: suspected.append(at))
        cluster.nodes[0].script(Kind.LIST_OFFSETS, refused(error))
        assert await consumer.end_offsets([("t", 0)]) == {("t", 0): 0}
    assert bool(suspected) == is_suspected


async def test_a_hint_saves_a_question_for_offsets_a_look(autojump_clock):
    def silent(node: FakeNode, request: Any) -> bool:
        return request.kind == Kind.METADATA

    async with fake_cluster(t=1) as cluster, Consumer(cluster.urls) as consumer:
        fill(cluster.topics["t"][0], 10)
        assert await consumer.end_offsets([("t", 0)]) == {("t", 0): 10}
        cluster.nodes[0].script(Kind.LIST_OFFSETS, refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=2))
        cluster.topics["t"][0].leader = 2
        cluster.chaos = silent
        with trio.fail_after(1):
            assert await consumer.end_offsets([("t", 0)]) == {("t", 0): 10}


async def test_a_paused_partition_keeps_its_error_to_itself():
    async with fake_cluster(nodes=1, t=2) as cluster:
        for log in cluster.topics["t"]:
            fill(log, 10)
        spoil(cluster.topics["t"][0], 0, rotten)
        async with Consumer(cluster.urls, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            with trio.fail_after(5), pytest.raises(CorruptMessageError):
                await consumer.poll(10_000)
            consumer.assign([("t", 0), ("t", 1)])
            consumer.pause([("t", 0)])
            assert {each.partition for each in await read(consumer, 10)} == {1}
            consumer.resume([("t", 0)])
            with pytest.raises(CorruptMessageError):
                await consumer.poll(10_000)


async def test_a_time_after_all_records_has_no_offset():
    def told(node: FakeNode, request: Any) -> bool:
        (part,) = wire.decode_request(Kind.LIST_OFFSETS, request.body).partitions
        offset = 3 if part.timestamp < 100 else -1
        result = m.ListOffsetsResult(topic="t", partition=0, error=0, offset=offset)
        request.reply(wire.encode(m.ListOffsetsResponse(partitions=[result])))
        return True

    async with fake_cluster(nodes=1, t=1) as cluster, Consumer(cluster.urls) as consumer:
        cluster.nodes[0].script(Kind.LIST_OFFSETS, told, told)
        assert await consumer.offsets_for_times({("t", 0): 50}) == {("t", 0): 3}
        assert await consumer.offsets_for_times({("t", 0): 200}) == {("t", 0): None}


class Held:
    """A payload in memory that others wait for."""

    released = False

    def release(self) -> None:
        self.released = True


async def test_memory_of_an_answer_that_nobody_wants_any_more_is_given_back():
    """It was on its way when the consumer's positions changed."""
    async with trio.open_nursery() as nursery:
        nowhere: Any = SimpleNamespace(listeners=[])
        fetcher = Fetcher(ConsumerSettings(), nowhere, nursery)
        poll, payload = _Poll(1, nowhere, {}, 0.0, 0.0), Held()
        fetcher._answered(poll, Response(b"", payload))
        assert payload.released

"""A producer of whole batches: each once, in order, byte for byte; and what it says when that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from insync.replication.client import (
    BatchProducer,
    DeliveryTimeoutError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
)
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from insync.storage.batch import build_batch

from ..fake_cluster import fake_cluster
from ..faults import answer_when, disconnect_after_append, fail_with, later, not_leader, random_faults
from ..patience import asked


def batches(count: int, *, first: int = 0, size: int = 2) -> list[bytes]:
    """Batches of one producer whose sequences follow each other."""
    return [
        build_batch(
            [None] * size,
            [b"%d" % (n * size + k) for k in range(size)],
            timestamps_ms=1,
            producer_id=9,
            producer_epoch=0,
            base_sequence=n * size,
        )
        for n in range(first, first + count)
    ]


def values(count: int, size: int = 2) -> list[bytes]:
    return [b"%d" % n for n in range(count * size)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), rate=st.sampled_from([0.1, 0.3, 0.6]))
def test_each_batch_once_and_in_order_under_random_faults(seed, rate):
    async def main() -> None:
        async with fake_cluster(nodes=3, t=2) as cluster:
            cluster.chaos = random_faults(seed, rate=rate, budget=10)
            async with BatchProducer(
                cluster.urls, request_timeout_ms=150, retry_backoff_ms=5, retry_backoff_max_ms=20
            ) as producer:
                for batch in batches(40):
                    for partition in range(2):
                        await producer.send("t", partition, batch)
                with trio.fail_after(30):
                    await producer.flush()
            assert [log.values() for log in cluster.topics["t"]] == [values(40)] * 2

    trio.run(main)


async def test_no_more_than_the_leader_remembers_is_in_flight():
    answered = trio.Event()
    async with fake_cluster(nodes=1, t=1) as cluster, BatchProducer(cluster.urls) as producer:
        node = cluster.nodes[0]
        node.script(Kind.PRODUCE, answer_when(answered))
        for batch in batches(20):
            await producer.send("t", 0, batch)
        assert await asked(node, Kind.PRODUCE, 1) == 1, "the leader does not know the producer yet"
        second = trio.Event()
        node.script(Kind.PRODUCE, answer_when(second))
        answered.set()
        assert await asked(node, Kind.PRODUCE, 1 + 5) == 1 + 5
        second.set()
        with trio.fail_after(5):
            await producer.flush()
        # What was served before the second one was refused as out of order, and went again.
        assert cluster.topics["t"][0].values() == values(20)


async def test_what_is_in_flight_to_a_former_leader_settles_before_the_next_one_is_sent_anything():
    answered = trio.Event()
    async with fake_cluster(nodes=2, t=1) as cluster, BatchProducer(cluster.urls) as producer:
        first, *others = batches(4)
        await producer.send("t", 0, first)
        await producer.flush()
        cluster.nodes[0].script(Kind.PRODUCE, later(answered, not_leader))
        await producer.send("t", 0, others[0])
        await asked(cluster.nodes[0], Kind.PRODUCE, 2)
        cluster.move("t", 0, 1)
        await producer._cluster.refresh()
        for batch in others[1:]:
            await producer.send("t", 0, batch)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert cluster.nodes[1].seen[Kind.PRODUCE] == 0
        answered.set()
        with trio.fail_after(5):
            await producer.flush()
        assert cluster.topics["t"][0].values() == values(4)


async def test_a_partition_without_a_leader_is_looked_at_less_and_less_often(autojump_clock, monkeypatch):
    pauses: list[int] = []
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.move("t", 0, -1)
        async with BatchProducer(cluster.urls) as producer:
            monkeypatch.setattr(
                producer._cluster, "quick_backoff", lambda attempt: pauses.append(attempt) or 0.1
            )
            await producer.send("t", 0, *batches(1))
            await trio.sleep(1.05)
            cluster.move("t", 0, 0)
            await producer.flush()
        assert cluster.topics["t"][0].values() == values(1)
    assert len(pauses) > 5 and pauses == list(range(1, len(pauses) + 1))


async def test_who_sends_without_end_lets_others_run():
    async with fake_cluster(nodes=1, t=1) as cluster, BatchProducer(cluster.urls) as producer:
        for batch in batches(3):
            with trio.testing.assert_checkpoints():
                await producer.send("t", 0, batch)


async def test_memory_is_bounded_and_given_back(autojump_clock):
    answered = trio.Event()
    made = batches(9)
    room = sum(map(len, made[:2]))
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with BatchProducer(cluster.urls, buffer_memory=room) as producer:
            cluster.nodes[0].script(Kind.PRODUCE, answer_when(answered))
            for batch in made[:2]:
                await producer.send("t", 0, batch)
            with trio.move_on_after(1) as waiting:
                await producer.send("t", 0, made[2])
            assert waiting.cancelled_caught
            answered.set()
            with trio.fail_after(5):
                for batch in made[2:]:
                    await producer.send("t", 0, batch)
                await producer.flush()
        assert cluster.topics["t"][0].values() == values(9)


async def test_an_answer_that_was_lost_is_no_second_batch():
    async with fake_cluster(nodes=1, t=1) as cluster, BatchProducer(cluster.urls) as producer:
        cluster.nodes[0].script(Kind.PRODUCE, *[disconnect_after_append] * 3)
        for batch in batches(5):
            await producer.send("t", 0, batch)
        with trio.fail_after(5):
            await producer.flush()
        assert cluster.topics["t"][0].values() == values(5)


@pytest.mark.parametrize(
    ("sent", "faults", "error"),
    [
        (batches(3), [fail_with(ErrorCode.RECORD_TOO_LARGE)], RecordTooLargeError),
        ([*batches(1), *batches(2, first=4)], [], OutOfOrderSequenceError),
    ],
)
async def test_what_cannot_be_repaired_ends_it(sent, faults: list[Any], error):
    async with fake_cluster(nodes=1, t=1) as cluster, BatchProducer(cluster.urls) as producer:
        cluster.nodes[0].script(Kind.PRODUCE, *faults)
        with trio.fail_after(5), pytest.raises(error):
            for batch in sent:
                await producer.send("t", 0, batch)
            await producer.flush()
        with pytest.raises(error):
            await producer.send("t", 0, sent[0])


async def test_what_fails_for_too_long_ends_it_with_the_last_trouble(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, *[fail_with(ErrorCode.NOT_ENOUGH_REPLICAS, "1 of 2")] * 1000)
        async with BatchProducer(cluster.urls, delivery_timeout_ms=2000) as producer:
            began = trio.current_time()
            await producer.send("t", 0, batches(1)[0])
            with pytest.raises(DeliveryTimeoutError, match="1 of 2") as caught:
                await producer.flush()
            assert caught.value.outcome == "unknown"
            assert 2 <= trio.current_time() - began < 4


async def test_each_failure_has_its_own_time(autojump_clock):
    """`delivery_timeout_ms` is how long one batch may fail, not how long all have failed together."""
    refusing = fail_with(ErrorCode.NOT_ENOUGH_REPLICAS)
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with BatchProducer(cluster.urls, delivery_timeout_ms=1000) as producer:
            for batch in batches(4):
                cluster.nodes[0].script(Kind.PRODUCE, *[refusing] * 15)
                await producer.send("t", 0, batch)
                await producer.flush()
        assert cluster.topics["t"][0].values() == values(4)

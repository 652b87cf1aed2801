"""Answers, failures and calls that come in an order which a quick network seldom shows."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import wire
from insync.replication.client import (
    ClientError,
    Consumer,
    InvalidRecordError,
    NodeStorageError,
    Producer,
    RecordTooLargeError,
)
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from insync.storage.batch import scan

from ..fake_cluster import FakeNode, Fault, fake_cluster
from ..faults import answer_when, fail_with, later
from ..patience import asked
from .test_consumer import fill, read


def noting(epochs: list[tuple[int, int]], fault: Fault | None = None) -> Fault:
    """Note epoch and first sequence of each batch that arrives."""

    def note(node: FakeNode, request: Any) -> bool:
        if request.kind == Kind.PRODUCE:
            for info in scan(bytes(request.payload.view())):
                epochs.append((info.producer_epoch, info.base_sequence))
        return fault is not None and fault(node, request)

    return note


async def test_the_next_epoch_waits_until_nothing_of_the_last_one_is_in_flight():
    """A batch of the old epoch that arrives behind one of the new would be fenced: it would never be written."""
    refused, answered = trio.Event(), trio.Event()
    epochs: list[tuple[int, int]] = []
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0) as producer:
            await (await producer.send("t", b"first")).wait()
            cluster.chaos = noting(epochs)
            node.script(
                Kind.PRODUCE, later(refused, fail_with(ErrorCode.RECORD_TOO_LARGE)), answer_when(answered)
            )
            bad = await producer.send("t", b"bad")
            await asked(node, Kind.PRODUCE, 2)
            flying = await producer.send("t", b"flying")
            await asked(node, Kind.PRODUCE, 3)
            refused.set()
            with pytest.raises(RecordTooLargeError):
                await bad.wait()
            behind = await producer.send("t", b"behind")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert node.seen[Kind.INIT_PRODUCER_ID] == 1
            answered.set()
            with trio.fail_after(5):
                await flying.wait()
                await behind.wait()
        assert cluster.topics["t"][0].values() == [b"first", b"flying", b"behind"]
        assert [epoch for epoch, _ in epochs] == sorted(epoch for epoch, _ in epochs)


@pytest.mark.parametrize("how", ["offset", "beginning"])
async def test_a_seek_overtakes_the_look_up_of_an_offset(how, autojump_clock):
    """`auto_offset_reset` was being looked up when the caller said where to read."""
    looked_up, served = trio.Event(), trio.Event()
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        fill(cluster.topics["t"][0], 40)
        node.script(Kind.LIST_OFFSETS, answer_when(looked_up), answer_when(served))
        node.script(Kind.FETCH, answer_when(served))
        async with Consumer(cluster.urls, auto_offset_reset="latest") as consumer:
            consumer.assign([("t", 0)])
            assert await consumer.poll(50) == []
            assert node.seen[Kind.LIST_OFFSETS] == 1
            if how == "offset":
                consumer.seek(("t", 0), 3)
            else:
                consumer.seek_to_beginning()
            assert await consumer.poll(50) == []
            looked_up.set()
            assert await consumer.poll(50) == []
            assert consumer.position(("t", 0)) == (3 if how == "offset" else None)
            served.set()
            first = 3 if how == "offset" else 0
            assert [each.offset for each in await read(consumer, 40 - first)] == list(range(first, 40))


@pytest.mark.parametrize("acks", [1, "all"])
@pytest.mark.parametrize(
    ("code", "error", "outcome"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, NodeStorageError, "unknown"),
        (ErrorCode.INVALID_RECORD, InvalidRecordError, "absent"),
    ],
)
async def test_an_append_that_failed_is_no_acknowledgement(acks, code, error, outcome, autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, *[fail_with(code, "the disk is full")] * 3)
        idempotent = acks == "all"
        options: dict[str, Any] = {"acks": acks, "retries": 1 if idempotent else 0}
        async with Producer(cluster.urls, linger_ms=0, **options) as producer:
            delivery = await producer.send("t", b"x")
            with trio.fail_after(5), pytest.raises(error, match="the disk is full") as caught:
                await delivery.wait()
            assert caught.value.outcome == outcome
        assert cluster.topics["t"][0].values() == []


async def test_with_acks_1_a_failed_append_is_tried_again(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, fail_with(ErrorCode.KAFKA_STORAGE_ERROR))
        async with Producer(cluster.urls, linger_ms=0, acks=1) as producer:
            with trio.fail_after(5):
                assert (await (await producer.send("t", b"x")).wait()).offset == 0
        assert cluster.nodes[0].seen[Kind.PRODUCE] == 2
        assert cluster.topics["t"][0].values() == [b"x"]


async def test_an_answer_that_leaves_a_partition_out_acknowledges_nothing(autojump_clock):
    def forgetful(node: FakeNode, request: Any) -> bool:
        request.reply(wire.encode(m.ProduceResponse(partitions=[])))
        return True

    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, forgetful)
        async with Producer(cluster.urls, linger_ms=0, acks=1) as producer:
            with (
                trio.fail_after(5),
                pytest.raises(ClientError, match="does not contain the partition") as caught,
            ):
                await (await producer.send("t", b"x")).wait()
            assert caught.value.outcome == "unknown"


async def test_a_seek_between_the_decision_to_look_an_offset_up_and_the_look_up_is_no_error():
    """The task that looks up starts a turn later than it is decided on: the reading may be elsewhere by then."""
    async with fake_cluster(nodes=1, t=1) as cluster, Consumer(cluster.urls) as consumer:
        fill(cluster.topics["t"][0], 3)
        await consumer.assign_topic("t")
        (reading,) = consumer._fetcher.readings.values()
        decided = reading.generation
        consumer.seek(("t", 0), 1)
        await consumer._fetcher._resolve(reading, decided)
        assert [record.value for record in await read(consumer, 2)] == [b"1", b"2"]

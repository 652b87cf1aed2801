"""Batches grow while they cannot be sent; a producer with nothing in its way sends at once."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import wire
from insync.replication.client import InvalidArgumentError, Producer
from insync.replication.client.producer._accumulator import Accumulator
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from insync.storage.batch import records, scan

from ..fake_cluster import FakeCluster, FakeNode, Fault, fake_cluster
from ..faults import answer_when, fail_with, later
from ..patience import asked
from .test_producer import numbered


def watch(cluster: FakeCluster, fault: Fault | None = None) -> list[list[tuple[str, int, int]]]:
    """Of each produce request that arrives: topic, partition and record count of its batches."""
    seen: list[list[tuple[str, int, int]]] = []

    def look(node: FakeNode, request: Any) -> bool:
        if request.kind == Kind.PRODUCE:
            asked = wire.decode_request(Kind.PRODUCE, request.body)
            payload, at, found = bytes(request.payload.view()), 0, []
            for part in asked.partitions:
                (info,) = scan(payload[at : at + part.size])
                at += part.size
                found.append((part.topic, part.partition, info.record_count))
            seen.append(found)
        return fault is not None and fault(node, request)

    cluster.chaos = look
    return seen


def sizes(seen: list[list[tuple[str, int, int]]], partition: int = 0) -> list[int]:
    return [count for request in seen for _, number, count in request if number == partition]


MODES: list[dict[str, Any]] = [
    {"acks": "all"},
    {"acks": 1},
    {"acks": 0},
    {"acks": "all", "compression_type": "lz4"},
    {"acks": 1, "compression_type": "gzip"},
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
@pytest.mark.parametrize("how", ["send", "send_many", "send_nowait"])
async def test_what_waits_behind_a_full_window_goes_in_one_batch(mode, how):
    answered = trio.Event()
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, batch_size=300, linger_ms=0, **mode) as producer:
            await (await producer.send("t", b"first")).wait()
            node.script(Kind.PRODUCE, *[answer_when(answered)] * 5)
            values = numbered(1000)
            deliveries: Any = []
            if how == "send_many":
                deliveries = await producer.send_many("t", values)
            for value in values if how != "send_many" else ():
                if how == "send":
                    deliveries.append(await producer.send("t", value))
                else:
                    deliveries.append(producer.send_nowait("t", value))
            assert await asked(node, Kind.PRODUCE, 5) in (5, 6), "the window is full"
            answered.set()
            with trio.fail_after(5):
                await producer.flush()
                while cluster.topics["t"][0].end < 1001:
                    await trio.lowlevel.checkpoint()  # with acks=0 nobody says when it is there
        written = cluster.topics["t"][0].values()
        if mode["acks"] != "all":
            # Without sequences nothing keeps in order what the node takes up in any order.
            written.sort()
            values.append(b"first")
        else:
            values.insert(0, b"first")
        assert written == values
        counts = sorted(len(list(records(batch))) for batch in cluster.topics["t"][0].batches)
        # Until the window was full they went by `batch_size`.
        assert len(counts) <= 7 and counts[-2] < 30 and counts[-1] > 850
        if mode["acks"] != 0:
            assert sorted(delivery.result().offset for delivery in deliveries) == list(range(1, 1001))


async def test_nothing_grows_while_there_is_room_in_the_window():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, batch_size=300) as producer:
        await (await producer.send("t", b"first")).wait()
        seen = watch(cluster)
        for start in range(0, 300, 30):
            await (await producer.send_many("t", numbered(30, start))).wait()
    assert max(sizes(seen)) < 30


async def test_an_idle_producer_sends_at_once(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=0) as producer:
        await producer.prepare("t")
        began = trio.current_time()
        await (await producer.send("t", b"x")).wait()
        assert trio.current_time() == began


async def test_a_batch_that_has_reached_batch_size_does_not_linger(autojump_clock):
    answered = trio.Event()
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, batch_size=300, linger_ms=60_000) as producer,
    ):
        cluster.nodes[0].script(Kind.PRODUCE, answer_when(answered))
        deliveries = await producer.send_many("t", numbered(100))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        answered.set()
        while not deliveries[90].done:
            await trio.lowlevel.checkpoint()
        assert trio.current_time() == began
        assert len(cluster.topics["t"][0].batches) <= 3


@pytest.mark.parametrize(("largest", "topic_limit"), [(2000, None), (1 << 20, 2000)])
async def test_no_batch_grows_above_what_a_request_holds_or_the_topic_takes(
    largest, topic_limit, monkeypatch
):
    answered = trio.Event()
    real = FakeNode._topic

    def limited(node: FakeNode, name: str) -> Any:
        info = real(node, name)
        if topic_limit is not None:
            info.config["max_message_bytes"] = topic_limit
        return info

    monkeypatch.setattr(FakeNode, "_topic", limited)
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Producer(cluster.urls, batch_size=300, linger_ms=0, max_request_size=largest) as producer:
            cluster.nodes[0].script(Kind.PRODUCE, answer_when(answered))
            await producer.send_many("t", numbered(1000))
            await asked(cluster.nodes[0], Kind.PRODUCE, 1)
            answered.set()
        batches = cluster.topics["t"][0].batches
        assert cluster.topics["t"][0].values() == numbered(1000)
        assert max(map(len, batches)) <= 2000
        assert len(batches) < 25


async def test_partitions_of_one_node_share_requests_and_their_size(autojump_clock):
    """One request carries what waits for all partitions, as far as it may be large."""
    answered = trio.Event()
    async with fake_cluster(nodes=1, t=8) as cluster:
        async with Producer(
            cluster.urls, batch_size=300, linger_ms=0, max_in_flight_requests_per_connection=1
        ) as producer:
            cluster.nodes[0].script(Kind.PRODUCE, answer_when(answered))
            await producer.send("t", b"first", partition=0)
            await trio.testing.wait_all_tasks_blocked(0.01)
            seen = watch(cluster)
            for partition in range(8):
                await producer.send_many("t", numbered(500), partition=partition)
            assert seen == []
            answered.set()
            await producer.flush()
        assert len(seen[0]) == 8 and len(seen) <= 3
        assert [log.values()[-500:] for log in cluster.topics["t"]] == [numbered(500)] * 8


async def test_a_batch_too_large_for_the_request_under_way_does_not_hold_up_smaller_ones():
    answered = trio.Event()
    async with fake_cluster(nodes=1, t=3) as cluster:
        async with Producer(
            cluster.urls, linger_ms=0, max_request_size=2000, max_in_flight_requests_per_connection=1
        ) as producer:
            cluster.nodes[0].script(Kind.PRODUCE, answer_when(answered))
            await producer.send("t", b"first", partition=0)
            await asked(cluster.nodes[0], Kind.PRODUCE, 1)
            seen = watch(cluster)
            for partition, size in ((0, 1500), (1, 1500), (2, 100)):
                await producer.send("t", bytes(size), partition=partition)
            answered.set()
            await producer.flush()
        assert [[number for _, number, _ in request] for request in seen] == [[0, 2], [1]]


async def test_what_has_grown_is_repeated_as_it_is():
    async with fake_cluster(nodes=1, t=1) as cluster:
        told = trio.Event()
        async with Producer(cluster.urls, batch_size=300, linger_ms=0) as producer:
            await (await producer.send("t", b"first")).wait()
            refused = later(told, fail_with(ErrorCode.NOT_ENOUGH_REPLICAS))
            cluster.nodes[0].script(Kind.PRODUCE, *[refused] * 7)
            deliveries = await producer.send_many("t", numbered(1000))
            await asked(cluster.nodes[0], Kind.PRODUCE, 2)
            told.set()
            with trio.fail_after(10):
                found = await deliveries.wait()
        assert [each.offset for each in found] == list(range(1, 1001))
        assert cluster.topics["t"][0].values() == [b"first", *numbered(1000)]


async def test_records_without_a_key_still_go_to_the_partition_with_the_least_waiting():
    """A batch that has grown counts as the many that it stands for."""
    answered = trio.Event()
    async with fake_cluster(nodes=2, t=2) as cluster:
        async with Producer(cluster.urls, batch_size=300, linger_ms=0) as producer:
            for partition in range(2):
                await (await producer.send("t", b"first", partition=partition)).wait()
            cluster.nodes[0].script(Kind.PRODUCE, *[answer_when(answered)] * 50)
            for start in range(0, 5000, 10):
                await producer.send_many("t", numbered(10, start))
            slow, quick = cluster.topics["t"]
            with trio.fail_after(30):
                while quick.end <= 4000:
                    await trio.lowlevel.checkpoint()
            answered.set()
        assert slow.end + quick.end == 5002


async def waiting(nodes: int, partitions: int, count: int, **options: Any) -> list[int]:
    """The partitions of records without a key, in order, that are sent while no node answers."""
    answered = trio.Event()
    async with fake_cluster(nodes=nodes, t=partitions) as cluster:
        async with Producer(cluster.urls, **{"batch_size": 300, "linger_ms": 0} | options) as producer:
            for partition in range(partitions):
                await (await producer.send("t", b"first", partition=partition)).wait()
            for node in cluster.nodes:
                node.script(Kind.PRODUCE, *[answer_when(answered)] * 100)
            deliveries = []
            for start in range(0, count, 10):
                deliveries += await producer.send_many("t", numbered(10, start))
                await trio.testing.wait_all_tasks_blocked()
            answered.set()
            with trio.fail_after(30):
                await producer.flush()
        return [each.result().partition for each in deliveries]


async def test_what_waits_behind_full_windows_goes_to_all_partitions():
    """Also when batches are as large as they may get, which nothing that waits can exceed."""
    for largest in (1_000, 2_000, 1 << 20):
        found = Counter(await waiting(3, 3, 6_000, max_request_size=largest))
        assert min(found.values()) > 1_200, largest


async def test_what_waits_goes_to_a_partition_in_long_runs():
    """In batches of `batch_size` it would be twenty records at a time."""
    found = await waiting(1, 3, 6_000)
    runs = [len(list(run)) for _, run in itertools.groupby(found)]
    assert 200 < sorted(runs)[len(runs) // 2] < 400, "sixteen times as many"


async def test_a_batch_that_waits_doubles(monkeypatch):
    """To ask whether it may grow costs as much as dozens of records."""
    asked_for: list[int] = []
    real = Accumulator._grows

    def noted(self: Accumulator, *given: Any) -> bool:
        asked_for.append(given[2].size)
        return real(self, *given)

    monkeypatch.setattr(Accumulator, "_grows", noted)
    await waiting(1, 1, 6_000)
    assert max(asked_for) > 64 * 300
    # Twice for each step, and once for each batch that has gone before.
    assert len(asked_for) < 60


async def test_the_first_batches_go_to_one_partition_each():
    """One that has nothing on its way is quicker than one that has."""
    found = await waiting(1, 12, 240)
    assert len(set(found)) >= 11


async def test_a_run_of_values_of_any_kind_arrives_as_it_was_given():
    """Deletions (None) and other bytes than `bytes`, alone and among others; batches are full in between."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        for mode in ({"acks": 1}, {"acks": "all"}):
            async with Producer(cluster.urls, batch_size=300, linger_ms=0, **mode) as producer:
                values = [
                    None,
                    b"a",
                    bytearray(b"b"),
                    None,
                    memoryview(b"c"),
                    b"",
                    *[b"x" * 50] * 20,
                    None,
                ]
                deliveries = await producer.send_many("t", values)
                with trio.fail_after(5):
                    await deliveries.wait()
        found = cluster.partition("t", 0)
        assert found is not None
        assert found.values() == 2 * [None if value is None else bytes(value) for value in values]


async def test_values_of_all_kinds_share_a_batch():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, linger_ms=60_000) as producer:
        values = [bytearray(b"a"), b"b", None, memoryview(b"c")] * 25
        deliveries = await producer.send_many("t", values)
        assert len({id(delivery._batch) for delivery in deliveries}) == 1


async def test_a_value_that_is_refused_leaves_nothing_behind(caplog):
    """It stands in the midst of a run that would begin a batch; what stands before it is taken."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Producer(cluster.urls, linger_ms=0) as producer:
            await (await producer.send("t", b"first")).wait()
            with pytest.raises(InvalidArgumentError, match="not str"):
                await producer.send_many("t", [None, b"b", "c", b"d"])
            with trio.fail_after(5):
                await producer.flush()
        found = cluster.partition("t", 0)
        assert found is not None
        assert found.values() == [b"first", None, b"b"]
    assert "a batch of 0 records" not in caplog.text

"""Batches that are larger than their topic takes, as its limit was lowered after they were gathered (KIP-126)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from insync.replication.client import (
    Admin,
    BatchError,
    BatchProducer,
    Consumer,
    Deliveries,
    Delivery,
    OutOfOrderSequenceError,
    Producer,
    RecordTooLargeError,
    TransactionAbortableError,
)
from insync.replication.client.producer import _sender
from insync.replication.client.producer._accumulator import RECORD_OVERHEAD
from insync.replication.client.producer._batch import Batch
from insync.replication.client.producer._dividing import divided
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.storage.batch import BATCH_OVERHEAD_BYTES, build_batch, records, scan
from tests.processes import cluster as processes

from ..fake_cluster import FakeCluster, FakeNode, fake_cluster
from ..faults import answer_when, disconnect_after_append, drop_after_append
from ..patience import asked
from .test_transactions import Script

Kind = m.Kind
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@attrs.define
class Limit:
    """How large a batch the leaders take, and what they tell of it."""

    bytes: int = 1 << 20
    told: int = 1 << 20
    refused: list[int] = attrs.Factory(list)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    found = Limit()
    append, topic = FakeNode._append_one, FakeNode._topic

    def append_one(self: FakeNode, part: m.ProducePartition, data: bytes) -> m.ProduceResult:
        if len(data) <= found.bytes:
            return append(self, part, data)
        found.refused.append(len(data))
        code = ErrorCode.RECORD_TOO_LARGE
        said = f"a batch of {len(data)} bytes is over max_message_bytes={found.bytes}"
        return m.ProduceResult(topic=part.topic, partition=part.partition, error=code, message=said)

    def described(self: FakeNode, name: str) -> Any:
        info = topic(self, name)
        info.config["max_message_bytes"] = found.told
        return info

    monkeypatch.setattr(FakeNode, "_append_one", append_one)
    monkeypatch.setattr(FakeNode, "_topic", described)
    return found


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(start, start + count)]


def sequences(cluster: FakeCluster) -> list[tuple[int, int, int]]:
    """Of each batch of the log its epoch, its first sequence and its number of records."""
    infos = scan(b"".join(cluster.topics["t"][0].batches))
    return [(info.producer_epoch, info.base_sequence, info.last_offset_delta + 1) for info in infos]


def unbroken(cluster: FakeCluster) -> bool:
    """Whether one epoch has all of the log, without a gap."""
    expected = 0
    for epoch, sequence, count in sequences(cluster):
        if (epoch, sequence) != (0, expected):
            return False
        expected += count
    return True


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "options", [{}, {"acks": 1}, {"acks": 1, "max_in_flight_requests_per_connection": 1}]
)
async def test_what_is_refused_is_sent_in_smaller_batches(
    limit: Limit, codec: str, options: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    limit.bytes = 2000
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, batch_size=1 << 18, compression_type=codec, **options) as producer,
    ):
        values = [b"%06d %d" % (n, n**9) for n in range(3000)]
        deliveries = await producer.send_many("t", values)
        await producer.flush()
        offsets = [(await delivery.wait()).offset for delivery in deliveries]
        assert limit.refused
        log = cluster.topics["t"][0].values()
        assert [log[offset] for offset in offsets] == values and len(log) == 3000
        if "acks" not in options or len(options) > 1:
            # Others that are in flight get ahead, where nothing but the client keeps the order.
            assert log == values
        assert {info.compression for info in scan(b"".join(cluster.topics["t"][0].batches))} == {codec}
        assert producer._accumulator.used == 0 and not producer._accumulator.pending
        assert {delivery._batch.data for delivery in deliveries} == {None}, (
            "nobody needs their bytes any more"
        )
        if not options:
            assert unbroken(cluster)


async def test_a_record_keeps_all_that_it_has(limit: Limit) -> None:
    heard: list[tuple[int, int]] = []

    def note(number: int) -> Callable[[Delivery], None]:
        return lambda delivery: heard.append((number, delivery.result().offset))

    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, linger_ms=60_000, batch_size=1 << 18) as producer,
    ):
        limit.bytes = 400
        deliveries = [
            await producer.send(
                "t",
                b"value" * (n % 5) if n % 7 else None,
                key=b"key %d" % n if n % 3 else None,
                headers=[("name", b"x" * n)] if n % 2 else (),
                timestamp_ms=1_000_000 + n // 3 if n < 20 else 2_000_000,
                on_delivery=note(n),
                partition=0,
            )
            for n in range(30)
        ]
        async with trio.open_nursery() as nursery:
            # Some wait already, for all of it or for one.
            nursery.start_soon(producer.flush)
            nursery.start_soon(deliveries[17].wait)
        found = list(records(b"".join(cluster.topics["t"][0].batches)))
        assert [(each.value, each.key, dict(each.headers), each.timestamp_ms) for each in found] == [
            (
                b"value" * (n % 5) if n % 7 else None,
                b"key %d" % n if n % 3 else None,
                {"name": b"x" * n} if n % 2 else {},
                1_000_000 + n // 3 if n < 20 else 2_000_000,
            )
            for n in range(30)
        ]
        assert heard == [(n, n) for n in range(30)]
        told = [delivery.result() for delivery in deliveries]
        assert [(each.offset, each.timestamp_ms) for each in told] == [
            (each.offset, each.timestamp_ms) for each in found
        ]
        assert limit.refused and all(delivery.done and not delivery.error for delivery in deliveries)


async def test_those_in_flight_behind_it_keep_their_places(limit: Limit) -> None:
    """Its parts have its sequences: no epoch begins, and what was out of order goes again as it was."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0, batch_size=300) as producer:
            await producer.send_and_wait("t", b"first")
            limit.bytes = 200
            answered = trio.Event()
            node.script(Kind.PRODUCE, *[answer_when(answered)] * 5)
            deliveries = await producer.send_many("t", numbered(400))
            await asked(node, Kind.PRODUCE, 6)
            answered.set()
            with trio.fail_after(30):
                await deliveries.wait()
        assert cluster.topics["t"][0].values() == [b"first", *numbered(400)]
        assert unbroken(cluster) and node.seen[Kind.INIT_PRODUCER_ID] == 1


async def test_a_record_that_is_too_large_fails_alone(limit: Limit) -> None:
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Producer(cluster.urls, linger_ms=60_000, batch_size=1 << 18) as producer:
            limit.bytes = 400
            values = [b"x" * 1000 if n == 13 else b"%d" % n for n in range(40)]
            deliveries = await producer.send_many("t", values)
            with trio.fail_after(30):
                await producer.flush()
            errors = [delivery.error for delivery in deliveries]
        assert [n for n, error in enumerate(errors) if error is not None] == [13]
        assert isinstance(errors[13], RecordTooLargeError) and errors[13].outcome == "absent"
        assert "t-0: RECORD_TOO_LARGE: one record is too large by itself" in str(errors[13])
        assert "max_message_bytes=400" in str(errors[13])
        assert cluster.topics["t"][0].values() == [value for value in values if len(value) < 1000]


async def test_in_a_transaction(limit: Limit, autojump_clock: trio.testing.MockClock) -> None:
    limit.bytes = 300
    async with fake_cluster(nodes=1, t=1) as cluster:
        Script(cluster)
        async with Producer(cluster.urls, transactional_id="etl", batch_size=1 << 18) as producer:
            async with producer.transaction():
                deliveries = await producer.send_many("t", numbered(500))
            assert [delivery.result().offset for delivery in deliveries] == list(range(500))
            assert cluster.topics["t"][0].values() == numbered(500)
            assert unbroken(cluster)
            with pytest.raises(TransactionAbortableError) as told:
                async with producer.transaction():
                    await producer.send_many("t", [*numbered(50), b"x" * 1000])
            assert isinstance(told.value.__cause__, RecordTooLargeError)


@pytest.mark.parametrize("fault", [drop_after_append, disconnect_after_append])
async def test_what_may_be_in_the_log_as_a_whole_is_not_written_again_in_parts(
    limit: Limit, fault: Any, autojump_clock: trio.testing.MockClock
) -> None:
    """The whole was written, its answer was lost, and the limit is lower when it comes again."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        node = cluster.nodes[0]
        async with Producer(cluster.urls, linger_ms=0, request_timeout_ms=1000) as producer:
            await producer.send_and_wait("t", b"first")

            def lower(node: FakeNode, request: Any) -> bool:
                fault(node, request)
                limit.bytes = 200
                return True

            node.script(Kind.PRODUCE, lower)
            deliveries = await producer.send_many("t", numbered(100))
            await asked(node, Kind.PRODUCE, 2)
            later = await producer.send_many("t", [b"later", b"and later"])
            with trio.fail_after(60):
                await producer.flush()
                await later.wait()
        assert cluster.topics["t"][0].values() == [b"first", *numbered(100), b"later", b"and later"]
        errors = [delivery.error for delivery in deliveries]
        assert {type(error) for error in errors} == {OutOfOrderSequenceError}
        assert {error.outcome for error in errors if error is not None} == {"unknown"}


async def test_what_has_not_been_sent_is_divided_before(
    limit: Limit, autojump_clock: trio.testing.MockClock
) -> None:
    """With `acks=0` nobody would tell."""
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, acks=0, linger_ms=60_000, batch_size=1 << 18) as producer,
    ):
        deliveries = await producer.send_many("t", numbered(1000))
        limit.bytes = limit.told = 500
        await producer._cluster.refresh()
        await producer.flush()
        assert await deliveries.wait()
        with trio.fail_after(30):
            while cluster.topics["t"][0].end < 1000:
                await cluster.changed.wait()
        assert cluster.topics["t"][0].values() == numbered(1000) and not limit.refused


async def test_it_fails_within_its_time_also_in_parts(
    limit: Limit, autojump_clock: trio.testing.MockClock
) -> None:
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, linger_ms=60_000, delivery_timeout_ms=70_000) as producer,
    ):
        limit.bytes = 200
        began = trio.current_time()
        deliveries = await producer.send_many("t", numbered(100))
        await trio.sleep(59)
        node = cluster.nodes[0]
        # The first refusal is told; the first of the parts has no answer.
        node.before[Kind.PRODUCE] = deque([lambda *_: False, *[lambda *_: True] * 100])
        await producer.flush()
        assert trio.current_time() - began == pytest.approx(70, abs=1)
        assert {type(each.error).__name__ for each in deliveries} == {"DeliveryTimeoutError"}
        assert producer._accumulator.used == 0


async def test_one_that_cannot_be_divided_before_it_is_sent_fails_alone(
    limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        fake_cluster(nodes=1, t=2) as cluster,
        Producer(cluster.urls, linger_ms=60_000, batch_size=1 << 18) as producer,
    ):
        lost = await producer.send_many("t", numbered(100), partition=0)
        limit.bytes = limit.told = 400
        await producer._cluster.refresh()

        def divided(*given: object) -> None:
            raise MemoryError("no room for its parts")

        monkeypatch.setattr(_sender, "divided", divided)
        other = await producer.send("t", b"b", partition=1)
        with trio.fail_after(5):
            await producer.flush()
        assert {type(each.error) for each in lost} == {BatchError} and other.error is None
        monkeypatch.undo()
        following = await producer.send("t", b"c", partition=0)
        await producer.flush()
        assert following.result().offset == 0
        assert producer._accumulator.used == 0 and not producer._accumulator.pending


async def test_whole_batches_are_their_callers(limit: Limit) -> None:
    limit.bytes = 100
    async with fake_cluster(nodes=1, t=1) as cluster, BatchProducer(cluster.urls) as producer:
        data = build_batch(
            None, numbered(10), timestamps_ms=7, producer_id=7, producer_epoch=0, base_sequence=0
        )
        await producer.send("t", 0, data)
        with pytest.raises(RecordTooLargeError, match=r"t-0: .*a whole batch is never divided.*=100"):
            await producer.flush()


@pytest.mark.parametrize("largest", [BATCH_OVERHEAD_BYTES + 3 * (RECORD_OVERHEAD + 6), 1, 1 << 20])
@pytest.mark.parametrize("sealed", [False, True])
def test_parts_are_as_large_as_may_be(largest: int, sealed: bool) -> None:
    batch = Batch("t", 0, 1.0, 2.0)
    for value in [*numbered(9), b"x" * 500, b"y"]:
        batch.append(None, value, None, 7)
    if sealed:
        batch.seal(None, -1, "zstd")
    parts, starts = divided(batch, largest)
    expected = {1: [1] * 11, 1 << 20: [9, 1, 1]}.get(largest, [3, 3, 3, 1, 1])
    assert [part.count for part in parts] == expected
    assert starts == [sum(expected[:at]) for at in range(len(expected))]
    assert all(part.size <= largest or part.count == 1 for part in parts)
    assert {(part.created, part.deadline) for part in parts} == {(1.0, 2.0)}


async def test_who_waits_for_one_record_does_not_wait_for_other_parts() -> None:
    batch = Batch("t", 0, 1.0, 2.0)
    for value in numbered(4):
        batch.append(None, value, None, 7)
    offsets: list[int] = []

    async def wait() -> None:
        offsets.append((await Delivery(batch, 2).wait()).offset)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        parts, starts = divided(batch, 1)
        batch.divide(parts, starts)
        await trio.testing.wait_all_tasks_blocked()
        parts[2].settle(7, None)
        await trio.testing.wait_all_tasks_blocked()
        assert offsets == [7] and not batch.done
        nursery.start_soon(batch.wait)
        for part in (parts[0], parts[1], parts[3]):
            part.settle(9, None)
        assert batch.done


LIMITS = (4_000, 1_000, 600, 5_000, 500)
CHUNK = 500


@pytest.mark.slow
async def test_nothing_is_lost_doubled_or_reordered_while_a_limit_falls(tmp_path: Path) -> None:
    with processes(tmp_path, 1) as nodes:
        servers = [nodes[0].endpoint]
        sent: list[Deliveries] = []
        async with (
            Admin(servers) as admin,
            Producer(servers, linger_ms=1, batch_size=1 << 14, buffer_memory=1 << 16) as producer,
            trio.open_nursery() as nursery,
        ):
            await admin.create_topic("t", 2, 1)
            done = trio.Event()

            async def produce() -> None:
                while not done.is_set():
                    values = numbered(CHUNK, len(sent) * CHUNK)
                    sent.append(await producer.send_many("t", values, partition=len(sent) % 2))

            nursery.start_soon(produce)
            divided_before = 0
            with trio.fail_after(120):
                for size in LIMITS:
                    await admin.alter_config("t", {"max_message_bytes": size})
                    chunks = len(sent)
                    while len(sent) < chunks + 10:
                        await trio.lowlevel.checkpoint()
                    await sent[chunks + 4].wait()
                    divided_before += sum(
                        batch.parts is not None
                        for batch, _, _ in (run for each in sent for run in each._runs)
                    )
                done.set()
                await producer.flush()
        assert divided_before
        expected: dict[int, list[bytes]] = {0: [], 1: []}
        for chunk, deliveries in enumerate(sent):
            mine = expected[chunk % 2]
            offsets = [each.offset for each in await deliveries.wait()]
            assert offsets == list(range(len(mine), len(mine) + CHUNK))
            mine += numbered(CHUNK, chunk * CHUNK)
        found: dict[int, list[bytes | None]] = {0: [], 1: []}
        async with Consumer(servers, auto_offset_reset="earliest", max_poll_records=5000) as consumer:
            await consumer.assign_topic("t")
            with trio.fail_after(60):
                while sum(map(len, found.values())) < len(sent) * CHUNK:
                    for record in await consumer.poll(500):
                        found[record.partition].append(record.value)
            ends = await consumer.end_offsets([("t", 0), ("t", 1)])
        assert found == expected
        assert [ends["t", n] for n in (0, 1)] == [len(expected[n]) for n in (0, 1)]


async def test_who_waits_for_a_record_does_not_wait_for_the_other_parts_of_its_batch() -> None:
    whole, first, second = (Batch("t", 0, 0.0, 1.0) for _ in range(3))
    for value, part in ((b"a", first), (b"b", second)):
        whole.append(None, value, None, 7)
        part.append(None, value, None, 7)
    found: list[int] = []

    async def wait(index: int) -> None:
        found.append((await Delivery(whole, index).wait()).offset)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for index in (0, 1):
                nursery.start_soon(wait, index)
            await trio.testing.wait_all_tasks_blocked()
            whole.divide([first, second], [0, 1])
            second.settle(7, None)
            await trio.testing.wait_all_tasks_blocked()
            assert found == [7]
            # Who only comes now finds it settled.
            await wait(1)
            first.settle(5, None)
    assert found == [7, 7, 5]

"""`Producer.send`: nearly all records are taken by one call in C, the others by Python."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from insync.replication.client import ClosedError, InvalidArgumentError, Producer, RecordTooLargeError
from insync.replication.client.producer._accumulator import YIELD_EVERY, Accumulator
from insync.replication.core.messages import Kind
from insync.storage.batch import BATCH_OVERHEAD_BYTES

from ..fake_cluster import fake_cluster
from ..faults import answer_after


async def test_records_arrive_in_order_with_their_keys():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        deliveries = []
        for number in range(1000):
            if number % 3:
                deliveries.append(await producer.send("t", b"%d" % number))
            else:
                deliveries.append(await producer.send("t", b"%d" % number, key=b"%d" % (number % 7)))
        await producer.flush()
        assert [delivery.result().offset for delivery in deliveries] == list(range(1000))
    assert cluster.topics["t"][0].values() == [b"%d" % number for number in range(1000)]


async def test_the_frames_of_a_task_that_waits_in_it_are_known():
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, answer_after(3))
        async with Producer(cluster.urls, buffer_memory=1000, linger_ms=0) as producer:
            await producer.send("t", b"x" * 900)
            sending = producer.send("t", b"y" * 900)

            async def wait() -> None:
                tasks.append(trio.lowlevel.current_task())
                await sending

            tasks: list[trio.lowlevel.Task] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked(0.01)
                names = [frame.f_code.co_name for frame, _ in tasks[0].iter_await_frames()]
                nursery.cancel_scope.cancel()
    assert names[:4] == ["wait", "send", "_send", "_send_later"]
    assert "in_line" in names


async def test_a_loop_of_sends_lets_other_tasks_run():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, batch_size=1 << 20) as producer:
        await producer.prepare("t")
        turns, every = 0, YIELD_EVERY

        async def others() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            found = [await producer.send("t", b"v") for _ in range(9 * every)]
            nursery.cancel_scope.cancel()
        assert 6 <= turns <= 10
        assert [delivery._index for delivery in found] == list(range(len(found)))
        with trio.CancelScope() as scope:
            # A pause is none that cancels: a record that was taken is never lost to its caller.
            scope.cancel()
            found = [await producer.send("t", b"v") for _ in range(2 * every)]
        assert not scope.cancelled_caught
        assert len(found) == 2 * every


async def test_one_that_waits_for_space_can_be_cancelled(autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, answer_after(3))
        async with Producer(cluster.urls, buffer_memory=1000, linger_ms=0) as producer:
            await producer.send("t", b"x" * 900)
            with trio.move_on_after(1) as scope:
                await producer.send("t", b"y" * 900)
            assert scope.cancelled_caught
            await producer.send("t", b"z" * 900)
    assert [value[:1] for value in cluster.topics["t"][0].values() if value] == [b"x", b"z"]


async def test_wrong_arguments_are_refused():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        await producer.send("t", b"v")
        send: Any = producer.send
        for arguments, named in (
            ((), {}),
            (("t",), {}),
            (("t", b"v", b"k"), {}),
            (("t", b"v"), {"keys": b"k"}),
            (("t", b"v"), {"topic": "t"}),
        ):
            with pytest.raises(TypeError, match=r"send\(\)"):
                send(*arguments, **named)
        for topic, value, key in (([], b"v", None), ("t", "text", None), ("t", b"v", 7), ("t", 7, b"k")):
            with pytest.raises(InvalidArgumentError):
                await send(topic, value, key=key)
        with pytest.raises(RecordTooLargeError):
            await send("t", b"x" * (2 << 20))
        assert (await send(value=b"w", topic="t"))._index == 1
        assert (await send("t", value=b"w"))._index == 2
        assert (await send("t", None, key=b"k"))._index == 3
        assert (await send("t", b"v", headers=[("a", b"b")], key=b"k"))._index == 4


async def test_a_closed_producer_refuses_also_by_a_send_that_was_kept():
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Producer(cluster.urls) as producer:
            kept = producer.send
            await kept("t", b"v")
            begun = kept("t", b"w")
        for refused in (begun, kept("t", b"v"), producer.send("t", b"v")):
            with pytest.raises(ClosedError):
                await refused
    assert cluster.topics["t"][0].values() == [b"v"]


async def test_one_that_was_cancelled_takes_no_record_that_would_join():
    """Its last batch is still open, but nobody will send it."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        with trio.CancelScope() as scope:
            async with Producer(cluster.urls, linger_ms=60_000) as producer:
                kept = producer.send
                await kept("t", b"v")
                queue = producer._accumulator._topics["t"].queues[0]
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert queue.tail.open is not None
        with pytest.raises(ClosedError):
            await kept("t", b"w")
        assert queue.tail.open.count == 1


async def test_a_producer_that_may_not_send_refuses():
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        await producer.send("t", b"v")
        producer._sender.barred = InvalidArgumentError("not now")
        with pytest.raises(InvalidArgumentError, match="not now"):
            await producer.send("t", b"w")
        producer._sender.barred = None
        await producer.send("t", b"x")
    assert cluster.topics["t"][0].values() == [b"v", b"x"]


async def test_serializers_see_every_record():
    seen = []

    def serialize(value: Any) -> bytes:
        seen.append(value)
        return str(value).encode()

    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, value_serializer=serialize) as producer,
    ):
        for value in (1, 2, b"3"):
            await producer.send("t", value)
    assert seen == [1, 2, b"3"]
    assert cluster.topics["t"][0].values() == [b"1", b"2", b"b'3'"]


async def test_references_are_given_back():
    """Of each thing that a record touches, after thousands of records in all ways."""
    topic, key, small, large = "".join(["a", "b"]), b"a key", b"a value", b"x" * 20_000
    async with (
        fake_cluster(nodes=1, ab=1) as cluster,
        Producer(cluster.urls, buffer_memory=200_000) as producer,
    ):
        await producer.send(topic, small)

        def held() -> list[int]:
            gc.collect()
            things = (topic, key, small, large, producer, producer._accumulator, producer.send)
            return [sys.getrefcount(each) for each in things]

        async def use() -> None:
            for _ in range(300):
                await producer.send(topic, small)
                await producer.send(topic, small, key=key)
                await producer.send(topic, large)
                producer.send(topic, small).close()
                with pytest.raises(KeyError):
                    producer.send(topic, small, key=key).throw(KeyError)
                with pytest.raises(InvalidArgumentError):
                    await producer.send(topic, 7)
            await producer.flush()

        await use()
        before = held()
        for _ in range(3):
            await use()
        # A lost reference of a record would be thousands.
        assert all(abs(now - then) < 100 for now, then in zip(held(), before, strict=True))


async def test_a_producer_and_its_unfinished_sends_are_collected():
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Producer(cluster.urls) as producer:
            await producer.send("t", b"v")

            class Never:
                def __await__(self) -> Any:
                    yield "waits"

            waiting: list[object] = []

            async def make_room(topic: str, *arguments: object) -> None:
                mine = waiting.pop()  # a cycle: what waits knows the one that waits for it
                await Never()
                assert mine

            producer._send_later = make_room  # type: ignore[method-assign,assignment]
            sending = producer.send("unknown", b"v")
            waiting.append(sending)
            assert sending.send(None) == "waits"
            accumulator = _Watched(producer._accumulator)
        del producer, sending, make_room
        gc.collect()
        assert accumulator.is_gone()


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def test_a_finaliser_that_sends_is_counted(thresholds):
    """It runs wherever the collector of garbage does: where memory is allocated."""
    sent = 0

    class Sends:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            nonlocal sent
            producer.send_nowait("other", b"of a finaliser")
            sent += 1

    async with (
        fake_cluster(nodes=1, t=1, other=1) as cluster,
        Producer(cluster.urls, linger_ms=60_000, batch_size=1 << 20) as producer,
    ):
        for topic in cluster.topics:
            await producer.send(topic, b"first")
        accumulator = producer._accumulator
        for number in range(100):
            gc.set_threshold(1 + number % 5)
            Sends()
            await producer.send("t", b"%d" % number, key=b"k" if number > 90 else None)
        gc.collect()
        assert accumulator.used == sum(batch.size - BATCH_OVERHEAD_BYTES for batch in accumulator.pending)
        await producer.flush()
        assert accumulator.used == 0
    assert cluster.topics["t"][0].values() == [b"first", *[b"%d" % number for number in range(100)]]
    assert len(cluster.topics["other"][0].values()) == sent + 1 == 101


class _Watched:
    """Objects with slots have no weak references; one that it alone holds tells the same."""

    def __init__(self, made: Accumulator) -> None:
        made._space = watched = trio.Event()
        self._refers = weakref.ref(watched)

    def is_gone(self) -> bool:
        return self._refers() is None

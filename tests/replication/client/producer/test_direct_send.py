"""`Producer.send` in C does what the method does, and can be used as a coroutine function in every way."""

from __future__ import annotations

import gc
import inspect
import sys
import warnings
import weakref
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
import trio

from insync.replication.client import ClosedError, InvalidArgumentError, Producer, RecordTooLargeError
from insync.replication.client.connection._cluster import Topic
from insync.replication.client.producer import _accumulator, _joining
from insync.replication.client.producer import producer as module
from insync.replication.client.producer._accumulator import Accumulator
from insync.replication.client.producer._batch import Batch
from insync.replication.client.producer._partitioning import PartitionQueue, TopicQueues
from insync.replication.client.producer.delivery import Delivery
from insync.replication.core.messages import Kind
from insync.storage.batch import BATCH_OVERHEAD_BYTES

from ..fake_cluster import fake_cluster
from ..faults import answer_after, answer_when


@pytest.fixture(params=["C", "Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two a producer has."""
    if request.param == "Python":
        monkeypatch.setattr(_accumulator, "_joining", None)
        monkeypatch.setattr(module, "_joining", None)
    return request.param


async def test_which_send_a_producer_has(way):
    async with fake_cluster(nodes=1, t=1) as cluster:
        producer = Producer(cluster.urls)
        assert inspect.iscoroutinefunction(producer.send)
        async with producer:
            assert isinstance(producer.send, _joining.Sender) == (way == "C")
            assert isinstance(producer._accumulator.join, _joining.Joiner) == (way == "C")
        assert inspect.iscoroutinefunction(producer.send)


async def test_an_open_producer_tells_of_its_send_what_a_method_tells(way):
    """Libraries look at it to know whether to await what it gives."""
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        method = Producer.send.__get__(producer)
        for send in (producer.send, partial(producer.send, "t")):
            assert inspect.iscoroutinefunction(send)
        assert inspect.signature(producer.send) == inspect.signature(method)
        for name in ("__name__", "__qualname__", "__module__", "__doc__", "__self__", "__func__"):
            assert getattr(producer.send, name) == getattr(method, name)
        with pytest.raises(AttributeError):
            assert producer.send.other  # type: ignore[attr-defined]
        with mock.patch.object(producer, "send") as patched:
            await producer.send("t", b"v")
        patched.assert_awaited_once_with("t", b"v")
        await producer.send("t", b"w")
    assert cluster.topics["t"][0].values() == [b"w"]


async def test_another_send_of_the_object_is_called_for_all_records(way):
    called = []
    async with fake_cluster(nodes=1, t=1) as cluster:
        producer = Producer(cluster.urls)

        def watch() -> None:
            original = producer.send

            async def watched(topic: str, value: Any, **named: Any) -> Delivery:
                called.append(value)
                return await original(topic, value, **named)

            producer.send = watched  # type: ignore[method-assign, assignment]

        watch()
        async with producer:
            for value in (b"1", b"2"):
                await producer.send("t", value)
        del producer.send
        async with producer:
            watch()
            await producer.send("t", b"3")
        async with producer:
            await producer.send("t", b"4")
    assert called == cluster.topics["t"][0].values() == [b"1", b"2", b"3", b"4"]


async def test_another_send_of_the_object_may_be_taken_away_again(way):
    async with fake_cluster(nodes=1, t=1) as cluster:
        producer = Producer(cluster.urls)
        with mock.patch.object(producer, "send") as patched:
            async with producer:
                await producer.send("t", b"1")
        patched.assert_awaited_once()
        async with producer:
            producer.send = patched  # type: ignore[method-assign]
            del producer.send
            await producer.send("t", b"2")
        async with producer:
            await producer.send("t", b"3")
    assert cluster.topics["t"][0].values() == [b"2", b"3"]


async def test_records_arrive_in_order_with_their_keys(way):
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


async def test_nothing_is_sent_before_it_is_awaited(way):
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        await producer.send("t", b"first")
        used = producer._accumulator.used
        sending = producer.send("t", b"second")
        assert producer._accumulator.used == used
        with pytest.warns(RuntimeWarning, match=r"coroutine 'Producer.send' was never awaited"):
            del sending
        closed = producer.send("t", b"third")
        closed.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del closed
        assert producer._accumulator.used == used
    assert cluster.topics["t"][0].values() == [b"first"]


async def test_it_is_a_coroutine(way):
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        await producer.prepare("t")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(producer.send, "t", b"of a task")
        # Of the first one it is not known yet that there is a batch to join, of the second one it is.
        for value in (b"alone", b"joins"):
            sending: Coroutine[Any, Any, Delivery] = producer.send("t", value)
            assert isinstance(sending, Coroutine)
            with pytest.raises(TypeError, match="can't send non-None value to a just-started coroutine"):
                sending.send(1)  # type: ignore[arg-type]
            with pytest.raises(StopIteration) as stopped:
                sending.send(None)
            assert isinstance(stopped.value.value, Delivery)
            for again in (sending.send, sending.throw):
                with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
                    again(None if again == sending.send else ValueError())  # type: ignore[arg-type]
            sending.close()
    assert sorted(cluster.topics["t"][0].values()) == [b"alone", b"joins", *[b"of a task"] * 3]  # type: ignore[type-var]


async def test_what_is_thrown_comes_back_and_nothing_is_sent(way):
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        await producer.prepare("t")
        with pytest.raises(ValueError, match="thrown"):
            producer.send("t", b"v").throw(ValueError("thrown"))
        with pytest.raises(KeyError):
            producer.send("t", b"v").throw(KeyError)
        assert producer._accumulator.used == 0


async def test_one_that_waits_is_thrown_into_and_closed(way):
    """What goes on in Python is told of what happens to the one in C."""
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        told: list[object] = []

        class Waiting:
            def __await__(self) -> Any:
                try:
                    told.append((yield "first"))
                    yield "second"
                except ValueError as error:
                    told.append(error)
                    yield "third"
                finally:
                    told.append("left")

        async def make_room(topic: str, *arguments: object) -> None:
            await Waiting()

        producer._send_later = make_room  # type: ignore[method-assign,assignment]
        sending = producer.send("t", b"v")
        assert sending.send(None) == "first"
        assert sending.send("said") == "second"
        error = ValueError()
        assert sending.throw(error) == "third"
        sending.close()
        assert told == ["said", error, "left"]
        sending = producer.send("t", b"v")
        assert sending.send(None) == "first"
        with pytest.raises(KeyError):
            sending.throw(KeyError())
        with pytest.raises(RuntimeError, match="already awaited"):
            sending.send(None)
        with pytest.warns(RuntimeWarning, match="never awaited"):
            # It begins with nothing that an earlier one at the same place had.
            del sending
            producer.send("t", b"v")


async def test_a_record_that_was_taken_is_given_however_its_pause_ends():
    class Once:
        def __await__(self) -> Any:
            try:
                yield "waits"
            except KeyError:
                return "not the delivery"

    async def pause() -> Any:
        return await Once()

    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        await producer.send("t", b"first")
        send = _joining.Sender(producer._accumulator.join, Producer.send, pause, 1)  # type: ignore[arg-type]
        for number, end in enumerate((lambda s: s.send(None), lambda s: s.throw(KeyError())), 1):
            sending = send("t", b"v")
            assert sending.send(None) == "waits"
            with pytest.raises(StopIteration) as stopped:
                end(sending)
            assert stopped.value.value._index == number
        sending = send("t", b"v")
        assert sending.send(None) == "waits"
        with pytest.raises(ValueError, match="thrown"):
            sending.throw(ValueError("thrown"))


async def test_it_cannot_be_entered_twice(way):
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:

        async def make_room(topic: str, *arguments: object) -> None:
            for enter in (lambda: sending.send(None), lambda: sending.throw(KeyError()), sending.close):
                with pytest.raises(ValueError, match="coroutine already executing"):
                    enter()
            raise BufferError

        producer._send_later = make_room  # type: ignore[method-assign,assignment]
        sending = producer.send("t", b"v")
        with pytest.raises(BufferError):
            await sending


async def test_only_one_task_can_await_it(way):
    answered = trio.Event()
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, answer_when(answered))
        async with Producer(cluster.urls, buffer_memory=1000, linger_ms=0) as producer:
            await producer.send("t", b"x" * 900)
            sending = producer.send("t", b"y" * 900)

            async def wait() -> None:
                await sending

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked(0.01)
                with pytest.raises(RuntimeError, match="coroutine is being awaited already"):
                    await sending
                answered.set()
    assert [value[:1] for value in cluster.topics["t"][0].values() if value] == [b"x", b"y"]


async def test_the_frames_of_a_task_that_waits_in_it_are_known(way):
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
    assert names[:3] == ["wait", "send", "_send_later"]
    assert "in_line" in names


async def test_a_loop_of_sends_lets_other_tasks_run(way):
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls, batch_size=1 << 20) as producer:
        await producer.prepare("t")
        turns, every = 0, module._YIELD_EVERY * (4 if way == "C" else 1)

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


async def test_one_that_waits_for_space_can_be_cancelled(way, autojump_clock):
    async with fake_cluster(nodes=1, t=1) as cluster:
        cluster.nodes[0].script(Kind.PRODUCE, answer_after(3))
        async with Producer(cluster.urls, buffer_memory=1000, linger_ms=0) as producer:
            await producer.send("t", b"x" * 900)
            with trio.move_on_after(1) as scope:
                await producer.send("t", b"y" * 900)
            assert scope.cancelled_caught
            await producer.send("t", b"z" * 900)
    assert [value[:1] for value in cluster.topics["t"][0].values() if value] == [b"x", b"z"]


async def test_wrong_arguments_are_refused_alike(way):
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


async def test_a_closed_producer_refuses_also_by_a_send_that_was_kept(way):
    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Producer(cluster.urls) as producer:
            kept = producer.send
            await kept("t", b"v")
            begun = kept("t", b"w")
        for refused in (begun, kept("t", b"v"), producer.send("t", b"v")):
            with pytest.raises(ClosedError):
                await refused
    assert cluster.topics["t"][0].values() == [b"v"]


async def test_one_that_was_cancelled_takes_no_record_that_would_join(way):
    """Its last batch is still open, but nobody will send it."""
    async with fake_cluster(nodes=1, t=1) as cluster:
        with trio.CancelScope() as scope:
            async with Producer(cluster.urls, linger_ms=60_000) as producer:
                kept = producer.send
                await kept("t", b"v")
                queue = producer._accumulator._topics["t"].queues[0]
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert queue.open is not None
        with pytest.raises(ClosedError):
            await kept("t", b"w")
        assert queue.open.values == [b"v"]


async def test_a_producer_that_may_not_send_refuses(way):
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:
        await producer.send("t", b"v")
        producer._sender.barred = InvalidArgumentError("not now")
        with pytest.raises(InvalidArgumentError, match="not now"):
            await producer.send("t", b"w")
        producer._sender.barred = None
        await producer.send("t", b"x")
    assert cluster.topics["t"][0].values() == [b"v", b"x"]


async def test_another_send_of_a_subclass_or_in_its_place_is_called(way, monkeypatch):
    called = []

    class Counting(Producer):
        async def send(self, topic: str, value: Any, **named: Any) -> Delivery:
            called.append(value)
            return await super().send(topic, value, **named)

    async with fake_cluster(nodes=1, t=1) as cluster:
        async with Counting(cluster.urls) as producer:
            for value in (b"1", b"2"):
                await producer.send("t", value)
        original = Producer.send

        async def patched(self: Producer, *arguments: Any, **named: Any) -> Delivery:
            called.append(arguments[1])
            return await original(self, *arguments, **named)

        monkeypatch.setattr(Producer, "send", patched)
        async with Producer(cluster.urls) as other:
            for value in (b"3", b"4"):
                await other.send("t", value)
    assert called == cluster.topics["t"][0].values() == [b"1", b"2", b"3", b"4"]


async def test_serializers_see_every_record(way):
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


async def test_references_are_given_back(way):
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


async def test_a_producer_and_its_unfinished_sends_are_collected(way):
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


@pytest.mark.slow
async def test_one_that_never_began_is_collected_with_its_arguments(way):
    async with fake_cluster(nodes=1, t=1) as cluster, Producer(cluster.urls) as producer:

        class Holds:
            sending: object

        for at in range(3):
            holds = Holds()
            arguments: list[Any] = ["t", b"v", None]
            arguments[at] = holds
            topic, value, key = arguments
            holds.sending = producer.send(topic, value, key=key)
            watched = weakref.ref(holds)
            del holds, arguments, topic, value, key
            with pytest.warns(RuntimeWarning, match="never awaited"):
                gc.collect()
            assert watched() is None


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def test_a_finaliser_that_sends_is_counted(way, thresholds):
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


async def test_what_is_sent_while_a_batch_is_dated_is_counted(way, monkeypatch):
    """As by a finaliser that runs there."""
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(cluster.urls, linger_ms=60_000, max_request_size=1000) as producer,
    ):
        await producer.send("t", b"first")
        nested: list[bytes] = []
        date = Batch.date

        def sends(batch: Batch, *timestamp_ms: int | None) -> None:
            date(batch, *timestamp_ms)
            if nested:
                producer.send_nowait("t", nested.pop(), key=b"k")

        monkeypatch.setattr(Batch, "date", sends)
        (batch,) = producer._accumulator.pending
        # The first time there is room for both; then for one of them.
        for value in (b"1", b"x" * 600):
            nested.append(value)
            batch.since = batch.until = 0.0
            await producer.send("t", b"y" * 300, key=b"k")
        batches = list(producer._accumulator.pending)
        for batch in batches:
            assert batch.size <= 1000
            assert batch.keys is None or len(batch.keys) == batch.count
        assert producer._accumulator.used == sum(batch.size - BATCH_OVERHEAD_BYTES for batch in batches)
    assert [value[:1] for value in cluster.topics["t"][0].values() if value] == [b"f", b"1", b"y", b"x", b"y"]


class _Watched:
    """Objects with slots have no weak references; one that it alone holds tells the same."""

    def __init__(self, made: Accumulator) -> None:
        made._space = watched = trio.Event()
        self._refers = weakref.ref(watched)

    def is_gone(self) -> bool:
        return self._refers() is None


def test_classes_without_the_slots_are_refused():
    good: dict[str, Any] = {
        "accumulator": Accumulator,
        "queues": TopicQueues,
        "topic": Topic,
        "queue": PartitionQueue,
        "batch": Batch,
        "delivery": Delivery,
        "overhead": _accumulator.RECORD_OVERHEAD,
    }

    class NoSlots:
        used = waiting = open = size = leaders = sticky = _batch = 0

    for name in list(good)[:-1]:
        with pytest.raises((TypeError, AttributeError), match=r"is no slot|has no attribute"):
            _joining.bind(**{**good, name: NoSlots})
    _joining.bind(**good)
    with pytest.raises(TypeError, match="class that bind"):
        _joining.Joiner(NoSlots())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a topic, a value and a key"):
        _joining.Joiner(Accumulator(module.ProducerSettings(), lambda at: None))("t")  # type: ignore[call-arg]

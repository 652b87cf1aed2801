"""Clients inside programs on asyncio."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import insync.replication.asyncio as bridge
from insync.replication import NodeSettings, client
from insync.replication.asyncio import Admin, Consumer, Delivery, Node, Producer
from insync.replication.client import (
    BootstrapError,
    BufferFullError,
    ClosedError,
    ConsumerRecord,
    RecordTooLargeError,
    SerializationError,
    TopicExistsError,
    TransactionStateError,
    UnknownTopicError,
)
from insync.replication.client.threads._handover import HandedOver
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from insync.replication.node import Node as TrioNode
from insync.replication.node import NodeError, NodeStoppedError
from insync.replication.state import StateClosedError
from insync.replication.state.asyncio import ReplicatedDict

from ..client.faults import answer_when, drop, fail_with
from ..client.producer.test_transactions import Script, ends
from ..client.threaded_cluster import ThreadedCluster, threaded_cluster


@pytest.fixture
def threaded() -> Iterator[ThreadedCluster]:
    with threaded_cluster() as cluster:
        yield cluster


def test_what_is_sent_is_acknowledged_and_read(threaded: ThreadedCluster) -> None:
    async def main() -> None:
        async with Producer(threaded.urls, value_serializer=str.encode) as producer:
            assert await producer.prepare("t") == 1
            first = await producer.send("t", "a", key=b"k", timestamp_ms=3)
            assert await first.wait() == ("t", 0, 0, 3) == first.result()
            more = [await producer.send("t", str(n)) for n in range(300)]
            outcomes = await asyncio.gather(*(each.wait() for each in more))
            assert [each.offset for each in outcomes] == list(range(1, 301))
            many = await producer.send_many("t", ["x"] * 50)
            assert [each.offset for each in await many.wait()] == list(range(301, 351))
            assert many.done() and len(many) == 50 and many[1].result().offset == 302
            producer.send_nowait("t", "last")
        async with Consumer(
            threaded.urls, auto_offset_reset="earliest", value_deserializer=bytes.decode
        ) as consumer:
            assert await consumer.assign_topic("t") == [("t", 0)]
            assert await consumer.end_offsets([("t", 0)]) == {("t", 0): 352}
            seen = []
            async for record in consumer:
                seen.append(record.offset)
                if len(seen) == 120:
                    break
            assert await consumer.position(("t", 0)) == 120
            while len(seen) < 352:
                seen += [each.offset for each in await consumer.poll(5000)]
            assert seen == list(range(352))
            await consumer.seek(("t", 0), 351)
            assert [each.value for each in await consumer.poll(5000)] == ["last"]
            await consumer.pause()
            assert await consumer.paused() == await consumer.assignment() == [("t", 0)]
            await consumer.seek_to_beginning()
            assert await consumer.poll(50) == []
            await consumer.resume([("t", 0)])
            (fetched,) = await consumer.poll_batches(5000)
            assert fetched.start_offset == 0
            assert await consumer.high_watermark(("t", 0)) == 352

    asyncio.run(main())


def test_errors_come_to_whoever_asked(threaded: ThreadedCluster, tmp_path: Path) -> None:
    async def main() -> None:
        async with Producer(threaded.urls, max_request_size=1000, value_serializer=bytes) as producer:
            with pytest.raises(UnknownTopicError):
                await (await producer.send("nope", b"x")).wait()
            with pytest.raises(RecordTooLargeError):
                await (await producer.send("t", bytes(2000))).wait()
            with pytest.raises(SerializationError):
                await producer.send("t", "text")
        with pytest.raises(ClosedError):
            await producer.send("t", b"x")
        async with Admin(threaded.urls) as admin:
            assert await admin.create_topic("u", 2, 2) == "id-u"
            with pytest.raises(TopicExistsError):
                await admin.create_topic("u", 2, 2)
            assert await admin.list_topics() == ["t", "u"]
            assert (await admin.describe_cluster()).controller_id == 0
        with pytest.raises(BootstrapError, match=r"127\.0\.0\.1:1"):
            async with Admin("127.0.0.1:1"):
                pass
        with pytest.raises(ClosedError, match="not open"):
            await Consumer(threaded.urls).poll()
        with pytest.raises(NodeStoppedError, match="not open"):
            await Node(NodeSettings(node_id=1, data_dir=tmp_path, store="memory://unused")).wait()
        with pytest.raises(StateClosedError, match="not open"):
            await ReplicatedDict.open(threaded.urls, "t").get("a")

    asyncio.run(main())


def test_callbacks_are_called_in_the_loop(threaded: ThreadedCluster) -> None:
    async def main() -> None:
        heard: asyncio.Queue[tuple[Delivery, threading.Thread]] = asyncio.Queue()
        async with Producer(threaded.urls, max_request_size=1000) as producer:

            def hear(delivery: Delivery) -> None:
                heard.put_nowait((delivery, threading.current_thread()))

            good = await producer.send("t", b"x", on_delivery=hear)
            await good.wait()
            refusal = fail_with(ErrorCode.INVALID_RECORD)
            threaded.do(lambda: [node.script(Kind.PRODUCE, refusal) for node in threaded.cluster.nodes])
            bad = await producer.send("t", b"y", on_delivery=hear)
            async with asyncio.timeout(60):
                found = [await heard.get(), await heard.get()]
        assert {each for each, _ in found} == {good, bad}
        assert {thread for _, thread in found} == {threading.main_thread()}

    asyncio.run(main())


def test_many_tasks_share_a_producer_and_the_loop_is_not_held_up(threaded: ThreadedCluster) -> None:
    async def main() -> None:
        async with Producer(threaded.urls) as producer:

            async def work(number: int) -> list[int]:
                sent = [await producer.send("t", b"%d" % number) for _ in range(200)]
                return [(await each.wait()).offset for each in sent]

            async with asyncio.timeout(20):
                offsets = await asyncio.gather(*map(work, range(8)))
        assert all(mine == sorted(mine) for mine in offsets)
        assert sorted(offset for mine in offsets for offset in mine) == list(range(1600))

    asyncio.run(main())


def test_a_cancelled_poll_ends_at_once_and_loses_nothing(threaded: ThreadedCluster) -> None:
    async def main() -> None:
        async with (
            Producer(threaded.urls, linger_ms=0) as producer,
            Consumer(threaded.urls, auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as consumer,
        ):
            await consumer.assign([("t", 0)])
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await consumer.poll(60_000)
            assert time.monotonic() - started < 20
            found: list[int] = []
            for n in range(150):
                await (await producer.send("t", b"%d" % n)).wait()
                task = asyncio.create_task(consumer.poll(60_000))
                # Now a bit before the record comes, now a bit after.
                await asyncio.sleep(0.0003 * (n % 8))
                task.cancel()
                try:
                    found += [each.offset for each in await task]
                except asyncio.CancelledError:
                    continue
            while len(found) < 150:
                found += [each.offset for each in await consumer.poll(5000)]
        assert found == list(range(150))

    asyncio.run(main())


def test_a_result_that_came_as_its_task_was_cancelled_comes_again(threaded: ThreadedCluster) -> None:
    async def main() -> None:
        async with Producer(threaded.urls) as producer:
            await producer.send_many("t", [b"x"] * 20)
        async with Consumer(threaded.urls, auto_offset_reset="earliest", max_poll_records=10) as consumer:
            await consumer.assign([("t", 0)])
            before = set(consumer._portal._calls)  # its thread forgets a call after telling what came of it
            task = asyncio.create_task(consumer.poll(60_000))
            await asyncio.sleep(0)
            (call,) = consumer._portal._calls - before
            # The loop is held up until the result is there, and then cancels before its task sees it.
            assert len(call.future.result(5)) == 10
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [each.offset for each in await consumer.poll(5000)] == list(range(10))

    asyncio.run(main())


@pytest.mark.parametrize("how", ["abort", "an error leaves the block"])
def test_what_was_queued_in_an_aborted_transaction_is_not_sent_in_the_next_one(
    threaded: ThreadedCluster, how: str
) -> None:
    """It is queued behind a record whose topic has gone and that waits for it to come back."""
    Script(threaded.cluster)

    def looks() -> int:
        return sum(node.seen[Kind.METADATA] for node in threaded.cluster.nodes)

    async def queue(producer: Producer) -> list[HandedOver]:
        gone, behind, before = HandedOver(), HandedOver(), looks()
        assert producer._handover.offer(gone, "gone", b"x", None, (), None, None)
        assert producer._handover.offer(behind, "t", b"behind", None, (), None, None)
        while looks() == before:
            threaded.do(lambda: None)
        return [gone, behind]

    async def main() -> None:
        async with Producer(threaded.urls, transactional_id="etl") as producer:
            await producer.prepare("t")
            if how == "abort":
                await producer.begin()
                queued = await queue(producer)
                await producer.abort()
            else:
                with pytest.raises(KeyError):
                    async with producer.transaction():
                        queued = await queue(producer)
                        raise KeyError
            async with producer.transaction():
                await producer.send_and_wait("t", b"y")
            assert all(each._failure() is not None for each in queued)

    asyncio.run(main())
    assert threaded.cluster.topics["t"][0].end == 1


def test_waiting_for_a_delivery_can_be_cancelled_and_begun_again(threaded: ThreadedCluster) -> None:
    async def main() -> None:
        async with Producer(threaded.urls, linger_ms=0) as producer:
            await (await producer.send("t", b"x")).wait()
            told = trio.Event()
            threaded.do(lambda: threaded.cluster.nodes[0].script(Kind.PRODUCE, answer_when(told)))
            delivery = await producer.send("t", b"y")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await delivery.wait()
            assert not delivery.done()
            threaded.do(told.set)
            assert (await delivery.wait()).offset == 1

    asyncio.run(main())


def test_a_full_buffer_makes_send_wait_and_then_says_so(threaded: ThreadedCluster) -> None:
    async def main() -> None:
        async with Producer(threaded.urls, buffer_memory=100_000, max_block_ms=1000) as producer:
            await (await producer.send("t", b"x")).wait()
            threaded.do(lambda: threaded.cluster.nodes[0].script(Kind.PRODUCE, *[drop] * 1000))
            with pytest.raises(BufferFullError, match="max_block_ms=1000"):
                for _ in range(20_000):
                    await producer.send("t", bytes(1000))
            with pytest.raises(BufferFullError, match="no buffer space: "):
                producer.send_nowait("t", b"x")
            outcome: type[BaseException] = BufferFullError
            while outcome is BufferFullError:  # this process stood still for as long as max_block_ms
                task = asyncio.create_task(producer.send("t", b"x"))
                await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises((asyncio.CancelledError, BufferFullError)) as ended:
                    await task
                outcome = ended.type
            assert outcome is asyncio.CancelledError
            await producer.close(0.1)

    asyncio.run(main())


def test_leaving_by_cancellation_does_not_wait_for_outcomes(threaded: ThreadedCluster) -> None:
    never: list[Delivery] = []
    sent = asyncio.Event()

    async def service() -> None:
        async with Producer(threaded.urls, linger_ms=0) as producer:
            await (await producer.send("t", b"x")).wait()
            threaded.do(lambda: threaded.cluster.nodes[0].script(Kind.PRODUCE, *[drop] * 1000))
            never.append(await producer.send("t", b"y"))
            sent.set()
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(service())
        await sent.wait()
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < 20
        with pytest.raises(ClosedError):
            await never[0].wait()

    asyncio.run(main())


LEFT_OPEN = """
import asyncio, sys
from insync.replication.asyncio import Producer

async def main():
    producer = await Producer(sys.argv[1], linger_ms=60_000).__aenter__()
    for n in range(500):
        await producer.send("t", b"%d" % n)

asyncio.run(main())
"""


def test_what_is_left_open_is_flushed_when_the_interpreter_exits(threaded: ThreadedCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, threaded.urls[0]], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert threaded.cluster.topics["t"][0].values() == [b"%d" % n for n in range(500)]


def public(cls: type) -> dict[str, Any]:
    return {name: each for name, each in inspect.getmembers(cls) if not name.startswith("_")}


OWN = {"close", "close_seconds"}


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin"])
def test_all_three_do_the_same(name: str) -> None:
    """Trio, threads and asyncio: the same methods, with the same arguments and in the same order."""
    trio_ones = public(getattr(client, name))
    for other in (getattr(client, f"Blocking{name}"), getattr(bridge, name)):
        others = public(other)
        assert others.keys() - OWN == trio_ones.keys() - OWN, other
        for method, function in trio_ones.items():
            ours = [each for each in inspect.signature(function).parameters if each != "timeout"]
            theirs = [each for each in inspect.signature(others[method]).parameters if each != "timeout"]
            assert theirs == ours, (other, method)
            assert others[method].__doc__, (other, method)


def test_a_block_begins_with_the_abort_that_was_not_confirmed(threaded: ThreadedCluster) -> None:
    script = Script(threaded.cluster)

    async def main() -> None:
        async with Producer(threaded.urls, transactional_id="etl") as producer:
            script.let(Kind.END_TXN, ErrorCode.INVALID_TXN_STATE)
            with pytest.raises(KeyError):
                async with producer.transaction():
                    await producer.send_and_wait("t", b"x")
                    raise KeyError
            with pytest.raises(TransactionStateError, match="not confirmed yet"):
                await producer.begin()
            async with producer.transaction():
                await producer.send("t", b"y")

    asyncio.run(main())
    assert ends(script) == [(0, False), (0, False), (1, True)]


def test_a_transaction_that_is_cancelled_while_it_begins_is_not_open(threaded: ThreadedCluster) -> None:
    """Now before it has begun, now after that and before its caller has heard of it."""
    Script(threaded.cluster)

    async def main() -> None:
        async with Producer(threaded.urls, transactional_id="etl") as producer:

            async def begin() -> None:
                async with producer.transaction():
                    pass

            for n in range(100):
                task = asyncio.create_task(begin())
                await asyncio.sleep(0)
                time.sleep(0.0001 * (n % 8))  # noqa: ASYNC251 - the loop is to hear of it late
                task.cancel()
                assert await asyncio.wait([task], timeout=60) == ({task}, set())
                async with producer.transaction():
                    await producer.send("t", b"x")

    asyncio.run(main())
    assert threaded.cluster.topics["t"][0].end == 100


@pytest.mark.parametrize("opened", [client.Producer, client.Consumer, client.Admin])
def test_a_client_for_trio_says_what_to_use_on_asyncio(opened: type) -> None:
    async def main() -> None:
        async with opened("tcp://127.0.0.1:1"):
            pass

    name = opened.__name__
    with pytest.raises(
        client.NoTrioError, match=rf"insync\.replication\.asyncio\.{name}` .*`Blocking{name}`"
    ):
        asyncio.run(main())


def test_a_node_for_trio_says_what_to_use_on_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with TrioNode(NodeSettings(node_id=1, data_dir=tmp_path, store="memory://unused")):
            pass

    with pytest.raises(NodeError, match=r"insync\.replication\.asyncio\.Node` .*`BlockingNode`"):
        asyncio.run(main())


class Scripted(Consumer):
    """Its polls give what the test says, when it says so."""

    def __init__(self) -> None:
        super().__init__("tcp://127.0.0.1:1")
        self.polls: list[asyncio.Future[list[ConsumerRecord]]] = []

    @property
    def _held(self) -> Any:
        return SimpleNamespace(_member=None)

    @property
    def _portal(self) -> Any:
        return SimpleNamespace(try_post=lambda function: None)

    async def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        self.polls.append(asyncio.get_running_loop().create_future())
        return await self.polls[-1]


def record_at(offset: int) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, 0, None, b"x", (), 0)


def test_what_one_task_polls_is_not_lost_when_another_puts_back_what_was_ahead() -> None:
    async def main() -> None:
        consumer = Scripted()
        one, other = (asyncio.ensure_future(anext(consumer)) for _ in range(2))
        await asyncio.sleep(0)
        assert len(consumer.polls) == 2
        consumer.polls[1].set_result([record_at(0), record_at(1)])
        assert (await other).offset == 0
        consumer._put_back()
        consumer.polls[0].set_result([record_at(2)])
        async with asyncio.timeout(20):
            assert (await one).offset == 2

    asyncio.run(main())

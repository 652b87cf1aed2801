"""With `durability=flushed` an append is told when the device has it; one flush serves all that came meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from insync.replication import Admin, Node, Producer
from insync.replication.node.logs import _log_writer
from insync.replication.node.logs._log_writer import AppendWork, CallWork, Lane, LogWriter
from insync.replication.node.logs._telling import tell
from insync.storage import Chunk, Handover, LogSettings, StorageBrokenError, StorageError

from ..test_cluster import full_isr, replicas_agree, settings, until

FLUSHED = LogSettings(durability="flushed")


class Log:
    """Each flush waits until it is let go, or fails."""

    def __init__(self, log_settings: LogSettings) -> None:
        self.settings = log_settings
        self.done: list[object] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.failure: StorageError | None = None

    def append(self, chunks: Sequence[Chunk]) -> None:
        self.done.append([chunk.base_offset for chunk in chunks])

    def flush(self) -> None:
        self.begun.release()
        assert self.may_end.acquire(timeout=60)
        if self.failure is not None:
            raise self.failure
        self.done.append("flush")


class Busy:
    """Work that keeps the writer busy until `may_end` is set."""

    def __init__(self, writer: LogWriter) -> None:
        self._begun, self.may_end, self.over = threading.Event(), threading.Event(), trio.Event()
        writer.submit(CallWork(Lane(failed=lambda error: None), self._work, lambda _: self.over.set()))

    def _work(self) -> None:
        self._begun.set()
        assert self.may_end.wait(60)

    async def begins(self) -> None:
        assert await trio.to_thread.run_sync(self._begun.wait, 60)


@attrs.define(eq=False)
class Bench:
    writer: LogWriter
    told: list[str]
    failed: list[StorageError]
    news: list[trio.Event]
    """The next time that the loop is told something; one more for each time."""

    def lane(self, log: Log) -> Lane:
        return Lane(failed=self.failed.append, log=log)  # type: ignore[arg-type]

    def append(self, lane: Lane, number: int) -> None:
        work = (lambda: self.told.append(f"{number}"), lambda: self.told.append(f"{number} dropped"))
        self.writer.submit(AppendWork(lane, Chunk(b"", (), number, 0), *work))

    async def hears(self, *words: str) -> None:
        with trio.fail_after(60):
            while self.told != [*words]:
                assert len(self.told) <= len(words), self.told
                await self.news[-1].wait()

    async def flushing(self, log: Log) -> None:
        with trio.fail_after(60):
            await trio.to_thread.run_sync(log.begun.acquire)

    async def taken(self) -> None:
        """The writer has taken all that was handed over."""
        over = trio.Event()
        self.writer.submit(CallWork(Lane(failed=self.failed.append), lambda: None, lambda _: over.set()))
        with trio.fail_after(60):
            await over.wait()


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    news = [trio.Event()]

    def after() -> None:
        news[-1].set()
        news.append(trio.Event())

    failed: list[Any] = []
    writer = LogWriter("test", after, failed.append)
    writer.start()
    yield Bench(writer, [], failed, news)
    with trio.fail_after(60):
        await writer.stop()


async def test_an_append_is_told_after_its_flush_and_the_next_flush_is_of_all_that_came_meanwhile() -> None:
    async with bench() as it:
        log = Log(FLUSHED)
        lane = it.lane(log)
        it.append(lane, 1)
        await it.flushing(log)
        for number in (2, 3, 4):
            it.append(lane, number)
            await it.taken()
        assert it.told == [] and log.done == [[1]]
        log.may_end.release()
        await it.hears("1")
        await it.flushing(log)
        log.may_end.release()
        await it.hears("1", "2", "3", "4")
        assert log.done == [[1], "flush", [2, 3, 4], "flush"]
        assert it.writer.queued == 0 and it.writer.signs_of_life == (0, 0, 0)


async def test_the_end_of_a_flush_wakes_the_writer_only_for_work_that_was_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken: list[str] = []
    ask = Handover.ask
    monkeypatch.setattr(
        Handover, "ask", lambda self: (woken.append(threading.current_thread().name), ask(self))
    )
    async with bench() as it:
        log = Log(FLUSHED)
        lane = it.lane(log)
        for number in (1, 2):
            it.append(lane, number)
            await it.flushing(log)
            log.may_end.release()
            await it.hears(*map(str, range(1, number + 1)))
        assert len(it.news) == 3, "the loop hears of each append, and of nothing else"
        assert "insync-flush-test-0" not in woken
        it.append(lane, 3)
        await it.flushing(log)
        it.append(lane, 4)
        await it.taken()
        log.may_end.release(2)
        await it.hears("1", "2", "3", "4")
        assert woken.count("insync-flush-test-0") == 1


async def test_work_that_is_held_just_after_the_flush_has_ended_is_done() -> None:
    """The flush wakes nobody, as nothing is held yet, and the writer still takes it for under way."""
    async with bench() as it:
        log = Log(FLUSHED)
        lane = it.lane(log)
        it.append(lane, 1)
        await it.flushing(log)
        first = Busy(it.writer)
        await first.begins()
        second = Busy(it.writer)
        it.append(lane, 2)
        first.may_end.set()
        await second.begins()  # the append behind it was taken with it
        log.may_end.release(2)
        await it.hears("1")
        second.may_end.set()
        await it.hears("1", "2")


async def test_a_flush_under_way_ends_before_the_writer_does() -> None:
    async with bench() as it:
        log = Log(FLUSHED)
        it.append(it.lane(log), 1)
        await it.flushing(log)
        first = Busy(it.writer)
        await first.begins()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                second = Busy(it.writer)
                nursery.start_soon(it.writer.stop)
                await trio.testing.wait_all_tasks_blocked()
                first.may_end.set()
                await second.begins()  # the word to stop was taken with it
                second.may_end.set()
                await second.over.wait()
                log.may_end.release()
        assert it.told == ["1"]


async def test_the_writer_is_stopped_when_the_end_of_its_last_flush_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the thread that has flushed stands still before it says so."""
    has_stopped = threading.Event()

    def late(token: trio.lowlevel.TrioToken, do: Callable[..., None], *arguments: Any) -> None:
        if threading.current_thread().name.startswith("insync-flush"):
            assert has_stopped.wait(60)
        tell(token, do, *arguments)

    monkeypatch.setattr(_log_writer, "tell", late)
    async with bench() as it:
        log = Log(FLUSHED)
        it.append(it.lane(log), 1)
        await it.flushing(log)
        log.may_end.release()
        with trio.fail_after(60):
            await it.writer.stop()
        told = [*it.told]
        has_stopped.set()
    assert told == ["1"]


async def test_other_logs_wait_for_no_flush_and_work_of_this_one_does() -> None:
    async with bench() as it:
        log, other, plain = Log(FLUSHED), Log(FLUSHED), Log(LogSettings())
        lane = it.lane(log)
        it.append(lane, 1)
        it.writer.submit(CallWork(lane, lambda: log.done.append("cut"), lambda _: it.told.append("cut")))
        await it.flushing(log)
        assert it.writer.signs_of_life[2], "a device that hangs in a flush is found"
        it.append(it.lane(plain), 2)
        await it.hears("2")
        it.append(it.lane(other), 3)
        other.may_end.release()
        await it.hears("2", "3")
        assert log.done == [[1]]
        log.may_end.release()
        await it.hears("2", "3", "1", "cut")
        assert log.done == [[1], "flush", "cut"]


async def test_work_beside_holds_up_no_flush() -> None:
    """The making of logs takes seconds."""
    async with bench() as it:
        log, go_on = Log(FLUSHED), threading.Event()
        it.writer.submit(CallWork(it.lane(log), go_on.wait, lambda _: None, waits=True))
        flushed = Log(FLUSHED)
        flushed.may_end.release()
        it.append(it.lane(flushed), 1)
        await it.hears("1")
        go_on.set()


async def test_what_a_failed_flush_was_to_bring_home_is_dropped_with_all_behind_it() -> None:
    async with bench() as it:
        log = Log(FLUSHED)
        log.failure = StorageBrokenError("the device is broken")
        lane = it.lane(log)
        it.append(lane, 1)
        await it.flushing(log)
        it.append(lane, 2)
        await it.taken()
        log.may_end.release()
        await it.hears("1 dropped", "2 dropped")
        assert log.done == [[1]]
        assert [str(error) for error in it.failed] == ["the device is broken"]


async def test_a_replicated_log_is_told_before_any_flush() -> None:
    async with bench() as it:
        log = Log(LogSettings())
        it.append(it.lane(log), 1)
        await it.hears("1")
        assert log.done == [[1]]


class Device:
    """Holds up the fsyncs of segments in the folders of `held`; `waiting` are those that wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = threading.Condition()
        self.held: set[str] = set()
        self.waiting: set[str] = set()
        self._real = os.fsync
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        folder = path.parent.parent.name
        with self._changed:
            if path.suffix == ".log" and path.parent.name == "t-0" and folder in self.held:
                self.waiting.add(folder)
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: folder not in self.held, timeout=60)
                self.waiting.discard(folder)
        self._real(fd)

    def let_go(self) -> None:
        with self._changed:
            self.held = set()
            self._changed.notify_all()

    async def holds_up(self, folders: set[str]) -> None:
        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: self.waiting == folders, timeout=60)

        assert await trio.to_thread.run_sync(wait)


async def ends(admin: Admin) -> dict[int, tuple[int, int]]:
    """By node: (high watermark, log end offset) of t-0 as its replica has them."""
    return {
        report.node_id: (replica.high_watermark, replica.log_end_offset)
        for report in await admin.describe_replicas(["t"])
        for replica in report.replicas
    }


@pytest.mark.parametrize("acks", [1, "all"])
async def test_nothing_counts_before_the_device_of_its_replica_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: Any
) -> None:
    """First the leader's device is slow, then those of its followers."""
    device = Device(monkeypatch)
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2, 3)]
        servers = [node.endpoints[0] for node in nodes]
        admin = await stack.enter_async_context(Admin(servers))
        producer = await stack.enter_async_context(Producer(servers, acks=acks))
        await admin.create_topic("t", assignments=[[1, 2, 3]], config={"durability": "flushed"})
        await until(lambda: full_isr(admin, "t", 3))
        device.held = {"node-1"}
        delivery = await producer.send("t", b"a")
        await device.holds_up({"node-1"})
        assert await ends(admin) == {1: (0, 0), 2: (0, 0), 3: (0, 0)}
        assert not delivery.done
        device.let_go()
        await delivery.wait()
        await until(lambda: replicas_agree(admin, "t", 3))
        device.held = {"node-2", "node-3"}
        delivery = await producer.send("t", b"b")
        await device.holds_up({"node-2", "node-3"})
        if acks == 1:
            await delivery.wait()
        assert await ends(admin) == {1: (1, 2), 2: (1, 1), 3: (1, 1)}
        assert delivery.done == (acks == 1)
        device.let_go()
        await delivery.wait()
        await until(lambda: replicas_agree(admin, "t", 3))


async def test_a_topic_that_becomes_flushed_is_flushed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(monkeypatch)
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", partitions=1, replication_factor=1)
        async with Producer(node.endpoints) as producer:
            device.held = {"node-1"}
            await producer.send_and_wait("t", b"a")
            assert not device.waiting
            await admin.alter_config("t", {"durability": "flushed"})
            await device.holds_up({"node-1"})
            device.let_go()
            await producer.send_and_wait("t", b"b")


async def test_a_log_that_begins_inside_a_batch_counts_when_its_device_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(monkeypatch)
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2)]
        servers = [node.endpoints[0] for node in nodes]
        admin = await stack.enter_async_context(Admin(servers))
        producer = await stack.enter_async_context(Producer(servers))
        await admin.create_topic("t", assignments=[[1]], config={"durability": "flushed"})
        await (await producer.send_many("t", [b"%d" % n for n in range(5)])).wait()
        await admin.delete_records({("t", 0): 3})
        device.held = {"node-2"}
        await admin.reassign_partitions({("t", 0): [1, 2]})
        await device.holds_up({"node-2"})
        assert (await ends(admin))[2] == (3, 3)
        device.let_go()
        await until(lambda: full_isr(admin, "t", 2))
        await until(lambda: replicas_agree(admin, "t", 2))
        assert (await ends(admin))[2] == (5, 5)

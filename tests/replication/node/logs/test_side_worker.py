"""Work that waits for the device is done beside the writer thread: other logs go on, the same log's work waits."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication import Admin, Node, Producer
from insync.replication.node.logs import _side_worker
from insync.replication.node.logs._log_writer import AppendWork, CallWork, Lane, LogWriter
from insync.replication.node.logs._side_worker import SideWork, SideWorker
from insync.storage import Chunk, LogDirectory, LogSettings, StorageBrokenError, StorageError
from insync.storage import directory as directory_module
from insync.storage.folder import _checkpoints as checkpoints_module

from ....requires import missing
from ..test_cluster import produce, settings


class Log:
    settings = LogSettings()

    def __init__(self, done: list[str], name: str) -> None:
        self.done, self.name = done, name

    def append(self, chunks: Sequence[Chunk]) -> None:
        self.done += [f"{self.name}{chunk.base_offset}" for chunk in chunks]


class Bench:
    """A writer of two logs; `told` is what the event loop hears of."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.told: list[str] = []
        self.failed: list[object] = []
        self.news = trio.Event()
        self.writer = LogWriter("test", self._after, self.failed.append)
        self.lanes = {name: self.lane(name) for name in "ab"}

    def lane(self, name: str) -> Lane:
        return Lane(failed=self.failed.append, log=Log(self.done, name))  # type: ignore[arg-type]

    def _after(self) -> None:
        self.news.set()
        self.news = trio.Event()

    def append(self, name: str, number: int) -> None:
        chunk = Chunk(b"", (), number, 0)
        told = f"{name}{number}"
        self.writer.submit(
            AppendWork(
                self.lanes[name],
                chunk,
                lambda: self.told.append(told),
                lambda: self.told.append(f"{told} dropped"),
            )
        )

    def call(self, lane: Lane, text: str, function: Callable[[], object], **options: Any) -> None:
        def run() -> object:
            result = function()
            self.done.append(text)
            return result

        self.writer.submit(
            CallWork(
                lane,
                run,
                lambda _: self.told.append(text),
                lambda: self.told.append(f"{text} dropped"),
                waits=True,
                **options,
            )
        )

    async def hears(self, *what: str) -> None:
        with trio.fail_after(60):
            while not {*what} <= {*self.told}:
                await self.news.wait()


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    made.writer.start()
    yield made
    with trio.fail_after(60):
        await made.writer.stop()


async def test_only_the_same_log_waits() -> None:
    async with bench() as it:
        go_on = threading.Event()
        it.append("a", 1)
        it.call(it.lanes["a"], "epoch of a", go_on.wait)
        it.append("a", 2)
        it.append("b", 1)
        await it.hears("a1", "b1")
        it.append("b", 2)
        await it.hears("b2")
        assert it.done == ["a1", "b1", "b2"]
        with trio.fail_after(60):
            while not it.writer.signs_of_life[1]:
                await trio.lowlevel.checkpoint()
        it.append("a", 3)
        go_on.set()
        await it.hears("a3")
        assert [each for each in it.told if "a" in each] == ["a1", "epoch of a", "a2", "a3"]
        assert it.writer.queued == 0
    assert it.done[3:] == ["epoch of a", "a2", "a3"]


async def test_work_beside_is_not_bound_to_where_the_writer_was() -> None:
    """The event loop lends the writer its processor, and the writer starts the threads beside it."""
    processors = os.sched_getaffinity(0)
    if len(processors) < 2:
        missing("one processor only")
    found: list[set[int]] = []
    async with bench() as it:
        # It has begun; then it is waited for.
        assert it.writer._handover.ask_and_wait(10) and it.writer._handover.ask_and_wait(10)
        bind = partial(os.sched_setaffinity, 0, {min(processors)})
        it.writer.submit(CallWork(it.lanes["a"], bind, lambda _: None))
        it.call(it.lanes["b"], "epoch of b", lambda: found.append(os.sched_getaffinity(0)))
        await it.hears("epoch of b")
    assert found == [processors]


async def test_what_was_held_back_comes_before_what_came_later_also_when_both_are_found_at_once() -> None:
    async with bench() as it:
        go_on, begun, let_through = threading.Event(), threading.Event(), threading.Event()

        def hold_up() -> None:
            begun.set()
            assert let_through.wait(60)

        it.call(it.lanes["a"], "epoch of a", lambda: go_on.wait(60))
        with trio.fail_after(60):
            while not it.writer.signs_of_life[1]:
                await trio.lowlevel.checkpoint()
        it.append("a", 1)
        it.writer.submit(CallWork(it.lanes["b"], hold_up, lambda _: None))
        with trio.fail_after(60):
            while not begun.is_set():
                await trio.lowlevel.checkpoint()
            # The thread is at the other log: that "a" may go on, and what came for it since, wait together.
            go_on.set()
            while not it.writer._queue:
                await trio.lowlevel.checkpoint()
            it.append("a", 2)
            let_through.set()
            await it.hears("a2")
        assert it.done == it.told == ["epoch of a", "a1", "a2"]


class AtOnce:
    """Does its work, and reports it, before `submit` returns: as the fastest thread beside the writer would."""

    under_way = 0

    def __init__(self, writer: LogWriter) -> None:
        self.writer = writer

    def submit(self, work: SideWork) -> None:
        self.writer._do_beside(work)
        self.writer._done_beside([work])

    def end(self) -> None:
        pass


async def test_what_came_before_it_is_told_first_even_if_it_takes_no_time() -> None:
    it = Bench()
    it.writer._beside = AtOnce(it.writer)  # type: ignore[assignment]
    # All of it waits when the thread begins, and so is taken in one portion.
    it.append("a", 1)
    it.call(it.lanes["a"], "epoch of a", lambda: None)
    it.append("a", 2)
    it.append("b", 1)
    it.call(it.lanes["b"], "epoch of b", lambda: None)
    it.writer.start()
    await it.hears("a2", "epoch of b")
    await it.writer.stop()
    assert [each for each in it.told if "a" in each] == ["a1", "epoch of a", "a2"]
    assert [each for each in it.told if "b" in each] == ["b1", "epoch of b"]
    assert it.writer.queued == 0 and it.failed == []


async def test_a_stop_waits_for_what_is_beside_and_behind_it() -> None:
    async with bench() as it:
        it.call(it.lanes["a"], "epoch of a", lambda: None)
        it.append("a", 1)
        it.call(it.lanes["a"], "another", lambda: None)
        it.append("a", 2)
    assert it.done == ["epoch of a", "a1", "another", "a2"]


async def test_what_fails_takes_its_own_log_along() -> None:
    def fail() -> None:
        raise StorageBrokenError("no")

    async with bench() as it:
        it.call(it.lanes["a"], "epoch of a", fail)
        it.append("a", 1)
        it.append("b", 1)
        await it.hears("epoch of a dropped", "a1 dropped", "b1")
        assert [str(each) for each in it.failed] == ["no"]


async def test_what_nobody_expects_ends_the_writer() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async with bench() as it:
        it.call(it.lanes["a"], "epoch of a", fail)
        with trio.fail_after(60):
            while not it.failed:
                await trio.lowlevel.checkpoint()
    assert isinstance(it.failed[0], ZeroDivisionError)


async def test_portions_share_what_they_have_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are by then, up to a portion; and never what is made with what is deleted."""
    monkeypatch.setattr(_side_worker, "PORTION", 4)
    made: list[list[object]] = []
    gone: list[list[object]] = []

    def make(arguments: Sequence[object]) -> None:
        made.append([*arguments])
        raise StorageError("each does it by itself then")

    def delete(arguments: Sequence[object]) -> None:
        gone.append([*arguments])

    async with bench() as it:
        go_on = threading.Event()
        it.call(it.lane("x"), "first", go_on.wait)
        with trio.fail_after(60):
            while not it.writer.signs_of_life[1]:
                await trio.lowlevel.checkpoint()
        for number in range(6):
            it.call(it.lane("x"), f"made {number}", lambda: None, common=(make, number))
        for number in range(2):
            it.call(it.lane("x"), f"gone {number}", lambda: None, common=(delete, number))
        # The writer hands over what it carried out after it has told of it: only the next batch proves it.
        it.append("b", 1)
        await it.hears("b1")
        it.append("b", 2)
        await it.hears("b2")
        go_on.set()
        await it.hears("made 5", "gone 1")
    assert made == [[0, 1, 2, 3], [4, 5]]
    assert gone == [[0, 1]]
    assert it.failed == []


def test_more_may_come_while_a_portion_is_taken() -> None:
    """The writer's thread may run between any two of this one's steps."""

    class Piece:
        def __init__(self, *behind: Piece) -> None:
            self.behind = [*behind]

        @property
        def common(self) -> None:
            while self.behind:
                worker._queue.append(self.behind.pop())

    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    worker = SideWorker("test", nothing, nothing, nothing, nothing)
    last = Piece()
    first = Piece(last)
    worker._queue.append(first)
    assert worker._portion() == [first, last] and not worker._queue


async def test_another_topic_is_written_while_many_folders_wait_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    whole = directory_module.make_folder

    def make_folder(folder: Path) -> None:
        if folder.name.startswith("many-"):
            go_on.wait(60)
        whole(folder)

    monkeypatch.setattr(directory_module, "make_folder", make_folder)
    try:
        async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
            await admin.create_topic("t", 1, 1)
            await produce(node.endpoints, "t", [b"first"])
            async with trio.open_nursery() as nursery, Producer(node.endpoints) as producer:
                nursery.start_soon(admin.create_topic, "many", 40, 1)
                assert node._driver is not None
                with trio.fail_after(60):
                    while not any(each.topic == "many" for each in node._driver.hosts):
                        await trio.lowlevel.checkpoint()
                    for number in range(20):
                        await (await producer.send("t", b"%d" % number)).wait()
                assert not list((tmp_path / "node-1").glob("many-*"))
                go_on.set()
            await produce(node.endpoints, "many", [b"x"] * 40)
    finally:
        go_on.set()


async def test_checkpoints_are_written_once_for_many_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where folders of the same names were there before, so that what is remembered of them has to go."""
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1)
    keys = [("t", number) for number in range(50)]
    directory.make_folders([(key, "i") for key in keys])
    for key in keys:
        directory.open_log(*key, create=True, topic_id="i")
    directory.write_checkpoints(dict.fromkeys(keys, 0))
    written: list[str] = []
    whole = checkpoints_module.write_checkpoints
    monkeypatch.setattr(
        checkpoints_module,
        "write_checkpoints",
        lambda folder, checkpoints: (written.extend(checkpoints), whole(folder, checkpoints)),
    )
    directory.delete_logs(keys)
    assert sorted(written) == sorted({*written}) and len(written) == 3
    assert all(directory.never_held(*key) for key in keys)
    directory.make_folders([(key, "j") for key in keys])
    assert len(written) == 3 and not any(directory.never_held(*key) for key in keys)
    for key in keys:
        directory.open_log(*key, create=True, topic_id="j")
    assert len(written) == 3
    directory.close()
    again = LogDirectory(tmp_path, cluster_id="c", node_id=1)
    assert again.open_log("t", 7, create=False, topic_id="j").log_end_offset == 0
    again.close()

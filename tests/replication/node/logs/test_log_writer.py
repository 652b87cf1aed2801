"""The event loop gives the writer thread a moment for little work, and never waits for a device."""

from __future__ import annotations

import inspect
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest
import trio
import trio.lowlevel

from insync.replication.node.logs import _log_writer
from insync.replication.node.logs._log_writer import AppendWork, CallWork, Lane, LogWriter
from insync.storage import Chunk, Handover, LogSettings, StorageError
from insync.transport import turn


class HeldLog:
    """A log whose appends wait until they are let through."""

    settings = LogSettings()

    def __init__(self) -> None:
        self.let_through = threading.Event()
        self.let_through.set()
        self.appended: list[int] = []

    def append(self, chunks: Sequence[Chunk]) -> None:
        assert self.let_through.wait(10)
        self.appended += [chunk.base_offset for chunk in chunks]


class Waits(Handover):
    """Counts how often the loop waits for what is done, and how often it wakes the thread and goes on.

    The thread beside the writer wakes it, too, and may do so before the loop's next line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = self.woken = 0
        self.loop = threading.get_ident()

    def ask(self) -> None:
        self.woken += threading.get_ident() == self.loop
        super().ask()

    def ask_and_wait(self, seconds: float) -> bool:
        self.count += 1
        return super().ask_and_wait(seconds)


class Bench:
    """A writer, its log and what is told."""

    def __init__(self) -> None:
        self.failed: list[object] = []
        self.told: list[int] = []
        self.log = HeldLog()
        self.waits = Waits()
        self.writer = LogWriter("test", lambda: None, self.failed.append)
        self.writer._handover = self.waits
        self.lane = Lane(failed=self.failed.append, log=self.log)  # type: ignore[arg-type]
        self.news = trio.Event()

    def append(self, number: int, size: int = 100) -> None:
        def done() -> None:
            self.told.append(number)
            self.news.set()

        chunk = Chunk(memoryview(bytes(size)), [], number, None)
        self.writer.submit(AppendWork(self.lane, chunk, done))

    async def has_told(self, *numbers: int) -> None:
        with trio.fail_after(60):
            while self.told != [*numbers]:
                self.news = trio.Event()
                await self.news.wait()


@contextmanager
def brief(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(_log_writer, "BRIEF", seconds)
        yield


async def test_little_work_is_done_and_told_when_the_turn_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.writer.start()
    with brief(monkeypatch, 10.0):
        with turn():
            bench.append(0)
            bench.append(1)
            assert bench.told == [], "not in the middle of somebody's work"
        assert bench.told[:1] == [0]
    await bench.has_told(0, 1)
    await bench.writer.stop()
    assert bench.log.appended == [0, 1] and bench.failed == []


async def test_completions_that_append_more_do_not_nest() -> None:
    bench = Bench()
    bench.writer.start()
    depths: list[int] = []

    def append(number: int) -> None:
        def done() -> None:
            depths.append(len(inspect.stack(0)))
            if number < 300:
                append(number + 1)
            else:
                bench.news.set()

        bench.writer.submit(
            AppendWork(bench.lane, Chunk(memoryview(b"x"), [], number, None), done)  # type: ignore[arg-type]
        )

    with trio.fail_after(10):
        with turn():
            append(0)
        await bench.news.wait()
    assert bench.log.appended == [*range(301)] and not bench.failed
    assert max(depths) - min(depths) < 10
    await bench.writer.stop()


async def test_each_piece_of_work_has_a_number_while_it_is_under_way() -> None:
    bench, seen = Bench(), list[int]()
    bench.log.append = lambda chunks: seen.append(bench.writer.signs_of_life[0])  # type: ignore[method-assign]
    bench.writer.start()
    for number in range(2):
        bench.append(number)
        await bench.has_told(*range(number + 1))
        assert bench.writer.signs_of_life == (0, 0, 0)
    bench.writer.submit(
        CallWork(bench.lane, lambda: seen.append(bench.writer.signs_of_life[0]), lambda _: bench.append(2))
    )
    await bench.has_told(0, 1, 2)
    await bench.writer.stop()
    assert seen == [1, 2, 3, 4] and bench.writer.signs_of_life == (0, 0, 0)


async def test_a_device_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.writer.start()
    bench.log.let_through.clear()
    with brief(monkeypatch, 0.001):
        for number in range(3):
            with turn():
                bench.append(number)
    assert bench.waits.count == 1 and bench.told == []
    bench.log.let_through.set()
    await bench.has_told(0, 1, 2)
    with brief(monkeypatch, 10.0), turn():
        bench.append(3)
    assert bench.told == [0, 1, 2, 3], "all of that is over"
    await bench.writer.stop()
    assert bench.failed == []


@pytest.mark.parametrize("work", ["large", "many", "no append"])
async def test_nobody_waits_for_much_work(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    bench = Bench()
    bench.writer.start()
    bench.log.let_through.clear()
    sizes = {"large": [_log_writer.LITTLE + 1, 1], "many": [1] * (_log_writer.FEW + 1), "no append": [1]}
    with brief(monkeypatch, 10.0), turn():
        if work == "no append":
            bench.writer.submit(CallWork(bench.lane, lambda: None, lambda _: None))
        for number, size in enumerate(sizes[work]):
            bench.append(number, size)
    assert bench.waits.count == 0
    bench.log.let_through.set()
    await bench.has_told(*range(len(sizes[work])))
    await bench.writer.stop()


@pytest.mark.parametrize("waits", [False, True])
async def test_the_thread_is_woken_once_for_all_that_a_turn_asks_of_it(waits: bool) -> None:
    """Thousands of partitions go on in few turns after a failover."""
    bench = Bench()
    bench.writer.start()
    lanes = [Lane(failed=bench.failed.append, log=bench.log) for _ in range(100)]  # type: ignore[arg-type]

    def tell(_: object) -> None:
        bench.told.append(-1)
        bench.news.set()

    with turn():
        for lane in lanes:
            bench.writer.submit(CallWork(lane, lambda: None, tell, waits=waits))
        for number in range(100):
            bench.append(number)
        assert bench.waits.woken == 0
    assert (bench.waits.woken, bench.waits.count) == (1, 0)
    with trio.fail_after(60):
        while len(bench.told) < 200:
            bench.news = trio.Event()
            await bench.news.wait()
    assert [each for each in bench.told if each >= 0] == [*range(100)]
    await bench.writer.stop()


async def test_a_large_append_begins_before_the_turn_ends() -> None:
    bench = Bench()
    bench.writer.start()
    with turn():
        bench.append(0, _log_writer.LITTLE + 1)
        assert bench.waits.woken == 1
    await bench.has_told(0)
    await bench.writer.stop()


@pytest.mark.parametrize("seed", range(5))
async def test_all_is_told_once_and_in_order_however_it_is_handed_over(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    bench = Bench()
    bench.writer.start()
    total = 400
    number = 0
    with brief(monkeypatch, 0.00005):
        while number < total:
            several = range(number, min(total, number + chance.choice([1, 1, 2, 12])))
            if chance.random() < 0.7:
                with turn():
                    for each in several:
                        bench.append(each)
            else:
                for each in several:
                    bench.append(each)
            number = several.stop
            if chance.random() < 0.4:
                await trio.lowlevel.checkpoint()
            if chance.random() < 0.1:
                await bench.has_told(*range(number))
    await bench.has_told(*range(total))
    await bench.writer.stop()
    assert bench.log.appended == [*range(total)] and bench.failed == []


async def test_what_is_done_in_the_moment_in_which_the_loop_gives_up_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread still believes that the loop waits, and does not wake it."""

    class Late(Waits):
        def ask_and_wait(self, seconds: float) -> bool:
            in_time = super().ask_and_wait(seconds)
            bench.log.let_through.set()
            while not bench.writer._done:
                time.sleep(0.001)
            return in_time

    bench = Bench()
    bench.writer._handover = Late()
    bench.writer.start()
    bench.log.let_through.clear()
    with brief(monkeypatch, 0.001), turn():
        bench.append(0)
    await bench.has_told(0)
    await bench.writer.stop()


async def test_an_append_that_fails_is_never_told_as_done_nor_is_what_stands_behind_it() -> None:
    class FailingLog(HeldLog):
        def append(self, chunks: Sequence[Chunk]) -> None:
            if chunks[0].base_offset >= 1:
                raise StorageError("no space left on the device")
            super().append(chunks)

    bench = Bench()
    bench.lane.log = bench.log = FailingLog()  # type: ignore[assignment]
    dropped: list[int] = []
    bench.writer.start()
    bench.append(0)
    await bench.has_told(0)
    over = trio.Event()
    for number in (1, 2, 3):
        chunk = Chunk(memoryview(b"x"), [], number, None)
        done, drop = partial(bench.told.append, number), partial(dropped.append, number)
        bench.writer.submit(AppendWork(bench.lane, chunk, done, drop))
        bench.writer.submit(CallWork(bench.lane, lambda: None, lambda _: bench.told.append(-1)))
    other = Lane(failed=bench.failed.append)
    bench.writer.submit(CallWork(other, lambda: None, lambda _: over.set()))
    with trio.fail_after(60):
        await over.wait()
    await bench.writer.stop()
    assert (bench.told, dropped) == ([0], [1, 2, 3])
    assert [str(error) for error in bench.failed] == ["no space left on the device"]
    assert bench.writer.has_failed


async def test_work_beside_the_thread_is_not_counted_as_queued() -> None:
    """Its end is never counted either: a writer that has nothing to do must not look as if it had."""
    bench = Bench()
    bench.writer.start()
    over = trio.Event()
    bench.writer.submit(CallWork(bench.lane, lambda: None, lambda _: over.set(), waits=True))
    with trio.fail_after(60):
        await over.wait()
    bench.append(0)
    await bench.has_told(0)
    assert bench.writer.queued == 0
    await bench.writer.stop()


async def test_a_single_append_waits_for_the_work_beside_the_thread() -> None:
    """An append that comes alone is done without ado, but never before what was asked for earlier in its log."""
    bench = Bench()
    bench.writer.start()
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(60)
        bench.log.appended.append(-1)

    bench.writer.submit(CallWork(bench.lane, wait, lambda _: None, waits=True))
    with trio.fail_after(60):
        await trio.to_thread.run_sync(begun.wait)
        bench.append(0)
        while bench.writer._queue:
            await trio.lowlevel.checkpoint()  # the thread has not taken it yet
        over = trio.Event()
        lane = Lane(failed=bench.failed.append)
        bench.writer.submit(CallWork(lane, lambda: None, lambda _: over.set()))
        await over.wait()  # and so it is done with what it has taken
    assert bench.log.appended == []
    go_on.set()
    await bench.has_told(0)
    assert bench.log.appended == [-1, 0]
    await bench.writer.stop()

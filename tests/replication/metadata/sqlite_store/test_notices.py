"""The SQLite store hears of others' transactions from the system, and looks for them where it does not."""

from __future__ import annotations

import itertools
import logging
import math
import os
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from insync.replication.metadata import Changed, Put, SqliteStore, StoreUnavailableError
from insync.replication.metadata.sqlite_store import store as sqlite_module
from insync.replication.metadata.sqlite_store._database import Database
from insync.replication.metadata.sqlite_store._leases import LeaseFile
from insync.replication.metadata.sqlite_store._notices import Notices
from insync.replication.metadata.sqlite_store._worker import Worker, _Job

PATIENCE = 20.0
NEVER = 1e6
"""Seconds: no test lasts that long, and `poll(2)` takes it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not told sees nothing."""
    monkeypatch.setattr(sqlite_module, "_UNNOTICED_SECONDS", NEVER)


class Deaf(Notices):
    """As on a file system that another machine writes to."""

    def __init__(self, path: str) -> None:
        self.fd = os.eventfd(0)

    def drain(self) -> bool:
        return False


def refusing(path: str) -> Notices:
    raise OSError(24, "Too many open files")


def test_a_write_is_told_once_and_a_read_never(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a")
    with closing(Notices(str(file))) as notices, file.open("r+b", buffering=0) as other:
        assert not os.get_inheritable(notices.fd), "a node starts processes"
        assert not notices.drain()
        other.read()
        assert not notices.drain()
        for _ in range(1000):
            other.write(b"b")
        assert notices.drain()
        assert not notices.drain()


def test_of_a_file_that_is_not_there_nothing_can_be_told(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        Notices(str(tmp_path / "file"))
    assert len(os.listdir("/proc/self/fd")) == before


async def commit(path: Path, key: str) -> None:
    """By another handle, as by another process."""

    def run() -> None:
        with closing(Database(str(path), 1, lambda _: None)) as writer:
            writer.commit([], [Put(key, b"")], None)

    await trio.to_thread.run_sync(run)


async def test_a_watch_hears_of_what_the_system_tells(path: Path, seldom: None) -> None:
    async with SqliteStore(path) as store, store.watch("k") as watch:
        await watch.__anext__()
        for number in range(5):
            await commit(path, f"k{number}")
            with trio.fail_after(PATIENCE):
                assert await watch.__anext__() == Changed("k", number + 1)


@pytest.fixture
def link(path: Path, tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    path.symlink_to(tmp_path / "elsewhere" / "real.db")
    return path


async def test_a_store_behind_a_symbolic_link_is_told_of(link: Path) -> None:
    """SQLite keeps its log beside the file that the link leads to."""
    async with SqliteStore(link) as store:
        assert store._engine is not None and store._engine.notices is not None
        await commit(link, "k")
        assert store._engine.notices.drain()


async def test_who_comes_by_a_symbolic_link_knows_who_is_alive(link: Path, tmp_path: Path) -> None:
    """Otherwise the other's sessions would have ended when somebody writes through the link."""
    real = tmp_path / "elsewhere" / "real.db"
    async with SqliteStore(real) as store, SqliteStore(link) as other:
        session = await store.open_session(60_000)
        await store.commit([], [Put("e", b"1", ephemeral=True)], session=session)
        await other.commit([], [Put("k", b"")])
        assert (await other.get("e")).entry is not None


async def test_many_transactions_are_not_looked_at_one_by_one(path: Path, seldom: None) -> None:
    """The last one is seen, too."""
    async with SqliteStore(path) as store, store.watch("k") as watch:
        await watch.__anext__()
        with closing(Database(str(path), 1, lambda _: None)) as writer:
            for _ in range(300):
                writer.commit([], [Put("k", b"")], None)
        seen = 0
        with trio.fail_after(PATIENCE):
            while seen < 300:
                seen = (await watch.__anext__()).revision


async def test_the_end_of_a_session_is_seen_although_nobody_writes(path: Path, seldom: None) -> None:
    async with SqliteStore(path) as store, SqliteStore(path) as other:
        async with store.watch("e") as watch:
            await watch.__anext__()
            session = await other.open_session(5_000)
            await other.commit([], [Put("e", b"", ephemeral=True)], session=session)
            with trio.fail_after(PATIENCE):
                await watch.__anext__()
                session.stop_renewing()
                await watch.__anext__()
        assert (await store.get("e")).entry is None


async def test_a_look_is_seldom_where_the_system_tells(path: Path) -> None:
    async with SqliteStore(path) as store:
        engine = store._engine
        assert engine is not None
        look = partial(engine.worker.run, partial(store._look, engine))
        await look()
        assert await look() == sqlite_module._UNNOTICED_SECONDS
        # Between the word that a transaction is coming and the transaction.
        with closing(LeaseFile(f"{path}-leases", 1)) as leases:
            leases.publish(1)
        pauses = [await look() for _ in range(8)]
        assert pauses[:3] == [0.001, 0.002, 0.004]
        assert pauses[-1] == sqlite_module._POLL_SECONDS
        await commit(path, "k")
        await look()
        assert await look() == sqlite_module._UNNOTICED_SECONDS
        with closing(LeaseFile(f"{path}-leases", 1)) as leases:
            leases.publish(2)
        assert await look() == 0.001, "the next one is soon there, as the first one was not"


def test_a_store_that_cannot_be_read_is_looked_at_often(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def unreadable() -> bool:
        raise StoreUnavailableError("its device is away")

    store = SqliteStore(path)
    store._engine = SimpleNamespace(  # type: ignore[assignment]
        database=SimpleNamespace(poll=unreadable, seen=0), notices=None
    )
    for _ in range(3):
        assert store._poll() <= time.monotonic() + sqlite_module._POLL_SECONDS
    assert caplog.text.count("its device is away") == 1, "one outage is told once"


async def test_a_system_that_refuses_notices_is_looked_at_often(
    path: Path, seldom: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "Notices", refusing)
    async with SqliteStore(path) as store, store.watch("k") as watch:
        await watch.__anext__()
        await commit(path, "k")
        with trio.fail_after(PATIENCE):
            assert await watch.__anext__() == Changed("k", 1)


async def test_a_system_that_does_not_tell_is_looked_at_often_from_then_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_module, "Notices", Deaf)
    with caplog.at_level(logging.WARNING):
        async with SqliteStore(path) as store, store.watch("k") as watch:
            await watch.__anext__()
            await commit(path, "k1")
            with trio.fail_after(PATIENCE):
                await watch.__anext__()
            monkeypatch.setattr(sqlite_module, "_UNNOTICED_SECONDS", NEVER)
            for number in range(2, 5):
                await commit(path, f"k{number}")
                with trio.fail_after(PATIENCE):
                    await watch.__anext__()
    assert caplog.text.count("did not tell of one") == 1


async def test_who_is_told_all_the_time_looks_no_more_often_than_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = list[float]()
    steps = 0
    step = Worker._retry_blocked

    def count(self: Worker) -> None:
        nonlocal steps
        steps += 1
        step(self)

    monkeypatch.setattr(Worker, "_retry_blocked", count)
    enough = trio.Event()

    def poll() -> float:
        # What the worker has measured: the time of this line may be long after it.
        looked.append(worker._quiet_until)
        if len(looked) == 6:
            worker.post(enough.set)
        return time.monotonic() + NEVER

    worker = Worker("test", 5.0, poll, 0.02)
    told = os.eventfd(1)
    try:
        worker.notices = told
        worker.polling = True
        await worker.run(lambda: None)
        with trio.fail_after(PATIENCE):
            await enough.wait()
    finally:
        await worker.stop()
        os.close(told)
    assert min(after - before for before, after in itertools.pairwise(looked)) >= 0.02
    assert steps <= 2 * len(looked) + 4, "it does not go round and round meanwhile"


async def test_word_puts_no_look_off_that_is_due_before() -> None:
    """Such as one for a transaction that has begun to commit."""
    looks = 0
    enough = trio.Event()

    def poll() -> float:
        nonlocal looks
        looks += 1
        if looks == 3:
            worker.post(enough.set)
        return time.monotonic() + (0.001 if looks < 3 else NEVER)

    told = os.eventfd(1)
    worker = Worker("test", 5.0, poll, NEVER)
    try:
        worker.notices = told
        worker.polling = True
        await worker.run(lambda: None)
        with trio.fail_after(PATIENCE):
            await enough.wait()
    finally:
        await worker.stop()
        os.close(told)


class Scripted:
    """A store's connection and its notices: what each look finds."""

    def __init__(self) -> None:
        self.seen = 0
        self.next_deadline = math.inf
        self.told = list[bool]()
        self.found = list[tuple[int, bool]]()

    def drain(self) -> bool:
        return self.told.pop(0) if self.told else False

    def poll(self) -> bool:
        self.seen, is_coming = self.found.pop(0)
        return is_coming


@pytest.mark.parametrize(
    "looks",
    [
        # The word of the second transaction is read with that of the first, before the second can be seen.
        [([True], 1, True), ([], 2, False)],
        [([True], 1, True), ([], 1, True), ([], 2, False)],
        [([True], 1, True), ([], 2, True), ([], 3, False)],
        # The first is committed within the look, and so is the second, which has not begun as the look begins.
        [([False, True], 1, False), ([], 2, False)],
    ],
)
def test_two_transactions_may_be_told_of_at_once(
    path: Path, looks: list[tuple[list[bool], int, bool]]
) -> None:
    assert trusts(path, looks)


@pytest.mark.parametrize(
    "looks",
    [
        [([], 1, False)],
        [([], 1, True)],
        [([True], 1, False), ([], 2, False)],
        [([True], 1, True), ([], 2, False), ([], 3, False)],
        [([False, True], 1, False), ([], 2, False), ([], 3, False)],
    ],
)
def test_what_nobody_told_of_is_noticed(path: Path, looks: list[tuple[list[bool], int, bool]]) -> None:
    assert not trusts(path, looks)


def trusts(path: Path, looks: list[tuple[list[bool], int, bool]]) -> bool:
    """Whether a store relies on notices after these looks: what `drain` gives, what is seen, whether more comes."""
    script = Scripted()
    store = SqliteStore(path)
    engine: Any = SimpleNamespace(database=script, notices=script, worker=SimpleNamespace(notices=0))
    for told, *found in looks:
        script.told = [*told]
        script.found = [(found[0], found[1])]
        store._look(engine)
    assert store._trusts_notices == (engine.worker.notices is not None), "who distrusts waits for none"
    return store._trusts_notices


async def test_who_is_told_looks_also_while_there_is_other_work() -> None:
    """Each piece of work leaves another one behind, so there is always one."""
    told = os.eventfd(0, os.EFD_NONBLOCK)
    looks = jobs = 0
    ended = trio.Event()

    def poll() -> float:
        nonlocal looks
        looks += 1
        with suppress(BlockingIOError):
            os.eventfd_read(told)
        return time.monotonic() + NEVER

    def work() -> None:
        nonlocal jobs
        jobs += 1
        if jobs == 10:
            assert looks == 1
            os.eventfd_write(told, 1)
        if looks == 2 or jobs == 1000:
            worker.post(ended.set)
        else:
            worker._put(_Job(work, False, 0.0))

    worker = Worker("test", 5.0, poll, 0.0)
    try:
        worker.notices = told
        worker.polling = True
        await worker.run(work)
        with trio.fail_after(PATIENCE):
            await ended.wait()
    finally:
        await worker.stop()
        os.close(told)
    assert (looks, jobs) == (2, 11)

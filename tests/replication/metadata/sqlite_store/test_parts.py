"""The parts of the SQLite store by themselves: leases against a set clock, the worker's order, merged events."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from insync.replication.metadata import Changed, Put, Resync, SqliteStore, StoreClosedError, Unknown
from insync.replication.metadata._watch import PrefixWatch
from insync.replication.metadata.sqlite_store import _leases as leases_module
from insync.replication.metadata.sqlite_store._database import Announcement, Database
from insync.replication.metadata.sqlite_store._leases import HeldLease, LeaseFile, SeenLease
from insync.replication.metadata.sqlite_store._worker import StoreBusyError, Worker

MS = 1_000_000


@attrs.define
class Clock:
    """Stands in for the time module of the leases: each reading may move it on."""

    now: int = 1_000 * MS
    steps: list[int] = attrs.field(factory=list)

    def monotonic_ns(self) -> int:
        self.now += self.steps.pop(0) if self.steps else 0
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leases_module, "time", clock)
    return clock


@pytest.fixture
def file(tmp_path: Path) -> Iterator[LeaseFile]:
    with closing(LeaseFile(str(tmp_path / "leases"), boot=1)) as file:
        file.adopt(bytes(16))
        yield file


def test_renewal_extends_the_lease(file: LeaseFile, clock: Clock) -> None:
    held = HeldLease(file, 2, 7, timeout_ms=100)
    clock.now += 99 * MS
    assert held.renew()
    clock.now += 99 * MS
    assert held.is_alive()
    assert file.is_alive(7, 2)
    assert SeenLease(file, 7, 2).is_alive() and not SeenLease(file, 7, 3).is_alive()
    assert not file.is_alive(8, 2)
    assert not file.is_alive(7, 3)


def test_late_renewal_ends_the_lease_for_ever(file: LeaseFile, clock: Clock) -> None:
    held = HeldLease(file, 2, 7, timeout_ms=100)
    clock.now += 100 * MS
    assert not file.is_alive(7, 2)
    assert not held.renew()
    clock.now -= 50 * MS
    assert not held.is_alive()


def test_process_stopped_inside_a_renewal_gives_the_lease_up(file: LeaseFile, clock: Clock) -> None:
    held = HeldLease(file, 2, 7, timeout_ms=100)
    clock.steps = [50 * MS, 0, 80 * MS]  # the check, the new deadline, the look after the write
    assert not held.renew()
    assert file.deadline(7, 2) is None


def test_slot_that_was_given_to_another_is_not_touched(file: LeaseFile, clock: Clock) -> None:
    held = HeldLease(file, 2, 7, timeout_ms=100)
    heir = HeldLease(file, 2, 8, timeout_ms=100)
    assert not held.renew()
    held.drop()
    assert heir.renew()


async def test_writers_do_not_overtake_a_blocked_writer() -> None:
    order: list[str] = []
    refusals = [StoreBusyError("locked"), StoreBusyError("locked")]

    def write(name: str) -> None:
        if refusals:
            raise refusals.pop()
        order.append(name)

    worker = Worker("test", 5.0, lambda: None, 1.0)
    async with trio.open_nursery() as nursery:
        for name in ("first", "second"):
            nursery.start_soon(partial(worker.run, partial(write, name), writes=True))
            await trio.testing.wait_all_tasks_blocked()
    await worker.stop()
    assert order == ["first", "second"]


async def test_stopped_worker_refuses_what_still_waits() -> None:
    def busy() -> None:
        raise StoreBusyError("locked")

    async def refused() -> None:
        with pytest.raises(StoreClosedError):
            await worker.run(busy, writes=True)

    last: list[str] = []
    worker = Worker("test", 60.0, lambda: None, 1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused)
        await trio.testing.wait_all_tasks_blocked()
        await worker.stop(lambda: last.append("closed"))
    assert last == ["closed"]
    await refused()


async def test_a_call_that_comes_while_the_thread_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker("test", 5.0, lambda: None, 1.0)
    put = worker._put

    def late(job: Any) -> None:
        put(None)
        worker._thread.join()
        put(job)

    with monkeypatch.context() as patched:
        patched.setattr(worker, "_put", late)
        with trio.fail_after(20), pytest.raises(StoreClosedError, match="before this call began"):
            await worker.run(lambda: None)
    await worker.stop()


async def test_a_call_that_is_done_before_the_thread_ends_has_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker("test", 5.0, lambda: None, 1.0)
    put = worker._put

    def early(job: Any) -> None:
        put(job)
        put(None)
        worker._thread.join()

    with monkeypatch.context() as patched:
        patched.setattr(worker, "_put", early)
        with trio.fail_after(20):
            assert await worker.run(lambda: 7) == 7
    await worker.stop()


async def test_error_of_a_job_is_raised_where_it_was_awaited() -> None:
    worker = Worker("test", 5.0, lambda: None, 1.0)
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0)
    assert await worker.run(lambda: 7) == 7
    await worker.stop()


async def test_watch_merges_and_skips_what_was_covered() -> None:
    watch = PrefixWatch("a/", lambda: 0.0)
    watch.changed(["a/1"], 3)
    watch.resync(2)
    assert await watch.__anext__() == Resync(3)
    watch.changed(["a/1"], 5)
    watch.changed(["b/1"], 6)
    watch.changed(["a/2"], 7)
    assert await watch.__anext__() == Changed("a/", 7)
    watch.resync(8)
    watch.changed(["a/1"], 9)
    assert await watch.__anext__() == Resync(9), "a change does not take the place of a gap"
    for covered in (6, 9):
        watch.changed(["a/1"], covered)
        with trio.move_on_after(0.02) as scope:
            await watch.__anext__()
        assert scope.cancelled_caught, covered


async def test_leaving_deletes_the_rows_of_its_sessions(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    async with SqliteStore(path) as store:
        session = await store.open_session(60_000)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM entries)")
        assert rows.fetchone() == (0, 0)


class FailingCommit:
    """A connection whose COMMIT fails with `code`, after it was carried out or instead of it."""

    def __init__(self, connection: sqlite3.Connection, code: int, carried_out: bool) -> None:
        self._connection = connection
        self._code = code
        self._carried_out = carried_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return self._connection.execute(sql, *parameters)
        if self._carried_out:
            self._connection.execute(sql)
        error = sqlite3.OperationalError("injected")
        error.sqlite_errorcode = self._code
        raise error


def database_with_failing_commit(
    path: Path, code: int, carried_out: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[Database, list[Announcement]]:
    news: list[Announcement] = []
    database = Database(str(path), 1, news.append)
    monkeypatch.setattr(database, "_connection", FailingCommit(database._connection, code, carried_out))
    return database, news


@pytest.mark.parametrize("carried_out", [True, False])
def test_failed_commit_is_unknown_and_watches_learn_the_truth(
    tmp_path: Path, carried_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "meta.db"
    database, news = database_with_failing_commit(path, sqlite3.SQLITE_IOERR, carried_out, monkeypatch)
    with closing(database):
        outcome = database.commit([], [Put("k", b"")], None)
        assert isinstance(outcome, Unknown)
        assert str(path) in outcome.reason
        database.poll()
        assert (database.read("k").entry is not None) is carried_out
        assert news == ([Announcement(1, ("k",))] if carried_out else [])


def test_commit_that_met_the_lock_wrote_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "meta.db"
    database, news = database_with_failing_commit(path, sqlite3.SQLITE_BUSY, False, monkeypatch)
    with closing(database):
        with pytest.raises(StoreBusyError):
            database.commit([], [Put("k", b"")], None)
        assert database.read("k").entry is None
        assert news == []


async def test_store_passes_errors_and_cancellation_through_unwrapped(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with SqliteStore(tmp_path / "meta.db") as store:
            await store.open_session(1_000)
            raise KeyError("mine")
    with trio.CancelScope() as scope:
        async with SqliteStore(tmp_path / "meta.db") as store, store.watch("") as watch:
            session = await store.open_session(60_000)
            scope.deadline = trio.current_time() + 0.1
            async for _ in watch:
                pass
    assert scope.cancelled_caught
    assert session.expired.is_set()

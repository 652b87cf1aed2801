"""The process that writes for a SQLite store: what stands still, dies or is left while it writes."""

from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import psutil
import pytest
import trio
from trio.lowlevel import FdStream

from insync.replication.metadata import (
    Committed,
    Compare,
    Delete,
    Exists,
    Missing,
    Operation,
    Put,
    SessionExpiredError,
    SqliteStore,
    StoreClosedError,
    StoreUnavailableError,
    Unknown,
    ValueIs,
    VersionIs,
)
from insync.replication.metadata.sqlite_store._child import FAILED, FORMAT, _Writing, flat, unflat
from insync.replication.metadata.sqlite_store._leases import boot_id
from insync.replication.metadata.sqlite_store._writer import Writer

BUSY_WRITER = """
import sys, trio
from insync.replication.metadata import Put, SqliteStore

async def main(path, apart):
    puts = [Put(f"many/{number}", bytes(100)) for number in range(3_000)]
    async with SqliteStore(path, writes_apart=apart == "apart") as store:
        print("ready", flush=True)
        while True:
            await store.commit([], puts)

trio.run(main, *sys.argv[1:])
"""
STOPS = 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


@contextmanager
def busy_writer(path: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is nearly always inside a transaction."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY_WRITER, str(path), kind], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_locked(path: Path) -> None:
    """Until somebody else is inside a write transaction."""
    deadline = time.monotonic() + 20
    other = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        while time.monotonic() < deadline:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return
            other.execute("ROLLBACK")
    finally:
        other.close()
    raise AssertionError("nobody has written for 20 s")


async def writes_while_it_stands(path: Path, process: subprocess.Popen[str], patience_ms: int) -> bool:
    """Stop a process inside a transaction; whether others write while it stands still.

    patience_ms: for how long they try.
    """
    await trio.to_thread.run_sync(wait_until_locked, path)
    process.send_signal(signal.SIGSTOP)
    try:
        async with SqliteStore(path, busy_timeout_ms=patience_ms) as store:
            return isinstance(await store.commit([], [Put("other", b"")]), Committed)
    except StoreUnavailableError:
        return False
    finally:
        process.send_signal(signal.SIGCONT)


async def test_who_stands_still_in_a_commit_keeps_nobody_from_writing(path: Path) -> None:
    with busy_writer(path, "apart") as process:
        for _ in range(STOPS):
            assert await writes_while_it_stands(path, process, 60_000)


async def test_without_it_the_lock_stays_taken(path: Path) -> None:
    """What the test above would see: the stops fall into transactions."""
    with busy_writer(path, "here") as process:
        for _ in range(STOPS):
            if not await writes_while_it_stands(path, process, 3_000):
                return
    raise AssertionError(f"{STOPS} stops, none of them inside a transaction")


def writer_of(store: SqliteStore) -> psutil.Process:
    assert store._engine is not None
    assert store._engine.writer is not None
    pid = store._engine.writer.pid
    assert pid is not None
    return psutil.Process(pid)


async def test_a_writer_that_was_killed_is_replaced(path: Path) -> None:
    async with SqliteStore(path, writes_apart=True) as store:
        first = writer_of(store)
        first.kill()
        with trio.fail_after(20):
            assert isinstance(await store.commit([], [Put("a", b"1")]), Unknown)
            assert isinstance(await store.commit([], [Put("a", b"2")]), Committed)
        second = writer_of(store)
        assert second.pid != first.pid
    assert not second.is_running()


async def test_a_writer_that_does_not_answer_is_ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteStore(path, writes_apart=True) as store:
        await store.commit([], [Put("a", b"1")])
        writer_of(store).suspend()
        assert store._engine is not None and store._engine.writer is not None
        with trio.fail_after(60):
            with monkeypatch.context() as patched:
                patched.setattr(store._engine.writer, "_stall_seconds", 0.2)
                outcome = await store.commit([], [Put("a", b"2")])
            assert isinstance(outcome, Unknown)
            assert "did not answer" in outcome.reason
            assert isinstance(await store.commit([], [Put("a", b"3")]), Committed)
        read = await store.get("a")
        assert read.entry is not None
        assert (read.entry.value, read.entry.version) in ((b"3", 2), (b"3", 3))


async def test_signals_for_a_whole_group_leave_it_to_its_parent(path: Path) -> None:
    async with SqliteStore(path, writes_apart=True) as store:
        writer = writer_of(store)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            writer.send_signal(number)
        assert os.getsid(writer.pid) == writer.pid
        assert isinstance(await store.commit([], [Put("a", b"1")]), Committed)
        assert writer_of(store).pid == writer.pid


async def test_it_ends_with_its_parent(path: Path) -> None:
    with busy_writer(path, "apart") as process:
        (writer,) = psutil.Process(process.pid).children()
        process.kill()
        writer.wait(20)


async def test_a_call_that_is_given_up_is_done_and_the_next_one_gets_its_own_answer(path: Path) -> None:
    async with SqliteStore(path, writes_apart=True) as store:
        puts = [Put(f"many/{number}", bytes(100)) for number in range(5_000)]
        for number in range(5):
            with trio.move_on_after(0.001 * number):
                await store.commit([], puts)
            outcome = await store.commit([], [Put("one", b"")])
            assert isinstance(outcome, Committed)
            assert outcome.versions == {"one": number + 1}


def test_what_goes_to_it_arrives_as_it_was() -> None:
    items: list[Compare | Operation] = [
        VersionIs("a", 3),
        Exists("b"),
        Missing("c"),
        ValueIs("d", b"\0x"),
        Put("e", b""),
        Put("f", b"y", ephemeral=True),
        Delete("g"),
    ]
    assert {type(each) for each in items} == {*get_args(Compare), *get_args(Operation)}
    assert unflat(flat(items)) == items
    assert unflat(pickle.loads(pickle.dumps(flat(items)))) == items


def test_a_process_of_another_version_refuses_what_it_is_asked(path: Path) -> None:
    """It is started from the files on disk, which may have been replaced while the node ran."""
    for others in ((), (FORMAT + 1,)):
        outcome, error = _Writing(str(path)).attempt("open", (1, *others))
        assert outcome == FAILED and isinstance(error, StoreUnavailableError)
        assert "the package was replaced while this process ran" in str(error) and "restart it" in str(error)


async def test_a_held_lock_is_waited_for_and_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteStore(path, writes_apart=True) as store:
        assert store._engine is not None and store._engine.writer is not None
        # Of this alone: a process that has little time is taken for one that does not answer.
        monkeypatch.setattr(store._engine.writer, "_busy_seconds", 0.3)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with trio.fail_after(20), pytest.raises(StoreUnavailableError, match="locked by another process"):
            await store.commit([], [Put("a", b"1")])
        assert (await store.get("a")).entry is None, "readers do not wait"
        holder.execute("ROLLBACK")
        assert isinstance(await store.commit([], [Put("a", b"2")]), Committed)
        holder.close()


async def test_who_waits_for_the_lock_gets_it(path: Path) -> None:
    async with SqliteStore(path, writes_apart=True) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit, [], [Put("a", b"2")])
            assert (await store.get("a")).entry is None
            holder.execute("ROLLBACK")
        assert (await store.get("a")).entry is not None
        holder.close()


async def test_a_session_is_judged_where_it_is_written(path: Path) -> None:
    async with SqliteStore(path, writes_apart=True) as store:
        session = await store.open_session(60_000)
        await store.commit([], [Put("mine", b"", ephemeral=True)], session=session)
        session.stop_renewing()
        # As another process would clear it that has seen its end.
        session.held._file.clear(session.held.slot)
        with pytest.raises(SessionExpiredError, match=f"session {session.id} is over"):
            await store.commit([], [Put("zombie", b"")], session=session)
        assert (await store.get("zombie")).entry is None


async def test_who_waits_when_the_store_is_left_gets_an_error(path: Path) -> None:
    holder = None
    async with trio.open_nursery() as nursery, SqliteStore(path, writes_apart=True) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        outcomes: list[object] = []

        async def write() -> None:
            try:
                outcomes.append(await store.commit([], [Put("a", b"")]))
            except StoreClosedError as error:
                outcomes.append(error)

        nursery.start_soon(write)
        nursery.start_soon(write)
        await store.get("a")  # they have begun
    holder.close()
    assert len(outcomes) == 2
    assert all(isinstance(each, (StoreClosedError, Unknown)) for each in outcomes)


async def test_a_process_that_was_being_started_when_the_store_was_left_is_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, started, left = Writer(str(path), boot_id(), 20.0), trio.Event(), trio.Event()
    real = trio.lowlevel.open_process
    processes: list[trio.Process] = []

    async def slow(*arguments: object, **options: object) -> trio.Process:
        process = await real(*arguments, **options)  # type: ignore[call-overload]
        processes.append(process)
        started.set()
        await left.wait()
        return process

    monkeypatch.setattr(trio.lowlevel, "open_process", slow)
    async with trio.open_nursery() as nursery:

        async def opening() -> None:
            with pytest.raises(StoreClosedError, match="was closed"):
                await writer.open()

        nursery.start_soon(opening)
        await started.wait()
        await writer.close()
        left.set()
    try:
        assert writer.pid is None and processes[0].returncode is not None
    finally:
        processes[0].kill()


async def test_one_that_is_lost_while_its_call_is_cancelled_leaves_no_pipe_open(path: Path) -> None:
    writer = Writer(str(path), boot_id(), 20.0)
    await writer.open()
    process = writer._process
    assert process is not None and process.stdout is not None and process.stdin is not None
    with trio.CancelScope() as scope:
        scope.cancel()
        await writer._lost("did not answer")
    assert isinstance(process.stdin, FdStream) and isinstance(process.stdout, FdStream)
    assert (process.stdin._fd_holder.closed, process.stdout._fd_holder.closed) == (True, True)


async def test_half_an_answer_of_one_that_died_is_not_taken_for_the_next_ones(path: Path) -> None:
    writer = Writer(str(path), boot_id(), 20.0)
    await writer.open()
    process = writer._process
    assert process is not None
    writer._received = b"half an answer"
    await writer._lost("ended")
    await writer.open()
    try:
        assert writer.pid != process.pid
    finally:
        await writer.close()


async def test_an_interpreter_that_cannot_be_started_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(path.parent / "no-python"))
    with pytest.raises(StoreUnavailableError, match="no-python: No such file"):
        async with SqliteStore(path, writes_apart=True):
            pass

"""What the SQLite store promises beyond the interface: its file, its locks, its leases."""

import errno
import gc
import os
import resource
import sqlite3
import struct
import threading
import time
import zlib
from collections.abc import Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication.metadata import (
    Changed,
    Committed,
    InvalidTransactionError,
    Put,
    Resync,
    SessionExpiredError,
    SqliteStore,
    StoreClosedError,
    StoreCorruptError,
    StoreDeviceError,
    StoreFullError,
    StoreUnavailableError,
    StoreVersionError,
    Unknown,
)
from insync.replication.metadata.sqlite_store import store as sqlite_module
from insync.replication.metadata.sqlite_store._database import Announcement, Database
from insync.replication.metadata.sqlite_store._leases import SLOT_BYTES, Lease, LeaseFile
from insync.replication.metadata.sqlite_store._schema import translated


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock, as a process that was stopped inside a transaction does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def contents(path: Path | str) -> bytes:
    return Path(path).read_bytes()


def fill(path: Path | str, data: bytes) -> None:
    Path(path).write_bytes(data)


def patch(path: Path | str, position: int, data: bytes) -> None:
    """Overwrite a part of the file in place."""
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def move_away(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").rename(f"{path}.old{suffix}")


async def fails_to_open(path: Path, error: type[Exception], *words: str) -> None:
    with pytest.raises(error) as caught:
        async with SqliteStore(path):
            raise AssertionError("the store opened")
    assert all(word in str(caught.value) for word in (str(path), *words)), caught.value


async def test_missing_folder_is_named(tmp_path: Path) -> None:
    await fails_to_open(tmp_path / "none" / "meta.db", StoreUnavailableError, "does not exist")


async def test_folder_in_place_of_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "meta.db"
    folder.mkdir()
    await fails_to_open(folder, StoreUnavailableError)


async def test_file_that_is_no_database(path: Path) -> None:
    fill(path, b"something else entirely" * 100)
    await fails_to_open(path, StoreCorruptError, "not a SQLite file")
    assert contents(path) == b"something else entirely" * 100


def said_by_sqlite(code: int, name: str) -> sqlite3.Error:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return error


@pytest.mark.parametrize(
    ("cause", "error", "words"),
    [
        (said_by_sqlite(sqlite3.SQLITE_NOTADB, ""), StoreCorruptError, "not a SQLite file"),
        (
            said_by_sqlite(sqlite3.SQLITE_CORRUPT, ""),
            StoreCorruptError,
            "or its device cannot read all of it",
        ),
        (said_by_sqlite(sqlite3.SQLITE_FULL, ""), StoreFullError, "is full .*: free space in /srv"),
        (
            said_by_sqlite(sqlite3.SQLITE_IOERR_FSYNC, "AN_FSYNC"),
            StoreDeviceError,
            "AN_FSYNC.*: check the device",
        ),
        (OSError(errno.ENOSPC, "no space"), StoreFullError, "is full .*: free space in /srv"),
        (OSError(errno.EDQUOT, "no quota"), StoreFullError, "raise its quota"),
        (OSError(errno.EIO, "no device"), StoreDeviceError, "no device.*: check the device"),
        (OSError(errno.EACCES, "no rights"), StoreUnavailableError, "cannot use /srv/meta.db"),
    ],
)
def test_each_trouble_of_a_device_has_its_own_words(
    cause: Exception, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as raised, translated("/srv/meta.db"):
        raise cause
    assert type(raised.value) is error


async def test_a_full_device_refuses_writes_with_the_remedy_and_nothing_else(path: Path) -> None:
    async with SqliteStore(path) as store:
        assert store._engine is not None
        database, worker = store._engine.database, store._engine.worker
        execute = database._connection.execute
        await worker.run(lambda: execute("PRAGMA max_page_count = 1"))  # as many as there are
        with pytest.raises(StoreFullError, match=rf"device of {path} is full .* free space in {path.parent}"):
            await store.commit([], [Put("a", bytes(100_000))])
        assert (await store.get("a")).entry is None
        await worker.run(lambda: execute("PRAGMA max_page_count = 1000000"))
        assert isinstance(await store.commit([], [Put("a", bytes(100_000))]), Committed)


async def test_a_device_that_fails_in_a_commit_is_named_though_nobody_knows_what_came_of_it(
    path: Path,
) -> None:
    """The kernel refuses what would make the log longer, as a device does that fails."""
    async with SqliteStore(path) as store:
        await store.commit([], [Put("a", b"1")])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(f"{path.name}-wal").stat().st_size, hard))
        try:
            outcome = await store.commit([], [Put("a", b"2")])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert isinstance(outcome, Unknown)
        assert f"device of {path} refused" in outcome.reason and "SQLITE_IOERR_WRITE" in outcome.reason
        assert isinstance(await store.commit([], [Put("a", b"3")]), Committed)


async def test_database_of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = contents(path)
    await fails_to_open(path, StoreCorruptError, "other program")
    assert contents(path) == before


async def test_schema_of_a_newer_release(path: Path) -> None:
    async with SqliteStore(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    await fails_to_open(path, StoreVersionError, "99")


async def test_damaged_page(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.commit([], [Put(f"k{number}", bytes(500)) for number in range(200)])
    damaged = bytearray(contents(path))
    damaged[4096:] = b"\xee" * (len(damaged) - 4096)
    fill(path, bytes(damaged))
    with pytest.raises(StoreCorruptError):
        async with SqliteStore(path) as store:
            await store.list("")


def changed(path: Path, before: bytes, after: bytes) -> None:
    content = contents(path)
    assert content.count(before) == 1
    fill(path, content.replace(before, after))


async def test_a_name_in_the_schema_is_another(path: Path) -> None:
    """SQLite reads it, and the store could not be read for good, with nobody to say why."""
    async with SqliteStore(path) as store:
        await store.commit([], [Put("k", b"v")])
    changed(path, b"changes_floor INTEGER", b"changes_flnor INTEGER")
    await fails_to_open(path, StoreCorruptError, "is damaged", "not as they were made")


async def test_a_name_in_the_schema_is_no_text(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.commit([], [Put("k", b"v")])
    changed(path, b"CREATE TABLE sessions", b"CREATE TABLE \xf3essions")
    await fails_to_open(path, StoreCorruptError, f"{path} is damaged")


async def test_a_page_that_lacks_a_row(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.commit([], [Put(f"k{number}", bytes(40)) for number in range(20)])
    damaged = bytearray(contents(path))
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entries'").fetchone()
    at = 4096 * (page - 1) + 4
    assert damaged[at] == 20, "the number of rows on the page"
    damaged[at] -= 1
    fill(path, bytes(damaged))
    await fails_to_open(path, StoreCorruptError, f"{path} is damaged")


async def test_foreign_lease_file(path: Path) -> None:
    fill(f"{path}-leases", b"not ours" * 20)
    await fails_to_open(path, StoreCorruptError, f"{path}-leases")


async def test_newer_lease_format(path: Path) -> None:
    async with SqliteStore(path):
        pass
    header = bytearray(contents(f"{path}-leases")[:SLOT_BYTES])
    struct.pack_into("<I", header, 8, 7)
    struct.pack_into("<I", header, 60, zlib.crc32(header[:60]))
    patch(f"{path}-leases", 0, bytes(header))
    await fails_to_open(path, StoreVersionError, "7")


async def test_leases_of_a_replaced_database_are_dropped(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.open_session(60_000)
        move_away(path)
        async with SqliteStore(path) as fresh:
            assert len(contents(f"{path}-leases")) <= 2 * SLOT_BYTES
            await fresh.commit([], [Put("k", b"")])


async def test_deleted_database_is_noticed_by_every_call(path: Path) -> None:
    """SQLite would go on with the deleted file: what is written there is lost."""
    async with SqliteStore(path) as store:
        session = await store.open_session(60_000)
        await store.commit([], [Put("k", b"")])
        os.unlink(path)
        for call in (
            store.get("k"),
            store.list(""),
            store.changes("", 0),
            store.commit([], [Put("k", b"")]),
            store.commit([], [Put("k", b"")], session=session),
            store.open_session(1_000),
        ):
            with pytest.raises(StoreUnavailableError, match=r"meta\.db was deleted"):
                await call
        with pytest.raises(StoreUnavailableError, match="was deleted"):
            async with store.watch(""):
                raise AssertionError("a deleted store is watched")


async def test_replaced_database_is_noticed(path: Path) -> None:
    """As an operator does who restores a backup while nodes run."""
    async with SqliteStore(path) as store:
        await store.commit([], [Put("k", b"old")])
    fill(f"{path}.backup", contents(path))
    async with SqliteStore(path) as store:
        known = await store.get("k")
        await store.commit([], [Put("k", b"new")])
        os.replace(f"{path}.backup", path)
        with pytest.raises(StoreUnavailableError, match=r"meta\.db was replaced"):
            await store.commit([], [Put("k", b"lost")])
        os.unlink(f"{path}-wal")
    async with SqliteStore(path) as store:
        restored = await store.get("k")
        assert (restored.store_id, restored.revision) == (known.store_id, known.revision)


async def test_made_again_it_is_another_store(path: Path) -> None:
    ids = []
    for _ in range(2):
        async with SqliteStore(path) as store:
            ids.append((await store.get("k")).store_id)
        os.unlink(path)
    assert ids[0] != ids[1]


async def test_watchers_are_told_that_the_database_was_deleted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqliteStore(path) as store, store.watch("") as watch:
        await watch.__anext__()
        os.unlink(path)
        with trio.fail_after(20):
            while "are interrupted" not in caplog.text:
                await trio.lowlevel.checkpoint()
    assert "was deleted" in caplog.text


async def test_files_are_for_their_owner_alone(path: Path) -> None:
    umask = os.umask(0)
    try:
        async with SqliteStore(path) as store:
            await store.commit([], [Put("k", b"")])
            rights = {file.name: file.stat().st_mode & 0o777 for file in os.scandir(path.parent)}
    finally:
        os.umask(umask)
    assert rights == dict.fromkeys(("meta.db", "meta.db-wal", "meta.db-shm", "meta.db-leases"), 0o600)


async def test_repaired_store_gives_no_session_id_twice(path: Path) -> None:
    async with SqliteStore(path) as store:
        before = await store.open_session(60_000)
        raised = await store.raise_revision(1_000)
        assert isinstance(await store.commit([], [Put("k", b"")], session=before), Committed), "it lives on"
        assert (await store.open_session(60_000)).id > 1_000
        with pytest.raises(InvalidTransactionError, match="32 hexadecimal digits"):
            await store.raise_revision(0, store_id="short")
        assert (await store.get("k")).revision == raised + 1


async def test_store_that_takes_an_identity_over_keeps_its_sessions(path: Path) -> None:
    """The lease file belongs to the new identity as well, or the next handle would empty it."""
    async with SqliteStore(path) as store:
        session = await store.open_session(60_000)
        await store.raise_revision(0, store_id="ab" * 16)
        async with SqliteStore(path) as other:
            assert (await other.get("k")).store_id == "ab" * 16
            assert isinstance(await store.commit([], [Put("k", b"")], session=session), Committed)


async def test_deleted_lease_file_ends_sessions_and_is_named(path: Path) -> None:
    async with SqliteStore(path) as store:
        session = await store.open_session(5_000)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        os.unlink(f"{path}-leases")
        with trio.fail_after(20):
            await session.expired.wait()
        with pytest.raises(StoreUnavailableError, match="was deleted"):
            await store.commit([], [Put("k", b"")])
        async with SqliteStore(path) as fresh:
            assert (await fresh.get("e")).entry is None
            await fresh.commit([], [Put("k", b"")])


@pytest.mark.parametrize("call", ["raw", "is_linked"])
async def test_leases_that_cannot_be_read_make_the_store_unavailable(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A file system that fails for a while is an outage of the store like any other, and ends nobody."""

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with SqliteStore(path) as store, SqliteStore(path) as other:
        session = await store.open_session(5_000)
        await store.commit([], [Put("/a", b"1", ephemeral=True)], session=session)
        with monkeypatch.context() as patched:
            patched.setattr(LeaseFile, call, fails)
            for attempt in (
                lambda: other.get("/a"),
                lambda: other.list("/"),
                lambda: other.commit([], [Put("/b", b"2")]),
                lambda: other.open_session(300),
            ):
                with pytest.raises(StoreUnavailableError, match="Input/output error"):
                    await attempt()
            with trio.fail_after(20):
                await session.expired.wait()
        assert isinstance(await other.commit([], [Put("/b", b"2")]), Committed)


async def test_lease_of_another_boot_is_over(path: Path) -> None:
    async with SqliteStore(path) as store, SqliteStore(path) as other:
        session = await store.open_session(60_000)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        with closing(LeaseFile(f"{path}-leases", boot=0)) as leases:
            mine = Lease.unpack(leases.raw(session.held.slot))
            assert mine is not None
            leases.write(session.held.slot, Lease(session.id, 12345, mine.deadline_ns, 60_000, 1))
        assert (await other.get("e")).entry is None
        with pytest.raises(SessionExpiredError):
            await store.commit([], [], session=session)


async def test_torn_lease_is_over(path: Path) -> None:
    async with SqliteStore(path) as store, SqliteStore(path) as other:
        session = await store.open_session(60_000)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        torn = bytes([session.held.written[20] ^ 0xFF])
        patch(f"{path}-leases", session.held.slot * SLOT_BYTES + 20, torn)
        assert (await other.get("e")).entry is None


async def test_slots_are_used_again(path: Path) -> None:
    async with SqliteStore(path) as store:
        slots = set()
        for _ in range(5):
            session = await store.open_session(1_000)
            slots.add(session.held.slot)
            await session.close()
        assert len(slots) == 1


async def test_loop_that_hangs_loses_the_session(path: Path) -> None:
    async with SqliteStore(path) as store:
        session = await store.open_session(100)
        time.sleep(0.15)  # noqa: ASYNC251 - the hang is what is tested
        with pytest.raises(SessionExpiredError):
            await store.commit([], [Put("k", b"")], session=session)
        assert session.expired.is_set()
        assert (await store.get("k")).entry is None


async def test_locked_file_blocks_writers_only(path: Path) -> None:
    async with SqliteStore(path, busy_timeout_ms=60_000) as store, trio.open_nursery() as nursery:
        await store.commit([], [Put("k", b"1")])
        with locked(path):
            written: list[object] = []

            async def write() -> None:
                written.append(await store.commit([], [Put("k", b"2")]))

            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(30):
                for _ in range(20):
                    entry = (await store.get("k")).entry
                    assert entry is not None and entry.value == b"1"
            assert not written, "it waits for the lock"
        with trio.fail_after(30):
            while not written:
                await trio.lowlevel.checkpoint()
        assert written == [Committed(2, {"k": 2})]


async def test_writers_give_up_when_the_file_stays_locked(path: Path) -> None:
    async with SqliteStore(path, busy_timeout_ms=150) as store:
        await store.commit([], [Put("k", b"1")])
        with locked(path), trio.fail_after(4):  # by default it would wait for five seconds
            began = trio.current_time()
            with pytest.raises(StoreUnavailableError, match="locked by another process"):
                await store.commit([], [Put("k", b"lost")])
            assert trio.current_time() - began > 0.1
        assert await store.commit([], [Put("k", b"2")]) == Committed(2, {"k": 2})


async def test_writers_wait_for_the_lock_in_order(path: Path) -> None:
    async with SqliteStore(path, busy_timeout_ms=60_000) as store, trio.open_nursery() as nursery:
        with locked(path):
            for number in range(5):
                nursery.start_soon(store.commit, [], [Put("k", str(number).encode())])
                await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(20):
            while (read := await store.get("k")).revision < 5:
                await trio.lowlevel.checkpoint()
        assert read.entry is not None
        assert read.entry.value == b"4"


async def test_cancelled_waiting_commit_writes_nothing(path: Path) -> None:
    async with SqliteStore(path) as store:
        with locked(path):
            with trio.move_on_after(0.05) as scope:
                await store.commit([], [Put("k", b"")])
            assert scope.cancelled_caught
            # Behind an attempt that had begun by then: it would be carried out, were the lock gone already.
            assert (await store.get("k")).entry is None
        assert await store.commit([], [Put("other", b"")]) == Committed(1, {"other": 1})
        assert (await store.get("k")).entry is None


async def test_expiry_shows_while_the_file_is_locked(path: Path) -> None:
    async with SqliteStore(path) as store, SqliteStore(path) as other, other.watch("e") as watch:
        session = await store.open_session(5_000)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        while (await watch.__anext__()).revision < 1:
            pass
        with locked(path), trio.fail_after(20):
            session.stop_renewing()
            assert await watch.__anext__() == Resync(1)
            assert not (await other.list("e")).entries
        with trio.fail_after(20):
            assert await watch.__anext__() == Changed("e", 2)
        assert (await other.get("e")).revision == 2


async def test_sessions_close_while_the_file_is_locked(path: Path) -> None:
    async with SqliteStore(path, busy_timeout_ms=100) as store, SqliteStore(path) as other:
        session = await store.open_session(60_000)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        with locked(path):
            await session.close()
            assert (await other.get("e")).entry is None


async def test_unrelated_prefixes_stay_quiet(path: Path) -> None:
    async with SqliteStore(path) as store, SqliteStore(path) as other, store.watch("a/") as watch:
        await watch.__anext__()
        with trio.move_on_after(0.1) as scope:
            for writer in (store, other):
                await writer.commit([], [Put("b/1", b"")])
            await watch.__anext__()
        assert scope.cancelled_caught


def test_watcher_far_behind_resyncs(path: Path) -> None:
    news: list[Announcement] = []
    with (
        closing(Database(str(path), 1, lambda _: None)) as writer,
        closing(Database(str(path), 1, news.append)) as reader,
    ):
        writer.commit([], [Put("k", b"")], None)
        assert reader.catch_up() == 1
        for _ in range(1500):
            writer.commit([], [Put("k", b"")], None)
        assert reader.catch_up() == 1501
    assert news == [Announcement(1, ("k",)), Announcement(1501, None)]


def test_crash_between_publishing_and_commit_hides_nothing(path: Path) -> None:
    news: list[Announcement] = []
    with (
        closing(Database(str(path), 1, lambda _: None)) as writer,
        closing(Database(str(path), 1, news.append)) as reader,
    ):
        with closing(LeaseFile(f"{path}-leases", 1)) as leases:
            leases.publish(1)
        reader.poll()
        assert news == []
        writer.commit([], [Put("k", b"")], None)
        reader.poll()
        reader.poll()
    assert news == [Announcement(1, ("k",))]


def exit_code_in_a_fork(call: Coroutine[object, None, object]) -> int:
    """Begin the call in a forked child: 0 if it is refused as the parent's."""
    child = os.fork()
    if child == 0:
        try:
            call.send(None)
        except StoreClosedError as error:
            os._exit(0 if "parent" in str(error) else 2)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_forked_child_must_open_its_own(path: Path) -> None:
    async with SqliteStore(path) as store:
        call = store.get("k")
        assert exit_code_in_a_fork(call) == 0
        assert (await call).entry is None


def descriptors() -> int:
    gc.collect()  # what other tests have left is not let go of in between
    return len(os.listdir("/proc/self/fd"))


async def test_opening_that_is_cancelled_leaves_nothing_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread opens the database all the same, and nobody takes it."""
    made = list[Database]()

    def cancelled_meanwhile(*arguments: Any) -> Database:
        trio.from_thread.run_sync(scope.cancel, trio_token=token)
        made.append(Database(*arguments))
        return made[0]

    token = trio.lowlevel.current_trio_token()
    monkeypatch.setattr(sqlite_module, "Database", cancelled_meanwhile)
    before = descriptors()
    with trio.CancelScope() as scope:
        await SqliteStore(path).__aenter__()
    assert scope.cancelled_caught and made
    assert descriptors() == before


async def test_without_a_thread_nothing_is_left_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            await SqliteStore(path).__aenter__()
    assert descriptors() == before


async def test_without_a_descriptor_the_store_is_unavailable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "eventfd", refused)
    await fails_to_open(path, StoreUnavailableError, str(path), "Too many open files")


async def test_nothing_is_left_open(path: Path) -> None:
    async with SqliteStore(path), SqliteStore(path):
        pass
    gc.collect()  # what other tests have left is not let go of in between
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        async with SqliteStore(path) as store, store.watch("") as watch:
            await watch.__anext__()
            await store.open_session(500)
    assert len(os.listdir("/proc/self/fd")) == len(before)

"""Deltas beyond the kit: random histories of every store, bounds of the history, answers larger than a frame."""

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from insync.replication.metadata import (
    Delete,
    Delta,
    Listing,
    MemoryHub,
    MemoryStore,
    MetadataStore,
    Put,
    RemoteStore,
    SqliteStore,
    StoreUnavailableError,
    TooOld,
    serve_store,
)
from insync.replication.metadata._history import History
from insync.replication.metadata.remote_store import _cursors as cursors
from insync.replication.metadata.sqlite_store import _database
from insync.transport import Identity

from .benches import RemoteBench
from .test_model import STEPS

HANDLES = ["reopen", "reader"]
HISTORIES = st.lists(st.one_of(STEPS, st.sampled_from(HANDLES)), max_size=14)
_numbers = count()


class Hosted:
    """A handle that is left and opened again at any time, each time in a task of its own."""

    def __init__(self, make: Callable[[], MetadataStore], nursery: trio.Nursery) -> None:
        self._make = make
        self._nursery = nursery
        self._leave = trio.Event()
        self._left = trio.Event()

    async def open(self) -> MetadataStore:
        self._leave, self._left = trio.Event(), trio.Event()
        store: MetadataStore = await self._nursery.start(self._host, self._leave, self._left)
        return store

    async def _host(
        self, leave: trio.Event, left: trio.Event, task_status: trio.TaskStatus[MetadataStore]
    ) -> None:
        async with self._make() as store:
            task_status.started(store)
            await leave.wait()
        left.set()

    async def leave(self) -> None:
        self._leave.set()
        await self._left.wait()


async def check(store: MetadataStore, held: list[Listing]) -> None:
    """Every listing that was ever held leads to the one of now."""
    listing = await store.list("")
    for former in held:
        answer = await store.changes("", former.revision)
        if isinstance(answer, Delta):
            assert answer.apply(former) == listing
        else:
            assert answer == TooOld(listing.revision)
    assert isinstance(await store.changes("", listing.revision), Delta)
    held.append(listing)


async def follow(make: Callable[[], MetadataStore], steps: list) -> None:
    """Two handles write, one reads; handles are left and opened again in between."""
    async with make() as keeper, trio.open_nursery() as nursery:
        hosted, watching = Hosted(make, nursery), Hosted(make, nursery)
        stores = [await hosted.open(), keeper]
        reader = await watching.open()
        sessions = [await store.open_session(20_000) for store in stores]
        held: list[Listing] = []
        for step in steps:
            if step == "reader":
                await watching.leave()
                reader = await watching.open()
            elif step == "reopen":
                await hosted.leave()
                stores[0] = await hosted.open()
                sessions[0] = await stores[0].open_session(20_000)
            elif isinstance(step, str):
                number = int(step[-1])
                await sessions[number].close()
                sessions[number] = await stores[number].open_session(20_000)
            else:
                compares, operations, number = step
                await stores[number].commit(compares, operations, session=sessions[number])
            await check(reader, held)
        await hosted.leave()
        await check(reader, held)
        await watching.leave()


@settings(max_examples=100, deadline=None)
@given(HISTORIES)
def test_deltas_of_the_memory_store_add_up(steps: list) -> None:
    trio.run(follow, MemoryHub().store, steps)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HISTORIES)
def test_deltas_of_the_sqlite_store_add_up(steps: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(follow, lambda: SqliteStore(Path(folder) / "meta.db"), steps)


async def follow_served(steps: list) -> None:
    """Two entries make a page, and the handles that are opened again come by other connections."""
    hub = MemoryHub()
    url = f"mem://changes/{next(_numbers)}"
    async with hub.store() as inner, trio.open_nursery() as nursery:
        served = await nursery.start(serve_store, inner, url)
        await follow(lambda: RemoteStore(served.endpoints[0], identity=Identity(node_id=1)), steps)
        nursery.cancel_scope.cancel()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HISTORIES)
def test_deltas_of_a_served_store_add_up(steps: list) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors, "PAGE_BYTES", 110)
        trio.run(follow_served, steps)


# bounds


def test_history_is_bounded_and_says_so() -> None:
    history = History(revisions=4, keys=100)
    for revision in range(1, 10):
        history.add(revision, [f"k{revision}"])
    assert history.floor == 5
    assert history.since(4) is None
    assert history.since(5) == {"k6", "k7", "k8", "k9"}
    assert history.since(9) == set()


def test_history_counts_keys_too() -> None:
    history = History(revisions=100, keys=10)
    for revision in range(1, 6):
        history.add(revision, [f"{revision}/{number}" for number in range(5)])
    assert history.floor == 3
    assert history.since(2) is None
    history.add(6, [f"6/{number}" for number in range(50)])
    assert history.floor == 6
    assert history.since(5) is None
    assert history.since(6) == set()


def test_one_revision_that_comes_in_two_parts_is_one() -> None:
    history = History()
    history.add(1, ["a"])
    history.add(1, ["b"])
    assert history.since(0) == {"a", "b"}


async def test_sqlite_history_is_bounded_by_revisions_and_by_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_database, "KEPT_KEYS", 100)
    path = tmp_path / "meta.db"
    async with SqliteStore(path) as store:
        for _ in range(1, 31):
            await store.commit([], [Put(f"k{number}", b"") for number in range(20)])
        assert isinstance(await store.changes("", 29), Delta)
        assert await store.changes("", 3) == TooOld(30)
        await store.commit([], [Put(f"k{number}", b"") for number in range(1_000)])
        assert await store.changes("", 30) == TooOld(31)
        assert await store.changes("", 31) == Delta(31, {}, frozenset())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM changes").fetchone()[0] <= 200


async def test_key_of_a_lost_session_is_deleted_before_anybody_may_write(tmp_path: Path) -> None:
    """No revision tells its end while the file is locked; listing and delta agree all the while."""
    path = tmp_path / "meta.db"
    async with SqliteStore(path) as store, SqliteStore(path) as other, other.watch("") as watch:
        session = await store.open_session(60_000)
        await store.commit([], [Put("e", b"", ephemeral=True), Put("p", b"")], session=session)
        held = await other.list("")
        assert list(held.entries) == ["e", "p"]
        with closing(sqlite3.connect(path, isolation_level=None)) as lock, trio.fail_after(20):
            lock.execute("BEGIN IMMEDIATE")
            session.stop_renewing()
            session.held.drop()
            while "e" in (await other.list("")).entries:
                await watch.__anext__()
            assert await other.changes("", held.revision) == Delta(held.revision, {}, frozenset({"e"}))


@pytest.mark.parametrize("sql", [_database._CHANGED, _database._OWNED])
def test_delta_is_read_by_indexes_alone(tmp_path: Path, sql: str) -> None:
    """Its cost is what has changed and who has sessions, however many keys there are."""
    with closing(_database.Database(str(tmp_path / "meta.db"), 1, lambda _: None)) as database:
        database.commit([], [Put(f"k{number:04}", b"") for number in range(2_000)], None)
        bounds = (1, b"", b"\xff")[-sql.count("?") :]
        plan = [row[3] for row in database._connection.execute(f"EXPLAIN QUERY PLAN {sql}", bounds)]
        of_entries = [step for step in plan if " e " in f"{step} "]
        assert of_entries and all("(key=?)" in step or "entries_by_session" in step for step in of_entries), (
            plan
        )


class Meddled:
    """A connection beside which somebody writes just before it looks for the keys of sessions."""

    def __init__(self, connection: sqlite3.Connection, meddle: Callable[[], None]) -> None:
        self._connection = connection
        self._meddle = meddle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql == _database._OWNED:
            self._meddle()
        return self._connection.execute(sql, *parameters)


def test_delta_is_of_one_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "meta.db")
    with (
        closing(_database.Database(path, 1, lambda _: None)) as writer,
        closing(_database.Database(path, 1, lambda _: None)) as reader,
    ):
        writer.commit([], [Put("k", b"kept")], None)

        def meddle() -> None:
            held = writer.open_session(60_000)
            writer.commit([], [Put("k", b"", ephemeral=True)], held)
            held.drop()

        monkeypatch.setattr(reader, "_connection", Meddled(reader._connection, meddle))
        delta = reader.read_changes("", 0)
        assert isinstance(delta, Delta)
        assert (delta.revision, {key: entry.value for key, entry in delta.entries.items()}) == (
            1,
            {"k": b"kept"},
        )


async def test_delta_since_long_ago_is_too_old_in_memory() -> None:
    async with MemoryHub().store() as store:
        for _ in range(3_000):
            await store.commit([], [Put("k", b"")])
        assert await store.changes("", 10) == TooOld(3_000)
        assert isinstance(await store.changes("", 2_000), Delta)


# a served store


PARTITIONS = 10_000


@pytest.fixture
def bench(tmp_path: Path) -> RemoteBench:
    return RemoteBench(tmp_path, "tcp://127.0.0.1:0")


async def test_ten_thousand_partitions_are_listed_and_told_as_a_delta(bench: RemoteBench) -> None:
    keys = [f"/partitions/orders/{number:05}" for number in range(PARTITIONS)]
    async with bench.serving(), bench.handle() as store:
        empty = await store.list("/")
        await bench.inner.commit([], [Put(key, bytes(300)) for key in keys])
        listing = await store.list("/")
        assert list(listing.entries) == keys
        assert all(entry.value == bytes(300) for entry in listing.entries.values())
        delta = await store.changes("/", empty.revision)
        assert isinstance(delta, Delta)
        assert delta.apply(empty) == listing
        await bench.inner.commit([], [Delete(key) for key in keys[1:]])
        delta = await store.changes("/", listing.revision)
        assert isinstance(delta, Delta)
        assert list(delta.apply(listing).entries) == keys[:1]


async def test_pages_show_the_snapshot_of_the_first(
    bench: RemoteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "PAGE_BYTES", 200)
    async with bench.serving(), bench.handle() as store:
        await bench.inner.commit([], [Put(f"k{number:02}", b"old") for number in range(40)])
        asked = store.ask

        async def meddle(kind: int, *arguments: object) -> bytes:
            body = await asked(kind, *arguments)  # type: ignore[arg-type]
            await bench.inner.commit([], [Put(f"k{number:02}", b"new") for number in range(40)])
            return body

        monkeypatch.setattr(store, "ask", meddle)
        listing = await store.list("")
        assert {entry.value for entry in listing.entries.values()} == {b"old"}
        assert len(listing.entries) == 40
        assert {entry.revision for entry in listing.entries.values()} == {listing.revision}


async def test_listing_that_was_cut_off_is_an_error_and_not_half_a_listing(
    bench: RemoteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "PAGE_BYTES", 200)
    async with bench.serving(), bench.handle() as store:
        await bench.inner.commit([], [Put(f"k{number:02}", b"v") for number in range(40)])
        asked = store.ask

        async def cut(kind: int, *arguments: object) -> bytes:
            body = await asked(kind, *arguments)  # type: ignore[arg-type]
            assert store._connection is not None
            store._connection.abort("a test cuts the connection")
            return body

        with monkeypatch.context() as patch:
            patch.setattr(store, "ask", cut)
            with pytest.raises(StoreUnavailableError, match="not open any more"):
                await store.list("")
        assert len((await store.list("")).entries) == 40


async def test_readers_that_give_up_leave_few_cursors(
    bench: RemoteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from insync.replication.metadata.remote_store import _messages as m

    monkeypatch.setattr(cursors, "PAGE_BYTES", 200)
    async with bench.serving(), bench.handle() as store:
        await bench.inner.commit([], [Put(f"k{number:02}", b"v") for number in range(40)])
        opened = [m.decode(await store.ask(m.Kind.LIST, m.Key("")), m.Found).more for _ in range(9)]
        with pytest.raises(StoreUnavailableError, match="not open any more"):
            await store.ask(m.Kind.MORE, m.Cursor(opened[0]))
        assert m.decode(await store.ask(m.Kind.MORE, m.Cursor(opened[1])), m.Found).entries


# stores without a history


async def test_store_without_a_history_says_that_it_has_none() -> None:
    class Plain(MemoryStore):
        async def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
            return await MetadataStore.changes(self, prefix, since_revision)

    async with Plain(MemoryHub()) as store:
        done = await store.commit([], [Put("k", b"")])
        assert await store.changes("", done.revision) == TooOld(done.revision)

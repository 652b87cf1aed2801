"""Unlucky moments of the SQLite store: a lease that runs out within a transaction, news between two commits."""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication.metadata import Changed, Committed, Exists, Put, SessionExpiredError, SqliteStore
from insync.replication.metadata.sqlite_store import _leases as leases_module
from insync.replication.metadata.sqlite_store._database import Announcement, Database
from insync.replication.metadata.sqlite_store._leases import SLOT_BYTES, HeldLease, LeaseFile

from .test_parts import MS, Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leases_module, "time", clock)
    return clock


def silent(_: Announcement) -> None:
    pass


def test_lease_that_runs_out_between_compares_and_commit_writes_nothing(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction waits for its disk; by the time it could be committed others may have taken over."""
    with closing(Database(str(path), 1, silent)) as database:
        held = database.open_session(100)
        apply = database._apply

        def slowly(*arguments: Any) -> dict[str, int]:
            versions = apply(*arguments)
            clock.now += 200 * MS
            return versions

        monkeypatch.setattr(database, "_apply", slowly)
        with pytest.raises(SessionExpiredError):
            database.commit([], [Put("k", b"")], held)
        assert database.read("k").entry is None


def test_session_that_is_over_comes_before_compares_that_fail(path: Path, clock: Clock) -> None:
    """Who asks must learn that the session is over; a conflict would have it read and try again."""
    with closing(Database(str(path), 1, silent)) as database:
        held = database.open_session(100)
        clock.now += 200 * MS
        with pytest.raises(SessionExpiredError):
            database.commit([Exists("none")], [Put("k", b"")], held)


def test_slot_that_is_read_half_way_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(LeaseFile(str(tmp_path / "leases"), boot=1)) as file:
        HeldLease(file, 2, 7, timeout_ms=60_000)
        raw = file.raw
        torn = [raw(2)[: SLOT_BYTES // 2] + b"\xff" * (SLOT_BYTES // 2)] * 2
        monkeypatch.setattr(file, "raw", lambda slot: torn.pop() if torn else raw(slot))
        assert file.is_alive(7, 2)


async def test_end_of_a_session_of_the_only_handle_is_seen_by_its_watch(path: Path) -> None:
    """It looked for leases before there was one, and nobody else is there to sweep."""
    async with SqliteStore(path) as store, store.watch("e") as watch:
        await watch.__anext__()
        assert store._engine is not None
        with trio.fail_after(20):
            while store._engine.database._next_deadline != float("inf"):
                await trio.lowlevel.checkpoint()
        session = await store.open_session(5_000)
        done = await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        assert isinstance(done, Committed)
        with trio.fail_after(20):
            assert await watch.__anext__() == Changed("e", done.revision)
            session.stop_renewing()
            assert await watch.__anext__() == Changed("e", done.revision + 1)
        assert (await store.get("e")).entry is None


def keys(news: Iterable[Announcement]) -> set[str]:
    return {key for each in news for key in each.keys or ()}


def test_own_commit_does_not_hide_what_others_did_before_it(path: Path) -> None:
    news: list[Announcement] = []
    with (
        closing(Database(str(path), 1, silent)) as other,
        closing(Database(str(path), 1, news.append)) as mine,
    ):
        other.commit([], [Put("theirs", b"")], None)
        mine.commit([], [Put("mine", b"")], None)
        mine.poll()
    assert keys(news) == {"theirs", "mine"}


async def test_nobody_looks_for_changes_when_nobody_watches(path: Path) -> None:
    """A look every 20 ms is a wake-up every 20 ms."""
    async with SqliteStore(path) as store:
        assert store._engine is not None
        worker = store._engine.worker
        async with store.watch("a"), store.watch("b") as watch:
            await watch.__anext__()
            assert worker.polling
        assert not worker.polling

"""The PostgreSQL store between processes, and over a server that is killed, paused and started again."""

import signal
import time
from collections.abc import Iterator
from itertools import count

import pytest
import trio

from insync.plugins.postgresql import PostgresqlAddress, PostgresqlStore
from insync.replication.metadata import (
    Changed,
    Committed,
    Conflict,
    Exists,
    MetadataStore,
    Outcome,
    Put,
    Resync,
    Session,
    StoreUnavailableError,
    Unknown,
    Watch,
)
from tests.replication.metadata.children import Family, check_no_update_is_lost, gone_after

from .server import PostgresqlServer

TIMEOUT_MS = 4000
"""Long against the moments for which a busy machine lets a process wait, between two renewals too."""
GRACE_SECONDS = 1.0
_numbers = count()


@pytest.fixture
def family(server: PostgresqlServer) -> Iterator[Family]:
    family = Family(server.url(f"processes_{next(_numbers)}"))
    yield family
    family.end()


def store_at(url: str) -> PostgresqlStore:
    return PostgresqlStore(PostgresqlAddress.parse(url))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_session_of_a_dead_process_expires(family: Family, how: signal.Signals) -> None:
    child = await family.child()
    async with store_at(family.url) as store, store.watch("node/") as watch:
        await child.ask(f"hold {TIMEOUT_MS} node/1")
        assert (await store.get("node/1")).entry is not None
        child.process.send_signal(how)
        gone = await gone_after(store, watch, time.monotonic())
        assert gone.is_in_time(TIMEOUT_MS, 0.5, GRACE_SECONDS), gone
        assert await store.commit([Exists("node/1")], []) == Conflict("node/1")
        child.process.send_signal(signal.SIGCONT)
        if how == signal.SIGSTOP:
            assert await child.ask("fence zombie") == "expired"
            assert await child.ask("learn") == "learned"
            assert (await store.get("zombie")).entry is None


async def test_writers_of_several_processes_lose_no_update(family: Family) -> None:
    async with store_at(family.url) as store:
        await check_no_update_is_lost(store, family, 30)


async def test_killed_writer_leaves_whole_transactions(family: Family) -> None:
    child = await family.child()
    assert await child.ask("write") == "writing"
    async with store_at(family.url) as store, store.watch("pair/") as watch:
        for _ in range(20):
            await watch.__anext__()
        child.process.kill()
        child.process.wait()
        entries = (await store.list("pair/")).entries
        assert entries["pair/a"].value == entries["pair/b"].value
        assert entries["pair/a"].revision == entries["pair/b"].revision


async def gap(watch: Watch) -> None:
    with trio.fail_after(60):
        while not isinstance(await watch.__anext__(), Resync):
            pass


async def eventually(store: MetadataStore, put: Put, session: Session | None = None) -> Outcome:
    """The outcome of a commit as soon as the store tells it."""
    with trio.fail_after(60):
        while True:
            try:
                outcome = await store.commit([], [put], session=session)
                if not isinstance(outcome, Unknown):
                    return outcome
            except StoreUnavailableError:
                pass
            await trio.sleep(0.01)


async def test_restart_of_a_killed_server_keeps_sessions_and_commits(own_server: PostgresqlServer) -> None:
    async with store_at(own_server.url("restart")) as store, store.watch("") as watch:
        assert isinstance(await watch.__anext__(), Resync)
        session = await store.open_session(60_000)
        await store.commit([], [Put("e", b"1", ephemeral=True), Put("p", b"1")], session=session)
        assert isinstance(await watch.__anext__(), Changed)
        own_server.kill()
        with pytest.raises(StoreUnavailableError, match="127"):
            await store.get("p")
        with pytest.raises(StoreUnavailableError, match="refused"):
            await store.commit([], [Put("p", b"2")])  # nothing was sent: it is not unknown
        await trio.to_thread.run_sync(own_server.start)
        await gap(watch)
        listing = await store.list("")
        assert {key: entry.value for key, entry in listing.entries.items()} == {"e": b"1", "p": b"1"}
        assert not session.expired.is_set()
        assert isinstance(await eventually(store, Put("e", b"2", ephemeral=True), session), Committed)


@pytest.mark.slow
async def test_a_paused_server_ends_sessions_and_no_call_waits_for_it_for_ever(
    own_server: PostgresqlServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that cannot reach the server for a timeout must take its session to be over."""
    async with store_at(own_server.url("paused")) as store:
        session = await store.open_session(TIMEOUT_MS)
        await store.commit([], [Put("e", b"1", ephemeral=True)], session=session)
        own_server.pause()
        began = trio.current_time()
        with trio.fail_after(60):
            await session.expired.wait()
        assert trio.current_time() - began < 2 * TIMEOUT_MS / 1000
        with trio.fail_after(60):
            outcome = await store.commit([], [Put("p", b"1")])
            assert isinstance(outcome, Unknown) and "did not answer within 10 s" in outcome.reason
            with pytest.raises(StoreUnavailableError, match="timeout expired"):
                await store.get("p")
        own_server.go_on()
        assert isinstance(await eventually(store, Put("p", b"2")), Committed)
        assert "e" not in (await store.list("")).entries
    assert caplog.text.count("has not renewed session") == 1
    assert caplog.text.count("are interrupted") == 1

"""The ZooKeeper store between processes and over failures of the server itself."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import trio

from insync.plugins.zookeeper import ZookeeperAddress, ZookeeperStore
from insync.replication.metadata import (
    Changed,
    Committed,
    Conflict,
    Exists,
    Missing,
    Put,
    Resync,
    Session,
    SessionExpiredError,
    StoreUnavailableError,
    Unknown,
    Watch,
)
from insync.transport.kit._frame import until
from tests.replication.metadata.children import Family, check_no_update_is_lost, gone_after
from tests.tiers import uses

from .server import TICK_MS, ZookeeperServer, zookeeper

TIMEOUT_MS = 4000
"""Long against the moments for which a busy machine lets a process wait, between two renewals too."""
GRACE_SECONDS = (2 * TICK_MS + 600) / 1000
_numbers = count()


@pytest.fixture
def family(server: ZookeeperServer) -> Iterator[Family]:
    family = Family(f"zookeeper://{server.hosts}/processes-{next(_numbers)}")
    yield family
    family.end()


@pytest.fixture
@uses("jvm")
def own_server(tmp_path: Path) -> Iterator[ZookeeperServer]:
    """A server that the test may kill."""
    with zookeeper(tmp_path / "zookeeper") as server:
        yield server


def store_of(server: ZookeeperServer, path: str = "/insync") -> ZookeeperStore:
    return ZookeeperStore(ZookeeperAddress(server.hosts, path))


def store_at(family: Family) -> ZookeeperStore:
    return ZookeeperStore(ZookeeperAddress.parse(family.url))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_session_of_a_dead_process_expires(family: Family, how: signal.Signals) -> None:
    child = await family.child()
    async with store_at(family) as store, store.watch("node/") as watch:
        await child.ask(f"hold {TIMEOUT_MS} node/1")
        assert (await store.get("node/1")).entry is not None
        child.process.send_signal(how)
        gone = await gone_after(store, watch, time.monotonic())
        assert gone.is_in_time(TIMEOUT_MS, 0.5, GRACE_SECONDS), gone
        assert await store.commit([Exists("node/1")], []) == Conflict("node/1")


async def test_continued_process_learns_that_its_session_expired(family: Family) -> None:
    child = await family.child()
    async with store_at(family) as store, store.watch("node/") as watch:
        await child.ask(f"hold {TIMEOUT_MS} node/1")
        child.process.send_signal(signal.SIGSTOP)
        await gone_after(store, watch, time.monotonic())
        child.process.send_signal(signal.SIGCONT)
        assert await child.ask("fence zombie") == "expired"
        assert await child.ask("learn") == "learned"
        assert (await store.get("zombie")).entry is None


async def test_writers_of_several_processes_lose_no_update(family: Family) -> None:
    async with store_at(family) as store:
        await check_no_update_is_lost(store, family, 30)


async def test_killed_writer_leaves_whole_transactions(family: Family) -> None:
    child = await family.child()
    assert await child.ask("write") == "writing"
    async with store_at(family) as store, store.watch("pair/") as watch:
        for _ in range(20):
            await watch.__anext__()
        child.process.kill()
        child.process.wait()
        entries = (await store.list("pair/")).entries
        assert entries["pair/a"].value == entries["pair/b"].value
        assert entries["pair/a"].revision == entries["pair/b"].revision


async def test_snapshot_never_shows_half_a_transaction(family: Family) -> None:
    """Lists taken while another process writes pairs: the two of a pair are always of one transaction."""
    child = await family.child()
    assert await child.ask("write") == "writing"
    seen = set()
    async with store_at(family) as store:
        with trio.fail_after(60):
            while len(seen) < 30:
                entries = (await store.list("pair/")).entries
                if entries:
                    assert entries["pair/a"].revision == entries["pair/b"].revision
                    seen.add(entries["pair/a"].revision)


async def test_event_loop_that_hangs_loses_its_session(server: ZookeeperServer) -> None:
    """ZooKeeper's pings come from a thread; they stop with the loop all the same."""
    async with store_of(server, "/hung") as store:
        session = await store.open_session(TIMEOUT_MS)
        await store.commit([], [Put("node/1", b"", ephemeral=True)], session=session)
        time.sleep((TIMEOUT_MS / 1000 + GRACE_SECONDS) * 4 / 3)  # noqa: ASYNC251 - the hang that is tested
        with pytest.raises(SessionExpiredError):
            await store.commit([], [Put("zombie", b"")], session=session)
        await session.expired.wait()
        assert (await store.list("")).entries == {}


async def test_short_restart_of_the_server_keeps_sessions(own_server: ZookeeperServer) -> None:
    async with store_of(own_server) as store, store.watch("") as watch:
        assert isinstance(await watch.__anext__(), Resync)
        session = await store.open_session(20_000)
        await store.commit([], [Put("e", b"1", ephemeral=True), Put("p", b"1")], session=session)
        assert isinstance(await watch.__anext__(), Changed)
        own_server.kill()
        await unreachable(store)
        await trio.to_thread.run_sync(own_server.start)
        await gap(watch)
        listing = await store.list("")
        assert {key: entry.value for key, entry in listing.entries.items()} == {"e": b"1", "p": b"1"}
        assert not session.expired.is_set()
        assert isinstance(await eventually(store, session_put=("e", b"2"), session=session), Committed)


async def test_handshake_without_an_answer_does_not_cost_the_session(server: ZookeeperServer) -> None:
    """A server that accepts and is silent (it starts, or hangs) is left for the next attempt in time."""
    async with trio.open_nursery() as nursery:
        relay = Relay(server.port)
        port = await nursery.start(relay.serve)
        async with ZookeeperStore(ZookeeperAddress(f"127.0.0.1:{port}", "/silent")) as store:
            session = await store.open_session(TIMEOUT_MS * 5)
            await store.commit([], [Put("e", b"1", ephemeral=True)], session=session)
            began = trio.current_time()
            relay.silence()
            with trio.fail_after(30):
                await relay.met_silence.wait()
            relay.silent = False
            with trio.fail_after(30):
                outcome = await eventually(store, session_put=("e", b"2"), session=session)
            assert isinstance(outcome, Committed)
            assert trio.current_time() - began < session.timeout_ms / 1000
        nursery.cancel_scope.cancel()


class Relay:
    """Passes bytes on to a server's port; while it is silent, it accepts and says nothing.

    met_silence: set when somebody has waited for an answer to what it sent, in vain, on every connection there was.
    """

    def __init__(self, port: int) -> None:
        self.silent = False
        self.met_silence = trio.Event()
        self._port = port
        self._passing: set[trio.CancelScope] = set()
        self._cut = 0

    def silence(self) -> None:
        """Cut every connection, and answer no new one."""
        self.silent = True
        self._cut = len(self._passing)
        for scope in self._passing:
            scope.cancel()

    async def serve(self, task_status: trio.TaskStatus[int]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._relay, listeners)

    async def _relay(self, client: trio.SocketStream) -> None:
        if self.silent:
            await self._say_nothing(client)
            return
        server = await trio.open_tcp_stream("127.0.0.1", self._port)
        with trio.CancelScope() as scope:
            self._passing.add(scope)
            async with server, client, trio.open_nursery() as nursery:
                nursery.start_soon(_pass_on, client, server, scope)
                nursery.start_soon(_pass_on, server, client, scope)
        self._passing.discard(scope)

    async def _say_nothing(self, client: trio.SocketStream) -> None:
        async with client:
            assert await client.receive_some()
            self._cut -= 1
            if self._cut == 0:
                self.met_silence.set()
            while await client.receive_some():
                pass


async def _pass_on(source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for chunk in source:
            await target.send_all(chunk)
    scope.cancel()


async def unreachable(store: ZookeeperStore) -> None:
    """Return when the store says that it cannot be reached; what is under way when the server dies says so too."""
    with trio.fail_after(15), pytest.raises(StoreUnavailableError):
        while True:
            await store.get("p")


async def gap(watch: Watch) -> None:
    with trio.fail_after(30):
        while not isinstance(await watch.__anext__(), Resync):
            pass


async def eventually(store: ZookeeperStore, session_put: tuple[str, bytes], session: Session) -> object:
    """Commit as soon as the session's own connection is back, which has a pace of its own."""
    key, value = session_put
    with trio.fail_after(30):
        while True:
            try:
                outcome = await store.commit([], [Put(key, value, ephemeral=True)], session=session)
                if not isinstance(outcome, Unknown):
                    return outcome
            except StoreUnavailableError:
                await trio.sleep(0.01)


async def test_silent_server_ends_the_session_here_too(own_server: ZookeeperServer) -> None:
    """Who cannot reach the server for a timeout must take its session to be over."""
    async with store_of(own_server) as store:
        session = await store.open_session(TIMEOUT_MS)
        own_server.signal(signal.SIGSTOP)
        began = trio.current_time()
        with trio.fail_after(60):
            await session.expired.wait()
        assert trio.current_time() - began < 2 * TIMEOUT_MS / 1000
        own_server.signal(signal.SIGCONT)


async def test_session_that_takes_long_to_open_is_a_good_one(own_server: ZookeeperServer) -> None:
    """The server is away for longer than a timeout while a session is being opened."""
    async with store_of(own_server) as store:
        for _ in range(3):
            session = await _opened_late(store, own_server)
            with trio.move_on_after(1.5 * TIMEOUT_MS / 1000) as lived:
                await session.expired.wait()
            if lived.cancelled_caught:
                await eventually(store, session_put=("e", b"1"), session=session)
                return
            # A busy machine may keep the server silent again, but not each time.
    pytest.fail("each session that was opened late ended at once")


async def _opened_late(store: ZookeeperStore, server: ZookeeperServer) -> Session:
    opened: list[Session] = []

    async def open_session() -> None:
        opened.append(await store.open_session(TIMEOUT_MS))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            server.signal(signal.SIGSTOP)
            nursery.start_soon(open_session)
            await trio.sleep(1.5 * TIMEOUT_MS / 1000)
            server.signal(signal.SIGCONT)
    return opened[0]


async def test_unreachable_server_is_named() -> None:
    store = ZookeeperStore(ZookeeperAddress("127.0.0.1:1", "/insync"), connect_seconds=0.3)
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1 within 0\.3 s"):
        await store.__aenter__()


async def test_a_wait_for_a_server_can_be_cancelled() -> None:
    def stopping() -> bool:
        return any(each.name == "insync-zookeeper-stop" for each in threading.enumerate())

    store = ZookeeperStore(ZookeeperAddress("127.0.0.1:1", "/insync"), connect_seconds=2)
    before = time.monotonic()
    with trio.move_on_after(0.1) as waiting:
        await store.__aenter__()
    assert waiting.cancelled_caught and time.monotonic() - before < 2 and stopping()
    await until(lambda: not stopping(), "the client has stopped", 30)


async def test_many_handles_may_make_the_store_at_once(server: ZookeeperServer) -> None:
    won = []

    async def race(number: int) -> None:
        async with store_of(server, "/race/deep/cluster") as store:
            outcome = await store.commit([Missing("first")], [Put("first", str(number).encode())])
            if isinstance(outcome, Committed):
                won.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(race, number)
    assert len(won) == 1

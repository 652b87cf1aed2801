"""A served store between processes: its users killed and stopped, its server killed and started again."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Consumer, Producer
from insync.replication.metadata import (
    Committed,
    Conflict,
    Exists,
    MetadataStore,
    Put,
    RemoteStore,
    Resync,
    SessionExpiredError,
    StoreRefusedError,
    StoreUnavailableError,
    Watch,
    open_store,
)
from insync.transport import Identity, Security
from tests.plugins.tcp.certificates import Authority
from tests.processes import NodeProcess, StoreServer, kept_address

from ..children import Family, check_no_update_is_lost, gone_after

TIMEOUT_MS = 4000
"""Long against the moments for which a busy machine lets a process wait, between two renewals too."""
GRACE_SECONDS = 2.0
"""The server is a process too, and may be held up."""
A_NODE = Identity(node_id=1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    with kept_address() as listen:
        server = StoreServer(tmp_path, listen)
        server.start()
        yield server
        if server.process is not None and server.process.poll() is None:
            server.end()


@pytest.fixture
def family(server: StoreServer) -> Iterator[Family]:
    family = Family(server.url)
    yield family
    family.end()


@asynccontextmanager
async def watching(family: Family) -> AsyncIterator[tuple[MetadataStore, Watch]]:
    async with open_store(family.url, identity=A_NODE) as store, store.watch("node/") as watch:
        await watch.__anext__()
        yield store, watch


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_session_of_a_dead_process_ends_in_time(family: Family, how: signal.Signals) -> None:
    child = await family.child()
    async with watching(family) as (store, watch):
        await child.ask(f"hold {TIMEOUT_MS} node/1")
        assert (await store.get("node/1")).entry is not None
        child.process.send_signal(how)
        gone = await gone_after(store, watch, time.monotonic())
        assert gone.is_in_time(TIMEOUT_MS, 0.5, GRACE_SECONDS), gone
        assert await store.commit([Exists("node/1")], []) == Conflict("node/1")


@pytest.mark.slow
async def test_continued_process_learns_that_its_session_is_over(family: Family) -> None:
    child = await family.child()
    async with watching(family) as (store, watch):
        await child.ask(f"hold {TIMEOUT_MS} node/1")
        child.process.send_signal(signal.SIGSTOP)
        await gone_after(store, watch, time.monotonic())
        child.process.send_signal(signal.SIGCONT)
        assert await child.ask("fence zombie") == "expired"
        assert await child.ask("learn") == "learned"
        assert (await store.get("zombie")).entry is None


@pytest.mark.slow
async def test_writers_of_several_processes_lose_no_update(family: Family) -> None:
    async with open_store(family.url, identity=A_NODE) as store:
        await check_no_update_is_lost(store, family, 40)


@pytest.mark.slow
async def test_server_that_is_killed_ends_sessions_and_loses_nothing_else(server: StoreServer) -> None:
    async with open_store(server.url, identity=A_NODE) as store, store.watch("") as watch:
        session = await store.open_session(TIMEOUT_MS)
        await store.commit([], [Put("e", b"", ephemeral=True), Put("p", b"kept")], session=session)
        server.end()
        with pytest.raises(StoreUnavailableError):
            await store.get("p")
        with trio.fail_after(60):
            await session.expired.wait()
        await trio.to_thread.run_sync(server.start)
        with trio.fail_after(30):
            while not isinstance(await watch.__anext__(), Resync):
                pass
            while "e" in (await store.list("")).entries:
                await watch.__anext__()
        entry = (await store.get("p")).entry
        assert entry is not None and entry.value == b"kept"
        with pytest.raises(SessionExpiredError):
            await store.commit([], [Put("zombie", b"")], session=session)
        again = await store.open_session(TIMEOUT_MS)
        done = await store.commit([], [Put("e", b"", ephemeral=True)], session=again)
        assert isinstance(done, Committed)


async def test_server_that_stands_still_ends_sessions_on_both_sides(server: StoreServer) -> None:
    async with open_store(server.url, identity=A_NODE) as store:
        session = await store.open_session(TIMEOUT_MS)
        await store.commit([], [Put("e", b"", ephemeral=True)], session=session)
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        began = trio.current_time()
        with trio.fail_after(60):
            await session.expired.wait()
        assert trio.current_time() - began < 2 * TIMEOUT_MS / 1000
        server.process.send_signal(signal.SIGCONT)
        with trio.fail_after(60):
            async with store.watch("e") as watch:
                while (await store.get("e")).entry is not None:
                    await watch.__anext__()


async def test_server_that_is_not_there_is_named() -> None:
    store = RemoteStore("tcp://127.0.0.1:1")
    with pytest.raises(StoreUnavailableError, match=r"tcp://127\.0\.0\.1:1 cannot be reached"):
        await store.__aenter__()


async def test_the_command_serves_over_tls_by_its_rules(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.files("isr://c/store")
    files = ("--tls-certificate", own.certificate, "--tls-key", own.key, "--tls-authorities", own.authorities)
    server = StoreServer(tmp_path, "tls://127.0.0.1:0", options=(*files, "--allow", "client/backup=store"))
    server.start()
    try:
        for uri, identity, refusal in (
            ("isr://c/1", A_NODE, None),
            ("isr://c/client/backup", Identity(), None),
            ("isr://c/client/etl", Identity(), "client/etl may not use the metadata store"),
        ):
            security = Security(tls=authority.files(uri))
            store = open_store(server.url, identity=identity, security=security)
            with (
                contextlib.nullcontext()
                if refusal is None
                else pytest.raises(StoreRefusedError, match=refusal)
            ):
                async with store:
                    assert isinstance(await store.commit([], [Put("key", b"value")]), Committed)
    finally:
        server.end()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--allow", "client=rule"), ("--tls-key", "/nowhere.key")])
def test_the_command_says_what_is_wrong_with_its_rules_and_files(
    tmp_path: Path, arguments: tuple[str, str]
) -> None:
    command = [sys.executable, "-m", "insync.replication.cli", "store", "--path", str(tmp_path / "meta.db")]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1, ended
    assert len(ended.stderr.splitlines()) == 1 and "Traceback" not in ended.stderr, ended.stderr


@pytest.mark.slow
async def test_nodes_share_the_store_of_one_of_them(tmp_path: Path) -> None:
    """Two nodes know only the address at which the first one serves its store; one of them dies."""
    nodes = [NodeProcess.start(1, tmp_path, "--serve-store", "tcp://127.0.0.1:0")]
    try:
        store = nodes[0].store
        assert store.startswith("remote+tcp://127.0.0.1:")
        nodes += [NodeProcess.start(number, tmp_path, store=store) for number in (2, 3)]
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 3, 3)
        async with Producer(servers, delivery_timeout_ms=30_000) as producer:
            await (await producer.send_many("t", [b"%d" % number for number in range(300)])).wait()
            nodes[2].kill()
            await (await producer.send_many("t", [b"%d" % number for number in range(300, 600)])).wait()
        found: list[int] = []
        async with Consumer(servers[:2], auto_offset_reset="earliest") as consumer:
            await consumer.assign_topic("t")
            with trio.fail_after(30):
                while len(found) < 600:
                    found += [int(record.value or b"") for record in await consumer.poll(timeout_ms=200)]
        assert sorted(found) == list(range(600))
        assert nodes[1].stop() == 0
        assert nodes[0].stop() == 0
    finally:
        for node in nodes:
            if node.process.poll() is None:
                node.kill()


def test_server_stops_when_asked(server: StoreServer) -> None:
    assert server.end(signal.SIGTERM) == 0

"""Behind pgbouncer: with pool_mode=transaction it keeps notifications back, which is recognised and told once."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from insync.plugins.postgresql import PostgresqlAddress, PostgresqlStore
from insync.replication.metadata import Committed, Put
from insync.replication.metadata.testing import CASES
from tests.requires import missing
from tests.tiers import slow_but

from .server import ORDINARY_USER, PostgresqlServer, as_ordinary_user
from .test_conformance import PostgresqlBench


@contextmanager
def pgbouncer(server: PostgresqlServer, mode: str) -> Iterator[str]:
    """Its address, until the block is left."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        missing("no pgbouncer (Debian's package of this name)")
    folder = Path(tempfile.mkdtemp(prefix="insync-pgbouncer-"))
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    port = keeper.getsockname()[1]
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "ini").write_text(
        f"[databases]\n* = host={server.address} port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users\n"
        f"pool_mode = {mode}\nmax_client_conn = 1000\ndefault_pool_size = 100\n"
    )
    as_user = as_ordinary_user()
    if as_user:
        shutil.chown(folder, ORDINARY_USER)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, str(folder / "ini")], stdout=log, stderr=log, cwd="/", **as_user)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        keeper.close()
        shutil.rmtree(folder)


@pytest.fixture(scope="package")
def transactional(server: PostgresqlServer) -> Iterator[str]:
    with pgbouncer(server, "transaction") as address:
        yield address


def url(address: str, namespace: str) -> str:
    return f"postgresql://postgres@{address}/postgres?namespace={namespace}"


async def sees_a_change(address: str, namespace: str) -> None:
    store, other = (PostgresqlStore(PostgresqlAddress.parse(url(address, namespace))) for _ in range(2))
    async with store, other, store.watch("") as watch:
        await watch.__anext__()
        done = await other.commit([], [Put("k", b"v")])
        assert isinstance(done, Committed)
        with trio.fail_after(30):
            while (await watch.__anext__()).revision < done.revision:
                pass


async def test_transaction_mode_is_recognised_and_told_once(
    transactional: str, caplog: pytest.LogCaptureFixture
) -> None:
    await sees_a_change(transactional, "pooled")
    assert (
        caplog.text.count("every 100 ms; connect to the server itself, or with pool_mode=session") == 2
    )  # handles


async def test_session_mode_lets_notifications_through(
    server: PostgresqlServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pgbouncer(server, "session") as address:
        await sees_a_change(address, "in_session")
    assert "pooler" not in caplog.text


POOLED = (
    "own_and_foreign_commits_are_seen",
    "end_of_a_session_is_seen",
    "lost_session_ends_after_its_timeout",
    "concurrent_compare_and_set_loses_no_update",
    "no_change_is_lost_over_a_lost_connection",
    "readers_never_see_half_of_a_large_transaction",
)


@pytest.mark.parametrize("name", slow_but(POOLED, "own_and_foreign_commits_are_seen"))
async def test_conformance_in_transaction_mode(name: str, transactional: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    bench = PostgresqlBench(url(transactional, f"pooled_{POOLED.index(name)}"))
    bench.late_seconds = 0.3
    await case.run(bench)

"""Kit, group E with another process: it is killed, stopped, or has children that keep its descriptors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from ..connections.connection import Connection
from ..errors import ConnectError, ConnectionLost
from ..frames import Limits
from ..patience import PATIENCE
from ..requests import Identity
from ..security import SECRET_VARIABLE, TLS_VARIABLES
from ._frame import Env, Needs, case, dial, until
from ._peer import FLOOD, FORK, NEVER, PID, RANGE
from ._requests import Answers

GRACE = 3.0
KEEPALIVE = Limits(keepalive=0.2)


@attrs.frozen
class Peer:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    url: str

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


@asynccontextmanager
async def peer_process(env: Env) -> AsyncIterator[tuple[trio.Nursery, Peer]]:
    """A server in another process, ended with the case; and a nursery for connections to it."""
    cls = type(env.transport)
    command = [sys.executable, "-m", f"{__package__}._peer", f"{cls.__module__}:{cls.__qualname__}"]
    process = _start([*command, env.listen_url()], _environment(env))
    assert process.stdout is not None and process.stdin is not None
    try:
        url = (await trio.to_thread.run_sync(process.stdout.readline)).strip()
        assert url, "the other process does not serve"
        async with trio.open_nursery() as nursery:
            yield nursery, Peer(process, url)
            nursery.cancel_scope.cancel()
    finally:
        _end(process)


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _end(process: subprocess.Popen[str]) -> None:
    """In good order if it still can, so that it removes what it has made."""
    assert process.stdout is not None and process.stdin is not None
    process.stdin.close()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _environment(env: Env) -> dict[str, str]:
    security = env.security_for(Identity("kit", 1, 1))
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if security.tls is not None:
        found.update(zip(TLS_VARIABLES, attrs.astuple(security.tls), strict=True))
    if security.secret is not None:
        found[SECRET_VARIABLE] = security.secret.decode()
    return found


async def _id_of(connection: Connection) -> int:
    with await connection.request(PID, timeout=5 * PATIENCE) as response:
        return int(response.body)


@case("E", Needs.PROCESSES)
async def a_killed_peer_is_noticed(env: Env) -> None:
    """SIGKILL while it is idle, while it sends bytes or a range: ConnectionLost within a second."""
    for kind, body in ((NEVER, b""), (FLOOD, b""), (RANGE, b"%d" % (32 << 20))):
        async with peer_process(env) as (nursery, peer):
            connection, ends = await dial(env, peer.url, nursery), Answers()
            connection.request_nowait(kind, body, timeout=30, on_done=ends.append)
            if kind == NEVER:
                assert await _id_of(connection) == peer.process.pid
            peer.signal(signal.SIGKILL)
            with trio.fail_after(1 * PATIENCE):
                await connection.closed.wait()
            await until(lambda ends=ends: bool(ends), "the request ends")  # type: ignore[misc]
            if kind == NEVER:
                assert isinstance(ends[0], ConnectionLost) and ends[0].delivery == "maybe", ends
            elif not isinstance(ends[0], Exception):
                ends[0].release()
            peer.process.wait()
            try:
                await dial(env, peer.url, nursery)
            except ConnectError:
                continue
            raise AssertionError("a dead process was connected to")


@case("E", Needs.PROCESSES)
async def a_stopped_peer_is_given_up(env: Env) -> None:
    """SIGSTOP: no sign of life, ConnectionLost; after SIGCONT it serves new connections."""
    async with peer_process(env) as (nursery, peer):
        connection = await dial(env, peer.url, nursery, limits=KEEPALIVE)
        assert await _id_of(connection) == peer.process.pid
        peer.signal(signal.SIGSTOP)
        with trio.fail_after(6 * PATIENCE):
            await connection.closed.wait()
        assert isinstance(connection.close_reason, ConnectionLost), connection.close_reason
        peer.signal(signal.SIGCONT)
        assert await _id_of(await dial(env, peer.url, nursery)) == peer.process.pid


@case("E", Needs.PROCESSES)
async def children_that_keep_descriptors_hide_no_death(env: Env) -> None:
    """A peer that made a child and was killed is noticed all the same, by the end of its signs of life."""
    async with peer_process(env) as (nursery, peer):
        connection = await dial(env, peer.url, nursery, limits=KEEPALIVE)
        (await connection.request(FORK, timeout=5 * PATIENCE)).release()
        assert await _id_of(connection) == peer.process.pid
        peer.signal(signal.SIGKILL)
        with trio.fail_after(6 * PATIENCE):
            await connection.closed.wait()
        assert isinstance(connection.close_reason, ConnectionLost), connection.close_reason


@case("E", Needs.PROCESSES)
async def a_peer_that_leaves_does_not_kill_the_sender(env: Env) -> None:
    """Where SIGPIPE has its default action, sending to who has gone ends a link and no process."""
    async with peer_process(env) as (nursery, peer):
        for kind, body in ((FLOOD, b""), (RANGE, b"%d" % (64 << 20))):
            connection = await dial(env, peer.url, nursery)
            connection.request_nowait(kind, body, timeout=5 * PATIENCE, on_done=lambda _: None)
            await trio.testing.wait_all_tasks_blocked(0.02)
            connection.abort("for the test")
        assert await _id_of(await dial(env, peer.url, nursery)) == peer.process.pid
        assert peer.process.poll() is None

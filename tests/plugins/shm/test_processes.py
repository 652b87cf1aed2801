"""Peers that die or stop, as real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from insync.transport import ConnectError, ConnectionLost, Identity, Limits, connect
from insync.transport.kit._frame import until

from ..tcp.peer_process import KEEPALIVE as PEER_KEEPALIVE

SCRIPT = Path(__file__).parent.parent / "tcp" / "peer_process.py"
AT_ONCE = 6.0
"""Seconds: less than keepalive would take to find out (three times 3 s), and more than a busy machine does."""


@pytest.fixture(params=["unix", "shm"])
def peer(request, folder):
    """A process that serves; has `url`."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT, f"{request.param}://{folder}/peer.sock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        process.url = process.stdout.readline().strip()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def test_a_killed_peer_is_noticed_at_once_and_its_files_stay(peer, nursery):
    connection = await connect(peer.url, identity=Identity(), nursery=nursery)
    held = await connection.request(3, b"%d" % (40 << 20), timeout=5)
    ends = []
    connection.request_nowait(99, timeout=30, on_done=ends.append)
    (await connection.request(1, timeout=5)).release()
    os.kill(peer.pid, signal.SIGKILL)
    with trio.fail_after(AT_ONCE):
        await connection.closed.wait()
    await until(lambda: bool(ends), "the request ends")
    assert isinstance(ends[0], ConnectionLost) and ends[0].delivery == "maybe"
    with held:
        assert held.payload.view() == bytes(40 << 20)
    peer.wait()
    with pytest.raises(ConnectError, match="no process listens"):
        await connect(peer.url, identity=Identity(), nursery=nursery)


async def test_a_peer_killed_while_it_sends(peer, nursery):
    connection = await connect(peer.url, identity=Identity(), nursery=nursery)
    connection.request_nowait(2, timeout=30, on_done=lambda _: None)
    os.kill(peer.pid, signal.SIGKILL)
    with trio.fail_after(AT_ONCE):
        await connection.closed.wait()


async def test_a_stopped_peer_is_given_up(peer, nursery):
    connection = await connect(
        peer.url, identity=Identity(), nursery=nursery, limits=Limits(keepalive=PEER_KEEPALIVE)
    )
    (await connection.request(1, timeout=5)).release()
    os.kill(peer.pid, signal.SIGSTOP)
    with trio.fail_after(AT_ONCE):
        await connection.closed.wait()
    assert "sign of life" in str(connection.close_reason)
    os.kill(peer.pid, signal.SIGCONT)
    again = await connect(peer.url, identity=Identity(), nursery=nursery)
    with await again.request(1, timeout=5) as response:
        assert response.body == b"%d" % peer.pid


async def test_a_broken_pipe_does_not_kill_the_sender(peer, nursery):
    for kind, body in ((3, b"%d" % (64 << 20)), (2, b"")):
        connection = await connect(peer.url, identity=Identity(), nursery=nursery)
        connection.request_nowait(kind, body, timeout=5, on_done=lambda _: None)
        await trio.testing.wait_all_tasks_blocked(0.02)
        connection.abort("for the test")
    survivor = await connect(peer.url, identity=Identity(), nursery=nursery)
    with await survivor.request(1, timeout=5) as response:
        assert response.body == b"%d" % peer.pid
    assert peer.poll() is None

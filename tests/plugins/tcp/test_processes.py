"""Peers that die, stop or hang, as real processes."""

import errno
import os
import signal
import subprocess
import sys

import pytest
import trio
import trio.testing

from insync.transport import ConnectError, ConnectionLost, Identity, Limits, connect, serve
from insync.transport.kit._frame import until
from insync.transport.sockets import SocketListener

from .peer_process import KEEPALIVE as PEER_KEEPALIVE

SCRIPT = os.path.join(os.path.dirname(__file__), "peer_process.py")
AT_ONCE = 6.0
"""Seconds: less than keepalive would take to find out (three times 3 s), and more than a busy machine does."""


@pytest.fixture
def peer():
    """A process that serves; has `url`."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        process.url = process.stdout.readline().strip()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.parametrize("kind", [2, 99], ids=["while it sends", "while it is asked"])
async def test_a_killed_peer_is_noticed_at_once(peer, nursery, kind):
    connection = await connect(peer.url, identity=Identity(), nursery=nursery)
    ends = []
    connection.request_nowait(kind, timeout=30, on_done=ends.append)
    if kind == 99:
        (await connection.request(1, timeout=5)).release()
    os.kill(peer.pid, signal.SIGKILL)
    with trio.fail_after(AT_ONCE):
        await connection.closed.wait()
    await until(lambda: bool(ends), "the request ends")
    if kind == 99:
        assert isinstance(ends[0], ConnectionLost) and ends[0].delivery == "maybe"
    peer.wait()
    with pytest.raises(ConnectError, match="refused"):
        await connect(peer.url, identity=Identity(), nursery=nursery)


async def test_a_stopped_peer_is_given_up_and_rejected_when_it_goes_on(peer, nursery):
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


async def test_a_quiet_but_living_peer_is_kept(peer, nursery):
    """Either end gives the other up after three intervals of silence; this is five of each."""
    limits = Limits(keepalive=PEER_KEEPALIVE)
    connection = await connect(peer.url, identity=Identity(), nursery=nursery, limits=limits)
    with trio.move_on_after(5 * PEER_KEEPALIVE):
        await connection.closed.wait()
    assert not connection.closed.is_set()


async def test_a_broken_pipe_does_not_kill_the_sender(peer, nursery):
    """Sendfile raises SIGPIPE, which ends a process that did not ask to ignore it."""
    for kind, body in ((3, b"%d" % (64 << 20)), (2, b"")):
        connection = await connect(peer.url, identity=Identity(), nursery=nursery)
        connection.request_nowait(kind, body, timeout=5, on_done=lambda _: None)
        await trio.testing.wait_all_tasks_blocked(0.02)
        connection.abort("for the test")
    survivor = await connect(peer.url, identity=Identity(), nursery=nursery)
    with await survivor.request(1, timeout=5) as response:
        assert response.body == b"%d" % peer.pid
    assert peer.poll() is None


async def test_a_large_range_of_another_process_arrives(peer, nursery):
    connection = await connect(peer.url, identity=Identity(), nursery=nursery)
    with await connection.request(3, b"%d" % (40 << 20), timeout=5) as response:
        assert response.payload.nbytes == 40 << 20
    await connection.aclose()


async def test_running_out_of_descriptors_is_waited_out(nursery, monkeypatch):
    """Accepting goes on when there are descriptors again, and the listener lives."""
    failures = [OSError(errno.EMFILE, "Too many open files")] * 2
    accept = SocketListener.accept

    async def failing(self):
        if failures:
            raise failures.pop()
        return await accept(self)

    monkeypatch.setattr(SocketListener, "accept", failing)

    async def start(task_status):
        await serve("tcp://127.0.0.1:0", print, identity=Identity(), task_status=task_status)

    serving = await nursery.start(start)
    connection = await connect(serving.endpoints[0], identity=Identity(), nursery=nursery)
    assert not failures
    await connection.aclose()

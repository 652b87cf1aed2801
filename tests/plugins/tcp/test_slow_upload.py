"""A peer that takes a large request slowly is alive; one that takes no more of it is not."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from insync.transport import ConnectionLost, Identity, Limits, Request, Security, connect, serve

from .certificates import Authority

KEEPALIVE = 0.5
"""Seconds; after three of them without a sign of life a peer is given up."""
STEP_BYTES, STEP_SECONDS = 256 << 10, 0.02
PAYLOAD = bytes(28 << 20)
"""Takes 112 steps, half as long again as a peer may be silent. The system takes more from the sender when a third
of its buffer, about a megabyte, is free: a few steps, which may take ten times as long on a busy machine.
"""
RECEIVE_BYTES = 64 << 10


class SlowWire:
    """A proxy that carries what a client sends slowly, `most` bytes of it, and all answers at once."""

    def __init__(self, port: int, most: int) -> None:
        self._port, self._most = port, most

    async def carry(self, near: trio.SocketStream) -> None:
        async with near, trio.open_nursery() as nursery:
            far = await trio.open_tcp_stream("127.0.0.1", self._port)
            async with far:
                nursery.start_soon(self._answers, far, near)
                left = self._most
                while left > 0:
                    data = await near.receive_some(min(left, STEP_BYTES))
                    if not data:
                        return
                    left -= len(data)
                    await far.send_all(data)
                    await trio.sleep(STEP_SECONDS * len(data) / STEP_BYTES)
                await trio.sleep_forever()

    @staticmethod
    async def _answers(far: trio.SocketStream, near: trio.SocketStream) -> None:
        async for data in far:
            await near.send_all(data)


@asynccontextmanager
async def slow_server(scheme: str, security: Security, most: int) -> AsyncIterator[tuple[trio.Nursery, str]]:
    def answer(request: Request) -> None:
        with request.payload as payload:
            request.reply(b"%d" % payload.nbytes)

    async with trio.open_nursery() as nursery:
        start = partial(
            serve, f"{scheme}://127.0.0.1:0", answer, identity=Identity("c", 1, 1), security=security
        )
        serving = await nursery.start(start)
        door = socket.create_server(("127.0.0.1", 0))
        # What waits in the system's buffers must not be most of what is sent.
        door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(door))
        wire = SlowWire(int(serving.endpoints[0].rpartition(":")[2]), most)
        nursery.start_soon(partial(trio.serve_listeners, wire.carry, [listener]))
        yield nursery, f"{scheme}://127.0.0.1:{door.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.fixture(params=["tcp", "tls"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Security, Security]:
    """Scheme, and what server and client show."""
    if request.param == "tcp":
        return "tcp", Security(), Security()
    authority = Authority(tmp_path)
    return "tls", Security(tls=authority.files("isr://c/1")), Security(tls=authority.files("isr://c/client"))


@pytest.mark.parametrize("most", [1 << 40, 1 << 20])
async def test_progress_is_a_sign_of_life(ends: tuple[str, Security, Security], most: int) -> None:
    scheme, own, theirs = ends
    async with slow_server(scheme, own, most) as (nursery, url):
        connection = await connect(
            url, identity=Identity(), nursery=nursery, security=theirs, limits=Limits(keepalive=KEEPALIVE)
        )
        began = trio.current_time()
        with trio.fail_after(30):
            if most > len(PAYLOAD):
                with await connection.request(1, b"", [PAYLOAD], timeout=25) as response:
                    assert response.body == b"%d" % len(PAYLOAD)
                assert trio.current_time() - began > 4 * KEEPALIVE
            else:
                with pytest.raises(ConnectionLost, match="no sign of life"):
                    await connection.request(1, b"", [PAYLOAD], timeout=25)

"""A listener with idle connections, all of which end: prints the bytes that one takes, and how many stay in all."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import trio

from insync.transport import Connection, Identity, Limits, serve
from insync.transport.connections._handshake import introduce, judge_acceptor, make_hello
from insync.transport.registry import resolve

WARM = 50
"""Connections that come and go first, for what is made once."""


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


async def visit(url: str, count: int) -> None:
    """Be so many clients that say nothing, until somebody says so."""
    transport, endpoint = resolve(url)
    links = []
    for _ in range(count):
        links.append(await transport.connect(endpoint))
        await introduce(links[-1], make_hello(Identity(), "", Limits()), judge_acceptor, dialer=True)
    await trio.to_thread.run_sync(sys.stdin.readline)


class Visitors:
    """Counts those who are there."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = trio.Event()

    def change(self, by: int, connection: Connection) -> None:
        self.count += by
        self._changed.set()
        self._changed = trio.Event()

    async def become(self, count: int) -> None:
        while self.count != count:
            await self._changed.wait()

    async def come(self, url: str, count: int) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-m", __spec__.name, url, str(count)]
        process = subprocess.Popen(program, stdin=subprocess.PIPE)  # noqa: ASYNC220 - it returns at once
        await self.become(count)
        return process

    async def go(self, process: subprocess.Popen[bytes]) -> None:
        process.communicate(b"\n")
        await self.become(0)


async def receive(count: int) -> None:
    visitors = Visitors()
    async with trio.open_nursery() as nursery:
        serving = await nursery.start(
            partial(
                serve,
                "tcp://127.0.0.1:0",
                lambda request: request.reply(),
                identity=Identity("c", 1, 1),
                limits=Limits(keepalive=60),
                on_connect=partial(visitors.change, 1),
                on_disconnect=partial(visitors.change, -1),
            )
        )
        (url,) = serving.endpoints
        await visitors.go(await visitors.come(url, WARM))
        before = resident()
        process = await visitors.come(url, count)
        taken = resident() - before
        await visitors.go(process)
        with trio.move_on_after(5):
            while resident() - before > 0.6 * taken:
                await trio.lowlevel.checkpoint()
        print(taken // count, resident() - before)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        trio.run(visit, sys.argv[1], int(sys.argv[2]))
    else:
        trio.run(receive, int(sys.argv[1]))

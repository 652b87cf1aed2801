"""The other process of the kit's cases that need one: it serves, and does to itself what it is asked for.

`python -m insync.transport.kit._peer MODULE:CLASS URL` prints where it listens and ends with its standard input.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile

import attrs
import trio

from ..connections.request import Request
from ..connections.server import serve
from ..frames import Limits
from ..registry import register
from ..requests import Identity
from ..security import Security

PID, FLOOD, RANGE, FORK, NEVER = 1, 2, 3, 4, 5
"""Kinds of requests: answer with the process's id; with `FLOOD_BYTES`; with a range of as many bytes as the body
says; after making a child that keeps all descriptors; never."""
FLOOD_BYTES = 32 << 20
KEEPALIVE = 0.2


@attrs.frozen
class _Slice:
    fd: int
    offset: int
    length: int

    def fileno(self) -> int:
        return self.fd


def handle(request: Request) -> None:
    request.payload.release()
    if request.kind == PID:
        request.reply(b"%d" % os.getpid())
    elif request.kind == FLOOD:
        request.reply(b"", [bytes(FLOOD_BYTES)])
    elif request.kind == RANGE:
        request.reply(b"", [_Slice(_file(int(request.body)), 0, int(request.body))])
    elif request.kind == FORK:
        request.reply(b"%d" % _sleeping_child())


def _file(size: int) -> int:
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        return os.dup(file.fileno())


def _sleeping_child() -> int:
    """A process that has all our descriptors and does nothing; it ends with its standard input, like us."""
    child = os.fork()
    if child == 0:
        os.read(0, 1)
        os._exit(0)
    return child


async def _main(name: str, url: str) -> None:
    module, _, qualified = name.partition(":")
    transport = getattr(importlib.import_module(module), qualified)
    for scheme in transport.schemes:
        register(scheme, transport, override=True)

    async def start(task_status: trio.TaskStatus[object]) -> None:
        await serve(
            url,
            handle,
            identity=Identity("kit", 1, 1),
            security=Security.load(),
            limits=Limits(keepalive=KEEPALIVE),
            task_status=task_status,
        )

    async with trio.open_nursery() as nursery:
        serving = await nursery.start(start)
        print(serving.endpoints[0], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    # As a program that did not ask to ignore it has it: sending to a peer that is gone would end this process.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    trio.run(_main, sys.argv[1], sys.argv[2])

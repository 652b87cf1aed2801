"""The keeper: a process beside the driver that serves the run's metadata store and directory.

    python -m insync.plugins.spark.executors._keeper

It is a process of its own so that a driver that computes, or holds the interpreter's lock for long, holds up no
election. It lives as long as its standard input is open, so it never outlives the driver; it ends by removing what
the run has left on this host.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import trio

from ....replication.metadata import SqliteStore, serve_store
from ....replication.metadata.registry import REMOTE
from ....transport import Identity, Security, serve
from ._directory import Directory, authorise
from ._folders import remove_run
from ._messages import Config, Started, Stop, Told, decode, encode

_REMOVE_SECONDS = 20.0
"""How long nodes may take to notice that all is over, and to let go of their files."""
_LOOK_SECONDS = 0.2


def main() -> None:
    """Serve until standard input ends."""
    line, rest = _first_line()
    config = decode(line, Config)
    try:
        trio.run(_serve, config, rest)
    finally:
        if not config.keep:
            shutil.rmtree(config.folder, ignore_errors=True)
            _remove_logs(config)


async def _serve(config: Config, rest: bytes) -> None:
    directory = Directory(_tell)
    security = Security(secret=config.secret.encode())
    async with SqliteStore(Path(config.folder) / "meta.db") as store, trio.open_nursery() as nursery:
        stores = await nursery.start(partial(serve_store, store, config.store, security=security))
        listener = await nursery.start(
            partial(
                serve,
                config.directory,
                directory.serve,
                identity=Identity(),
                security=security,
                authorise=authorise,
                on_disconnect=directory.disconnected,
            )
        )
        _tell(Started(listener.endpoints[0], REMOTE + stores.endpoints[0]))
        async for line in _lines(rest):
            stop = decode(line, Stop)
            directory.stop(stop.slot, stop.executor, keep=stop.keep)
        nursery.cancel_scope.cancel()


def _first_line() -> tuple[bytes, bytes]:
    """Of standard input; and what came with it."""
    found = b""
    while b"\n" not in found and (data := os.read(sys.stdin.fileno(), 1 << 16)):
        found += data
    line, _, rest = found.partition(b"\n")
    return line, rest


async def _lines(rest: bytes) -> AsyncIterator[bytes]:
    """Of standard input, as they come after `rest`; ends where it ends."""
    stream = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
    while data := await stream.receive_some():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line


def _tell(what: Told) -> None:
    try:
        os.write(sys.stdout.fileno(), encode(what) + b"\n")
    except BrokenPipeError:
        # The driver is gone; the end of standard input says so as well.
        return


def _remove_logs(config: Config) -> None:
    """Remove the logs that killed nodes have left; those that live remove their own."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    for folder in config.logs:
        while not remove_run(Path(folder)) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main()

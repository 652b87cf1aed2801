"""Other commands of ours that run beside a local cluster, as children that end with it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import trio

from .errors import CommandError, one_line

READY_TIMEOUT = 30.0
STOP_TIMEOUT = 5.0


class CompanionError(CommandError):
    """Such a command could not be started; the message has its own last line."""


@contextlib.asynccontextmanager
async def companion(
    arguments: Sequence[str], log_path: Path, environment: Mapping[str, str]
) -> AsyncIterator[dict[str, object]]:
    """Run `insync ARGUMENTS --json --stop-with-stdin` as long as the block is open; gives its line of JSON.

    environment: variables beside our own ones. Its standard error goes to `log_path`.
    Raises `CompanionError` if it ends, or says nothing for 30 s.
    """
    command = [sys.executable, "-P", "-m", __package__, *arguments, "--json", "--stop-with-stdin"]
    with log_path.open("ab") as log:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.fileno(),
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        line = b""
        with trio.move_on_after(READY_TIMEOUT):
            async for chunk in process.stdout:
                line += chunk
                if b"\n" in line:
                    break
        if b"\n" not in line:
            said = await trio.Path(log_path).read_text(errors="replace")
            last = one_line(said.strip().rpartition("\n")[2]) or "it said nothing"
            raise CompanionError(f"{arguments[0]} could not be started: {last} (all of it: {log_path})")
        yield json.loads(line.partition(b"\n")[0])
    finally:
        with trio.CancelScope(shield=True):
            process.terminate()
            with trio.move_on_after(STOP_TIMEOUT):
                await process.wait()
            if process.poll() is None:
                process.kill()
                await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()

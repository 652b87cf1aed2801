"""Commands of ours as child processes of another one: started, heard, ended, and what they said last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from ..errors import CommandError, one_line

_PROGRAM = "insync.replication.cli"
_LAST_BYTES = 4096


async def spawn(
    arguments: Sequence[str], log_path: Path, environment: Mapping[str, str] | None = None
) -> trio.Process:
    """Run `insync ARGUMENTS --json --stop-with-stdin`; what it logs is added to a file.

    In a session of its own: a Ctrl-C at the terminal reaches the parent alone, which sees to the rest. The child
    stops when its standard input ends, so it outlives its parent in no case.

    environment: variables beside our own ones.

    Raises:
      CommandError: It cannot be started.
    """
    command = [sys.executable, "-P", "-m", _PROGRAM, *arguments, "--json", "--stop-with-stdin"]
    with log_path.open("ab") as log:
        try:
            return await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log.fileno(),
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise CommandError(f"cannot start {command[0]}: {error.strerror}") from error


async def first_line(process: trio.Process) -> dict[str, Any] | None:
    """The first line of JSON that it prints; None if it ends without one."""
    assert process.stdout is not None
    heard = b""
    async for chunk in process.stdout:
        heard += chunk
        line, newline, _ = heard.partition(b"\n")
        if newline:
            found: dict[str, Any] = json.loads(line)
            return found
    return None


def last_words(log_path: Path) -> str:
    """The last line of a child's log, and where the rest is."""
    with log_path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = log.read().decode("utf-8", "replace").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    return one_line(f"{last.removeprefix('insync: ')} (all of it: {log_path})")


async def end(process: trio.Process, grace: float) -> None:
    """SIGTERM, and SIGKILL if it has not ended after `grace` seconds. Not cancelled half-way."""
    with trio.CancelScope(shield=True):
        if process.poll() is None:
            process.terminate()
            with trio.move_on_after(grace):
                await process.wait()
        if process.poll() is None:
            process.kill()
        await process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                await pipe.aclose()

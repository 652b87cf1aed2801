"""Other commands of ours that run beside a local cluster, as children that end with it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from ..errors import CommandError
from . import children

READY_TIMEOUT = 30.0
STOP_TIMEOUT = 5.0


class CompanionError(CommandError):
    """Such a command could not be started; the message has its own last line."""


@contextlib.asynccontextmanager
async def companion(
    arguments: Sequence[str], log_path: Path, environment: Mapping[str, str]
) -> AsyncIterator[dict[str, Any]]:
    """Run `insync ARGUMENTS` as long as the block is open; gives its line of JSON.

    environment: variables beside our own ones. Its standard error goes to `log_path`.
    Raises `CompanionError` if it ends, or says nothing for 30 s.
    """
    process = await children.spawn(arguments, log_path, environment)
    try:
        ready = None
        with trio.move_on_after(READY_TIMEOUT):
            ready = await children.first_line(process)
        if ready is None:
            raise CompanionError(f"{arguments[0]} could not be started: {children.last_words(log_path)}")
        yield ready
    finally:
        await children.end(process, STOP_TIMEOUT)

"""How the threads of a log directory tell the event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVarTuple

import trio

Arguments = TypeVarTuple("Arguments")


def tell(
    token: trio.lowlevel.TrioToken, function: Callable[[*Arguments], object], *arguments: *Arguments
) -> None:
    """Have the event loop call a function soon; from any thread.

    Nothing happens if the loop has ended: a thread that hangs in the device is left behind when a node stops, and
    may come back when nobody is left to be told.
    """
    with suppress(trio.RunFinishedError):
        token.run_sync_soon(function, *arguments)

"""Memory that many connections took, back to the system when they have ended.

Python and the C library keep what is freed for later, and an idle process stays as large as it ever was. Asked to,
both give back what nothing else lies in.
"""

from __future__ import annotations

import ctypes
import gc

import trio

MANY = 200
"""Connections that have ended; it is not worth it for fewer."""
_QUIET = 1.0
"""Seconds without another end: who ends a thousand at once is waited for."""


class Departures:
    """Counts the connections of one listener that end. Belongs to its nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._count = 0
        self._is_waiting = False

    def one(self) -> None:
        """A connection has ended, and nothing holds on to it any more."""
        self._count += 1
        if self._count >= MANY and not self._is_waiting:
            self._is_waiting = True
            self._nursery.start_soon(self._give_back)

    async def _give_back(self) -> None:
        while self._count:
            self._count = 0
            await trio.sleep(_QUIET)
        self._is_waiting = False
        clear_free_lists()
        await trio.to_thread.run_sync(trim)


def clear_free_lists() -> None:
    """Have Python free what it keeps of small objects for later: a few of them hold on to a whole arena each.

    Only a full collection does that. Nothing is looked through for it: all objects stand aside meanwhile.
    """
    if gc.get_freeze_count():
        return  # the program has set objects aside itself; they would come back with the others
    gc.freeze()
    gc.collect()
    gc.unfreeze()


def trim() -> None:
    """Have the C library give free pages back; one that has no such call keeps them. Lets other threads run."""
    call = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if call is not None:
        call(0)

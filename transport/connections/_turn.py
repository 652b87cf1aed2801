"""Frames sent during one piece of work go out at its end, or when they hurry: each connection's by one write.

Waking a connection's writer costs a task switch, and sending each frame alone a system call. Code that answers many
at once (a handler that completes others' requests, a thread's results that come in) does it in a turn.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

import trio


class Sends(Protocol):
    """The part of a connection that a turn needs."""

    def flush(self) -> None:
        """Send what is queued, as far as that goes without waiting; never raises."""
        ...


class Turn:
    """That of an event loop, see `turn`; used as a context manager without an await inside, and may be nested."""

    __slots__ = ("_depth", "_noted", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._depth = 0
        self._noted: dict[Sends, None] = {}

    def note(self, who: Sends) -> None:
        """Have it flushed at the end, or by `hurry` before."""
        self._noted[who] = None

    def hurry(self) -> None:
        """Flush those noted so far now, although the turn goes on: what they send is waited for."""
        if self._noted:
            noted, self._noted = self._noted, {}
            for who in noted:
                who.flush()

    def __enter__(self) -> Self:
        self._depth += 1
        self.is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        self.is_open = False
        if self._noted:
            self.hurry()


_of_this_run: trio.lowlevel.RunVar[Turn] = trio.lowlevel.RunVar("turn")


def turn() -> Turn:
    """The turn of this event loop: `with turn(): ...` sends at the end what is answered, and asked, inside.

    `hurry` sends it before. Nothing may be awaited inside. Outside of a turn each connection's writer task sends, a
    moment later.
    """
    try:
        return _of_this_run.get()
    except LookupError:
        made = Turn()
        _of_this_run.set(made)
        return made

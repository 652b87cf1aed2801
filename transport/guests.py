"""The connections of a process with those that are no nodes: as many as its descriptors allow.

Logs and other nodes keep a reserve of descriptors, whoever connects. When there is no room, connections of
strangers end first: those that have not proved who they are, or have asked nothing yet. Then idle ones end. Either
way the address with the most connections loses its oldest: a flood from one address ends itself.
"""

from __future__ import annotations

import logging
import os
import resource
import weakref
from collections import Counter
from collections.abc import Callable, Collection

import attrs
import trio

from .repeats import limited

log = limited(logging.getLogger("insync.transport"))

SHARE, RESERVE = 3 / 8, 1 / 8
"""Of a process's descriptors: those that guests may have, and the last ones, which no guest takes."""
SILENT, TALKING = 0.2, 1.0
"""Seconds that a stranger has at least: one that says nothing, and one that does."""
IDLE = 10.0
MOST_ENDED = 64
"""Connections that end at a time when there is no room."""
_LOOK_AGAIN = 1.0


@attrs.define(eq=False)
class Guest:
    """A connection with somebody that is no node.

    address: without the port. end: ends it soon, and is given the reason. is_known: it has proved who it is, where
    that is asked for, and has asked for something. has_spoken: any byte has come. idle: seconds for which it has
    asked nothing and waits for nothing; 0: it waits.
    """

    address: str
    end: Callable[[str], None]
    is_known: Callable[[], bool]
    has_spoken: Callable[[], bool]
    idle: Callable[[float], float]
    since: float = attrs.Factory(trio.current_time)

    def may_go(self, now: float) -> bool:
        """Whether it may end to make room."""
        if self.is_known():
            return self.idle(now) >= IDLE
        return now - self.since >= (TALKING if self.has_spoken() else SILENT)


class Guests:
    """Those of one listener. most: as many as it may have, however many descriptors there are."""

    def __init__(self, name: str, most: int | None = None) -> None:
        self._name = name
        self._most = most
        self._open: dict[Guest, None] = {}
        """The oldest first."""
        self._left = trio.Event()
        _everywhere.add(self)
        try:
            together = _together.get()
        except LookupError:
            together = weakref.WeakSet()
            _together.set(together)
        together.add(self)
        self._together = together

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, guest: Guest) -> None:
        self._open[guest] = None

    def leave(self, guest: Guest) -> None:
        """Idempotent."""
        self._open.pop(guest, None)
        for each in self._together:
            each._left.set()

    async def room(self) -> None:
        """Return when one more may enter."""
        while crowd := self._crowd():
            # Before some end: they may be gone at once.
            self._left = trio.Event()
            _end_some(crowd, self._name)
            with trio.move_on_after(_LOOK_AGAIN):
                await self._left.wait()

    def _crowd(self) -> Collection[Guest]:
        """Those of which some have to go; none: there is room."""
        if self._most is not None and len(self._open) >= self._most:
            return self._open
        if sum(map(len, _everywhere)) >= allowed() or not _has_reserve():
            return [guest for each in self._together for guest in each._open]
        return ()


_everywhere: weakref.WeakSet[Guests] = weakref.WeakSet()
"""Of this process: descriptors are the process's."""
_together: trio.lowlevel.RunVar[weakref.WeakSet[Guests]] = trio.lowlevel.RunVar("guests")
"""Of this event loop: no other may end a connection of it."""


def allowed() -> float:
    """As many guests as this process can afford."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if descriptors == resource.RLIM_INFINITY else descriptors * SHARE


def _has_reserve() -> bool:
    """Whether the next descriptor is none of the reserve. The system gives the lowest number that is free: where it
    lies in the reserve, logs, nodes and the program around have all others.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return True
    try:
        number = os.open("/", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(number)
    return number < descriptors * (1 - RESERVE)


def _end_some(crowd: Collection[Guest], name: str) -> None:
    now = trio.current_time()
    leaving = [guest for guest in crowd if guest.may_go(now)]
    strangers = [guest for guest in leaving if not guest.is_known()]
    of_address = Counter(guest.address for guest in crowd)
    found = strangers or leaving
    found.sort(key=lambda guest: (-of_address[guest.address], -guest.idle(now), guest.since))
    for guest in found[:MOST_ENDED]:
        guest.end("it makes room for others: no more connections are allowed")
    if found:
        log.warning(
            "%s: as many connections are open as are allowed (%d); some end. If these are your clients, allow the "
            "process more descriptors (ulimit -n, LimitNOFILE=)",
            name,
            len(crowd),
        )

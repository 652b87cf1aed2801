"""An event loop that polls for a while, where it expects something soon, before it goes to sleep.

A processor without work goes to sleep, and then takes tens of microseconds to wake up, with cold caches. A process
that sends few messages one after the other waits for that at every step. A loop that polls keeps its processor
awake, and pays for it with processor time: see decision 77. Where another thread wants that processor, polling
would only delay both: it is left off for a while then.

trio has a hook before the loop waits, and no way to poll there. Its epoll can be polled like any descriptor.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns
from typing import Final

import trio

from ._native import lib
from .errors import TransportError

MOST_MICROSECONDS: Final = 1_000_000
"""More than that is not waiting for something that comes soon."""
REST_NANOSECONDS: Final = 10_000_000
"""For how long nothing is polled after another thread has had the processor; it takes it for some milliseconds."""


class CannotPollError(TransportError):
    """The event loop's epoll was not found: polling needs Linux with /proc, and trio on epoll."""


class Polling(trio.abc.Instrument):
    """Polls in place of sleeping until `seconds` after the latest `expect`; made by `poll_when_expecting`."""

    def __init__(self, epoll: int, microseconds: int) -> None:
        self._epoll = epoll
        self._nanoseconds = microseconds * 1000
        self._until = 0
        self._rests_until = 0
        self._token = trio.lowlevel.current_trio_token()

    def expect(self) -> None:
        """Something is under way whose answer comes soon; from the event loop only."""
        self._until = monotonic_ns() + self._nanoseconds

    def before_io_wait(self, timeout: float) -> None:
        """trio's: nothing is left to do for `timeout` seconds, unless something arrives."""
        if timeout <= 0:
            return
        now = monotonic_ns()
        until = self._until
        if until <= now or now < self._rests_until:
            return
        if timeout * 1e9 < until - now:
            until = now + int(timeout * 1e9)
        seen = lib.isr_poll_until(self._epoll, until)
        if seen < 0:
            self._rests_until = monotonic_ns() + REST_NANOSECONDS
        if seen <= 0:
            # trio would still sleep for all of `timeout` now, past the next timer: it looks at the clock again.
            self._token.run_sync_soon(_nothing)


def _nothing() -> None:
    pass


async def poll_when_expecting(
    microseconds: int, *, task_status: trio.TaskStatus[Polling] = trio.TASK_STATUS_IGNORED
) -> None:
    """Start it with `nursery.start`, which returns the `Polling`; it polls until the task is cancelled.

    Raises `CannotPollError` where that is not possible.
    """
    polling = Polling(await _epoll_of_this_loop(), microseconds)
    trio.lowlevel.add_instrument(polling)
    try:
        task_status.started(polling)
        await trio.sleep_forever()
    finally:
        trio.lowlevel.remove_instrument(polling)


async def _epoll_of_this_loop() -> int:
    """The epoll that watches a socket which this loop waits for."""
    ours, others = socket.socketpair()
    with ours, others:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.wait_readable, ours)
            # The task has begun to wait when those that were ready with it have had their turn.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            found = _epoll_that_watches(ours.fileno())
            nursery.cancel_scope.cancel()
    if found is None:
        raise CannotPollError(
            "no epoll of this event loop was found in /proc/self/fdinfo, so it cannot poll; set busy_poll_us to 0"
        )
    return found


def _epoll_that_watches(fd: int) -> int | None:
    """By what the kernel tells of each epoll: numbers and inodes of what it watches."""
    watched = re.compile(rf"^tfd:\s*{fd} .*\bino:{os.fstat(fd).st_ino:x}\b", re.MULTILINE)
    return next((epoll for epoll, facts in _epolls() if watched.search(facts)), None)


def _epolls() -> Iterator[tuple[int, str]]:
    """Those of this process, with what the kernel tells of them; none where it tells nothing."""
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return
    for number in numbers:
        try:
            if os.readlink(f"/proc/self/fd/{number}") == "anon_inode:[eventpoll]":
                yield int(number), Path(f"/proc/self/fdinfo/{number}").read_text()
        except OSError:
            # That one was closed meanwhile.
            continue

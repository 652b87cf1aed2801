"""The lines of the log about what has changed in the store: in portions, as there may be thousands at a time."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator

import trio

from ..log_lines import Event
from ..operations.history import ChangeHistory

log = logging.getLogger("insync.node")

PORTION = 100
"""Lines that are written before the event loop has another turn; some 5 ms."""
PAUSE = 0.1
"""Seconds between two portions: in a failover of thousands of partitions clients come before the log, which is told
of all of them within ten seconds or so."""
MOST_WAITING = 100
"""Readings of the store whose lines wait; with more of them there are no pauses."""


class ChangesTold:
    """Writes events to the log and remembers them, in the order in which they are told."""

    def __init__(self, history: ChangeHistory, nursery: trio.Nursery) -> None:
        self._history = history
        self._nursery = nursery
        self._untold: deque[tuple[float, Iterator[Event]]] = deque()
        """Events, and when they were told, in seconds since 1970."""
        self._is_busy = False

    def tell(self, events: Iterator[Event]) -> None:
        """Write some lines at once, and the others soon."""
        self._untold.append((time.time(), events))
        if not self._is_busy and not self._write(PORTION):
            self._is_busy = True
            self._nursery.start_soon(self._write_rest)

    async def _write_rest(self) -> None:
        try:
            while not self._write(PORTION):  # noqa: ASYNC110 - a pace, nothing is waited for
                await trio.sleep(PAUSE if len(self._untold) <= MOST_WAITING else 0)
        finally:
            # A node that stops meanwhile leaves none out.
            self._is_busy = False
            self._write(None)

    def _write(self, limit: int | None) -> bool:
        """Write at most `limit` lines; whether nothing is left."""
        written = 0
        while self._untold:
            told_at, events = self._untold[0]
            for event in events:
                log.info(event)
                self._history.remember(event, told_at)
                written += 1
                if written == limit:
                    return False
            self._untold.popleft()
        return True

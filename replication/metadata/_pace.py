"""Failures of a store are met later and later, and with few lines in the log."""

from __future__ import annotations

import logging
import math

import trio

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
TELL_SECONDS = 10.0
OUTAGE_SECONDS = 60.0
"""Between two lines of one outage."""


class Pace:
    """The pauses after failures of one kind of call that come one after the other.

    The first failure is told at once, so that one hiccup costs nobody time. Each further one waits twice as long as
    the one before, up to `LONGEST_PAUSE`: a caller that tries again at once, for ever, then costs next to nothing,
    and says so once a second at most.
    """

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}

    def worked(self, call: str) -> None:
        self._failures.pop(call, None)

    async def failed(self, call: str) -> None:
        """Return when the failure may be told."""
        before = self._failures.get(call, 0)
        self._failures[call] = before + 1
        if before:
            await trio.sleep(min(FIRST_PAUSE * 2 ** min(before - 1, 16), LONGEST_PAUSE))


class CountedLog:
    """Tells the same thing once in `TELL_SECONDS`, and how often it happened since."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def error(self, what: str, message: str) -> None:
        """Log a message; lines with one `what` count as the same."""
        now = trio.current_time()
        if now - self._told.get(what, -math.inf) < TELL_SECONDS:
            self._untold[what] = self._untold.get(what, 0) + 1
            return
        self._told[what] = now
        more = self._untold.pop(what, 0)
        self._log.error("%s%s", message, f" ({more} more since the last line)" if more else "")


class OutageLog:
    """Tells when a store goes, once a minute that it is still away, and when it is back."""

    def __init__(self, log: logging.Logger, name: str) -> None:
        self._log = log
        self._name = name
        self._since = math.inf
        self._failing: set[str] = set()
        self._told = -math.inf
        self._is_told = False

    def failed(self, kind: str, why: str) -> None:
        """A call of that kind has found the store unavailable. A hiccup soon after the last line is not told."""
        now = trio.current_time()
        begins = not self._failing
        self._failing.add(kind)
        if begins:
            self._since, self._is_told = now, False
        if now - self._told < (TELL_SECONDS if begins else OUTAGE_SECONDS):
            return
        self._told, self._is_told = now, True
        still = "" if begins else f" (for {now - self._since:.0f} s)"
        self._log.warning("%s cannot be used%s: %s", self._name, still, why)

    def worked(self, kind: str) -> None:
        """A call has come through. A store that is read-only works for one kind of call and is not back."""
        if kind not in self._failing:
            return
        self._failing.discard(kind)
        if not self._failing and self._is_told:
            self._log.warning("%s works again, after %.1f s", self._name, trio.current_time() - self._since)

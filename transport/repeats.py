"""A fault that repeats costs a few lines of the log, not all of it: what is above is counted.

`limited` makes any logger count. Give it the logger, once, where the module gets it:

    log = limited(logging.getLogger("insync.node"))

Records from WARNING on are judged by what they are about: `extra={"fault": ...}` names it (any hashable value),
otherwise it is the line of code that logs. Of each, `BURST` may come at once and then one a second; the next one
that is written says how many were not. Anything below WARNING passes. A program's handler may have the filter
`REPEATS` for what other libraries log; no record counts twice.

This stands in the lowest of the rooms that other people's code runs in, so that transports, stores, nodes, clients
and plugins can all use it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

import attrs

BURST = 5
"""Lines of one fault that may come at once."""
PAUSE = 1.0
"""Seconds after which one more may come."""
_MOST_FAULTS = 1000
"""That are remembered; the one that was quiet for the longest is forgotten."""


@attrs.define
class _Fault:
    room: float
    """Lines that it may have now."""
    seen: float
    untold: int = 0


class Repeats(logging.Filter):
    """Lets through so much of each fault; see `limited`. Any thread may log."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._faults: OrderedDict[Hashable, _Fault] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or getattr(record, "is_counted", False):
            return True
        record.is_counted = True
        untold = self._take(getattr(record, "fault", None) or (record.pathname, record.lineno))
        if untold is None:
            return False
        if untold:
            record.msg = f"{record.getMessage()} (and {untold} more like this, not shown)"
            record.args = ()
        return True

    def forget(self) -> None:
        """Begin again: nothing was seen."""
        with self._lock:
            self._faults.clear()

    def _take(self, key: Hashable) -> int | None:
        """How many were held back before this one; None if it is, too."""
        now = self._now()
        with self._lock:
            fault = self._faults.pop(key, None) or _Fault(BURST, now)
            self._faults[key] = fault
            if len(self._faults) > _MOST_FAULTS:
                self._faults.popitem(last=False)
            fault.room = min(BURST, fault.room + (now - fault.seen) / PAUSE)
            fault.seen = now
            if fault.room < 1:
                fault.untold += 1
                return None
            fault.room -= 1
            untold, fault.untold = fault.untold, 0
            return untold


REPEATS = Repeats()
"""That of this process."""


def limited(log: logging.Logger) -> logging.Logger:
    """The same logger, which from now on counts what repeats. Idempotent."""
    log.addFilter(REPEATS)
    return log


__all__ = ["BURST", "PAUSE", "REPEATS", "Repeats", "limited"]

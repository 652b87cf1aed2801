"""Reads that may wait for the device happen in a thread first, so that the event loop never does.

The thread finds what is asked for; with that the pages are in memory, and the event loop finds it again without a
wait. Each log directory has its own threads: one whose device hangs holds up its own reads alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from ....storage import Log, LookUpStoppedError, StorageError
from ...core.broker.effects import Warm
from ...core.broker.events import Warmed
from ...core.broker.ports import LOOK_UP_TIME, Found, LogReadError, LookUp, TimedOffset
from ...core.errors import ErrorCode
from ...core.messages import GREATEST_TIMESTAMP
from ...core.types import PartitionId

if TYPE_CHECKING:
    from ..ports import Driving, Logs
    from ._directories import Home

log = logging.getLogger("insync.node")

THREADS = 4
"""For each log directory."""
REMEMBERED = 1000

_Place = tuple[PartitionId, int]


class ColdReads:
    """For the event loop."""

    def __init__(self, driver: Driving, logs: Logs, nursery: trio.Nursery) -> None:
        self._driver = driver
        self._logs = logs
        self._nursery = nursery
        self._found: dict[_Place, None] = {}
        self._limits: dict[Home | None, trio.CapacityLimiter] = {}
        self._look_ups: dict[Home | None, trio.CapacityLimiter] = {}

    def is_at_hand(self, partition: PartitionId, log: Log, offset: int) -> bool:
        """Whether reading a log from `offset` on will not wait for the device."""
        return log.is_at_hand(offset) or (partition, offset) in self._found

    def warm(self, effect: Warm) -> None:
        """Have a thread read a range, and tell the broker when it has."""
        host = self._logs.get(effect.partition)
        if host is None or host.log is None:
            self._driver.step(
                Warmed(effect.partition, effect.offset)
            )  # deleted meanwhile: asked, it will say so
            return
        read = partial(
            host.log.read, effect.offset, max_bytes=effect.max_bytes, limit_offset=effect.limit_offset
        )
        self._nursery.start_soon(self._read, (effect.partition, effect.offset), host.home, read)

    async def look_up(self, wanted: Sequence[LookUp]) -> dict[LookUp, Found]:
        """Have timestamps found in a thread, one after the other; only those that were found in `LOOK_UP_TIME`.

        The threads are others than those of reads: whoever has many timestamps looked for holds up nobody but those
        who do the same.
        """
        found: dict[LookUp, Found] = {}
        late = threading.Event()
        with trio.move_on_after(LOOK_UP_TIME):
            try:
                for each in wanted:
                    host = self._logs.get(each.partition)
                    if host is None or host.log is None:
                        continue
                    look = partial(_look_up, host.log, each.timestamp_ms, late.is_set)
                    limit = self._look_ups.setdefault(host.home, trio.CapacityLimiter(1))
                    found[each] = await trio.to_thread.run_sync(look, limiter=limit, abandon_on_cancel=True)
            finally:
                late.set()
        return found

    async def _in_thread(self, home: Home | None, look: Callable[[], object]) -> None:
        limit = self._limits.setdefault(home, trio.CapacityLimiter(THREADS))
        await trio.to_thread.run_sync(_find, look, limiter=limit, abandon_on_cancel=True)

    async def _read(self, place: _Place, home: Home | None, read: Callable[[], object]) -> None:
        await self._in_thread(home, read)
        self._found[place] = None
        while len(self._found) > REMEMBERED:
            del self._found[next(iter(self._found))]
        self._driver.step(Warmed(*place))
        self._driver.settle()


def _find(look: Callable[[], object]) -> None:
    try:
        look()
    except StorageError:
        # The one who asked is told when the event loop reads.
        return


def _look_up(opened: Log, timestamp_ms: int, stop: Callable[[], bool]) -> Found:
    try:
        if timestamp_ms == GREATEST_TIMESTAMP:
            found = opened.latest_timestamp(stop=stop)
        else:
            found = opened.offset_for_timestamp(timestamp_ms, stop=stop)
    except LookUpStoppedError as error:
        return LogReadError(ErrorCode.OFFSET_NOT_AVAILABLE, str(error))
    except StorageError as error:
        log.warning("%s-%d: looking for a timestamp failed: %s", opened.topic, opened.partition, error)
        return LogReadError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    return TimedOffset(*found) if found is not None else None

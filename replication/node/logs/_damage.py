"""Logs that followers find damaged: checked where that may wait for the device, closed when they are given up."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from ....storage import CorruptBatchError, CorruptLogError, Log, StorageError
from ....storage.batch import scan
from ...core.broker.effects import CheckLog, LogDamaged
from ...core.broker.events import LogChecked
from ..log_lines import event

if TYPE_CHECKING:
    from ..ports import Driving, Logs
    from ._directories import LogDirectories

log = logging.getLogger("insync.node")

MOST_CHECKED = 16 << 20
"""Bytes; no more of one partition is sent at a time."""


class DamagedLogs:
    """Belongs to the event loop."""

    def __init__(
        self, driver: Driving, logs: Logs, directories: LogDirectories, nursery: trio.Nursery
    ) -> None:
        self._driver = driver
        self._logs = logs
        self._directories = directories
        self._nursery = nursery
        self._one = trio.CapacityLimiter(1)

    def check(self, effect: CheckLog) -> None:
        """Look at the checksums of what a follower doubts."""
        self._nursery.start_soon(self._check, effect)

    async def _check(self, effect: CheckLog) -> None:
        partition = effect.partition
        host = self._logs.get(partition)
        error = None
        if host is not None and host.log is not None:
            size = min(max(0, effect.max_bytes), MOST_CHECKED)
            look = partial(damage_in, host.log, effect.offset, size)
            error = await trio.to_thread.run_sync(look, limiter=self._one, abandon_on_cancel=True)
            if error is None:
                self._directories.troubles.found_sound(partition, effect.offset)
        self._driver.step(LogChecked(effect.check, partition, error))
        self._driver.settle()

    def found(self, effect: LogDamaged) -> None:
        """Close a log for good, or say that it serves on."""
        error = effect.damage
        assert isinstance(error, CorruptLogError)
        if not effect.given_up:
            self._directories.troubles.found_damaged(effect.partition, error)
            return
        log.error(
            event(
                "log_damaged",
                partition=str(effect.partition),
                path=error.path,
                position=error.position,
                offset=error.offset,
                why=error.reason,
                remedy="a sound replica takes over and this one is copied from it; check the device",
            )
        )
        self._directories.failed(effect.partition, error)


def damage_in(opened: Log, offset: int, size: int) -> CorruptLogError | None:
    """The damage in the batches from an offset on; None if there is none, or nothing is there (any more)."""
    path = f"the log of {opened.topic}-{opened.partition}"
    start = 0
    try:
        found = opened.read(offset, max_bytes=size).range
        if found is not None:
            start = found.offset
            scan(found.read_bytes())
    except CorruptBatchError as error:
        # Of a look-up that meets a header without sense the position is that in the file already.
        return CorruptLogError(error.path or path, start + error.position, offset, error.reason)
    except (StorageError, OSError):
        return None
    return None

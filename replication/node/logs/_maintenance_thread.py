"""The maintaining thread of a log directory: retention and compaction happen there, one log after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from ....storage import (
    CompactionResult,
    Log,
    LogClosedError,
    LogDirectory,
    LogSettings,
    StorageError,
    Stray,
    remove_stray,
    wait_for_descriptors,
)
from ...core.control.records import TopicConfig
from ...core.faces import ClockVerdict
from ...core.types import PartitionId
from ..log_lines import event
from ._telling import tell

log = logging.getLogger("insync.node")

_SHARED = [field.name for field in attrs.fields(LogSettings) if hasattr(TopicConfig(), field.name)]
"""Settings that a topic may have of its own."""


def log_settings(base: LogSettings, config: TopicConfig) -> LogSettings:
    """The settings of a topic's logs; those of the node where the topic's could not work."""
    try:
        return attrs.evolve(base, **{name: getattr(config, name) for name in _SHARED})
    except ValueError as error:
        log.error("cannot use a topic's settings, using the defaults: %s", error)
        return base


def wall_clock_ms() -> int:
    """Since 1970."""
    return time.time_ns() // 1_000_000


def clock_distance(time_ms: int) -> float:
    """Seconds from the clock that cannot be set, and goes on while a machine sleeps, to what a wall clock says."""
    return time_ms / 1000 - time.clock_gettime(time.CLOCK_BOOTTIME)


@attrs.frozen
class Progress:
    """The thread's reports; called on the event loop."""

    raised: Callable[[PartitionId], None]
    """Old records are gone, the log begins later."""
    failed: Callable[[PartitionId, StorageError], None]
    succeeded: Callable[[PartitionId, CompactionResult | None], None]
    """After a compaction, and after a failure."""
    clocks_judged: Callable[[ClockVerdict], None]
    """When there is news of them."""
    strays: Callable[[list[Stray]], None]
    """The stray logs of the directory, at each look."""
    died: Callable[[Exception], None]


STRAYS_KEPT_AFTER_CRASH = 3600.0
"""Seconds after an unclean start in which no stray log is deleted: an operator may look for lost records."""


class Deciding(Protocol):
    """The questions that the thread asks before it deletes anything."""

    def high_watermark(self, partition: PartitionId) -> int | None:
        """Nothing at or above it is touched; None: the log is left alone."""

    def leads(self, partition: PartitionId) -> bool:
        """The leader decides what is too old or too much; followers delete what lies below its log start."""

    def judge_clocks(self, now_ms: int) -> ClockVerdict:
        """Whether this time of this node's clock is to be believed."""


class LogKeeper:
    """One thread for one log directory; start it with `start`, end it with `stop`.

    It does not lower its priority: it shares the interpreter's lock with the event loop, which would wait for a
    thread that the machine does not let run. `bytes_per_second` bounds what compaction takes instead.

    `deciding` is asked from the thread.
    """

    def __init__(
        self,
        directory: LogDirectory,
        interval_ms: int,
        bytes_per_second: float | None,
        stray_retention_ms: int,
        deciding: Deciding,
        progress: Progress,
    ) -> None:
        self._directory = directory
        self._period = interval_ms / 1000
        self._bytes_per_second = bytes_per_second
        self._stray_retention_ms = stray_retention_ms
        self._strays_from = time.monotonic() + (0 if directory.was_clean else STRAYS_KEPT_AFTER_CRASH)
        self._deciding = deciding
        self._verdict = ClockVerdict()
        self._progress = progress
        self._failing: set[PartitionId] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"insync-keep-{directory.path.name}", daemon=True
        )
        self._token: trio.lowlevel.TrioToken | None = None
        self._stopped = trio.Event()

    def start(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._thread.start()

    async def stop(self) -> None:
        """Have a compaction under way given up, then let the thread end (if it was ever started)."""
        if self._token is None:
            return
        self._stop.set()
        await self._stopped.wait()

    def _run(self) -> None:
        assert self._token is not None
        wait_for_descriptors()
        try:
            self._look_for_strays()
            while not self._stop.wait(self._period):
                for key, opened in self._directory.logs():
                    # One look at the clock for both: between two it may be set.
                    now_ms = wall_clock_ms()
                    if self._stop.is_set() or self._doubts_clock(now_ms):
                        break
                    self._maintain(PartitionId(*key), opened, now_ms)
                self._look_for_strays()
        except Exception as error:  # noqa: BLE001 - not hidden: it ends the node
            tell(self._token, self._progress.died, error)
        finally:
            tell(self._token, self._stopped.set)

    def _look_for_strays(self) -> None:
        """Delete the stray logs that are old enough, and tell of the others."""
        assert self._token is not None
        kept = []
        try:
            for stray in self._directory.strays():
                if self._is_due(stray):
                    remove_stray(stray)
                    why = "older than stray_retention_ms"
                    log.warning(event("stray_log_deleted", path=stray.path, why=why))
                else:
                    kept.append(stray)
        except StorageError as error:
            log.warning("cannot look after the stray logs of %s: %s", self._directory.path, error)
            return
        tell(self._token, self._progress.strays, kept)

    def _is_due(self, stray: Stray) -> bool:
        """Whether a stray log is to be deleted. One of unknown age is not."""
        if self._stray_retention_ms < 0 or stray.since_ms is None or time.monotonic() < self._strays_from:
            return False
        now_ms = wall_clock_ms()
        return now_ms - stray.since_ms > self._stray_retention_ms and not self._doubts_clock(now_ms)

    def _doubts_clock(self, now_ms: int) -> bool:
        """Records deleted by a wrong clock are gone for good: with each log the clock is looked at again."""
        assert self._token is not None
        before, self._verdict = self._verdict, self._deciding.judge_clocks(now_ms)
        if self._verdict.finding != before.finding:
            tell(self._token, self._progress.clocks_judged, self._verdict)
        return bool(self._verdict.difference)

    def _maintain(self, partition: PartitionId, opened: Log, now_ms: int) -> None:
        assert self._token is not None
        high_watermark = self._deciding.high_watermark(partition)
        if high_watermark is None:
            return
        before = opened.log_start_offset
        try:
            done = opened.maintain(
                now_ms,
                high_watermark=high_watermark,
                decides=self._deciding.leads(partition),
                bytes_per_second=self._bytes_per_second,
                stop=self._stop.is_set,
            )
        except LogClosedError:
            return
        except StorageError as error:
            self._failing.add(partition)
            tell(self._token, self._progress.failed, partition, error)
            return
        if partition in self._failing or done.compaction is not None:
            self._failing.discard(partition)
            tell(self._token, self._progress.succeeded, partition, done.compaction)
        if done.segments_deleted:
            log.info(
                "%s: deleted %d old segments; the log now starts at offset %d",
                partition,
                done.segments_deleted,
                done.log_start_offset,
            )
        if done.log_start_offset > before:
            tell(self._token, self._progress.raised, partition)

"""The maintaining thread of a log directory: retention and compaction happen there, one log after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import attrs
import trio

from ...storage import CompactionResult, Log, LogClosedError, LogDirectory, LogSettings, StorageError
from ..core.control.records import TopicConfig
from ..core.types import PartitionId

log = logging.getLogger("insync.node")

_SHARED = [field.name for field in attrs.fields(LogSettings) if hasattr(TopicConfig(), field.name)]
"""Settings that a topic may have of its own."""


def log_settings(base: LogSettings, config: TopicConfig) -> LogSettings:
    """The settings of a topic's logs; those of the node where the topic's could not work."""
    try:
        return attrs.evolve(base, **{name: getattr(config, name) for name in _SHARED})
    except ValueError as error:
        log.error("a topic's settings cannot be used, the defaults are: %s", error)
        return base


@attrs.frozen
class Progress:
    """What the thread tells; called on the event loop."""

    raised: Callable[[PartitionId], None]
    """Old records are gone, the log begins later."""
    failed: Callable[[PartitionId, StorageError], None]
    succeeded: Callable[[PartitionId, CompactionResult | None], None]
    """After a compaction, and after a failure."""
    died: Callable[[Exception], None]


class LogKeeper:
    """One thread for one log directory; start it with `start`, end it with `stop`.

    It does not lower its priority: it shares the interpreter's lock with the event loop, which would wait for a
    thread that the machine does not let run. `bytes_per_second` bounds what compaction takes instead.

    `high_watermark` is asked from the thread; None: the log is left alone. Nothing at or above it is touched.
    """

    def __init__(
        self,
        directory: LogDirectory,
        interval_ms: int,
        bytes_per_second: float | None,
        high_watermark: Callable[[PartitionId], int | None],
        progress: Progress,
    ) -> None:
        self._directory = directory
        self._period = interval_ms / 1000
        self._bytes_per_second = bytes_per_second
        self._high_watermark = high_watermark
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
        try:
            while not self._stop.wait(self._period):
                for key, opened in self._directory.logs():
                    if self._stop.is_set():
                        break
                    self._maintain(PartitionId(*key), opened)
        except Exception as error:  # noqa: BLE001 - not hidden: it ends the node
            self._token.run_sync_soon(self._progress.died, error)
        finally:
            self._token.run_sync_soon(self._stopped.set)

    def _maintain(self, partition: PartitionId, opened: Log) -> None:
        assert self._token is not None
        high_watermark = self._high_watermark(partition)
        if high_watermark is None:
            return
        before = opened.log_start_offset
        try:
            done = opened.maintain(
                time.time_ns() // 1_000_000,
                high_watermark=high_watermark,
                bytes_per_second=self._bytes_per_second,
                stop=self._stop.is_set,
            )
        except LogClosedError:
            return
        except StorageError as error:
            self._failing.add(partition)
            self._token.run_sync_soon(self._progress.failed, partition, error)
            return
        if partition in self._failing or done.compaction is not None:
            self._failing.discard(partition)
            self._token.run_sync_soon(self._progress.succeeded, partition, done.compaction)
        if done.segments_deleted:
            log.info(
                "%s: %d old segments deleted, it begins at offset %d now",
                partition,
                done.segments_deleted,
                done.log_start_offset,
            )
        if done.log_start_offset > before:
            self._token.run_sync_soon(self._progress.raised, partition)

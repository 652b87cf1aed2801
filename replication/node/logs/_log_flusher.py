"""The flushing thread of a log directory, so that only this thread waits for the device."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

import trio

from ....storage import LogDirectory, StorageError, TooManyOpenFilesError
from ._telling import tell

log = logging.getLogger("insync.node")

CHECK_INTERVAL = 1.0
"""Seconds between two looks at which logs are due, unless one says so itself."""

Failed = Callable[[tuple[str, int], StorageError], None]


class LogFlusher:
    """One thread for one log directory; start it with `start`, end it with `stop`.

    `failed(partition, error)` is called on the event loop for a log that cannot be flushed; `died` with an error
    that nobody expected, after which nothing is flushed any more.
    """

    def __init__(
        self,
        directory: LogDirectory,
        flush_interval_ms: int,
        failed: Failed,
        died: Callable[[Exception], None],
    ) -> None:
        self._directory = directory
        self._period = min(CHECK_INTERVAL, flush_interval_ms / 1000)
        self._failed = failed
        self._died = died
        self._path = directory.path
        self.free_bytes, self.device = -1, ""
        """The device's free bytes a moment ago, and which device it is. Asked in this thread: it may be slow."""
        self._due = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(
            target=self._run, name=f"insync-flush-{directory.path.name}", daemon=True
        )
        self._token: trio.lowlevel.TrioToken | None = None
        self._stopped = trio.Event()

    def start(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._directory.on_flush_due = self._due.set
        self._thread.start()

    async def stop(self) -> None:
        """Let a flush under way end, then the thread (if it was ever started)."""
        if self._token is None:
            return
        self._stopping = True
        self._due.set()
        await self._stopped.wait()

    def _run(self) -> None:
        assert self._token is not None
        try:
            while not self._stopping:
                self._due.wait(self._period)
                self._due.clear()
                self._flush()
                self._look_at_device()
        except Exception as error:  # noqa: BLE001 - not hidden: it ends the node
            tell(self._token, self._died, error)
        finally:
            tell(self._token, self._stopped.set)

    def _look_at_device(self) -> None:
        try:
            room = os.statvfs(self._path)
            device = os.stat(self._path).st_dev
        except OSError:
            self.free_bytes = -1
        else:
            self.free_bytes, self.device = room.f_bavail * room.f_frsize, str(device)

    def _flush(self) -> None:
        assert self._token is not None
        try:
            failures = self._directory.flush_due(time.monotonic())
        except StorageError as error:
            log.warning("cannot write the recovery points: %s", error)
            return
        later = [each for each in failures.values() if isinstance(each, TooManyOpenFilesError)]
        if later:
            log.warning("the flush of %d logs is late: %s", len(later), later[0])
        for partition, failure in failures.items():
            if not isinstance(failure, TooManyOpenFilesError):
                tell(self._token, self._failed, partition, failure)

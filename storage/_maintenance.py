"""What a log on disk does beside reading and writing: deleting old segments, and their files a while later."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ._epochs import EpochCache
from ._files import fsync_folder, storage_error
from ._producers import SNAPSHOT_SUFFIX, ProducerTable, snapshots_in
from ._retention import SetAside, expired
from ._segment import Segment, segment_path
from .errors import LogClosedError, StorageBrokenError, StorageError
from .log import Log, MaintenanceResult
from .settings import UNLIMITED, LogSettings


class MaintainedLog(Log):
    """A log of segment files.

    Two locks, taken in this order: `_flushing` by whoever brings files to the device or takes files away, for as
    long as that takes; `_writing` by whoever changes what the last segment is or holds, which no reader and no
    flush waits for.
    """

    _folder: Path
    _segments: tuple[Segment, ...]
    _epochs: EpochCache
    _producers: ProducerTable
    _log_start_offset: int
    _log_end_offset: int
    _staged: object | None
    """Batches that stand behind the end of the last segment."""
    _is_closed = False
    _broken: str | None = None

    def __init__(self, settings: LogSettings, on_log_start_moved: Callable[[], None]) -> None:
        self.settings = settings
        self._flushing = threading.Lock()
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        """Held while the log start changes."""
        self._set_aside = SetAside()
        self._log_start_moved = on_log_start_moved

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def configure(self, settings: LogSettings) -> None:
        with self._writing:
            self.settings = settings
            for segment in self._segments:
                segment.configure(settings)

    def maintain(
        self,
        now_ms: int,
        *,
        high_watermark: int,
        bytes_per_second: float | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> MaintenanceResult:
        settings = self.settings
        self.remove_deleted_files(now_ms)
        limits = (
            {"retention_ms": settings.retention_ms, "retention_bytes": settings.retention_bytes}
            if settings.deletes
            else {}
        )
        if settings.deletes and settings.retention_ms != UNLIMITED:
            self._close_if_older(now_ms - settings.retention_ms, high_watermark)
        deleted = self.delete_old_segments(now_ms, high_watermark=high_watermark, **limits)
        return MaintenanceResult(self._log_start_offset, deleted)

    # Retention

    def _close_if_older(self, than_ms: int, high_watermark: int) -> None:
        """Begin a new segment if all of the last one is older: it can be deleted then."""
        with self._device(f"cannot begin a segment of {self.name}"), self._writing:
            self._check_writable()
            last = self._segments[-1]
            idle = (
                last.end.position
                and self._staged is None
                and last.end.offset == self._log_end_offset <= high_watermark
            )
            if idle and last.last_written_ms < than_ms:
                self._roll(self._log_end_offset)

    @abc.abstractmethod
    def _roll(self, base_offset: int) -> None:
        """Begin the next segment; `_writing` is held."""

    def delete_old_segments(
        self,
        now_ms: int,
        *,
        retention_ms: int = UNLIMITED,
        retention_bytes: int = UNLIMITED,
        high_watermark: int,
    ) -> int:
        """Delete segments from the oldest on that are past a limit (-1: none) or below the log start, as long as
        they end at or below the high watermark. The last segment stays. Returns their number.

        The log start moves to the first segment that is kept, and is written down before any file goes. Ranges that
        were read stay valid; the files are renamed, and deleted by `remove_deleted_files`.

        now_ms: since 1970, like the timestamps of the batches.

        Raises StorageError if the device refuses.
        """
        with self._flushing, self._device(f"cannot delete old segments of {self.name}"):
            self._check_writable()
            count = expired(
                self._segments,
                now_ms,
                retention_ms=retention_ms,
                retention_bytes=retention_bytes,
                log_start_offset=self._log_start_offset,
                high_watermark=high_watermark,
            )
            if count:
                self._drop_first(count, now_ms)
        return count

    def _drop_first(self, count: int, now_ms: int) -> None:
        dropped, first = self._segments[:count], self._segments[count]
        self._raise_log_start(first.base_offset)
        with self._writing:
            self._segments = self._segments[count:]
        for segment in dropped:
            self._set_aside.add(now_ms, segment.set_aside())
        fsync_folder(self._folder)
        held = snapshots_in(self._folder)
        below = [each for each in held if each <= first.base_offset]
        self._keep_snapshots({*held}.difference(below[1:]))

    def _raise_log_start(self, offset: int) -> None:
        with self._starting:
            before = self._log_start_offset
            if offset <= before:
                return
            self._log_start_offset = offset
            try:
                self._log_start_moved()
            except StorageError:
                self._log_start_offset = before
                raise
            self._epochs.trim_start(offset)

    def _lower_log_start(self, offset: int) -> None:
        with self._starting:
            if offset < self._log_start_offset:
                self._log_start_offset = offset
                self._log_start_moved()

    def remove_deleted_files(self, now_ms: int) -> int:
        """Delete the files that were set aside `file_delete_delay_ms` ago or earlier; returns their number."""
        with self._device(f"cannot delete old files of {self.name}"):
            return self._set_aside.remove(now_ms - self.settings.file_delete_delay_ms)

    def _keep_snapshots(self, kept: Iterable[int]) -> None:
        """Delete the others; one above the log end would be wrong once other batches stand there."""
        for offset in {*snapshots_in(self._folder)}.difference(kept):
            segment_path(self._folder, offset, SNAPSHOT_SUFFIX).unlink()

    # What every change asks for

    def _check_writable(self) -> None:
        if self._is_closed:
            raise LogClosedError(f"{self.name} is closed")
        if self._broken is not None:
            raise StorageBrokenError(self._broken)

    @contextmanager
    def _device(self, doing: str, *, half_done: bool = False) -> Iterator[None]:
        """Turn what the device says into our errors. After a failure that may be half done nothing is written."""
        try:
            yield
        except OSError as error:
            failure = storage_error(error, doing)
            if half_done or isinstance(failure, StorageBrokenError):
                self._broken = str(failure)
            raise failure from error

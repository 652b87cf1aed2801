"""The duties of a log on disk beside reading and writing: deleting old segments, and their files a while later."""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ._epochs import EpochCache
from ._files import fsync_folder, log_error
from ._producers import SNAPSHOT_SUFFIX, ProducerTable, has_snapshot, replay, snapshots_in
from ._retention import SetAside, expired
from .compaction._compaction import Pace, Pass, Plan, StoppedError, Totals, is_due, is_outdated, plan
from .compaction._swap import CleanedSegment
from .errors import (
    CorruptBatchError,
    LogClosedError,
    StorageBrokenError,
    StorageError,
    TooManyOpenFilesError,
)
from .log import KEY_MAP_BYTES, CompactionResult, Log, MaintenanceResult
from .segment._segment import Mended, Segment, segment_path
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
    cleaned_offset: int | None
    """Up to where the log is compacted; None if no offset can be missing from it."""
    _cleaned: Callable[[], None]
    _mended: Mended
    _is_closed = False
    _broken: StorageError | None = None

    def __init__(self, settings: LogSettings, on_log_start_moved: Callable[[], None]) -> None:
        self.settings = settings
        self._flushing = threading.Lock()
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        """Held while the log start changes."""
        self._set_aside = SetAside()
        self._log_start_moved = on_log_start_moved

    def _segment_at(self, base_offset: int) -> Segment:
        """A new one, or one whose files are there."""
        return Segment(self._folder, base_offset, self.settings, self._mended)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def configure(self, settings: LogSettings) -> None:
        with self._writing:
            self.settings = settings
            for segment in self._segments:
                segment.configure(settings)
        if settings.flushes:
            # What was appended before counts from now on, too.
            self.flush()

    def maintain(
        self,
        now_ms: int,
        *,
        high_watermark: int,
        decides: bool = True,
        bytes_per_second: float | None = None,
        key_map_bytes: int = KEY_MAP_BYTES,
        stop: Callable[[], bool] = lambda: False,
    ) -> MaintenanceResult:
        settings = self.settings
        self.remove_deleted_files(now_ms)
        limits = (
            {"retention_ms": settings.retention_ms, "retention_bytes": settings.retention_bytes}
            if settings.deletes and decides
            else {}
        )
        self._close_idle(now_ms, high_watermark)
        deleted = self.delete_old_segments(now_ms, high_watermark=high_watermark, **limits)
        done = None
        if settings.compacts:
            with suppress(StoppedError):
                pace = Pace(bytes_per_second, stop)
                done = self._compact(now_ms, high_watermark, pace, key_map_bytes)
        return MaintenanceResult(self._log_start_offset, deleted, done)

    # Retention

    def _close_idle(self, now_ms: int, high_watermark: int) -> None:
        """Begin a new segment if all of the last one could be deleted, or it is due to be compacted."""
        with self._device(f"cannot begin a segment of {self.name}"), self._writing:
            self._check_writable()
            last, end = self._segments[-1], self._log_end_offset
            whole = last.end.position and last.end.offset == end <= high_watermark
            if not whole or not is_outdated(last, self.settings, now_ms):
                return
            self._roll(end)
        self._tell_flusher()

    @abc.abstractmethod
    def _tell_flusher(self) -> None:
        """There may be something to flush."""

    @abc.abstractmethod
    def flush(self, up_to: int | None = None) -> None:
        """Bring everything below an offset to the device."""

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
        self._keep_producers(dropped, first.base_offset)
        self._raise_log_start(first.base_offset)
        with self._writing:
            self._segments = self._segments[count:]
        for segment in dropped:
            self._set_aside.add(now_ms, segment.set_aside())
        fsync_folder(self._folder)
        held = snapshots_in(self._folder)
        below = [each for each in held if each <= first.base_offset]
        self._keep_snapshots({*held}.difference(below[1:]))

    def _keep_producers(self, dropped: Sequence[Segment], end: int) -> None:
        """Before segments go: a segment that a truncation or the middle of an append began has no snapshot of the
        producers below it, and a crash would forget them.
        """
        # Damage in what goes stops nobody: this node knows the producers until then.
        with suppress(CorruptBatchError):
            if not has_snapshot(self._folder, end):
                replay(self._folder, dropped).save(segment_path(self._folder, end, SNAPSHOT_SUFFIX))

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

    # Compaction

    def _compact(
        self, now_ms: int, high_watermark: int, pace: Pace, key_map_bytes: int
    ) -> CompactionResult | None:
        totals = Totals()
        found = self._plan(now_ms, high_watermark)
        if not is_due(found, self.settings, now_ms):
            return None
        self._mark_gaps()
        while True:
            # What a record is replaced by must not be lost by a crash that the record would have survived.
            self.flush(found.segments[-1].end.offset)
            step = Pass(
                found,
                self.settings,
                now_ms,
                self._producers.snapshots(),
                self.epochs,
                pace,
                index_bytes=lambda segment: len(segment.index) * segment.index.ENTRY.size,
                key_map_bytes=key_map_bytes,
            )
            for group in step.groups:
                self._replace(group, step, now_ms, totals)
            totals.add(step)
            self._set_cleaned(step.covered_offset)
            found = self._plan(now_ms, high_watermark)
            if step.is_last or not found.dirty:
                return totals.result(step.covered_offset, pace.bytes)

    def _plan(self, now_ms: int, high_watermark: int) -> Plan[Segment]:
        segments = self._segments
        cleaned = max(self.cleaned_offset or 0, segments[0].base_offset)
        return plan(segments, self.settings, now_ms, cleaned_offset=cleaned, high_watermark=high_watermark)

    def _mark_gaps(self) -> None:
        """Write down, once in a log's life, that offsets may be missing from it; else recovery would refuse it."""
        if self.cleaned_offset is None:
            self._set_cleaned(0)

    def _set_cleaned(self, offset: int) -> None:
        before, self.cleaned_offset = self.cleaned_offset, offset
        try:
            self._cleaned()
        except StorageError:
            self.cleaned_offset = before
            raise

    def _replace(self, group: Sequence[Segment], step: Pass[Segment], now_ms: int, totals: Totals) -> None:
        """Write a copy of some neighbours and put it in their place."""
        changed = step.done.changed
        modified = os.fstat(group[-1].file.fileno()).st_mtime_ns
        made = CleanedSegment(self._folder, group[0].base_offset)
        try:
            with self._device(f"cannot compact {self.name}"):
                aborted = [each for segment in group for each in segment.aborted]
                made.write(
                    step.copy(group),
                    group[-1].end.offset,
                    modified,
                    self.settings.index_interval_bytes,
                    (lambda: step.ended(aborted)) if aborted else None,
                )
                # An index that says too much was left by an earlier version.
                if len(group) > 1 or step.done.changed > changed or len(step.ended(aborted)) < len(aborted):
                    self._swap(group, made, step, now_ms, totals)
        except CorruptBatchError:
            self._place_of(group, step)
            raise
        finally:
            made.remove()

    def _swap(
        self,
        group: Sequence[Segment],
        made: CleanedSegment,
        step: Pass[Segment],
        now_ms: int,
        totals: Totals,
    ) -> None:
        with self._flushing:
            self._check_writable()
            at = self._place_of(group, step)
            doing = f"cannot put a compacted segment of {self.name} in its place"
            with self._device(doing, half_done=True):
                made.offer()
                for segment in group:
                    self._set_aside.add(now_ms, segment.set_aside())
                made.take_place()
                fresh = self._segment_at(group[0].base_offset)
                try:
                    fresh.open_sealed()
                except StorageError as error:
                    self._broken = StorageBrokenError(f"{doing}: {error}")
                    raise
                with self._writing:
                    before, after = self._segments[:at], self._segments[at + len(group) :]
                    self._segments = (*before, fresh, *after)
                gone = {segment.base_offset for segment in group[1:]}
                self._keep_snapshots({*snapshots_in(self._folder)} - gone)
            totals.replaced(group, fresh.end.position)

    def _place_of(self, group: Sequence[Segment], step: Pass[Segment]) -> int:
        """Where the group stands among the segments. Raises StoppedError if it was truncated meanwhile."""
        at = step.place_of(group, self._segments)
        if at is None:
            raise StoppedError(f"{self.name} was truncated while it was compacted")
        return at

    # What every change asks for

    def _check_writable(self) -> None:
        if self._is_closed:
            raise LogClosedError(f"{self.name} is closed")
        if self._broken is not None:
            # Of the same class: a log that a want of descriptors has left half done blames no device either.
            raise type(self._broken)(str(self._broken))

    @contextmanager
    def _device(self, doing: str, *, half_done: bool = False, may_repeat: bool = False) -> Iterator[None]:
        """Turn what the device says into our errors. After a failure that may be half done nothing is written.

        may_repeat: a call that found no descriptor can be made again, as if it had not been made.
        """
        try:
            yield
        except OSError as error:
            failure = log_error(error, doing)
            passes = may_repeat and isinstance(failure, TooManyOpenFilesError)
            if (half_done and not passes) or isinstance(failure, StorageBrokenError):
                self._broken = _lasting(failure)
            raise failure from error


def _lasting(failure: StorageError) -> StorageError:
    """The error of a log that takes no writes until it is reopened, after a failure that may be half done."""
    if isinstance(failure, TooManyOpenFilesError):
        return TooManyOpenFilesError(f"{failure}; then restart the node")
    return StorageBrokenError(str(failure))

"""A log in a folder of segment files, laid out as Kafka does."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from ._epochs import FILE_NAME as EPOCHS
from ._epochs import EpochCache
from ._files import copy_file, fsync_file, fsync_folder, log_error, storage_error
from ._flushing import bring_to_device
from ._maintenance import MaintainedLog
from ._prepare import GATHERED_BYTES, Piece, prepare, stamped
from ._producers import SNAPSHOT_SUFFIX, ProducerTable, completed_since, has_snapshot, replay, snapshots_in
from ._recovery import Recovered, open_segments, recover, remove_leftovers, trust, verify
from ._retention import remove_below
from ._transactions import AbortedTransaction, CompletedTransaction, aborted_between
from .batch._scan import CONTROL
from .errors import (
    AppendError,
    OffsetOutOfRangeError,
    StorageBrokenError,
    StorageError,
    TooManyOpenFilesError,
)
from .file_range import FileRange
from .folder._partition_folder import PARTITION_METADATA
from .log import (
    Chunk,
    EpochEntry,
    ProducerSnapshot,
    ReadResult,
    RecoveryReport,
    TimestampedOffset,
    never,
)
from .segment._open_files import OPEN_FILES
from .segment._segment import Mended, Segment, Spot, segment_path
from .settings import LogSettings


class DiskLog(MaintainedLog):
    """Open one through `LogDirectory.open_log`, which also keeps its recovery point and log start."""

    def __init__(
        self,
        folder: Path,
        topic: str,
        partition: int,
        *,
        settings: LogSettings | None = None,
        recovery_point: int = 0,
        log_start_offset: int | None = None,
        clean: bool = False,
        verify_bytes: int = 0,
        cleaned_offset: int | None = None,
        is_empty: bool = False,
        on_recovery_point_lowered: Callable[[], None] | None = None,
        on_log_start_moved: Callable[[], None] | None = None,
        on_cleaned: Callable[[], None] | None = None,
        on_flush_due: Callable[[], None] | None = None,
        on_mended: Mended = lambda path, why: None,
    ) -> None:
        """Open the log in an existing folder, empty or not.

        `recovery_point` and `log_start_offset` (None: not known) are what was checkpointed; `clean` says that the
        last stop was.
        Of data that needs no scan, the CRCs of the last `verify_bytes` are checked as a precaution.

        `cleaned_offset`: up to where the log is compacted; None if no offset can be missing from it.

        `is_empty`: the folder has just been made, so nothing is looked for.

        `on_recovery_point_lowered`, `on_log_start_moved` and `on_cleaned` write the new value down before they
        return; `on_flush_due` is called by the writer thread when `flush_due` may have become true by an append.
        `on_mended` may be called by any thread: see `Segment`.

        Raises:
          CorruptLogError: The files are damaged as no crash does it. Nothing was changed.
        """
        self.topic = topic
        self.partition = partition
        super().__init__(settings or LogSettings(), on_log_start_moved or (lambda: None))
        self._folder = folder
        self.cleaned_offset = cleaned_offset
        self._cleaned = on_cleaned or (lambda: None)
        self._lowered = on_recovery_point_lowered or (lambda: None)
        self._on_flush_due = on_flush_due or (lambda: None)
        self._mended = on_mended
        self._flushed_at = time.monotonic()
        self._rolled = False
        """There are closed segments that have not been flushed as a whole."""
        self._names_synced = False
        """Whether the device has the names of all segments' files."""
        self._seen_end = -1
        if is_empty:
            self._begin_empty()
            return
        remove_leftovers(folder)
        self._epochs = EpochCache.load(folder)
        self._segments = open_segments(folder, log_start_offset, self.settings, on_mended)
        try:
            found = self._recover(clean, recovery_point, verify_bytes)
            self.recovery = found.report
            """The findings of the opening."""
            self._finish_opening(found, recovery_point, log_start_offset)
        except OSError as error:
            self._close_files()
            raise storage_error(error, f"cannot open {folder}") from error
        except StorageError:
            self._close_files()
            raise

    def _begin_empty(self) -> None:
        self._epochs = EpochCache(self._folder / EPOCHS)
        self._producers = ProducerTable()
        self.recovery = RecoveryReport(clean=True)
        self._log_start_offset = self._log_end_offset = self._recovery_point = 0
        try:
            self._segments = (self._segment_at(0),)
            self._segments[0].open_for_writing()
        except OSError as error:
            raise storage_error(error, f"cannot open {self._folder}") from error

    def _recover(self, clean: bool, recovery_point: int, verify_bytes: int) -> Recovered:
        """Find the end of the log; the segments are as they should be then."""
        if self._epochs.is_damaged:
            self._mended(self._folder / EPOCHS, "its checksum does not match, or it is no checkpoint")
        elif clean and trust(self._segments, recovery_point):
            checked = verify(self._segments, verify_bytes, gaps=self.cleaned_offset is not None)
            return Recovered(self._segments, RecoveryReport(clean=True, bytes_verified=checked))
        return recover(
            self._segments,
            recovery_point,
            index_interval_bytes=self.settings.index_interval_bytes,
            verify_bytes=verify_bytes,
            gaps=self.cleaned_offset is not None,
            all_epochs=self._epochs.is_damaged,
        )

    def _finish_opening(self, found: Recovered, recovery_point: int, log_start_offset: int | None) -> None:
        self._segments = found.segments
        remove_below(self._folder, self._segments[0].base_offset)
        self._log_end_offset = self._segments[-1].end.offset
        self._log_start_offset = max(log_start_offset or 0, self._segments[0].base_offset)
        if self.cleaned_offset is None:
            self._epochs.add(found.epochs)
        else:
            self._epochs.merge(found.epochs, self._log_start_offset)
        self._recovery_point = recovery_point
        self._rolled = recovery_point < self._segments[-1].base_offset or not all(
            segment.indexes_synced for segment in self._segments[:-1]
        )
        self._segments[-1].open_for_writing()
        if self._log_start_offset > self._log_end_offset:
            self.truncate_fully(self._log_start_offset)
        self._epochs.trim_start(self._log_start_offset)
        self._epochs.trim_end(self._log_end_offset)
        held = [each for each in snapshots_in(self._folder) if each <= self._log_end_offset]
        self._keep_snapshots({*held[:1], *self.segment_base_offsets} & {*held})
        self._producers = replay(self._folder, self._segments, found.producers, self._mended)
        self._index_transactions(found.scanned)
        if self.settings.flushes:
            # A killed process may have left it in the page cache alone, and all that is found counts from now on.
            self.flush()

    def _index_transactions(self, segments: Sequence[Segment]) -> None:
        """Build the transaction indexes of segments that were gone over; what lies between them is trusted."""
        known = self._producers.has_transactions or any(segment.aborted for segment in segments)
        if not segments or not known:
            return
        ended = completed_since(self._folder, self._segments, segments[0].base_offset)
        for segment in segments:
            segment.set_aborted(
                [
                    each.index_entry
                    for each in ended
                    if each.is_aborted and segment.base_offset <= each.last_offset < segment.end.offset
                ]
            )

    def __repr__(self) -> str:
        return f"<DiskLog {self.name} {self.log_start_offset}..{self.log_end_offset}>"

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log_end_offset

    @property
    def recovery_point(self) -> int:
        return self._recovery_point

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        return self._epochs.entries

    @property
    def size_bytes(self) -> int:
        return sum(segment.end.position for segment in self._segments)

    @property
    def segment_base_offsets(self) -> tuple[int, ...]:
        """Where each segment starts; the last is the one being written."""
        return tuple(segment.base_offset for segment in self._segments)

    def producer_states(self) -> tuple[ProducerSnapshot, ...]:
        return self._producers.snapshots()

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        segments = self._segments
        at = bisect_right(segments, start_offset, key=lambda each: each.base_offset) - 1
        return aborted_between((each.aborted for each in segments[max(at, 0) :]), start_offset, end_offset)

    def completed_transactions(self, offset: int) -> list[CompletedTransaction]:
        if offset >= self._log_end_offset or not self._producers.has_transactions:
            return []
        return completed_since(self._folder, self._segments, offset)

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, limit_offset: int | None = None, min_one: bool = True
    ) -> ReadResult:
        end = self._log_end_offset
        segments = self._segments
        if not self._log_start_offset <= offset <= end:
            raise OffsetOutOfRangeError(self.name, offset, self._log_start_offset, end)
        limit = end if limit_offset is None else min(limit_offset, end)
        if offset >= limit:
            return ReadResult(None, offset, offset, 0)
        segment = self._segment_of(segments, offset)
        try:
            start, stop = segment.slice(offset, limit, max_bytes, min_one)
            size = stop.position - start.position
            if size == 0:
                return ReadResult(None, offset, offset, 0)
            data = segment.in_memory(start.position, size)
            found = FileRange(segment.file, start.position, size, data)
            return ReadResult(found, start.offset, stop.offset, size)
        except OSError as error:
            raise log_error(error, f"cannot read {segment.path}") from error

    def read_at_hand(self, offset: int, *, max_bytes: int, limit_offset: int) -> ReadResult | None:
        # Before the segments, so that these hold all below it.
        end = self._log_end_offset
        segment = self._segments[-1]
        if not self._log_start_offset <= offset < end:
            return None
        return segment.read_recent(offset, min(limit_offset, end), max_bytes)

    def is_at_hand(self, offset: int) -> bool:
        return offset >= self._log_end_offset or self._segments[-1].is_at_hand(offset)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, stop: Callable[[], bool] = never
    ) -> TimestampedOffset | None:
        start, end = self._log_start_offset, self._log_end_offset
        for segment in self._segments:
            if segment.end.offset > start and segment.largest.timestamp >= timestamp_ms:
                found = segment.find_timestamp(timestamp_ms, start, stop)
                if found is not None:
                    return found if found.offset < end else None
        return None

    # Writing

    def append(self, chunks: Sequence[Chunk]) -> None:
        self._check_writable()
        if len(chunks) == 1 and len(chunks[0].batches) == 1 and self._append_one(chunks[0]):
            return
        pieces, epochs = prepare(self.name, chunks, self._log_end_offset, self._epochs.latest)
        for piece in pieces:
            if piece.skips:
                self._mark_gaps()
                break
        end = self._log_end_offset
        try:
            with self._writing:
                self._write(pieces)
                self._enter(pieces, epochs)
        except OSError as error:
            failure = self._undo(end, error)
            if any(piece.markers for piece in pieces):
                # It may have been the entry of the transaction index that was refused.
                self._producers = replay(self._folder, self._segments)
            raise failure from error
        self._tell_flusher()

    def _append_one(self, chunk: Chunk) -> bool:
        """One small batch of the latest epoch that goes on where the log ends, and for which the last segment has
        room: a record that is sent alone. False, and nothing is done, for any other.
        """
        data, base_offset, epoch = chunk.data, chunk.base_offset, chunk.leader_epoch
        (info,) = chunk.batches
        base, _, _, _, newest, size, delta, batch_epoch, count, _, _, bits = info
        end = self._log_end_offset
        if size != len(data) or size >= GATHERED_BYTES or base_offset != end or bits & CONTROL:
            return False
        entries = self._epochs.entries
        if not entries or entries[-1].epoch != (batch_epoch if epoch is None else epoch):
            return False
        last_offset = end + delta
        if epoch is not None:
            found = stamped(data, end, last_offset + 1, epoch)
            if found is None:
                return False
            data = found
        elif base != end:
            return False
        # What is found by time is records; compaction leaves batches without.
        timestamp = newest if count else -1
        try:
            with self._writing:
                if not self._segments[-1].append_one(data, size, last_offset, timestamp):
                    return False
                self._producers.add(info, end)
                self._log_end_offset = last_offset + 1
        except OSError as error:
            raise self._undo(end, error) from error
        self._tell_flusher()
        return True

    def _enter(self, pieces: Sequence[Piece], epochs: Sequence[EpochEntry]) -> None:
        """Move the log end to the end of the last segment, over the pieces that stand there."""
        self._epochs.add(epochs)
        for piece in pieces:
            ends = piece.markers
            for info, placed in zip(piece.infos, piece.batches, strict=True):
                if info.producer_id >= 0:
                    offset = placed.base_offset
                    ended = self._producers.add(info, offset, ends.get(offset) if ends else None)
                    if ended is not None and ended.is_aborted:
                        self._segment_of(self._segments, offset).add_aborted([ended.index_entry])
        self._log_end_offset = self._segments[-1].end.offset

    def _tell_flusher(self) -> None:
        unflushed = self._log_end_offset - self._recovery_point
        if self._rolled or unflushed >= self.settings.flush_interval_messages:
            self._on_flush_due()

    def _write(self, pieces: Sequence[Piece]) -> None:
        """One gathered write for each segment that the pieces go to."""
        if len(pieces) == 1 and self._write_one(pieces[0]):
            return
        group: list[Piece] = []
        size = 0
        for piece in pieces:
            last = piece.batches[-1].last_offset
            if not self._segments[-1].has_room(size, piece.size, last, piece.max_timestamp):
                self._write_group(group)
                group, size = [], 0
                self._roll(self._segments[-1].end.offset)
            group.append(piece)
            size += piece.size
        self._write_group(group)

    def _write_one(self, piece: Piece) -> bool:
        """The common case without lists of lists; False, and nothing is written, if the segment is full."""
        segment = self._segments[-1]
        if not segment.has_room(0, piece.size, piece.batches[-1].last_offset, piece.max_timestamp):
            return False
        segment.write(piece.buffers, segment.end.position)
        segment.added(piece.batches)
        return True

    def _write_group(self, group: Sequence[Piece]) -> None:
        if group:
            segment = self._segments[-1]
            segment.write([buffer for piece in group for buffer in piece.buffers], segment.end.position)
            segment.added([batch for piece in group for batch in piece.batches])

    def _roll(self, base_offset: int) -> None:
        """Begin the next segment."""
        self._segments[-1].seal()
        if base_offset <= self._recovery_point:
            # Nobody will flush this segment again, yet once it is not the last its indexes are believed.
            self._segments[-1].sync_indexes()
        if base_offset == self._log_end_offset:
            self._save_producers(sync=False)
        self._begin_segment(base_offset)

    def _begin_segment(self, base_offset: int) -> None:
        segment = self._segment_at(base_offset)
        segment.open_for_writing()
        self._segments = (*self._segments, segment)
        self._names_synced = False
        self._rolled = True

    def _undo(self, end: int, error: OSError) -> StorageError:
        """Bring the files back to the old end after a failed write."""
        failure = log_error(error, f"cannot write to {self._folder}")
        try:
            with self._flushing, self._writing:
                self._cut_files(end)
        except OSError as second:
            kind = type(log_error(second, ""))
            failure = (kind if kind is TooManyOpenFilesError else StorageBrokenError)(
                f"{failure}; the half-written batches could not be removed: {second}; restart the node"
            )
            self._broken = failure
        if isinstance(failure, StorageBrokenError):
            self._broken = failure
        return failure

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        self._check_writable()
        later = [
            each for each in self.epochs if each.epoch > epoch and each.start_offset < self._log_end_offset
        ]
        if later:
            raise AppendError(
                f"{self.name} holds batches of leader epoch {later[-1].epoch}, later than {epoch}"
            )
        with self._device(f"cannot write the leader epochs of {self.name}"):
            # Retention may have gone past the start since this was asked for.
            self._epochs.assign(epoch, max(start_offset, self._log_start_offset))

    def copy_tail(self, offset: int | None, folder: Path) -> None:
        """Put the segments from the one with `offset` on (None: all) into a folder, durably.

        No append or truncation may run. Segments that a truncation to `offset` removes as a whole are linked.

        Raises OSError as the device does.
        """
        self.flush()
        copied = [self._folder / PARTITION_METADATA]
        for segment in self._segments:
            if offset is None or segment.base_offset >= offset:
                os.link(segment.path, folder / segment.path.name)
            elif segment.end.offset > offset:
                copied.append(segment.path)
        for path in copied:
            if path.exists():
                copy_file(path, folder / path.name)
                fsync_file(folder / path.name)
        fsync_folder(folder)

    def truncate(self, offset: int) -> None:
        self._check_writable()
        if offset < self._segments[0].base_offset:
            self.truncate_fully(offset)
            return
        doing = self._device(f"cannot truncate {self.name}", half_done=True)
        with self._flushing, self._writing, doing:
            if offset < self._log_end_offset:
                self._truncate(offset)
            self._epochs.trim_end(self._log_end_offset)

    def _truncate(self, offset: int) -> None:
        segment = self._segment_of(self._segments, offset)
        end = offset if offset == segment.base_offset else segment.holding(offset).offset
        self._lower_recovery_point(end)
        self._log_end_offset = end
        self._lower_cleaned(end)
        self._cut_files(end, shown=True)
        self._keep_snapshots(each for each in snapshots_in(self._folder) if each <= end)
        if not self._producers.cut(end):
            self._producers = replay(self._folder, self._segments)
        # Only now: had a crash come before the files were cut, what was deleted at the log's start would be back.
        self._lower_log_start(end)

    def _cut_files(self, end: int, *, shown: bool = False) -> None:
        """Remove what lies at or above `end`, a batch boundary; the last first, so that a crash leaves a prefix.

        Bytes `shown` may still be on the way to a reader, by reference: their place in the file is not used again.
        """
        while len(self._segments) > 1 and self._segments[-1].base_offset >= end:
            dropped = self._segments[-1]
            self._segments = self._segments[:-1]
            dropped.delete()
            # A crash must leave no segment behind one that is gone or shorter.
            fsync_folder(self._folder)
        last = self._segments[-1]
        if last.end.offset <= end or not shown:
            whole = last.end if last.end.offset <= end else last.holding(end)
            last.cut(Spot(0, end) if last.base_offset == end else whole)
            last.open_for_writing()
        elif last.base_offset == end:
            self._segments = self._segments[:-1]
            last.delete()
            self._begin_segment(end)
        else:
            last.cut(last.holding(end))
            last.seal()
            # Should the cut not reach the device, the next segment would contradict what comes back.
            last.flush()
            last.sync_indexes()
            self._begin_segment(end)
        if shown:
            self._segments[-1].flush()

    def truncate_fully(self, new_start_offset: int) -> None:
        self._check_writable()
        doing = self._device(f"cannot truncate {self.name}", half_done=True)
        with self._flushing, self._writing, doing:
            # Should a crash come when all is deleted, an empty log must not look as if it had lost something.
            self._lower_recovery_point(0)
            for segment in reversed(self._segments):
                segment.delete()
            self._keep_snapshots(())
            fsync_folder(self._folder)
            # Before the new segment: one that begins above the written log start would look like a lost head.
            self._raise_log_start(new_start_offset)
            fresh = self._segment_at(new_start_offset)
            fresh.open_for_writing()
            self._segments = (fresh,)
            self._log_end_offset = new_start_offset
            self._lower_log_start(new_start_offset)
            self._lower_cleaned(new_start_offset)
            self._log_start_offset = new_start_offset
            self._producers = ProducerTable()
            self._epochs.replace(())
            fsync_folder(self._folder)

    def advance_log_start_offset(self, offset: int) -> None:
        self._check_writable()
        with self._device(f"cannot write the log start of {self.name}"):
            self._raise_log_start(min(offset, self._log_end_offset))

    def flush_due(self, now: float) -> int | None:
        """The offset up to which the log should be flushed now: the closed segments as soon as there are any, the
        rest as the settings say. None if there is nothing to do.

        now: seconds of `time.monotonic`.
        """
        end, point = self._log_end_offset, self._recovery_point
        waited_ms = (now - self._flushed_at) * 1000
        many = end - point >= self.settings.flush_interval_messages
        late = waited_ms >= self.settings.flush_interval_ms
        if end > point and (many or late or self._keeps_file_open(end)):
            return end
        return max(point, self._segments[-1].base_offset) if self._rolled else None

    def _keeps_file_open(self, end: int) -> bool:
        """Whether the log is idle, and only for want of a flush has a file open while too many are."""
        idle, self._seen_end = self._seen_end == end, end
        return idle and OPEN_FILES.is_over

    def flush(self, up_to: int | None = None) -> None:
        """May be called by another thread than the writer's, while that one appends; it only waits for this to
        truncate.
        """
        with self._flushing:
            self._check_writable()
            end = self._log_end_offset if up_to is None else min(up_to, self._log_end_offset)
            if end <= self._recovery_point and not self._rolled:
                return
            rolled, self._rolled = self._rolled, False
            # Before the segments are looked at: the writer may begin another one meanwhile.
            named, self._names_synced = self._names_synced, True
            segments = self._segments
            try:
                with self._device(f"cannot flush {self.name}", half_done=True, may_repeat=True):
                    bring_to_device(segments, self._recovery_point, end)
                    if not named:
                        fsync_folder(self._folder)
                    # Recovery will read no batch below the new recovery point.
                    self._epochs.save()
            except TooManyOpenFilesError:
                self._rolled = self._rolled or rolled
                self._names_synced = self._names_synced and named
                raise
            if end < segments[-1].base_offset:
                self._rolled = True
            self._recovery_point = max(end, self._recovery_point)
            self._flushed_at = time.monotonic()

    def close(self, clean: bool = True) -> None:
        if self._is_closed:
            return
        try:
            if clean and self._broken is None:
                self.flush()
                self._finish(sync=True)
        finally:
            self._is_closed = True
            with self._flushing:
                self._close_files()

    def settle(self) -> bool:
        """Write all that a clean stop leaves, without waiting for the device. Whether there is anything to wait
        for: then call `settled`, before `close`, when the device has it all. Nothing is written in between.
        """
        self._check_writable()
        segments = self._segments
        unsynced = self._rolled or not all(segment.indexes_synced for segment in segments)
        changed = self._log_end_offset > self._recovery_point or unsynced or not self._has_snapshot()
        self._finish(sync=False)
        return changed

    def settled(self) -> None:
        """The device has all that was written before `settle` came back."""
        with self._flushing:
            for segment in self._segments:
                segment.was_synced()
            self._rolled = False
            self._recovery_point = self._log_end_offset

    def _finish(self, *, sync: bool) -> None:
        """Nothing is written any more: leave what the next open trusts."""
        with self._device(f"cannot write the producers and indexes of {self.name}"):
            if not self._has_snapshot():
                self._save_producers(sync=sync)
            self._epochs.save(sync=sync)
            self._segments[-1].seal()
            if sync:
                self._segments[-1].sync_indexes()

    def _has_snapshot(self) -> bool:
        """Whether the producers at the log end can be found; in an empty log there are none to find."""
        end = self._log_end_offset
        empty = end == self._segments[0].base_offset and not self._producers.snapshots()
        return empty or has_snapshot(self._folder, end)

    def _close_files(self) -> None:
        for segment in self._segments:
            segment.close()

    def _save_producers(self, *, sync: bool = True) -> None:
        path = segment_path(self._folder, self._log_end_offset, SNAPSHOT_SUFFIX)
        self._producers.save(path, sync=sync)

    def _lower_cleaned(self, offset: int) -> None:
        """Records that come in the place of what is cut have not been compacted."""
        if self.cleaned_offset is not None and offset < self.cleaned_offset:
            self._set_cleaned(offset)

    def _lower_recovery_point(self, offset: int) -> None:
        """Before files get shorter: a checkpoint above the log end would later look like lost data."""
        if offset < self._recovery_point:
            self._recovery_point = offset
            self._lowered()

    @staticmethod
    def _segment_of(segments: Sequence[Segment], offset: int) -> Segment:
        if offset >= segments[-1].base_offset:
            return segments[-1]
        return segments[bisect_right(segments, offset, key=lambda each: each.base_offset) - 1]

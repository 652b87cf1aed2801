"""The interface of a partition's log. It is synchronous and independent of roles and network."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs
import msgspec

from ._transactions import AbortedTransaction, CompletedTransaction
from .batch import BatchInfo
from .batch._columns import Buffer
from .file_range import FileRange
from .settings import LogSettings

KEY_MAP_BYTES = 128 << 20
"""Memory for the keys of one compaction (Kafka's log.cleaner.dedupe.buffer.size)."""


def never() -> bool:
    """The `stop` function of work that is never stopped."""
    return False


class EpochEntry(NamedTuple):
    """The first offset of a leader epoch (KIP-101)."""

    epoch: int
    start_offset: int


class ProducedBatch(NamedTuple):
    """A batch of an idempotent producer: its sequences and its offsets in the log, both inclusive."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@attrs.frozen(slots=True)
class ProducerSnapshot:
    """The state of an idempotent producer in the log: its epoch and its last batches, five at most (KIP-98).

    Without batches only the epoch is known: a marker has ended the producer's transaction under a new epoch.
    """

    producer_id: int
    producer_epoch: int
    batches: tuple[ProducedBatch, ...]
    timestamp_ms: int
    coordinator_epoch: int = -1
    """Coordinator epoch of its last marker; -1 without one."""
    first_offset: int = -1
    """First offset of its open transaction; -1 without one."""


class Chunk(msgspec.Struct, frozen=True):
    """Whole, valid batches to append, and the result of `scan`.

    With a `leader_epoch` (a leader's append) the log writes this epoch and the offsets from `base_offset` on into
    the batch headers; `data` itself does not change. With None (a follower's append) the bytes are written
    unchanged and must continue at the log end.
    """

    data: Buffer
    batches: Sequence[BatchInfo]
    base_offset: int
    leader_epoch: int | None
    may_skip: bool = False
    """Offsets may be missing before and between the batches after compaction (followers only)."""


class ReadResult(NamedTuple):
    """Whole batches of one segment. If there are none: `range` None, `size` 0, `next_offset` as requested."""

    range: FileRange | None
    first_base_offset: int
    """May be below the requested offset, which can lie inside a batch."""
    next_offset: int
    """The offset at which to continue."""
    size: int


_LAST_TIMESTAMP = 2**63 - 1


class TimestampedOffset(NamedTuple):
    """A record found by its timestamp, in ms since 1970."""

    offset: int
    timestamp_ms: int


@attrs.frozen(slots=True)
class RecoveryReport:
    """The result of opening a log."""

    clean: bool
    """The last stop was clean and the files match it, so no scan was needed."""
    batches_scanned: int = 0
    bytes_cut: int = 0
    """Size of the torn tail that was removed."""
    cut_position: int = -1
    cut_reason: str = ""
    segments_rebuilt: int = 0
    """Segments whose indexes were rebuilt."""
    bytes_verified: int = 0
    """Bytes of trusted data whose CRCs were checked as a precaution."""


@attrs.frozen(slots=True)
class CompactionResult:
    """The result of one compaction."""

    cleaned_offset: int
    """All keys below this offset are compacted as far as the settings allow."""
    bytes_moved: int = 0
    """Bytes read and written."""
    bytes_removed: int = 0
    records_removed: int = 0
    records_without_key: int = 0
    """Removed records without a key: a compacted log keeps only the latest record of each key."""
    segments_before: int = 0
    segments_after: int = 0
    passes: int = 0
    """Above 1 if the keys did not fit into the key map at once."""
    batches_unreadable: int = 0
    """Batches copied unchanged because their records are unreadable; they replace no other records."""
    first_unreadable: str = ""
    """The position and the problem of the first of them."""


@attrs.frozen(slots=True)
class MaintenanceResult:
    """The result of `Log.maintain`."""

    log_start_offset: int
    """The log start afterwards. Retention may have raised it, and the replica's core must learn of that."""
    segments_deleted: int = 0
    compaction: CompactionResult | None = None
    """None if no compaction was due, or it was stopped."""


class Log(abc.ABC):
    """An append-only sequence of record batches over the offsets [log_start_offset, log_end_offset).

    One thread writes (`append`, `assign_epoch`, `truncate`, `truncate_fully`,
    `advance_log_start_offset`, `close`); others may read (`read` and the attributes), one may `flush` and one may
    `maintain` at the same time. If a writing method raises, readers see no change, unless the method says
    otherwise.

    A range that was read keeps its bytes while it exists, regardless of deletions and compaction. After a
    truncation inside a range, the part after the cut is unreadable; other bytes never take its place.
    """

    topic: str
    partition: int

    settings: LogSettings
    """The current settings; `configure` replaces them."""

    def configure(self, settings: LogSettings) -> None:
        """Use other settings from the next append or `maintain` on, flushed first if they say `durability=flushed`.
        Any thread may call it.
        """
        self.settings = settings

    @property
    @abc.abstractmethod
    def log_start_offset(self) -> int:
        """The first offset that can be read; may lie inside a batch."""

    @property
    @abc.abstractmethod
    def log_end_offset(self) -> int:
        """The offset that the next record will get (LEO)."""

    @property
    @abc.abstractmethod
    def recovery_point(self) -> int:
        """Everything below this offset is on the device, not only in the page cache."""

    @property
    @abc.abstractmethod
    def epochs(self) -> tuple[EpochEntry, ...]:
        """Leader epochs and their start offsets, both strictly increasing. The last may start at the log end."""

    @property
    @abc.abstractmethod
    def size_bytes(self) -> int:
        """Size of all batches in the log."""

    @abc.abstractmethod
    def append(self, chunks: Sequence[Chunk]) -> None:
        """Write all chunks, with one call if they fit into one segment, then move the log end.

        Raises:
          AppendError: They do not continue at the log end, or an epoch decreases. Nothing was written.
          StorageFullError: The device is full. Nothing was written; the log stays usable.
          StorageBrokenError: The device failed. Readers see nothing of the chunks; reopen the log to write again.
        """

    @abc.abstractmethod
    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Begin a leader epoch at `start_offset`. The entry is on the device when this returns.

        Entries that contradict it (same or later epoch, or same or later start) are dropped.

        Raises:
          AppendError: Batches of a later epoch are in the log.
        """

    @abc.abstractmethod
    def truncate(self, offset: int) -> None:
        """Remove the batches that end above `offset`, and the epochs that start at the new end.

        The new log end is `offset`, or the end of the last remaining batch if `offset` lies inside a batch or in a
        gap left by compaction. An offset at or above the log end removes only epochs.
        """

    @abc.abstractmethod
    def truncate_fully(self, new_start_offset: int) -> None:
        """Remove everything; the empty log then starts at `new_start_offset`."""

    @abc.abstractmethod
    def advance_log_start_offset(self, offset: int) -> None:
        """Hide everything below `offset`, at most up to the log end; a lower offset changes nothing.

        This deletes records on a leader and its followers (KIP-107). The new start is on the device when this
        returns, so no restart brings records back. The offset may lie inside a batch. The next `maintain` deletes
        the segments that lie wholly below it.

        Raises StorageError if the new start cannot be stored; then nothing has changed.
        """

    @abc.abstractmethod
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
        """Apply the settings: delete old segments, compact, and remove files of earlier deletions.

        It never touches records at or above the high watermark, or the segment that is being written. Call it in a
        separate thread, for one log after the other, because compaction takes long. Writer and readers do not wait
        for it.

        now_ms: current time since 1970, like the timestamps of the batches.
        decides: whether age and size delete segments. Otherwise only segments below the log start are deleted (on a
          follower, which gets its log start from the leader).
        bytes_per_second: limit for the reads and writes of compaction, in all; None: no limit.
        key_map_bytes: memory for the keys of a compaction, 24 bytes each and a third more. More keys take several
          passes. Freed at the end.
        stop: called often during a compaction; if it returns True, the compaction ends without a change.

        Raises StorageError if the device refuses or damage is found. The log is unchanged, or the next open
        finishes the deletion.
        """

    @abc.abstractmethod
    def read(
        self, offset: int, *, max_bytes: int, limit_offset: int | None = None, min_one: bool = True
    ) -> ReadResult:
        """Whole batches from the one that holds `offset`, all below `limit_offset` (default: the log end).

        At most `max_bytes`; with `min_one` the first batch is returned regardless of its size.

        Raises:
          OffsetOutOfRangeError: Below the log start or above the log end.
        """

    def read_at_hand(self, offset: int, *, max_bytes: int, limit_offset: int) -> ReadResult | None:
        """The result of `read`, if its batches are found without a look at the files; otherwise None."""
        return None

    def is_at_hand(self, offset: int) -> bool:
        """Whether `read` from this offset probably finds its batches without waiting for the device."""
        return True

    @abc.abstractmethod
    def offset_for_timestamp(
        self, timestamp_ms: int, *, stop: Callable[[], bool] = never
    ) -> TimestampedOffset | None:
        """The first record, in order of offsets, with at least that timestamp; None if there is none.

        Takes O(log n) in the batches of one segment if timestamps increase. Otherwise it may have to examine all
        batches of a segment; it calls `stop` from time to time.

        Raises:
          LookUpStoppedError: `stop` has returned True.
        """

    def latest_timestamp(self, *, stop: Callable[[], bool] = never) -> TimestampedOffset | None:
        """The first of the records with the greatest timestamp; None if none has one (KIP-734).

        A binary search with at most 64 calls of `offset_for_timestamp`; raises the errors of that.
        """
        found, high = self.offset_for_timestamp(0, stop=stop), _LAST_TIMESTAMP
        while found is not None and found.timestamp_ms < high:
            middle = (found.timestamp_ms + high + 1) // 2
            later = self.offset_for_timestamp(middle, stop=stop)
            if later is None:
                high = middle - 1
            else:
                found = later
        return found

    @abc.abstractmethod
    def producer_states(self) -> tuple[ProducerSnapshot, ...]:
        """The states of the idempotent producers of the log."""

    @abc.abstractmethod
    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that a reader of [start_offset, end_offset) must know, in the order of their
        markers: each ends at or above the start, and begins below the end.

        Any thread may call it.
        """

    @abc.abstractmethod
    def completed_transactions(self, offset: int) -> list[CompletedTransaction]:
        """The transactions whose marker is at or above `offset`, in the order of their markers.

        Scans the log from the last snapshot of producers below `offset` on, unless no producer ever ended a
        transaction.
        """

    @abc.abstractmethod
    def flush(self) -> None:
        """Write everything to the device and move the recovery point."""

    @abc.abstractmethod
    def close(self, clean: bool = True) -> None:
        """Close the log; `clean` flushes first and writes the files that let the next open trust it."""

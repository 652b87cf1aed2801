"""The log of one partition, as a node sees it. Synchronous; it knows nothing of roles or of the network."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs

from ._columns import Buffer
from ._transactions import AbortedTransaction, CompletedTransaction
from .batch import BatchInfo
from .file_range import FileRange
from .settings import LogSettings

KEY_MAP_BYTES = 128 << 20
"""Memory for the keys of one compaction (Kafka's log.cleaner.dedupe.buffer.size)."""


def never() -> bool:
    """For work that nobody stops."""
    return False


class EpochEntry(NamedTuple):
    """The first offset of a leader epoch (KIP-101)."""

    epoch: int
    start_offset: int


class ProducedBatch(NamedTuple):
    """A batch of an idempotent producer: where it lies in the producer's sequence and in the log, inclusive."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@attrs.frozen(slots=True)
class ProducerSnapshot:
    """What the log holds of one idempotent producer: its epoch and its last batches, five at most (KIP-98).

    Without batches it tells of the epoch alone: a marker has ended the producer's transaction under a new one.
    """

    producer_id: int
    producer_epoch: int
    batches: tuple[ProducedBatch, ...]
    timestamp_ms: int
    coordinator_epoch: int = -1
    """Of its last marker; -1 without one."""
    first_offset: int = -1
    """Where its open transaction begins; -1 without one."""


@attrs.frozen(slots=True)
class Chunk:
    """Whole, valid batches to append, and what `scan` said of them.

    With a `leader_epoch` the log stamps it and the offsets from `base_offset` on (a leader's append; the data
    is left as it is). With None the bytes are kept as they are and must run on from the log end (a follower's).
    """

    data: Buffer
    batches: Sequence[BatchInfo]
    base_offset: int
    leader_epoch: int | None
    may_skip: bool = False
    """Offsets may be missing before and between the batches, as compaction leaves them (a follower's only)."""


@attrs.frozen(slots=True)
class ReadResult:
    """Whole batches from one segment; `range` is None, `size` 0 and `next_offset` the offset asked for if none."""

    range: FileRange | None
    first_base_offset: int
    """May be below the offset asked for, which can lie inside a batch."""
    next_offset: int
    """Where to read on."""
    size: int


_LAST_TIMESTAMP = 2**63 - 1


class TimestampedOffset(NamedTuple):
    """A record found by its time, in ms since 1970."""

    offset: int
    timestamp_ms: int


@attrs.frozen(slots=True)
class RecoveryReport:
    """What opening a log found."""

    clean: bool
    """The last stop was clean and the files agreed with it, so nothing was scanned."""
    batches_scanned: int = 0
    bytes_cut: int = 0
    """Size of the torn tail that was cut off."""
    cut_position: int = -1
    cut_reason: str = ""
    segments_rebuilt: int = 0
    """Segments whose indexes were built anew."""
    bytes_verified: int = 0
    """Of what was trusted, so much had its CRC checked all the same."""


@attrs.frozen(slots=True)
class CompactionResult:
    """What one compaction did."""

    cleaned_offset: int
    """All keys below are compacted as far as this log's settings allow."""
    bytes_moved: int = 0
    """Read and written."""
    bytes_removed: int = 0
    records_removed: int = 0
    records_without_key: int = 0
    """Of those removed: a compacted log keeps the latest record of each key, so these have no place in it."""
    segments_before: int = 0
    segments_after: int = 0
    passes: int = 0
    """More than one if the keys did not fit the memory allowed."""
    batches_unreadable: int = 0
    """They were copied as they are: their records can be read by nobody, and replace none."""
    first_unreadable: str = ""
    """Where the first of them is, and what is wrong with it."""


@attrs.frozen(slots=True)
class MaintenanceResult:
    """What `Log.maintain` did."""

    log_start_offset: int
    """After it; retention may have raised it, which the replica's core must be told."""
    segments_deleted: int = 0
    compaction: CompactionResult | None = None
    """None if none was due, or it was stopped."""


class Log(abc.ABC):
    """An append-only sequence of record batches over the offsets [log_start_offset, log_end_offset).

    One thread writes (`append`, `assign_epoch`, `truncate`, `truncate_fully`,
    `advance_log_start_offset`, `close`); others may read (`read` and the attributes), one may `flush` and one may
    `maintain` at the same time. What a writing method raises has changed nothing that a reader sees, unless it
    says otherwise.

    A range that was read keeps its bytes for as long as it is held, whatever is deleted or compacted. Of a range
    that reaches past a truncation the part behind the cut can no longer be read; other bytes never take its place.
    """

    topic: str
    partition: int

    settings: LogSettings
    """Replaced by `configure`."""

    def configure(self, settings: LogSettings) -> None:
        """Go by other settings from the next append or `maintain` on. Any thread may call it."""
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
        """Everything below is on the device, not just in the page cache."""

    @property
    @abc.abstractmethod
    def epochs(self) -> tuple[EpochEntry, ...]:
        """Leader epochs and where they start, both strictly rising. The last may start at the log end."""

    @property
    @abc.abstractmethod
    def size_bytes(self) -> int:
        """Of all batches held."""

    @abc.abstractmethod
    def append(self, chunks: Sequence[Chunk]) -> None:
        """Write all the chunks, in one go where they fit one segment, then move the log end.

        Raises:
          AppendError: They do not run on from the log end, or an epoch goes back. Nothing was written.
          StorageFullError: No room. Nothing was written; the log can be used on.
          StorageBrokenError: The device failed. Nothing is served of it; the log must be reopened to write.
        """

    @abc.abstractmethod
    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Begin a leader epoch at `start_offset`; on the device before this returns.

        Entries that contradict it (same or later epoch, or same or later start) are dropped.

        Raises:
          AppendError: Batches of a later epoch are in the log.
        """

    @abc.abstractmethod
    def truncate(self, offset: int) -> None:
        """Drop the batches that do not end at or below `offset`, and the epochs that start at the
        new end.

        The new log end is `offset`, or the end of the last batch that stays if `offset` lies inside the next (or
        where compaction left nothing). An offset at or above the log end drops only epochs.
        """

    @abc.abstractmethod
    def truncate_fully(self, new_start_offset: int) -> None:
        """Drop everything and go on, empty, at `new_start_offset`."""

    @abc.abstractmethod
    def advance_log_start_offset(self, offset: int) -> None:
        """Hide everything below `offset`, at most up to the log end; a lower offset changes nothing.

        This is what deleting records before an offset comes to (KIP-107), on a leader and on its followers. It is
        on the device before this returns, so no restart brings records back. The offset may lie inside a batch.
        Segments that lie wholly below are deleted by the next `maintain`.

        Raises StorageError if it cannot be written down; nothing has changed then.
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
        """Do what the settings ask for: delete old segments, compact, and delete the files of what went before.

        Nothing at or above the high watermark or in the segment that is written is touched. Meant for a thread of
        its own, which calls it for one log after the other: compaction takes long. The writer and readers do not
        wait for it.

        now_ms: since 1970, like the timestamps of the batches.
        decides: whether time and size delete; else only what lies below the log start goes (on a follower, to whom
          its leader tells that).
        bytes_per_second: how fast compaction reads and writes, in all; None: as fast as it can.
        key_map_bytes: memory for the keys of a compaction, 24 bytes each and a third more; if they do not fit, it
        takes
          several passes. Freed at its end.
        stop: asked often during a compaction, which is given up without a trace when it says True.

        Raises StorageError if the device refuses, or damage is found; the log is as it was, or the deletion is
        finished by the next open.
        """

    @abc.abstractmethod
    def read(
        self, offset: int, *, max_bytes: int, limit_offset: int | None = None, min_one: bool = True
    ) -> ReadResult:
        """Whole batches from the one that holds `offset`, all below `limit_offset` (default: the log end).

        At most `max_bytes`, except that the first batch comes whatever its size if `min_one`.

        Raises:
          OffsetOutOfRangeError: Below the log start or above the log end.
        """

    def is_at_hand(self, offset: int) -> bool:
        """Whether `read` from there on finds its batches without waiting for the device, as far as is known."""
        return True

    @abc.abstractmethod
    def offset_for_timestamp(
        self, timestamp_ms: int, *, stop: Callable[[], bool] = never
    ) -> TimestampedOffset | None:
        """The first record, in order of offsets, with at least that timestamp; None if there is none.

        Takes O(log n) of the batches of one segment where timestamps rise. Where they do not, all batches of a
        segment may have to be looked at: `stop` is asked now and then, and ends that.

        Raises:
          LookUpStoppedError: `stop` has become true.
        """

    def latest_timestamp(self, *, stop: Callable[[], bool] = never) -> TimestampedOffset | None:
        """The first of the records with the greatest timestamp; None if none has one (KIP-734).

        Found by halves, in at most 64 looks of `offset_for_timestamp`; raises as that does.
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
        """The idempotent producers seen in the log."""

    @abc.abstractmethod
    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that a reader of [start_offset, end_offset) must know, in the order of their markers: each ends at
        or above the start, and begins below the end.

        Any thread may call it.
        """

    @abc.abstractmethod
    def completed_transactions(self, offset: int) -> list[CompletedTransaction]:
        """Those whose marker stands at or above `offset`, in the order of their markers.

        It goes over the log from the last snapshot of producers below `offset` on, unless no producer ever ended a
        transaction.
        """

    @abc.abstractmethod
    def flush(self) -> None:
        """Bring everything to the device and move the recovery point."""

    @abc.abstractmethod
    def close(self, clean: bool = True) -> None:
        """Stop using the log; `clean` flushes first and leaves what lets the next open trust it."""

"""One segment of a log: a `.log` file of batches, its indexes, and where the latest batches lie."""

from __future__ import annotations

import os
import random
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .._files import base_offset_in, fsync_file, replace_file, write_all
from .._native import ffi, lib
from .._opening import kind_of, make_way, open_file, patiently, remove_file
from .._transactions import (
    ENTRY_BYTES,
    TRANSACTION_INDEX_SUFFIX,
    AbortedTransaction,
    encode_index,
    read_index,
)
from ..batch._columns import Buffer
from ..batch._records import records
from ..batch._scan import scan
from ..errors import CorruptBatchError, LookUpStoppedError, StorageBrokenError
from ..file_range import FileRange, RangeFile, read_at
from ..log import ReadResult, TimestampedOffset, never
from ..settings import MAX_SEGMENT_BYTES, LogSettings
from ._index import MAX_RELATIVE, OffsetIndex, TimeIndex, renamed
from ._log_scan import LogScan, scan_log
from ._open_files import OPEN_FILES

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
DELETED_SUFFIX = ".deleted"

_RECENT = 1024
_TAIL_BYTES = 2048
"""Bytes of the last appends that stay in memory, because readers at the end of a log need exactly these."""
_MANY_RECORDS = 0xFFFF
_MAX_TIMESTAMP_AT = 35
_NO_LIMIT = (1 << 63) - 1
LOOK_UP_PORTION = 16 << 20
"""Bytes of batches whose headers are looked at between two questions whether a look-up is still wanted."""


def segment_path(folder: Path, base_offset: int, suffix: str) -> Path:
    return folder / f"{base_offset:020d}{suffix}"


def segment_files(folder: Path) -> list[Path]:
    """The `.log` files of a partition in order."""
    found = patiently(lambda: list(folder.glob(f"*{LOG_SUFFIX}")))
    return sorted(path for path in found if base_offset_in(path.stem) is not None)


def delete_segment(folder: Path, base_offset: int) -> None:
    """Delete the files of a segment that is not open."""
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
        remove_file(segment_path(folder, base_offset, suffix))


Mended = Callable[[Path, str], None]
"""Told of an index file that is built anew from the log, and why."""


class Spot(NamedTuple):
    """Where a batch starts, and at which offset."""

    position: int
    offset: int


_spot = partial(tuple.__new__, Spot)
_range, _read = partial(tuple.__new__, FileRange), partial(tuple.__new__, ReadResult)


class Largest(NamedTuple):
    """The greatest timestamp of a segment, in ms, and the last offset of the first batch that has it."""

    timestamp: int
    offset: int


class _Recent:
    """Where the latest batches lie, in two generations, so that reads at the tail need no system call.

    Offsets are added after positions: whoever finds one in the first list finds its place in the second.
    """

    __slots__ = ("_generations",)

    def __init__(self) -> None:
        self._generations: tuple[_Generation, ...] = (([], []),)

    def add(self, more_offsets: Sequence[int], more_positions: Sequence[int]) -> None:
        offsets, positions = self._generations[0]
        if len(offsets) >= _RECENT:
            offsets, positions = [], []
            self._generations = ((offsets, positions), self._generations[0])
        positions += more_positions
        offsets += more_offsets

    def add_one(self, offset: int, position: int) -> None:
        offsets, positions = self._generations[0]
        if len(offsets) < _RECENT:
            positions.append(position)
            offsets.append(offset)
        else:
            self._generations = (([offset], [position]), self._generations[0])

    def holding(self, offset: int) -> Spot | None:
        """The batch that holds `offset`, which is not above the last."""
        return _holding(self._generations, offset)

    def slice(
        self, offset: int, limit_offset: int, max_bytes: int, min_one: bool, end: Spot
    ) -> tuple[Spot, Spot] | None:
        """As `Segment.slice`; None if the first batch is not among the latest. `end` was the segment's before."""
        known = self._generations
        start = _holding(known, offset)
        if start is None:
            return None
        stop = end if limit_offset >= end.offset else _holding(known, limit_offset) or start
        if stop.position - start.position > max_bytes:
            stop = _before(known, start.position + max_bytes) or start
            if stop.position <= start.position and min_one:
                stop = _after(known, start.position) or end
        return start, max(start, stop)


_Generation = tuple[list[int], list[int]]
"""Offsets and positions of some batches."""


def _holding(known: tuple[_Generation, ...], offset: int) -> Spot | None:
    for offsets, positions in known:
        if offsets and offsets[0] <= offset:
            at = bisect_right(offsets, offset) - 1
            return Spot(positions[at], offsets[at])
    return None


def _before(known: tuple[_Generation, ...], position: int) -> Spot | None:
    """The last batch that starts at or before `position`."""
    for offsets, positions in known:
        if offsets and positions[0] <= position:
            at = bisect_right(positions, position, hi=len(offsets)) - 1
            return Spot(positions[at], offsets[at])
    return None


def _after(known: tuple[_Generation, ...], position: int) -> Spot | None:
    """The first batch that starts behind `position`."""
    found = None
    for offsets, positions in known:
        at = bisect_right(positions, position, hi=len(offsets))
        if at < len(offsets):
            found = Spot(positions[at], offsets[at])
        if at:
            break
    return found


class Segment:
    """`end` is (position, offset) after the last batch; readers trust nothing behind it."""

    def __init__(
        self, folder: Path, base_offset: int, settings: LogSettings, told: Mended = lambda path, why: None
    ) -> None:
        """`told` hears of each index file that was not as it was left, and is built anew; from any thread."""
        self.base_offset = base_offset
        self.path = segment_path(folder, base_offset, LOG_SUFFIX)
        self._settings = settings
        self._told = told
        self._is_misled = False
        """Whether an entry of the index has led behind the offset that was looked up."""
        self._mending = threading.Lock()
        self._is_written = False
        self._file: RangeFile | None = RangeFile.open(self.path, create=True)
        self._used = self._unsynced = self._pinned = False
        self._closed = False
        OPEN_FILES.add(self)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
            self._make_way(segment_path(folder, base_offset, suffix))
        self.index = OffsetIndex(segment_path(folder, base_offset, INDEX_SUFFIX), base_offset)
        self.time_index = TimeIndex(segment_path(folder, base_offset, TIME_INDEX_SUFFIX), base_offset)
        self.end = Spot(0, base_offset)
        self.largest = Largest(-1, base_offset)
        self.indexes_synced = True
        """Whether the indexes are on the device as they are."""
        self._recent = _Recent()
        self._tail = 0, b""
        """The bytes that were written last, and where they begin. Nobody reads them above the end of the log."""
        self._since_entry = 0
        self._entered: Largest | None = None
        """The entry that the time index was last given; None if that is not known."""
        self._first_timestamp: int | None = None
        self._begun = time.monotonic()
        self._jitter_ms = random.SystemRandom().randint(0, settings.segment_jitter_ms)
        self._roll_ms = settings.roll_ms - self._jitter_ms
        self.aborted: Sequence[AbortedTransaction] = read_index(self.transaction_index)
        """Transactions whose ABORT marker lies in the segment, in the order of the markers."""

    def configure(self, settings: LogSettings) -> None:
        """Go by other settings from the next batch on."""
        self._settings = settings
        self._roll_ms = settings.roll_ms - self._jitter_ms

    @property
    def place(self) -> str:
        """The segment's name in errors about damage."""
        return str(self.path)

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch, in ms; -1 without a timestamp or a batch."""
        if self._first_timestamp is None:
            if not self.end.position:
                return -1
            timestamp = read_at(self.file.fileno(), 8, _MAX_TIMESTAMP_AT)
            self._first_timestamp = int.from_bytes(timestamp, signed=True)
        return self._first_timestamp

    def age_ms(self, timestamp: int) -> float:
        """How long before `timestamp` (ms) it was begun; -1 and segments without timestamps: before now."""
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp
        if first < 0 or timestamp < 0:
            return (time.monotonic() - self._begun) * 1000
        return timestamp - first

    @property
    def transaction_index(self) -> Path:
        """Kafka's list of aborted transactions; there if the segment has a marker of any."""
        return self.path.with_suffix(TRANSACTION_INDEX_SUFFIX)

    @property
    def file(self) -> RangeFile:
        """The file, reopened if necessary; it stays open while a caller holds it."""
        self._used = True
        file = self._file
        if file is None:
            file = self._file = RangeFile.open(self.path)
            OPEN_FILES.add(self)
        return file

    def let_go(self) -> bool:
        """Close the file if it is idle; see `OpenFiles`."""
        if self._pinned:
            return True
        if self._used or self._unsynced:
            self._used = False
            return False
        self._file = None
        return True

    def is_at_hand(self, offset: int) -> bool:
        """Whether the batch that holds `offset` is here, and found without a look at the files."""
        return self._file is not None and self._recent.holding(offset) is not None

    def _keep_open(self) -> None:
        """The file is about to lose its name; who reads it may read on."""
        self._pinned = True
        # Only now, when no thread is releasing it any more.
        OPEN_FILES.discard(self)
        self._file = self.file

    @property
    def file_size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    @property
    def last_written_ms(self) -> int:
        """The greatest timestamp; the file's own if no batch has one."""
        if self.largest.timestamp >= 0:
            return self.largest.timestamp
        return os.fstat(self.file.fileno()).st_mtime_ns // 1_000_000

    def has_room(self, pending: int, size: int, last_offset: int, timestamp: int) -> bool:
        """Whether batches of `size` bytes up to `last_offset`, the last at `timestamp`, may follow `pending`
        others; an empty segment takes any.
        """
        position = self.end.position + pending
        if last_offset - self.base_offset > MAX_RELATIVE:
            return False
        if position == 0:
            return size <= MAX_SEGMENT_BYTES
        if position + size > self._settings.segment_bytes or self.index.is_full or self.time_index.is_full:
            return False
        return position == pending or self.age_ms(timestamp) <= self._roll_ms

    def _make_way(self, path: Path) -> None:
        what = kind_of(path)
        if aside := make_way(path):
            self._told(path, f"it was {what}, which is now {aside.name}")

    def mend_indexes(self) -> None:
        """Build anew from the log what somebody has removed, cut or replaced. Only for who may change the indexes.

        Raises OSError.
        """
        with self._mending:
            wrong = {each: why for each in (self.index, self.time_index) if (why := each.wrong())}
            if wrong:
                found = self._scanned()
                for index, why in wrong.items():
                    index.replace(bytes(found.index if index is self.index else found.time_index))
                    self._told(index.path, why)
                self.indexes_synced = False
                self._entered = None
                if not self._is_written:
                    self.time_index.close_with(*self.largest)
                    self.time_index.trim()
            self._mend_transactions()

    def _scanned(self) -> LogScan:
        return scan_log(
            self.file.fileno(),
            self.end.position,
            base_offset=self.base_offset,
            interval=self._settings.index_interval_bytes,
            offset=self.base_offset,
            gaps=True,
        )

    def _mend_transactions(self) -> None:
        size = len(self.aborted) * ENTRY_BYTES
        if _size_of(self.transaction_index) != size and (self.aborted or kind_of(self.transaction_index)):
            why = _what_became_of(self.transaction_index)
            make_way(self.transaction_index)
            if self.aborted:
                replace_file(self.transaction_index, encode_index(self.aborted))
            self._told(self.transaction_index, why)

    def open_for_writing(self) -> None:
        self._is_written = True
        self.index.grow(self._settings.segment_index_bytes)
        self.time_index.grow(self._settings.segment_index_bytes)

    def seal(self) -> None:
        """No batches come after those there are: finish the indexes."""
        self._tail = 0, b""
        self.mend_indexes()
        self._is_written = False
        self.time_index.close_with(*self.largest)
        self.index.trim()
        self.time_index.trim()

    def fileno(self) -> int:
        """For writing."""
        self._unsynced = True
        return self.file.fileno()

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Put bytes into the file. They belong to the log only once `added` says so."""
        self._unsynced = True
        write_all(self.file.fileno(), buffers, position)
        # Again: a flush that another thread began meanwhile may not have brought these bytes to the device.
        self._unsynced = True
        size = sum(map(len, buffers))
        if size > _TAIL_BYTES:
            self._tail = 0, b""
            return
        start, tail = self._tail
        if start + len(tail) != position or len(tail) + size > _TAIL_BYTES:
            start, tail = position, b""
        self._tail = start, b"".join((tail, *buffers))

    def in_memory(self, position: int, size: int) -> bytes | None:
        """These bytes, if they are among those that were written last."""
        start, tail = self._tail
        if position < start or position + size > start + len(tail):
            return None
        return tail[position - start : position - start + size]

    def added(self, batches: Sequence[tuple[int, int, int, int]]) -> None:
        """Batches stand behind the end now, each (base offset, last offset, size, greatest timestamp): index
        them, move the end.
        """
        position, offset = self.end
        largest, interval, since = self.largest, self._settings.index_interval_bytes, self._since_entry
        base, entries, times = self.base_offset, array("i"), list[Largest]()
        offsets: list[int] = []
        positions: list[int] = []
        self.indexes_synced = False
        if position == 0:
            self._first_timestamp = batches[0][3]
        for _, last_offset, size, timestamp in batches:
            if timestamp > largest.timestamp:
                largest = self.largest = Largest(timestamp, last_offset)
            if since > interval:
                entries.append(last_offset - base)
                entries.append(position)
                if largest is not self._entered:
                    times.append(largest)
                    self._entered = largest
                since = 0
            since += size
            # A batch also holds the offsets that compaction took away before it.
            offsets.append(offset)
            positions.append(position)
            position += size
            offset = last_offset + 1
        if entries:
            self._enter(entries, times)
        self._recent.add(offsets, positions)
        self._since_entry = since
        self.end = Spot(position, offset)

    def _enter(self, entries: array[int], times: Sequence[Largest]) -> None:
        if self.index.needs_file(len(entries) // 2) or self.time_index.needs_file(len(times)):
            self.mend_indexes()
        self.index.add_all(entries)
        for each in times:
            self.time_index.add(*each)

    def append_one(self, data: Buffer, size: int, last_offset: int, timestamp: int) -> bool:
        """`write` at the end and `added`, of one batch: that of a record which is sent alone. False, and nothing is
        done, if the segment does not have the room.
        """
        position, offset = self.end
        end, settings = position + size, self._settings
        if size > _TAIL_BYTES or not position or self._since_entry > settings.index_interval_bytes:
            if not self.has_room(0, size, last_offset, timestamp):
                return False
            self.write([data], position)
            self.added([(offset, last_offset, size, timestamp)])
            return True
        # As `has_room` says it of a segment that is not empty.
        if end > settings.segment_bytes or last_offset - self.base_offset > MAX_RELATIVE:
            return False
        if self.index.is_full or self.time_index.is_full or self.age_ms(timestamp) > self._roll_ms:
            return False
        self._unsynced = True
        # Held here, so that the descriptor stays open.
        file = self._file or self.file
        written = os.pwritev(file.descriptor, (data,), position)
        if written < size:
            write_all(file.descriptor, [memoryview(data)[written:]], position + written)
        self._unsynced = True  # again, see `write`
        start, tail = self._tail
        if start + len(tail) != position or len(tail) + size > _TAIL_BYTES:
            start, tail = position, b""
        self._tail = start, tail + data
        self.indexes_synced = False
        if timestamp > self.largest[0]:
            self.largest = Largest(timestamp, last_offset)
        # A batch also holds the offsets that compaction took away before it.
        self._recent.add_one(offset, position)
        self._since_entry += size
        self.end = _spot((end, last_offset + 1))
        return True

    def drop_unseen(self) -> None:
        """Remove bytes behind the end, which no reader was shown."""
        self._unsynced = True
        os.ftruncate(self.file.fileno(), self.end.position)

    def cut(self, spot: Spot) -> None:
        """End the segment at a batch boundary, in the file as well."""
        self.mend_indexes()
        self.index.truncate(spot.position)
        self.time_index.truncate(spot.offset)
        self._cut_transactions(spot.offset)
        self._end_at(spot)
        self._find_largest()

    def _end_at(self, spot: Spot) -> None:
        self.end = spot
        self._recent = _Recent()
        self._tail = 0, b""
        self._since_entry = 0
        self._entered = None
        self._first_timestamp = None
        self.indexes_synced = False
        if self.file_size != spot.position:
            self._unsynced = True
            os.ftruncate(self.file.fileno(), spot.position)

    def rebuild(self, found: LogScan) -> None:
        """Take the indexes, and the end, from a scan of the whole file."""
        for index in (self.index, self.time_index):
            if found.position and not index.existed:
                self._told(index.path, "it was not there")
        self.index.rebuild(found.index)
        self.time_index.rebuild(found.time_index)
        self.largest = Largest(found.max_timestamp, found.max_timestamp_offset)
        self._end_at(Spot(found.position, found.offset))

    def flush(self) -> None:
        """May be called by another thread than the writer's, while that one appends."""
        self._unsynced = False
        try:
            os.fsync(self.file.fileno())
        except OSError:
            self._unsynced = True
            raise

    def sync_indexes(self) -> None:
        """Bring the indexes of a sealed segment to the device, if they have changed since."""
        if not self.indexes_synced:
            self.mend_indexes()
            self.index.sync()
            self.time_index.sync()
            if self.aborted:
                fsync_file(self.transaction_index)
            self.indexes_synced = True

    def was_synced(self) -> None:
        """All of it has come to the device, otherwise than by `flush` and `sync_indexes`."""
        self._unsynced = False
        self.indexes_synced = True

    def close(self) -> None:
        """No more writing. Ranges that were read stay valid."""
        if not self._closed:
            self._closed = True
            for index in (self.index, self.time_index):
                # What is not as it was left is for the next opening to build anew.
                if not index.wrong():
                    index.trim()
            self._file = None
            OPEN_FILES.discard(self)

    def delete(self) -> None:
        self._keep_open()
        self.path.unlink(missing_ok=True)
        self.index.delete()
        self.time_index.delete()
        remove_file(self.transaction_index)
        self._closed = True

    def set_aside(self) -> list[Path]:
        """Rename the files, to be deleted later; they can still be read. Returns the new paths."""
        # What somebody else has removed need not be.
        with suppress(FileNotFoundError):
            self._keep_open()
        files = renamed(self.path, DELETED_SUFFIX)
        self._closed = True
        files += self.index.rename(DELETED_SUFFIX) + self.time_index.rename(DELETED_SUFFIX)
        if os.path.lexists(self.transaction_index):
            files += renamed(self.transaction_index, DELETED_SUFFIX)
        return files

    def add_aborted(self, entries: Sequence[AbortedTransaction]) -> None:
        """Their markers stand in the segment now. Raises OSError."""
        self.indexes_synced = False
        self._mend_transactions()
        with open(open_file(self.transaction_index, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            file.write(encode_index(entries))
        # A new list, because another thread may be reading the old one.
        self.aborted = [*self.aborted, *entries]

    def set_aborted(self, entries: Sequence[AbortedTransaction]) -> None:
        """Have these entries and no others. Raises OSError."""
        if [*entries] != [*self.aborted] or len(entries) * ENTRY_BYTES != _size_of(self.transaction_index):
            self.indexes_synced = False
            make_way(self.transaction_index)
            replace_file(self.transaction_index, encode_index(entries))
            self.aborted = entries

    def _cut_transactions(self, end_offset: int) -> None:
        if self.aborted:
            self.set_aborted([entry for entry in self.aborted if entry.last_offset < end_offset])

    def slice(self, offset: int, limit_offset: int, max_bytes: int, min_one: bool) -> tuple[Spot, Spot]:
        """First batch and end of the whole batches from the one holding `offset` to below the limits."""
        end = self.end
        recent = self._recent.slice(offset, limit_offset, max_bytes, min_one, end)
        return recent or self._find(offset, limit_offset, min(max_bytes, end.position), min_one, end)

    def read_recent(self, offset: int, limit_offset: int, max_bytes: int) -> ReadResult | None:
        """Whole batches from the one that holds `offset` on, at least one below the limit offset; None if that is
        not found without a look at the files. `offset` is below the end.
        """
        end, file = self.end, self._file
        found = self._recent.slice(offset, limit_offset, max_bytes, True, end)
        if file is None or found is None:
            return None
        self._used = True
        (position, first), (stop, next_offset) = found
        size = stop - position
        if size == 0:
            return ReadResult(None, offset, offset, 0)
        part = _range((file, position, size, self.in_memory(position, size)))
        return _read((part, first, next_offset, size))

    def _find(
        self, offset: int, limit_offset: int, max_bytes: int, min_one: bool, end: Spot
    ) -> tuple[Spot, Spot]:
        entries, count = self.index.in_c()
        if not self._is_misled:
            start, stop = self._look_up(entries, count, offset, limit_offset, max_bytes, min_one, end)
            if not (self._misleads(offset, start) or self._misleads(limit_offset, stop)):
                return start, stop
            self._is_misled = True
            self._told(self.index.path, "an entry names a batch that lies behind its offset; it is not used")
        return self._look_up(entries, 0, offset, limit_offset, max_bytes, min_one, end)

    def _misleads(self, offset: int, found: Spot) -> bool:
        """Whether the index led behind the batch that holds an offset: the batch of an entry begins at or below."""
        return found.offset > offset and found.position == self.index.position_for(offset) > 0

    def _look_up(
        self,
        entries: Any,
        count: int,
        offset: int,
        limit_offset: int,
        max_bytes: int,
        min_one: bool,
        end: Spot,
    ) -> tuple[Spot, Spot]:
        segment = ffi.new("isr_segment *", (entries, count, self.base_offset, end.position, end.offset))
        found = ffi.new("isr_slice *")
        reason = lib.isr_batch_slice_file(
            self.file.fileno(), segment, offset, limit_offset, max_bytes, min_one, found
        )
        self._check(reason, found.stop_position)
        start = Spot(found.start_position, found.start_offset)
        return start, max(start, Spot(found.stop_position, found.stop_offset))

    def holding(self, offset: int) -> Spot:
        """Where the batch that holds `offset` starts; `offset` is below the end."""
        recent = self._recent.holding(offset)
        if recent is not None:
            return recent
        return self._walk(self.index.position_for(offset), stop_offset=offset)

    def find_end(self) -> Spot:
        """The end of the batches in the file, going by their headers from the last index entry on.

        Raises CorruptBatchError if they do not end where the file does.
        """
        self.end = Spot(self.file_size, self.base_offset)
        if self.end.position:
            self.end = self._walk(self.index.last_entry()[1])
        return self.end

    def open_sealed(self) -> None:
        """Take a segment as its files have it, which are whole. Raises CorruptBatchError if they are not."""
        self.find_end()
        self.load_largest()

    def load_largest(self) -> None:
        """Take the greatest timestamp from the time index of a segment that was sealed."""
        if len(self.time_index):
            self.largest = Largest(*self.time_index.last_entry())
        else:
            self._find_largest()

    @property
    def is_well_timed(self) -> bool:
        """Whether none of the last batches is younger than all that the time index knows: else that one was cut."""
        last = self.index.last_entry()[1]
        return self._reaching(self.largest.timestamp + 1, last, self.base_offset) is None

    def tell_of_indexes(self) -> None:
        """They are about to be built anew, and not because of a crash."""
        if self.index.existed and self.time_index.existed:
            self._told(self.path, "an index of this segment is not as it was left")

    def _find_largest(self) -> None:
        """Find the greatest timestamp: the time index knows it but for the latest batches."""
        timestamp, offset = self.time_index.last_entry()
        position = self.index.position_for(offset) if timestamp >= 0 else 0
        while (found := self._reaching(timestamp + 1, position, self.base_offset)) is not None:
            position, size = found
            info = scan(read_at(self.file.fileno(), size, position), verify_crc=False)[0]
            timestamp, offset = info.max_timestamp, info.next_offset - 1
            position += size
        self.largest = Largest(timestamp, offset)

    def find_timestamp(
        self, timestamp: int, start_offset: int, stop: Callable[[], bool] = never
    ) -> TimestampedOffset | None:
        """The first record at or above `start_offset` whose timestamp is at least the one given.

        Raises LookUpStoppedError soon after `stop` has become true.
        """
        position = self.index.position_for(max(self.time_index.offset_for(timestamp), start_offset))
        while (found := self._reaching(timestamp, position, start_offset, stop)) is not None:
            position, size = found
            data = read_at(self.file.fileno(), size, position)
            for number, record in enumerate(records(data, start_offset=start_offset)):
                if number & _MANY_RECORDS == _MANY_RECORDS and stop():
                    raise LookUpStoppedError(f"{self.path}: a timestamp was not found in time")
                if record.timestamp_ms >= timestamp:
                    return TimestampedOffset(record.offset, record.timestamp_ms)
            position += size
        return None

    def _reaching(
        self, timestamp: int, start: int, min_offset: int, stop: Callable[[], bool] = never
    ) -> tuple[int, int] | None:
        """Position and size of the first batch from `start` on with such a timestamp that ends above the offset.

        Timestamps are their producers' to give: that batch may be anywhere behind the entry of the time index.
        """
        position, size = ffi.new("int64_t *", start), ffi.new("int64_t *")
        end = self.end.position
        while position[0] < end and not size[0]:
            if stop():
                raise LookUpStoppedError(f"{self.path}: a timestamp was not found in time")
            limit = position[0] + LOOK_UP_PORTION
            reason = lib.isr_log_find_timestamp(
                self.file.fileno(), position, limit, end, timestamp, min_offset, size
            )
            self._check(reason, position[0])
        return (position[0], size[0]) if size[0] else None

    def _walk(self, start: int, *, stop_offset: int = _NO_LIMIT) -> Spot:
        """Go over whole batches from `start` while they end at or below the offset."""
        position, offset = ffi.new("int64_t *"), ffi.new("int64_t *", self.base_offset)
        reason = lib.isr_batch_walk_file(
            self.file.fileno(), start, self.end.position, stop_offset, position, offset
        )
        self._check(reason, position[0])
        return Spot(position[0], offset[0])

    def _check(self, reason: int, position: int) -> None:
        if reason == lib.ISR_IO_ERROR:
            raise StorageBrokenError(
                f"{self.path} cannot be read: {os.strerror(ffi.errno)}; check the device"
            )
        if reason != lib.ISR_OK:
            raise CorruptBatchError(position, "its header is invalid", path=str(self.path))


def _size_of(path: Path) -> int:
    """-1 if it is no file; 0 if nothing is there."""
    if kind_of(path):
        return -1
    return path.stat().st_size if path.exists() else 0


def _what_became_of(path: Path) -> str:
    if what := kind_of(path):
        return f"it is {what} now"
    return f"it has {path.stat().st_size} bytes now" if path.exists() else "it was removed"

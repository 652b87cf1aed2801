"""The outcomes of transactions, told from the batches themselves: by the headers, and the record of each marker."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import attrs

from ._native import ffi, lib
from ._opening import read_file
from .batch._columns import Buffer
from .batch._records import control_type
from .batch._scan import BATCH_OVERHEAD_BYTES, BatchInfo, scan_file
from .file_range import ReadableFile, read_at

TRANSACTION_INDEX_SUFFIX = ".txnindex"

_ENTRY = struct.Struct(">hqqqq")  # version, then the fields of an entry
ENTRY_BYTES = _ENTRY.size
_VERSION = 0

_ABORT = 0


class AbortedTransaction(NamedTuple):
    """An entry of a `.txnindex`. The last offset is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Marker(NamedTuple):
    """The content of the control batch at a transaction's end."""

    is_abort: bool
    coordinator_epoch: int


class CompletedTransaction(NamedTuple):
    """A transaction that has ended in a log; the last offset is that of its marker.

    `last_stable_offset`: where the oldest transaction that was open then begins; else the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    is_aborted: bool

    @property
    def index_entry(self) -> AbortedTransaction:
        return AbortedTransaction(*self[:4])


def marker_of(batch: Buffer) -> Marker | None:
    """The marker in a whole control batch; None if it ends no transaction."""
    view, epoch = ffi.from_buffer(batch), ffi.new("int32_t *")
    kind = lib.isr_batch_marker(view + BATCH_OVERHEAD_BYTES, max(0, len(view) - BATCH_OVERHEAD_BYTES), epoch)
    return None if kind == lib.ISR_MARKER_NONE else Marker(kind == lib.ISR_MARKER_ABORT, epoch[0])


def index_is_sane(path: Path, base_offset: int, end_offset: int) -> bool:
    """Whether a `.txnindex` has whole entries alone, in order, of a segment with these offsets. Raises OSError."""
    if not path.exists():
        return True
    entries = read_index(path)
    if len(entries) * _ENTRY.size != path.stat().st_size:
        return False
    lasts = [base_offset - 1, *(entry.last_offset for entry in entries), end_offset]
    return all(before < after for before, after in pairwise(lasts))


def read_index(path: Path) -> list[AbortedTransaction]:
    """The complete entries of a `.txnindex`; none without the file. Raises OSError."""
    if not path.exists():
        return []
    data = read_file(path)
    whole = data[: len(data) - len(data) % _ENTRY.size]
    return [
        AbortedTransaction(*fields) for version, *fields in _ENTRY.iter_unpack(whole) if version == _VERSION
    ]


def encode_index(entries: Iterable[AbortedTransaction]) -> bytes:
    """The bytes that `read_index` reads."""
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def aborted_between(
    indexes: Iterable[Sequence[AbortedTransaction]], start_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions that a reader of [start_offset, end_offset) must know, from the indexes of the
    segment of the start and of all later ones: a marker may lie many segments behind its transaction's batches.
    """
    found: list[AbortedTransaction] = []
    for entries in indexes:
        if not entries:
            continue
        for entry in entries[bisect_left(entries, start_offset, key=lambda each: each.last_offset) :]:
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                # Whatever was open then, or began later, begins behind the end.
                return found
    return found


@attrs.define(eq=False, slots=True)
class Transactions:
    """Of batches in order. `aborted`: producer id, first offset and the marker's offset."""

    aborted: list[tuple[int, int, int]] = attrs.Factory(list)
    open: dict[int, int] = attrs.Factory(dict)
    """First offset of each producer's transaction that has not ended."""
    markers: dict[int, int] = attrs.Factory(dict)
    """Offset of each producer's last marker."""

    @classmethod
    def of(cls, files: Iterable[tuple[ReadableFile, int]]) -> Transactions:
        """Of segment files, each with the position of its end. Raises CorruptBatchError, OSError."""
        found = cls()
        for file, end in files:
            for info in scan_file(file.fileno(), 0, end):
                if info.is_transactional:
                    found._saw(file, info)
        return found

    def _saw(self, file: ReadableFile, info: BatchInfo) -> None:
        if not info.is_control:
            self.open.setdefault(info.producer_id, info.base_offset)
            return
        self.markers[info.producer_id] = info.next_offset - 1
        first = self.open.pop(info.producer_id, info.base_offset)
        if info.record_count and _marker_type(file, info) == _ABORT:
            self.aborted.append((info.producer_id, first, info.next_offset - 1))

    def is_aborted(self, info: BatchInfo) -> bool:
        return any(
            producer_id == info.producer_id and first <= info.base_offset <= last
            for producer_id, first, last in self.aborted
        )

    def is_open(self, info: BatchInfo) -> bool:
        """Whether the outcome of the batch is still open."""
        return self.open.get(info.producer_id, info.next_offset) <= info.base_offset


def _marker_type(file: ReadableFile, info: BatchInfo) -> int:
    return control_type(read_at(file.fileno(), info.size_bytes, info.position))

"""What became of transactions, told from the batches themselves: by the headers, and the key of each marker.

Nothing here writes transactions. But a folder may come from Kafka, whose records of an aborted transaction must not
take the place of others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import attrs

from ._batch_records import control_type
from ._batch_scan import BatchInfo, scan_file
from .file_range import ReadableFile, read_at

TRANSACTION_INDEX_SUFFIX = ".txnindex"

_ENTRY = struct.Struct(">hqqqq")  # version, then the fields of an entry
_VERSION = 0

_ABORT = 0


class AbortedTransaction(NamedTuple):
    """An entry of a `.txnindex`. The last offset is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def read_index(path: Path) -> list[AbortedTransaction]:
    """The whole entries of a `.txnindex`; none if there is no file. Raises OSError."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: len(data) - len(data) % _ENTRY.size]
    return [
        AbortedTransaction(*fields) for version, *fields in _ENTRY.iter_unpack(whole) if version == _VERSION
    ]


def encode_index(entries: Iterable[AbortedTransaction]) -> bytes:
    """What `read_index` reads."""
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


@attrs.define(eq=False, slots=True)
class Transactions:
    """Of batches in order. `aborted`: producer id, first offset and the marker's offset."""

    aborted: list[tuple[int, int, int]] = attrs.Factory(list)
    open: dict[int, int] = attrs.Factory(dict)
    """First offset of each producer's transaction that has not ended."""

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
        first = self.open.pop(info.producer_id, info.base_offset)
        if info.record_count and _marker_type(file, info) == _ABORT:
            self.aborted.append((info.producer_id, first, info.next_offset - 1))

    def is_aborted(self, info: BatchInfo) -> bool:
        return any(
            producer_id == info.producer_id and first <= info.base_offset <= last
            for producer_id, first, last in self.aborted
        )

    def is_open(self, info: BatchInfo) -> bool:
        """Whether nobody can tell yet what becomes of the batch."""
        return self.open.get(info.producer_id, info.next_offset) <= info.base_offset


def _marker_type(file: ReadableFile, info: BatchInfo) -> int:
    return control_type(read_at(file.fileno(), info.size_bytes, info.position))

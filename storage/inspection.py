"""Reading the files of a partition one by one, for people to look into."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ._files import base_offset_in
from ._opening import open_file, read_file
from ._producers import ProducerTable
from .batch._records import records
from .batch._scan import ATTRIBUTES_AT, CONTROL
from .log import ProducerSnapshot
from .segment._verify_index import OFFSET_ENTRY, TIME_ENTRY, read_entries
from .segment._walk import Found, walk

__all__ = [
    "ControlRecord",
    "Found",
    "OffsetIndexEntry",
    "TimeIndexEntry",
    "base_offset_in",
    "batches_in",
    "control_record",
    "offset_index_entries",
    "producers_in",
    "read_file",
    "time_index_entries",
]

_CONTROL_TYPES = (
    "abort",
    "commit",
    "leader-change",
    "snapshot-header",
    "snapshot-footer",
    "kraft-version",
    "voters",
)


class OffsetIndexEntry(NamedTuple):
    """The batch at `position` of the log ends with `offset`."""

    offset: int
    position: int


class TimeIndexEntry(NamedTuple):
    """No record up to `offset` is younger than `timestamp_ms`."""

    timestamp_ms: int
    offset: int


class ControlRecord(NamedTuple):
    """The content of a control batch; `type` is a name, or `type-N`."""

    offset: int
    timestamp_ms: int
    type: str


def batches_in(path: Path) -> Iterator[tuple[Found, memoryview]]:
    """All of a `.log` file in order, damaged or not, with its bytes, which are valid until the next step.

    Raises OSError.
    """
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as data:
            for found in walk(data, int(path.stem)):
                with data[found.position : found.end] as part:
                    yield found, part


def control_record(data: memoryview) -> ControlRecord | None:
    """The record of one control batch; None if it holds none."""
    plain = bytearray(data)
    plain[ATTRIBUTES_AT + 1] &= ~CONTROL
    for record in records(bytes(plain), max_records=1):
        number = int.from_bytes((record.key or b"")[2:4])
        known = number < len(_CONTROL_TYPES)
        return ControlRecord(
            record.offset, record.timestamp_ms, _CONTROL_TYPES[number] if known else f"type-{number}"
        )
    return None


def offset_index_entries(path: Path) -> list[OffsetIndexEntry]:
    """Of a `.index` file, whose name says what its offsets are relative to."""
    base = int(path.stem)
    entries, _ = read_entries(path, OFFSET_ENTRY)
    return [OffsetIndexEntry(base + relative, position) for relative, position in entries]


def time_index_entries(path: Path) -> list[TimeIndexEntry]:
    """Of a `.timeindex` file, whose name says what its offsets are relative to."""
    base = int(path.stem)
    entries, _ = read_entries(path, TIME_ENTRY)
    return [TimeIndexEntry(time, base + relative) for time, relative in entries]


def producers_in(path: Path) -> tuple[ProducerSnapshot, ...] | None:
    """Of a `.snapshot` file; None if it is damaged."""
    table = ProducerTable.load(path)
    return None if table is None else table.snapshots()

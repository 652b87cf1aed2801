"""Python's side of building and decoding records: whole columns go through one C call, never single records."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from .._native import ffi, lib

Headers = Sequence[tuple[str, bytes | None]]
"""The headers of one record: key and value, in order; keys may repeat."""

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes."""

_NO_BYTES = ffi.NULL
_POINTERS = {"q": "int64_t[]", "i": "int32_t[]"}


def varint(value: int) -> bytes:
    """Zigzag varint, low group first (the record format's)."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def encode_headers(headers: Headers) -> bytes:
    """One record's headers as they stand in the record, count first."""
    parts = [varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        parts += (varint(len(name)), name)
        parts += (varint(-1),) if value is None else (varint(len(value)), value)
    return b"".join(parts)


class Column:
    """One column of byte strings, joined, with the C struct that points into it."""

    __slots__ = ("struct", "size", "_keep")

    def __init__(self, items: Sequence[bytes | None]) -> None:
        nulls = items.count(None)
        if nulls == len(items):
            joined, lengths = b"", None
        elif nulls:
            joined = b"".join([item for item in items if item is not None])
            lengths = _packed([-1 if item is None else len(item) for item in items])
        else:
            joined = b"".join(items)  # type: ignore[arg-type]
            lengths = _packed(map(len, items))  # type: ignore[arg-type]
        data = ffi.from_buffer(joined)
        pointer = _NO_BYTES if lengths is None else ffi.from_buffer("int32_t[]", lengths)
        self.size = len(joined)
        self.struct: Any = ffi.new("isr_column *", (data, len(joined), pointer))
        self._keep = (data, pointer)


def _packed(lengths: Iterable[int]) -> bytes:
    """An array of i32, in less than half of the time that `array` takes."""
    numbers = list(lengths)
    return struct.pack(f"{len(numbers)}i", *numbers)


NO_ITEMS = Column(())
"""The column of a field that every record lacks."""


class DecodedColumns:
    """Arrays that C fills with where each record's fields lie in the data. Reused from call to call."""

    __slots__ = (
        "offsets",
        "timestamps",
        "key_starts",
        "key_lengths",
        "value_starts",
        "value_lengths",
        "header_starts",
        "header_counts",
        "capacity",
        "struct",
        "_keep",
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        wide, narrow = array("q", [0]), array("i", [0])
        self.offsets = wide * capacity
        self.timestamps = wide * capacity
        self.key_starts = wide * capacity
        self.key_lengths = narrow * capacity
        self.value_starts = wide * capacity
        self.value_lengths = narrow * capacity
        self.header_starts = wide * capacity
        self.header_counts = narrow * capacity
        arrays = [getattr(self, name) for name in self.__slots__[:8]]
        self._keep = [ffi.from_buffer(_POINTERS[column.typecode], column) for column in arrays]
        self.struct: Any = ffi.new("isr_columns *", self._keep)


class Decoder:
    """Decodes the records of whole batches, some at a time."""

    def __init__(self, data: Buffer, start_offset: int) -> None:
        self._data = ffi.from_buffer(data)
        self._start_offset = start_offset
        self._cursor: Any = ffi.new("isr_cursor *")
        self._reason: Any = ffi.new("int *")

    @property
    def reason(self) -> int:
        """Why the last `fill` stopped, `ISR_OK` when full or at the end."""
        return self._reason[0]

    @property
    def position(self) -> int:
        """Of the batch that the decoder stands at."""
        return self._cursor.position

    def skip(self, size: int) -> None:
        """Pass over the batch that the decoder stands at, which has `size` bytes."""
        self._cursor.position += size
        self._cursor.record = 0

    def fill(self, columns: DecodedColumns, limit: int) -> int:
        """Decode at most `limit` more records; returns their number, 0 at the end."""
        return lib.isr_batch_decode(
            self._data,
            len(self._data),
            self._start_offset,
            self._cursor,
            columns.struct,
            min(limit, columns.capacity),
            self._reason,
        )

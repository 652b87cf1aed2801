"""Records from and to columns in Apache Arrow's memory layout, without Arrow: only buffers are exchanged.

A column of byte strings is its bytes, where each item begins in them (32 bits), and a validity bit for each item,
the lowest first (https://arrow.apache.org/docs/format/Columnar.html). A user of Arrow wraps them without copying.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import attrs

from .._native import ffi, lib
from ..errors import BatchTooLargeError, CorruptBatchError, InflatedTooLargeError
from ._build import recompressed
from ._codecs import MAX_INFLATED_BYTES, Compression, codec_number
from ._columns import Buffer, DecodedColumns, Decoder
from ._records import LEAST_RECORD_BYTES, inflated_all
from ._scan import BATCH_OVERHEAD_BYTES, CODEC_MASK, REASONS, TRANSACTIONAL, BatchInfo

Field = Literal["key", "value", "headers"]

_MAX_COLUMN_BYTES = (1 << 31) - 1
_LARGE = 64 << 10
"""Minimum size in bytes of memory that is kept for reuse."""
_LARGEST_KEPT = 16 << 20
_KEPT = 4
"""Columns: those that are being read, and those that are being made meanwhile."""


class ColumnMemory:
    """Memory for columns, used again as soon as nobody looks at it: fresh memory costs a page fault every 4 KiB.

    For one thread.
    """

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """At least `size` bytes, with anything in them."""
        if not _LARGE <= size <= _LARGEST_KEPT:
            return bytearray(size)
        for buffer in self._kept:
            if size <= len(buffer) <= 2 * size and _is_unused(buffer):
                return buffer
        # With some room to spare: the next column has about as many bytes.
        fresh = bytearray(size + size // 8)
        self._kept = [fresh, *self._kept[: _KEPT - 1]]
        return fresh


def _is_unused(buffer: bytearray) -> bool:
    try:
        # Its length cannot change while there is a view of it.
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


@attrs.frozen(slots=True)
class PackedColumn:
    """Byte strings: item i is `data[offsets[i]:offsets[i + 1]]`, or null where its bit in `validity` is 0."""

    offsets: Buffer
    """32-bit integers of this machine's byte order, one more than there are items."""
    data: Buffer
    validity: Buffer | None
    """None: no item is null."""
    null_count: int


@attrs.frozen(slots=True)
class PackedHeaders:
    """The headers of record i are the items `list_offsets[i]` to `list_offsets[i + 1]` of both columns."""

    list_offsets: Buffer
    keys: PackedColumn
    values: PackedColumn
    count: int
    """Of all headers of all records."""


@attrs.frozen(slots=True)
class PackedRecords:
    """Records as columns; those that were not asked for are None."""

    count: int
    offsets: array[int]
    timestamps_ms: array[int]
    key: PackedColumn | None
    value: PackedColumn | None
    headers: PackedHeaders | None


def pack_records(
    data: bytes,
    infos: Sequence[BatchInfo],
    *,
    start_offset: int = 0,
    fields: Collection[Field] = ("key", "value", "headers"),
    max_inflated_bytes: int = MAX_INFLATED_BYTES,
    max_inflated_together: int | None = None,
    memory: ColumnMemory | None = None,
) -> PackedRecords:
    """The records from `start_offset` on of the batches `infos`, which a scan of `data` found.

    They must lie in `data` one behind the other. Control batches are passed over. Each compressed batch may have
    `max_inflated_bytes`, all of them together `max_inflated_together` (None: no bound). With `memory`, keys and
    values lie in memory that is used again when the columns, and what was made of them without copying, are gone.

    Raises:
      CorruptBatchError: Records do not fit their batch. The checksums are for the scan to check.
      UnsupportedCompressionError, InflatedTooLargeError: A batch cannot be decompressed.
      BatchTooLargeError: A column would have over 2 GiB; ask for fewer batches at once.
    """
    wanted = [info for info in infos if not info.is_control and info.next_offset > start_offset]
    total = sum(info.record_count for info in wanted)
    memory = memory or ColumnMemory()
    plain: Buffer = b""
    count = 0
    columns = DecodedColumns(1)
    if total:
        together = (
            len(wanted) * max_inflated_bytes if max_inflated_together is None else max_inflated_together
        )
        plain = _plain(data, wanted, max_inflated_bytes, together)
        # Do not allocate memory by the number of records that a batch claims.
        columns = DecodedColumns(max(1, min(total, len(plain) // LEAST_RECORD_BYTES)))
        decoder = Decoder(plain, start_offset)
        count = decoder.fill(columns, total)
        if decoder.reason != lib.ISR_OK:
            raise CorruptBatchError(wanted[0].position + decoder.position, REASONS[decoder.reason])
    return PackedRecords(
        count,
        columns.offsets[:count],
        columns.timestamps[:count],
        _gathered(plain, columns.key_starts, columns.key_lengths, count, memory) if "key" in fields else None,
        _gathered(plain, columns.value_starts, columns.value_lengths, count, memory)
        if "value" in fields
        else None,
        _gathered_headers(plain, columns, count) if "headers" in fields else None,
    )


def pack_in_parts(
    data: bytes,
    infos: Sequence[BatchInfo],
    *,
    start_offset: int = 0,
    fields: Collection[Field] = ("key", "value", "headers"),
    max_inflated_bytes: int = MAX_INFLATED_BYTES,
    memory: ColumnMemory | None = None,
) -> Iterator[PackedRecords]:
    """As `pack_records`, in as many parts as it takes for each to inflate to `max_inflated_bytes` at most: only a
    single batch that is larger raises InflatedTooLargeError.
    """
    try:
        yield pack_records(
            data,
            infos,
            start_offset=start_offset,
            fields=fields,
            max_inflated_bytes=max_inflated_bytes,
            max_inflated_together=max_inflated_bytes,
            memory=memory,
        )
        return
    except InflatedTooLargeError:
        if len(infos) < 2:
            raise
    middle = len(infos) // 2
    for part in (infos[:middle], infos[middle:]):
        yield from pack_in_parts(
            data,
            part,
            start_offset=start_offset,
            fields=fields,
            max_inflated_bytes=max_inflated_bytes,
            memory=memory,
        )


def _plain(data: bytes, wanted: Sequence[BatchInfo], max_bytes: int, max_together: int) -> Buffer:
    """The batches with nothing between them, none of them compressed; copied only if one was."""
    found = memoryview(data)[wanted[0].position : wanted[-1].position + wanted[-1].size_bytes]
    if any(info.attributes & CODEC_MASK for info in wanted):
        return inflated_all(data, wanted, max_together, max_bytes)
    return found


class _Room:
    """Where C puts a column."""

    def __init__(self, count: int, size: int, memory: ColumnMemory) -> None:
        self._offsets = bytearray(4 * (count + 1))
        self._data = memoryview(memory.take(size))[:size]
        self._validity = bytearray((count + 7) // 8)
        self._keep = [
            ffi.from_buffer("int32_t[]", self._offsets),
            ffi.from_buffer("uint8_t[]", self._data),
            ffi.from_buffer("uint8_t[]", self._validity),
        ]
        offsets, data, validity = self._keep
        self.struct: Any = ffi.new("isr_arrow_room *", (offsets, data, size, validity, 0))

    def column(self) -> PackedColumn:
        nulls = self.struct.nulls
        return PackedColumn(self._offsets, self._data, self._validity if nulls else None, nulls)


def _gathered(
    data: Buffer, starts: array[int], lengths: array[int], count: int, memory: ColumnMemory
) -> PackedColumn:
    sizes = ffi.from_buffer("int32_t[]", lengths)
    size = lib.isr_arrow_measure(sizes, count)
    if size < 0:
        raise BatchTooLargeError(f"{count} keys or values have over {_MAX_COLUMN_BYTES} bytes")
    room = _Room(count, size, memory)
    places = ffi.from_buffer("int64_t[]", starts)
    if lib.isr_arrow_gather(ffi.from_buffer(data), len(data), places, sizes, count, room.struct):
        raise CorruptBatchError(0, REASONS[lib.ISR_BAD_RECORD])
    return room.column()


def _gathered_headers(data: Buffer, columns: DecodedColumns, count: int) -> PackedHeaders:
    source = ffi.from_buffer(data)
    starts = ffi.from_buffer("int64_t[]", columns.header_starts)
    counts = ffi.from_buffer("int32_t[]", columns.header_counts)
    sizes = ffi.new("int64_t[3]")
    if lib.isr_arrow_measure_headers(source, len(data), starts, counts, count, sizes, sizes + 1, sizes + 2):
        raise BatchTooLargeError(f"the headers of {count} records have over {_MAX_COLUMN_BYTES} bytes")
    total, key_bytes, value_bytes = sizes
    fresh = ColumnMemory()
    keys, values = _Room(total, key_bytes, fresh), _Room(total, value_bytes, fresh)
    lists = bytearray(4 * (count + 1))
    if lib.isr_arrow_gather_headers(
        source,
        len(data),
        starts,
        counts,
        count,
        ffi.from_buffer("int32_t[]", lists),
        keys.struct,
        values.struct,
    ):
        raise CorruptBatchError(0, REASONS[lib.ISR_BAD_RECORD])
    return PackedHeaders(lists, keys.column(), values.column(), total)


@attrs.frozen(slots=True)
class ArrowColumn:
    """A column of byte strings as Arrow hands it out: items `first` to `first + count` of its buffers.

    `offsets` None: every item is null. `validity` None: none is.
    """

    count: int
    offsets: Any = None
    data: Any = None
    validity: Any = None
    first: int = 0


@attrs.frozen(slots=True)
class ArrowHeaders:
    """The headers of records as Arrow hands them out: a list of keys and values for each; a null list is empty."""

    count: int
    offsets: Any
    keys: ArrowColumn
    values: ArrowColumn
    validity: Any = None
    first: int = 0


def partition_keys(keys: ArrowColumn, partitions: int) -> array[int]:
    """The partition of each record by its key as all Kafka clients have it (murmur2); -1 for one without a key."""
    column = _Columns(keys)
    out = array("i", [0]) * keys.count
    if lib.isr_arrow_partition(column.structs[0], partitions, ffi.from_buffer("int32_t[]", out)):
        raise ValueError("the column of keys is malformed, or the number of partitions is below 1")
    return out


class BatchBuilder:
    """Builds record batches from rows of columns, as many rows into one as there is room for.

    Args:
      keys, values: Of equal length.
      headers: None: no record has any.
      max_bytes: The greatest size of a batch before compression, header included.
      compression: Compresses each batch as a whole.
    """

    def __init__(
        self,
        keys: ArrowColumn,
        values: ArrowColumn,
        headers: ArrowHeaders | None = None,
        *,
        max_bytes: int,
        compression: Compression = "none",
    ) -> None:
        if keys.count != values.count or (headers is not None and headers.count != values.count):
            raise ValueError("there must be as many keys and headers as values")
        self._codec = codec_number(compression)
        self._columns = _Columns(keys, values)
        self._headers = _Headers(headers)
        self._room = bytearray(max(max_bytes, BATCH_OVERHEAD_BYTES))
        self._taken: Any = ffi.new("int32_t *")

    def build(
        self,
        rows: Any,
        timestamp_ms: int,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> tuple[bytes, int]:
        """A batch of the first of `rows` (a buffer of 32-bit integers), and how many of them it holds.

        Raises BatchTooLargeError if not even the first fits, ValueError if the columns are malformed.
        """
        wanted = ffi.from_buffer("int32_t[]", rows)
        key, value = self._columns.structs
        size = lib.isr_arrow_build(
            ffi.from_buffer("uint8_t[]", self._room),
            len(self._room),
            wanted,
            len(wanted),
            key,
            value,
            self._headers.struct,
            timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            TRANSACTIONAL if transactional else 0,
            self._taken,
        )
        if size < 0:
            raise ValueError("malformed columns: their offsets exceed their data, or a header has no key")
        if size == 0:
            raise BatchTooLargeError(f"a record does not fit a batch of {len(self._room)} bytes")
        batch = memoryview(self._room)[:size]
        return recompressed(batch, self._codec), self._taken[0]


class _Columns:
    """C's view of columns; keeps their buffers alive."""

    def __init__(self, *columns: ArrowColumn) -> None:
        self._keep: list[Any] = []
        self.structs = [ffi.new("isr_arrow_column *", self.fields(column)) for column in columns]

    def fields(self, column: ArrowColumn) -> tuple[Any, ...]:
        if column.offsets is None:
            return ffi.NULL, ffi.NULL, 0, ffi.NULL, 0, column.count
        offsets, validity = self._view("int32_t[]", column.offsets), self._view("uint8_t[]", column.validity)
        _check_room(offsets, validity, column.first, column.count)
        data = self._view("uint8_t[]", column.data)
        size = 0 if column.data is None else len(data)
        return offsets, data, size, validity, column.first, column.count

    def _view(self, kind: str, buffer: Any) -> Any:
        if buffer is None:
            return ffi.NULL
        self._keep.append(ffi.from_buffer(kind, buffer))
        return self._keep[-1]


class _Headers(_Columns):
    """C's view of headers."""

    def __init__(self, headers: ArrowHeaders | None) -> None:
        super().__init__()
        self.struct: Any = ffi.new("isr_arrow_headers *")
        if headers is None:
            return
        offsets, validity = (
            self._view("int32_t[]", headers.offsets),
            self._view("uint8_t[]", headers.validity),
        )
        _check_room(offsets, validity, headers.first, headers.count)
        parts = (self.fields(headers.keys), self.fields(headers.values))
        self.struct = ffi.new(
            "isr_arrow_headers *", (offsets, validity, headers.first, headers.count, *parts)
        )


def _check_room(offsets: Any, validity: Any, first: int, count: int) -> None:
    if first < 0 or first + count + 1 > len(offsets):
        raise ValueError(f"{len(offsets)} offsets do not reach to item {first + count}")
    if validity != ffi.NULL and first + count > 8 * len(validity):
        raise ValueError(f"the validity bits do not reach to item {first + count}")

"""Decoding the records of batches: C finds the fields, Python slices them or leaves them as columns."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs

from .._native import ffi, lib
from ..errors import CorruptBatchError, InvalidRecordsError
from ._codecs import MAX_INFLATED_BYTES, decompress
from ._columns import Buffer, DecodedColumns, Decoder
from ._scan import (
    ATTRIBUTES_AT,
    BATCH_OVERHEAD_BYTES,
    CODEC_MASK,
    LENGTH,
    LENGTH_AT,
    LENGTH_END,
    REASONS,
    BatchInfo,
    scan,
)

_RECORD_CHUNK = 1024
LEAST_RECORD_BYTES = 7
"""Length, attributes, two deltas, two lengths and the number of headers."""
_FIELDS_BEFORE_KEY = 5
"""Of a record: length, attributes, two deltas and the key's length."""
_CODEC_AT = ATTRIBUTES_AT + 1


class Record(NamedTuple):
    """One record as a reader sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def records(
    data: Buffer,
    *,
    start_offset: int = 0,
    max_records: int | None = None,
    max_inflated_bytes: int = MAX_INFLATED_BYTES,
) -> Iterator[Record]:
    """The records of whole batches from `start_offset` on, in order, at most `max_records`.

    Control batches are passed over; compressed ones are decompressed one at a time, each to at most
    `max_inflated_bytes`. Raises CorruptBatchError where the data is not whole batches (their CRC is for `scan` to
    check), UnsupportedCompressionError for an unknown codec, InflatedTooLargeError over the bound; records before
    that are yielded.
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    wanted = max_records if max_records is not None else 1 << 62
    for rows in _chunks(raw, start_offset, wanted, max_inflated_bytes):
        yield from rows


def _chunks(raw: bytes, start_offset: int, wanted: int, max_inflated_bytes: int) -> Iterator[list[Record]]:
    decoder = Decoder(raw, start_offset)
    columns = DecodedColumns(max(1, min(wanted, _RECORD_CHUNK, len(raw) // LEAST_RECORD_BYTES + 1)))
    while wanted > 0:
        asked = min(wanted, columns.capacity)
        count = decoder.fill(columns, asked)
        yield _rows(raw, columns, count)
        wanted -= count
        if decoder.reason == lib.ISR_COMPRESSED:
            size = _batch_size(raw, decoder.position)
            inflated = inflate_batch(raw, decoder.position, size, max_inflated_bytes)
            for rows in _inner_chunks(inflated, start_offset, wanted, decoder.position):
                yield rows
                wanted -= len(rows)
            decoder.skip(size)
        elif decoder.reason != lib.ISR_OK:
            raise CorruptBatchError(decoder.position, REASONS[decoder.reason])
        elif count < asked:
            return


def _inner_chunks(inflated: bytes, start_offset: int, wanted: int, position: int) -> Iterator[list[Record]]:
    """Of a batch that was compressed at `position`."""
    try:
        yield from _chunks(inflated, start_offset, wanted, 0)
    except CorruptBatchError as error:
        raise CorruptBatchError(position, error.reason) from error


def _batch_size(raw: bytes, position: int) -> int:
    return LENGTH.unpack_from(raw, position + LENGTH_AT)[0] + LENGTH_END


def inflate_batch(raw: bytes, position: int, size: int, max_bytes: int) -> bytes:
    """The batch at `position` as if it had never been compressed, but for its CRC."""
    header = bytearray(raw[position : position + BATCH_OVERHEAD_BYTES])
    codec = header[_CODEC_AT] & CODEC_MASK
    packed = memoryview(raw)[position + BATCH_OVERHEAD_BYTES : position + size]
    # A batch that compaction emptied has nothing behind its header, whatever its attributes say.
    unpacked = decompress(codec, packed, max_bytes, position) if packed else b""
    header[_CODEC_AT] &= ~CODEC_MASK
    LENGTH.pack_into(header, LENGTH_AT, BATCH_OVERHEAD_BYTES - LENGTH_END + len(unpacked))
    return b"".join((header, unpacked))


def control_type(batch: Buffer) -> int:
    """Of a whole control batch: 0 aborts the transaction of its producer, 1 commits it (KIP-98); -1 if it is empty.

    From the key of its record: version and type, two bytes each. Control batches are not compressed.
    """
    data, at = bytes(batch)[BATCH_OVERHEAD_BYTES:], 0
    for _ in range(_FIELDS_BEFORE_KEY):
        while at < len(data) and data[at] & 0x80:
            at += 1
        at += 1
    return int.from_bytes(data[at + 2 : at + 4]) if at + 4 <= len(data) else -1


def check_produced(batch: Buffer, info: BatchInfo, *, max_inflated_bytes: int = MAX_INFLATED_BYTES) -> None:
    """Decompress the records of a whole batch, as a producer has sent it, and look at each as `scan_produced` does.

    Raises InvalidRecordsError, CorruptBatchError if it is not what its codec makes, UnsupportedCompressionError,
    InflatedTooLargeError.
    """
    packed = memoryview(batch)[BATCH_OVERHEAD_BYTES:]
    plain = decompress(info.attributes & CODEC_MASK, packed, max_inflated_bytes, info.position)
    view = ffi.from_buffer(plain)
    if lib.isr_batch_check_records(view, len(view), info.record_count) != lib.ISR_OK:
        raise InvalidRecordsError(info.position, REASONS[lib.ISR_BAD_RECORD])


class RecordCheck:
    """Decodes the records of single batches only to see whether that can be done."""

    def __init__(self) -> None:
        self._columns = DecodedColumns(_RECORD_CHUNK)

    def check(self, data: Buffer, info: BatchInfo) -> None:
        """Raise CorruptBatchError, UnsupportedCompressionError or InflatedTooLargeError if it cannot."""
        raw = bytes(data)
        if info.attributes & CODEC_MASK:
            raw = inflate_batch(raw, 0, len(raw), MAX_INFLATED_BYTES)
        decoder = Decoder(raw, 0)
        while decoder.fill(self._columns, _RECORD_CHUNK) == _RECORD_CHUNK:
            pass
        if decoder.reason != lib.ISR_OK:
            raise CorruptBatchError(info.position, REASONS[decoder.reason])


def _rows(raw: bytes, columns: DecodedColumns, count: int) -> list[Record]:
    new = tuple.__new__
    rows = zip(
        columns.offsets[:count],
        columns.timestamps[:count],
        columns.key_starts[:count],
        columns.key_lengths[:count],
        columns.value_starts[:count],
        columns.value_lengths[:count],
        columns.header_starts[:count],
        columns.header_counts[:count],
        strict=True,
    )
    # tuple.__new__ is half the cost of calling the named tuple's class.
    return [
        new(
            Record,
            (
                offset,
                time,
                raw[key : key + key_len] if key_len >= 0 else None,
                raw[value : value + value_len] if value_len >= 0 else None,
                _headers(raw, header, headers) if headers else (),
            ),
        )
        for offset, time, key, key_len, value, value_len, header, headers in rows
    ]


def _headers(raw: bytes, at: int, count: int) -> tuple[tuple[str, bytes | None], ...]:
    found = []
    for _ in range(count):
        key, at = _item(raw, at)
        value, at = _item(raw, at)
        found.append(((key or b"").decode(errors="replace"), value))
    return tuple(found)


def _item(raw: bytes, at: int) -> tuple[bytes | None, int]:
    """A length and that many bytes, both checked by C before."""
    zigzag = shift = 0
    while True:
        byte = raw[at]
        at += 1
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    length = (zigzag >> 1) ^ -(zigzag & 1)
    return (None, at) if length < 0 else (raw[at : at + length], at + length)


@attrs.frozen(slots=True)
class Columns:
    """Records as columns over the data they were decoded from: a length of -1 means null."""

    data: bytes
    offsets: array[int]
    timestamps_ms: array[int]
    key_starts: array[int]
    key_lengths: array[int]
    value_starts: array[int]
    value_lengths: array[int]

    def __len__(self) -> int:
        return len(self.offsets)


def decode_columns(
    data: Buffer, *, start_offset: int = 0, max_inflated_bytes: int = MAX_INFLATED_BYTES
) -> Columns:
    """All records of whole batches from `start_offset` on, without making an object of any.

    Compressed batches are decompressed, together to at most `max_inflated_bytes`; the columns then point into the
    result. Raises as `records` does, but then gives nothing.
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    infos = [
        info
        for info in scan(raw, verify_crc=False)
        if not info.is_control and info.next_offset > start_offset
    ]
    plain = inflated_all(raw, infos, max_inflated_bytes)
    total = sum(info.record_count for info in infos)
    # Do not allocate memory by the number of records that a batch claims.
    columns = DecodedColumns(min(total, len(plain) // LEAST_RECORD_BYTES))
    decoder = Decoder(plain, start_offset)
    count = decoder.fill(columns, total) if total else 0
    if decoder.reason != lib.ISR_OK:
        raise CorruptBatchError(_origin(plain, raw, infos, decoder.position), REASONS[decoder.reason])
    found = (
        columns.offsets,
        columns.timestamps,
        columns.key_starts,
        columns.key_lengths,
        columns.value_starts,
        columns.value_lengths,
    )
    return Columns(plain, *(found if count == total else (column[:count] for column in found)))


def inflated_all(
    data: bytes, infos: Sequence[BatchInfo], max_bytes: int, max_each: int | None = None
) -> bytes:
    """The batches named, none compressed; those that were may inflate to `max_bytes` together, and
    each to `max_each`. `data` itself if none was.
    """
    if not any(info.attributes & CODEC_MASK for info in infos):
        return data
    parts = []
    for info in infos:
        if info.attributes & CODEC_MASK:
            most = max_bytes if max_each is None else min(max_bytes, max_each)
            parts.append(inflate_batch(data, info.position, info.size_bytes, most))
            max_bytes -= len(parts[-1]) - BATCH_OVERHEAD_BYTES
        else:
            parts.append(data[info.position : info.position + info.size_bytes])
    return b"".join(parts)


def _origin(plain: bytes, raw: bytes, infos: Sequence[BatchInfo], position: int) -> int:
    """Where the batch at a position of the decompressed batches came from."""
    if plain is raw:
        return position
    starts = [info.position for info in scan(plain, verify_crc=False)]
    return infos[bisect_right(starts, position) - 1].position

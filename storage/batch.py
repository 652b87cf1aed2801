"""Record batches, Kafka's format v2 (KIP-98): scan, build, restamp and decode.

A batch is a header of 61 bytes and its records. The CRC-32C covers everything from the attributes on, so base
offset and leader epoch, which the leader sets, can change without touching it. Clients and nodes handle whole
batches; the work on single records happens in C, a batch or a column at a time.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs

from ._columns import Buffer, Column, DecodedColumns, Decoder, Headers, encode_headers
from ._native import ffi, lib
from .errors import BatchTooLargeError, CorruptBatchError, StorageError, UnsupportedCompressionError

__all__ = [
    "BATCH_OVERHEAD_BYTES",
    "SEQUENCE_MODULUS",
    "BatchInfo",
    "Buffer",
    "Columns",
    "Headers",
    "Record",
    "build_batch",
    "crc32c",
    "decode_columns",
    "record_overhead_bytes",
    "records",
    "restamp_producer",
    "scan",
    "scan_file",
    "scan_prefix",
    "BatchTooLargeError",
    "CorruptBatchError",
    "StorageError",
    "UnsupportedCompressionError",
]

BATCH_OVERHEAD_BYTES = 61
"""Size of a batch's header."""

SEQUENCE_MODULUS = 1 << 31
"""Sequence numbers go from 0 to 2^31-1 and start again at 0."""

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_TRANSACTIONAL = 1 << 4
_CONTROL = 1 << 5
_SCAN_CHUNK = 256
_RECORD_CHUNK = 1024

_REASONS = {
    lib.ISR_TRUNCATED: "the data ends before the batch does",
    lib.ISR_BAD_MAGIC: "not a batch of format v2",
    lib.ISR_BAD_LENGTH: "its length is shorter than a header",
    lib.ISR_BAD_CRC: "CRC-32C does not match",
    lib.ISR_BAD_HEADER: "offset, count or attributes make no sense",
    lib.ISR_BAD_RECORD: "its records do not fit it",
}

_INFO = struct.Struct("@qqqqqiiiiihh")
assert _INFO.size == ffi.sizeof("isr_batch_info")


@attrs.frozen(slots=True)
class BatchInfo:
    """The header of one whole batch and where it lies. Offsets are the batch's own: in a produce request
    base_offset is still the producer's 0.
    """

    base_offset: int
    position: int
    """Of the first byte in the scanned data."""
    producer_id: int
    base_timestamp: int
    """Milliseconds since 1970, like every timestamp here."""
    max_timestamp: int
    size_bytes: int
    """Header and records."""
    last_offset_delta: int
    leader_epoch: int
    record_count: int
    base_sequence: int
    producer_epoch: int
    attributes: int

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapping at 2^31-1; -1 without a producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_MODULUS

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def compression(self) -> str:
        """`none`, `gzip`, `snappy`, `lz4`, `zstd`, or `codec-N`."""
        return _codec_name(self.attributes & 7)


def _codec_name(codec: int) -> str:
    return _CODECS[codec] if codec < len(_CODECS) else f"codec-{codec}"


def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of the data; pass the result for what came before to go on."""
    view = ffi.from_buffer(data)
    return lib.isr_crc32c(crc, view, len(view))


def _scan(data: Buffer, verify_crc: bool) -> tuple[list[BatchInfo], int, int]:
    view = ffi.from_buffer(data)
    out = ffi.new("isr_batch_info[]", _SCAN_CHUNK)
    raw = ffi.buffer(out)
    consumed, reason = ffi.new("size_t *"), ffi.new("int *")
    found: list[BatchInfo] = []
    while True:
        count = lib.isr_batch_scan(
            view, len(view), consumed[0], verify_crc, out, _SCAN_CHUNK, consumed, reason
        )
        found += [BatchInfo(*fields) for fields in _INFO.iter_unpack(raw[: count * _INFO.size])]
        if count < _SCAN_CHUNK:
            return found, consumed[0], reason[0]


def scan(data: Buffer, *, verify_crc: bool = True) -> list[BatchInfo]:
    """The headers of the batches in `data`, which must be whole and valid.

    Raises CorruptBatchError, naming the position, otherwise.
    """
    found, consumed, reason = _scan(data, verify_crc)
    if reason != lib.ISR_OK:
        raise CorruptBatchError(consumed, _REASONS[reason])
    return found


def scan_prefix(data: Buffer, *, verify_crc: bool = True) -> tuple[list[BatchInfo], int, str | None]:
    """The whole and valid batches that `data` starts with, where they end, and why they end there.

    The reason is None at the end of the data.
    """
    found, consumed, reason = _scan(data, verify_crc)
    return found, consumed, _REASONS.get(reason)


def scan_file(fd: int, start: int, end: int) -> Iterator[BatchInfo]:
    """The headers of the batches in a file's bytes [start, end), which are whole batches; records are not read.

    Positions are those in the file. Raises CorruptBatchError, OSError.
    """
    out = ffi.new("isr_batch_info[]", _SCAN_CHUNK)
    raw = ffi.buffer(out)
    consumed, reason = ffi.new("int64_t *", start), ffi.new("int *")
    while consumed[0] < end:
        count = lib.isr_batch_scan_file(fd, consumed[0], end, out, _SCAN_CHUNK, consumed, reason)
        error = ffi.errno
        yield from [BatchInfo(*fields) for fields in _INFO.iter_unpack(raw[: count * _INFO.size])]
        if reason[0] == lib.ISR_IO_ERROR:
            raise OSError(error, os.strerror(error))
        if reason[0] != lib.ISR_OK:
            raise CorruptBatchError(consumed[0], _REASONS[reason[0]])


def record_overhead_bytes(key_len: int, value_len: int) -> int:
    """The most that one record without headers takes beside its key and value (null counts as 0 bytes).

    Header and sum over the records of `key_len + value_len + overhead` bound the size of a batch.
    """
    lengths = _varint_bytes(key_len) + _varint_bytes(value_len)
    return lengths + _varint_bytes(key_len + value_len + lengths + 17) + 17


def _varint_bytes(value: int) -> int:
    return (value.bit_length() + 7) // 7


def build_batch(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    *,
    timestamps_ms: Sequence[int] | int,
    headers: Sequence[Headers] | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """One batch of the records given as columns of equal length, at least one.

    Base offset is 0 and leader epoch -1 until a leader sets them; the CRC is set. `timestamps_ms` may be one
    for all. Raises ValueError for columns of unequal length, BatchTooLargeError over 2 GiB.
    """
    count = len(values)
    if count == 0 or len(keys) != count or (headers is not None and len(headers) != count):
        raise ValueError("a batch needs at least one record, and as many keys and headers as values")
    times = (
        array("q", [timestamps_ms]) * count if isinstance(timestamps_ms, int) else array("q", timestamps_ms)
    )
    if len(times) != count:
        raise ValueError(f"{len(times)} timestamps for {count} records")
    key, value = Column(keys), Column(values)
    header = Column([None] * count if headers is None else [encode_headers(each) for each in headers])
    # A record's own fields take at most 5+1+10+5+5+5+5 bytes.
    capacity = BATCH_OVERHEAD_BYTES + key.size + value.size + header.size + 36 * count
    out = bytearray(capacity)
    target = ffi.from_buffer(out)
    size = lib.isr_batch_build(
        target,
        capacity,
        count,
        key.struct,
        value.struct,
        header.struct,
        ffi.from_buffer("int64_t[]", times),
        producer_id,
        producer_epoch,
        base_sequence,
        _TRANSACTIONAL if transactional else 0,
    )
    if size < 0:
        raise BatchTooLargeError(
            f"{count} records of {key.size + value.size} bytes do not fit one record batch"
        )
    return bytes(memoryview(out)[:size])


def restamp_producer(batch: Buffer, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """The same batch for another producer id, epoch and sequence, with its CRC anew.

    Raises CorruptBatchError if `batch` is not one whole batch. The old CRC is not checked.
    """
    copy = bytearray(batch)
    if lib.isr_batch_restamp_producer(
        ffi.from_buffer(copy), len(copy), producer_id, producer_epoch, base_sequence
    ):
        raise CorruptBatchError(0, "not one whole batch")
    return bytes(copy)


class Record(NamedTuple):
    """One record as a reader sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _raise_undecodable(data: bytes, position: int, reason: int) -> None:
    if reason == lib.ISR_COMPRESSED:
        raise UnsupportedCompressionError(_codec_name(data[position + 22] & 7))
    if reason != lib.ISR_OK:
        raise CorruptBatchError(position, _REASONS[reason])


def records(data: Buffer, *, start_offset: int = 0, max_records: int | None = None) -> Iterator[Record]:
    """The records of whole batches from `start_offset` on, in order, at most `max_records`.

    Control batches are passed over. Raises CorruptBatchError where the data is not whole batches (their CRC is
    for `scan` to check), UnsupportedCompressionError for an unknown codec; records before that are yielded.
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    decoder = Decoder(raw, start_offset)
    wanted = max_records if max_records is not None else 1 << 62
    columns = DecodedColumns(min(wanted, _RECORD_CHUNK, len(raw) // 7 + 1)) if wanted > 0 else None
    while columns is not None and wanted > 0:
        count = decoder.fill(columns, wanted)
        yield from _rows(raw, columns, count)
        _raise_undecodable(raw, decoder.position, decoder.reason)
        if count < min(wanted, columns.capacity):
            return
        wanted -= count


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


def decode_columns(data: Buffer, *, start_offset: int = 0) -> Columns:
    """All records of whole batches from `start_offset` on, without making an object of any.

    Raises as `records` does, but then gives nothing.
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    total = sum(info.record_count for info in scan(raw, verify_crc=False) if not info.is_control)
    columns = DecodedColumns(total)
    decoder = Decoder(raw, start_offset)
    count = decoder.fill(columns, total) if total else 0
    _raise_undecodable(raw, decoder.position, decoder.reason)
    return Columns(
        raw,
        columns.offsets[:count],
        columns.timestamps[:count],
        columns.key_starts[:count],
        columns.key_lengths[:count],
        columns.value_starts[:count],
        columns.value_lengths[:count],
    )

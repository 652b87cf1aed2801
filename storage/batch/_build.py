"""Building record batches from columns, and giving a built one another producer."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from .._native import ffi, lib
from ..errors import BatchTooLargeError, CorruptBatchError
from ._codecs import Compression, codec_number, compress
from ._columns import NO_ITEMS, Buffer, Column, Headers, encode_headers
from ._scan import (
    ATTRIBUTES_AT,
    BATCH_OVERHEAD_BYTES,
    CONTROL,
    LENGTH,
    LENGTH_AT,
    LENGTH_END,
    TRANSACTIONAL,
    crc32c,
)

_RECORD_FIELDS = 36
"""The largest size of a record's own fields: 5+1+10+5+5+5+5 bytes."""
_CRC_AT = 17
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MARKER_KEY = struct.Struct(">hh")
"""Version, then 0 for an abort and 1 for a commit."""
_MARKER_VALUE = struct.Struct(">hi")
"""Version and coordinator epoch."""


def record_overhead_bytes(key_len: int, value_len: int) -> int:
    """The most that one record without headers takes beside its key and value (null counts as 0 bytes).

    Header and sum over the records of `key_len + value_len + overhead` bound the size of a batch.
    """
    lengths = _varint_bytes(key_len) + _varint_bytes(value_len)
    return lengths + _varint_bytes(key_len + value_len + lengths + 17) + 17


def _varint_bytes(value: int) -> int:
    return (value.bit_length() + 7) // 7


def build_batch(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    *,
    timestamps_ms: Sequence[int] | int,
    headers: Sequence[Headers] | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    compression: Compression = "none",
) -> bytes:
    """One batch of the records given as columns of equal length, at least one. `keys` is None if no record has one.

    Base offset is 0 and leader epoch -1 until a leader sets them; the CRC is set. `timestamps_ms` may be one
    for all. Raises ValueError for columns of unequal length, BatchTooLargeError over 2 GiB,
    UnsupportedCompressionError for a codec that does not exist.
    """
    codec = codec_number(compression)
    count = len(values)
    unequal = (keys is not None and len(keys) != count) or (headers is not None and len(headers) != count)
    if count == 0 or unequal:
        raise ValueError("a batch needs at least one record, and as many keys and headers as values")
    times = (
        array("q", [timestamps_ms]) * count if isinstance(timestamps_ms, int) else array("q", timestamps_ms)
    )
    if len(times) != count:
        raise ValueError(f"{len(times)} timestamps for {count} records")
    key, value = NO_ITEMS if keys is None else Column(keys), Column(values)
    header = NO_ITEMS if headers is None else Column([encode_headers(each) for each in headers])
    capacity = BATCH_OVERHEAD_BYTES + key.size + value.size + header.size + _RECORD_FIELDS * count
    out = bytearray(capacity)
    size = lib.isr_batch_build(
        ffi.from_buffer(out),
        capacity,
        count,
        key.struct,
        value.struct,
        header.struct,
        ffi.from_buffer("int64_t[]", times),
        producer_id,
        producer_epoch,
        base_sequence,
        TRANSACTIONAL if transactional else 0,
    )
    if size < 0:
        raise BatchTooLargeError(
            f"{count} records of {key.size + value.size} bytes do not fit one record batch"
        )
    batch = memoryview(out)[:size]
    return _compressed(batch, codec)


def build_marker(
    producer_id: int, producer_epoch: int, *, committed: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """The control batch that ends a producer's transaction in a partition (KIP-98), as `build_batch` makes batches.

    Its record says whether the transaction is committed or aborted, and under which coordinator epoch.
    """
    batch = bytearray(
        build_batch(
            [_MARKER_KEY.pack(0, int(committed))],
            [_MARKER_VALUE.pack(0, coordinator_epoch)],
            timestamps_ms=timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
        )
    )
    (attributes,) = _ATTRIBUTES.unpack_from(batch, ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_AT, attributes | CONTROL)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)


def recompressed(batch: memoryview, codec: int) -> bytes:
    """A batch that compaction thinned out, compressed as it was before; one without records is as it is."""
    return _compressed(batch, codec) if len(batch) > BATCH_OVERHEAD_BYTES else bytes(batch)


def compressed(batch: memoryview, compression: Compression) -> bytes:
    """The same batch, which is not compressed, with its records compressed.

    Raises UnsupportedCompressionError for a codec that does not exist.
    """
    return _compressed(batch, codec_number(compression))


def _compressed(batch: memoryview, codec: int) -> bytes:
    """The same batch with its records compressed, which stays so all the way to the reader; codec 0 copies it."""
    if not codec:
        return bytes(batch)
    records = compress(codec, batch[BATCH_OVERHEAD_BYTES:])
    out = bytearray(batch[:BATCH_OVERHEAD_BYTES])
    (attributes,) = _ATTRIBUTES.unpack_from(out, ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(out, ATTRIBUTES_AT, attributes | codec)
    out += records
    LENGTH.pack_into(out, LENGTH_AT, len(out) - LENGTH_END)
    _CRC.pack_into(out, _CRC_AT, crc32c(memoryview(out)[ATTRIBUTES_AT:]))
    return bytes(out)


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

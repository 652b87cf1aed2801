"""The headers of record batches: what they say, and finding them in bytes and files."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from .._native import ffi, lib
from ..errors import CorruptBatchError, InvalidRecordsError
from ._codecs import codec_name
from ._columns import Buffer

BATCH_OVERHEAD_BYTES = 61
"""Size of a batch's header."""

SEQUENCE_MODULUS = 1 << 31
"""Sequence numbers go from 0 to 2^31-1 and start again at 0."""

CODEC_MASK = 7
TRANSACTIONAL = 1 << 4
CONTROL = 1 << 5

LENGTH_AT, LENGTH_END = 8, 12
"""Where a batch says how many bytes follow, and from where it counts them."""
LENGTH = struct.Struct(">i")
ATTRIBUTES_AT = 21
"""Also where the bytes under the CRC begin."""

_SCAN_CHUNK = 256

REASONS = {
    lib.ISR_TRUNCATED: "the data ends before the batch does",
    lib.ISR_BAD_MAGIC: "not a batch of format v2",
    lib.ISR_BAD_LENGTH: "its length is shorter than a header",
    lib.ISR_BAD_CRC: "CRC-32C does not match",
    lib.ISR_BAD_HEADER: "its offset, count or attributes are invalid",
    lib.ISR_BAD_RECORD: "its records do not match its header",
}

ROW_FORMAT = "@qqqqqiiiiihh"
_INFO = struct.Struct(ROW_FORMAT)
assert _INFO.size == ffi.sizeof("isr_batch_info")


class BatchInfo(NamedTuple):
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
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def compression(self) -> str:
        """`none`, `gzip`, `snappy`, `lz4`, `zstd`, or `codec-N`."""
        return codec_name(self.attributes & CODEC_MASK)


_info_of = partial(tuple.__new__, BatchInfo)
"""As `BatchInfo._make`, which is a function of Python's."""


def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of the data; pass the result for what came before to go on."""
    view = ffi.from_buffer(data)
    return lib.isr_crc32c(crc, view, len(view))


def _scan(data: Buffer, verify: int) -> tuple[list[BatchInfo], int, int]:
    view = ffi.from_buffer(data)
    size = len(view)
    alone = ffi.new("isr_batch_info *")
    if lib.isr_batch_scan_one(view, size, verify, alone):
        return [_info_of(_INFO.unpack(ffi.buffer(alone)))], size, lib.ISR_OK
    # Room for as many as there can be, and one: a small batch is not worth a table of hundreds.
    room = min(_SCAN_CHUNK, size // BATCH_OVERHEAD_BYTES + 1)
    out = ffi.new("isr_batch_info[]", room)
    raw = ffi.buffer(out)
    consumed, reason = ffi.new("size_t *"), ffi.new("int *")
    found: list[BatchInfo] = []
    while True:
        count = lib.isr_batch_scan(view, size, consumed[0], verify, out, room, consumed, reason)
        found += map(_info_of, _INFO.iter_unpack(raw[: count * _INFO.size]))
        if count < room:
            return found, consumed[0], reason[0]


def scan(data: Buffer, *, verify_crc: bool = True) -> list[BatchInfo]:
    """The headers of the batches in `data`, which must be whole and valid.

    Raises CorruptBatchError, naming the position, otherwise.
    """
    found, consumed, reason = _scan(data, verify_crc)
    if reason != lib.ISR_OK:
        raise CorruptBatchError(consumed, REASONS[reason])
    return found


def scan_produced(data: Buffer, *, verify_crc: bool = True) -> list[BatchInfo]:
    """As `scan`, for what a producer has sent: uncompressed records are looked at as well. There are as many as the
    header says, each at the next offset, and they fill the batch.

    Raises InvalidRecordsError for records that are not so, CorruptBatchError for anything else that is wrong.
    """
    found, consumed, reason = _scan(data, lib.ISR_VERIFY_RECORDS | (lib.ISR_VERIFY_CRC if verify_crc else 0))
    if reason == lib.ISR_BAD_RECORD:
        raise InvalidRecordsError(consumed, REASONS[reason])
    if reason != lib.ISR_OK:
        raise CorruptBatchError(consumed, REASONS[reason])
    return found


def scan_prefix(data: Buffer, *, verify_crc: bool = True) -> tuple[list[BatchInfo], int, str | None]:
    """The whole and valid batches that `data` starts with, where they end, and why they end there.

    The reason is None at the end of the data.
    """
    found, consumed, reason = _scan(data, verify_crc)
    return found, consumed, REASONS.get(reason)


def scan_rows(
    data: Buffer, *, verify_crc: bool = True, capacity: int = 4096
) -> tuple[bytes, int, str | None]:
    """As `scan_prefix`, at most `capacity` batches, as rows for numpy and the like: no object for any batch.

    A row is the fields of `BatchInfo` in their order, 64 bytes of the format `ROW_FORMAT`. The reason is None
    also if only the capacity ends it.
    """
    view = ffi.from_buffer(data)
    out = ffi.new("isr_batch_info[]", capacity)
    consumed, reason = ffi.new("size_t *"), ffi.new("int *")
    count = lib.isr_batch_scan(view, len(view), 0, verify_crc, out, capacity, consumed, reason)
    return ffi.buffer(out)[: count * _INFO.size], consumed[0], REASONS.get(reason[0])


def find_batch(data: Buffer, start: int, *, min_base: int, max_base: int) -> int:
    """Where the first whole and valid batch lies from `start` on, with min_base <= base offset < max_base; or -1.

    For going on behind damage. A record takes at least seven bytes, so offsets cannot rise faster than positions: a
    bound by that keeps batches inside of record values from being taken for the log's own.
    """
    view = ffi.from_buffer(data)
    return lib.isr_batch_search(view, len(view), start, min_base, max_base, -1)


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
        yield from list(map(_info_of, _INFO.iter_unpack(raw[: count * _INFO.size])))
        if reason[0] == lib.ISR_IO_ERROR:
            raise OSError(error, os.strerror(error))
        if reason[0] != lib.ISR_OK:
            raise CorruptBatchError(consumed[0], REASONS[reason[0]])

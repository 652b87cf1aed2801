"""The C of storage under the fuzzer: everything that reads batches, in memory and in files."""

from __future__ import annotations

import os
import random
import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from insync.storage._native import ffi, lib
from insync.storage.batch import CorruptBatchError, build_batch, crc32c, scan_file, scan_prefix, scan_produced
from insync.storage.batch._columns import DecodedColumns, Decoder
from insync.storage.segment._log_scan import ProducerScan, scan_log

from . import _reference as reference
from ._fuzzing import Target

_OPTIONS = struct.Struct(">BBHiii")
_REPAIR, _AT_LEAST_ONE, _GAPS = 1, 2, 32
_FILE_BYTES = 64 * 61
_REASONS = {
    reference.OK: "",
    reference.TRUNCATED: "the data ends",
    reference.BAD_MAGIC: "not a batch",
    reference.BAD_LENGTH: "its length",
    reference.BAD_CRC: "CRC-32C",
    reference.BAD_HEADER: "its offset, count",
    reference.BAD_RECORD: "its records",
    reference.WRONG_OFFSET: "its base offset",
    reference.WRONG_EPOCH: "its leader epoch",
}


class Input(NamedTuple):
    """As a harness reads it."""

    flags: int
    small: int
    medium: int
    first: int
    second: int
    third: int
    data: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Input | None:
        if len(raw) < _OPTIONS.size:
            return None
        found = cls(*_OPTIONS.unpack_from(raw), raw[_OPTIONS.size :])
        return found._replace(data=reference.repaired(found.data)) if found.flags & _REPAIR else found


def _batches(noise: random.Random, count: int, gaps: bool) -> bytes:
    """Some batches that run on, as a log holds them."""
    parts, offset, epoch, sequence = [], 0, 0, 0
    producers = noise.choice(((-1, 1, 2), (7,)))
    for at in range(count):
        records = noise.randrange(1, 5)
        items = [
            None if noise.random() < 0.2 else noise.randbytes(noise.randrange(9)) for _ in range(2 * records)
        ]
        headers = [[("h", None), ("", b"x")] if noise.random() < 0.3 else [] for _ in range(records)]
        data = bytearray(
            build_batch(
                items[:records],
                items[records:],
                timestamps_ms=[noise.randrange(1000) for _ in range(records)],
                headers=headers,
                producer_id=noise.choice(producers),
                producer_epoch=at // 9,
                base_sequence=sequence,
            )
        )
        epoch += noise.random() < 0.3
        data[:8], data[12:16] = offset.to_bytes(8), epoch.to_bytes(4)
        offset, sequence = offset + records + 2 * (gaps and noise.random() < 0.4), sequence + records
        parts.append(bytes(data))
    return b"".join(parts)


def batch_seeds() -> Iterator[bytes]:
    noise = random.Random(1)
    for at in range(40):
        flags = _REPAIR | _AT_LEAST_ONE * (at % 3 == 0) | _GAPS * (at % 2)
        options = (flags, noise.randrange(256), noise.choice((0, 60, 300)), noise.randrange(20))
        packed = _OPTIONS.pack(*options, noise.randrange(40), noise.choice((-1, 0)))
        yield packed + _batches(noise, at % 15, bool(flags & _GAPS))


def compare_batches(raw: bytes) -> None:
    """Scan, search and decode."""
    found = Input.parse(raw)
    if found is None:
        return
    for verify in (False, True):
        infos, end, reason = scan_prefix(found.data, verify_crc=verify)
        expected = reference.scan(found.data, verify=verify)
        assert [_fields(info) for info in infos] == expected[0]
        assert end == expected[1]
        _same_reason(reason or "", expected[2])
    _compare_produced(found.data)
    high = found.second + found.medium
    view = ffi.from_buffer(found.data)
    at = lib.isr_batch_search(view, len(view), found.small, found.first, high, found.third)
    assert at == reference.search(found.data, found.small, found.first, high, found.third)
    _compare_decoding(found)
    assert crc32c(found.data) == reference.crc32c(found.data)


def _compare_produced(data: bytes) -> None:
    expected, end, reason = reference.scan_produced(data)
    try:
        infos = scan_produced(data)
    except CorruptBatchError as error:
        assert error.position == end
        _same_reason(error.reason, reason)
    else:
        assert reason == reference.OK
        assert [_fields(info) for info in infos] == expected


def _fields(info: object) -> reference.Batch:
    return reference.Batch(*(getattr(info, name) for name in reference.Batch._fields))


def _same_reason(text: str, expected: int) -> None:
    begin = _REASONS[expected]
    assert text.startswith(begin), (text, begin)
    assert bool(text) == bool(begin)


def _compare_decoding(found: Input) -> None:
    decoder = Decoder(found.data, found.first)
    columns = DecodedColumns(found.small % 31 + 1)
    rows: list[reference.Row] = []
    while True:
        count = decoder.fill(columns, columns.capacity)
        rows += map(reference.Row, *(part[:count] for part in _columns(columns)))
        if count < columns.capacity or decoder.reason:
            break
    assert (rows, decoder.position, decoder.reason) == reference.decode(found.data, found.first)


def _columns(columns: DecodedColumns) -> list[array[int]]:
    return [getattr(columns, name) for name in DecodedColumns.__slots__[:8]]


def compare_files(raw: bytes) -> None:
    """What recovery finds, and slices with its index."""
    found = Input.parse(raw)
    if found is None or len(raw) > _OPTIONS.size + _FILE_BYTES:
        return
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, found.data)
        _compare_log(found, fd)
    finally:
        os.close(fd)


def _compare_log(found: Input, fd: int) -> None:
    producers, gaps = ProducerScan(), bool(found.flags & _GAPS)
    size = len(found.data)
    log = scan_log(
        fd,
        size,
        base_offset=0,
        interval=found.medium,
        offset=found.third,
        producers=producers,
        gaps=gaps,
    )
    expected = reference.scan_log(found.data, interval=found.medium, offset=found.third, gaps=gaps)
    end = sum(batch.size_bytes for batch in expected.good)
    last_offset = expected.good[-1].next_offset if expected.good else found.third
    assert (log.position, log.offset, log.batches) == (end, last_offset, len(expected.good))
    _same_reason(log.reason, expected.reason)
    assert (bytes(log.index), bytes(log.time_index)) == (expected.index, expected.time_index)
    assert log.epochs == expected.epochs
    assert (log.max_timestamp, log.max_timestamp_offset) == expected.largest
    assert [_producer(each) for each in producers.snapshots()] == expected.producers
    assert [_fields(info) for info in scan_file(fd, 0, end)] == expected.good
    if found.third >= 0 and expected.good and expected.good[0].base_offset <= found.first < log.offset:
        _compare_slice(found, fd, expected, end)


def _producer(snapshot: object) -> reference.Producer:
    batches = tuple(
        (each.base_offset, each.last_offset, each.base_sequence, each.last_sequence)
        for each in snapshot.batches  # type: ignore[attr-defined]
    )
    fields = (getattr(snapshot, name) for name in ("producer_id", "producer_epoch", "timestamp_ms"))
    return reference.Producer(*fields, batches)


def _compare_slice(found: Input, fd: int, log: reference.Log, end: int) -> None:
    index = ffi.from_buffer(log.index)
    segment = ffi.new("isr_segment *", (index, len(index) // 8, 0, end, log.good[-1].next_offset))
    one = bool(found.flags & _AT_LEAST_ONE)
    out = ffi.new("isr_slice *")
    limit = max(found.second, found.first)
    assert lib.isr_batch_slice_file(fd, segment, found.first, limit, found.medium, one, out) == lib.ISR_OK
    got = (out.start_position, out.start_offset, out.stop_position, out.stop_offset)
    assert got == reference.slice_of(log.good, found.first, limit, found.medium, one)


_BATCH = ("isr_batch.c", "isr_crc32c.c")
_FILE = (*_BATCH, "isr_file.c", "isr_log.c")

TARGETS = (
    Target("storage_batch", _BATCH, batch_seeds, compare_batches),
    Target("storage_file", _FILE, batch_seeds, compare_files, max_len=_OPTIONS.size + _FILE_BYTES),
    Target("storage_build", _BATCH),
    Target("storage_crc", ("isr_crc32c.c",)),
    Target("storage_clean", (*_BATCH, "isr_clean.c"), batch_seeds),
)

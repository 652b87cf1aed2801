"""What a producer may send: records that are what the header says, and nothing that readers cannot read."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import cramjam
import pytest

from insync.storage import CorruptBatchError, InflatedTooLargeError, InvalidRecordsError
from insync.storage.batch import (
    BATCH_OVERHEAD_BYTES,
    ColumnMemory,
    build_batch,
    check_produced,
    crc32c,
    decode_columns,
    pack_in_parts,
    pack_records,
    scan,
    scan_produced,
)


def sealed(data: bytes | bytearray) -> bytes:
    """With the right length and CRC."""
    out = bytearray(data)
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def with_records(records: bytes, count: int, *, attributes: int = 0) -> bytes:
    out = bytearray(build_batch([None], [b""], timestamps_ms=0)[:BATCH_OVERHEAD_BYTES]) + records
    struct.pack_into(">h", out, 21, attributes)
    struct.pack_into(">i", out, 23, count - 1)
    struct.pack_into(">i", out, 57, count)
    return sealed(out)


def record(delta: int = 0, *, body: bytes | None = None) -> bytes:
    inner = body if body is not None else bytes([0, 0, 2 * delta]) + b"\x02k\x02v\x00"
    return bytes([2 * len(inner)]) + inner


GOOD = record(0) + record(1) + record(2)

LIES: dict[str, bytes] = {
    "more records than there are": with_records(GOOD, 4),
    "fewer records than there are": with_records(GOOD, 2),
    "two thousand million records": with_records(GOOD, 2**31 - 1),
    "an offset that is left out": with_records(record(0) + record(2), 2),
    "offsets that go back": with_records(record(1) + record(0), 2),
    "garbage": with_records(bytes(range(60, 110)), 1),
    "nothing": with_records(b"", 1),
    "a byte too many": with_records(GOOD + b"\x00", 3),
    "a key that runs out of its record": with_records(record(body=b"\x00\x00\x00\x7ek\x02v\x00"), 1),
    "a key of length -2": with_records(record(body=b"\x00\x00\x00\x03\x02v\x00"), 1),
    "a header without a name": with_records(record(body=b"\x00\x00\x00\x01\x01\x02\x01\x01"), 1),
    "more headers than there are": with_records(record(body=b"\x00\x00\x00\x01\x01\x04\x02h\x01"), 1),
    "a length in six bytes": with_records(record(body=b"\x00\x00\x00\x81\x80\x80\x80\x80\x00\x01\x00"), 1),
    "a length of 33 bits": with_records(record(body=b"\x00\x00\x00\x81\x80\x80\x80\x20\x01\x00"), 1),
    "a record of no bytes": with_records(b"\x00" + GOOD, 4),
}


@pytest.mark.parametrize("name", LIES)
def test_records_that_are_not_what_the_header_says(name: str) -> None:
    with pytest.raises(InvalidRecordsError, match="its records do not match its header"):
        scan_produced(LIES[name])


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_they_are_found_under_compression(name: str, codec: str) -> None:
    lie = LIES[name]
    packed = bytes(getattr(cramjam, codec).compress(lie[BATCH_OVERHEAD_BYTES:]))
    data = sealed(lie[:22] + bytes([{"gzip": 1, "zstd": 4}[codec]]) + lie[23:BATCH_OVERHEAD_BYTES] + packed)
    (info,) = scan_produced(data)
    with pytest.raises((InvalidRecordsError, CorruptBatchError)):
        check_produced(data, info)


def test_what_is_as_it_should_be_passes() -> None:
    keys: list[Any] = [None, b"", b"k" * 70, b"x" * 9000]
    data = build_batch(
        keys,
        [b"v", None, b"", bytes(200)],
        timestamps_ms=[5, 0, 10**12, 7],
        headers=[[("h", None)], [], [], []],
    )
    assert scan_produced(data * 3) == scan(data * 3)
    assert scan_produced(with_records(GOOD, 3))[0].record_count == 3
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        packed = build_batch(keys, keys, timestamps_ms=0, compression=codec)  # type: ignore[arg-type]
        check_produced(packed, scan_produced(packed)[0])


def test_a_bad_crc_is_told_from_bad_records() -> None:
    data = bytearray(with_records(GOOD, 3))
    data[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC-32C") as info:
        scan_produced(data)
    assert not isinstance(info.value, InvalidRecordsError)


def peak(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_lying_count_takes_no_memory() -> None:
    """A count of 2^31 - 1 would be 100 GB of columns."""
    data = LIES["two thousand million records"]

    def fails(decode: Callable[[], object]) -> None:
        with pytest.raises(CorruptBatchError):
            decode()

    assert peak(lambda: fails(lambda: decode_columns(data))) < 1 << 20
    assert peak(lambda: fails(lambda: pack_records(data, scan(data)))) < 1 << 20


def test_batches_that_inflate_together_are_packed_in_parts() -> None:
    one = build_batch([None], [bytes(100_000)], timestamps_ms=0, compression="zstd")
    data = one * 10
    infos = scan(data)
    with pytest.raises(InflatedTooLargeError):
        pack_records(data, infos, max_inflated_together=350_000)
    assert pack_records(data, infos, max_inflated_bytes=350_000).count == 10
    parts = list(pack_in_parts(data, infos, max_inflated_bytes=350_000, memory=ColumnMemory()))
    assert sum(part.count for part in parts) == 10 and len(parts) > 2
    with pytest.raises(InflatedTooLargeError):
        list(pack_in_parts(data, infos, max_inflated_bytes=90_000))


def test_a_bomb_is_refused_within_its_bound() -> None:
    data = build_batch([None], [bytes(64 << 20)], timestamps_ms=0, compression="zstd")
    assert len(data) < 1 << 16
    (info,) = scan_produced(data)

    def bounded() -> None:
        with pytest.raises(InflatedTooLargeError):
            check_produced(data, info, max_inflated_bytes=1 << 20)

    assert peak(bounded) < 4 << 20

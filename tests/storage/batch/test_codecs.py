"""Compressed batches: every codec gives back what went in, Kafka's dialects are read, and no bomb goes off."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.storage import CorruptBatchError, InflatedTooLargeError, UnsupportedCompressionError
from insync.storage.batch import (
    BATCH_OVERHEAD_BYTES,
    build_batch,
    crc32c,
    decode_columns,
    records,
    restamp_producer,
    scan,
)

from ..building import batch
from .test_batch import build, rows

CODECS = ["gzip", "snappy", "lz4", "zstd"]
codecs = pytest.mark.parametrize("codec", CODECS)


def packed(codec: int, payload: bytes, like: bytes) -> bytes:
    """A batch with the header of a plain one and these bytes as its compressed records."""
    out = bytearray(like[:BATCH_OVERHEAD_BYTES]) + payload
    out[22] = out[22] & ~7 | codec
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def big(codec: Any, size: int = 3 << 20) -> bytes:
    """A batch that compresses well below a hundredth."""
    return build_batch([None], [b"x" * size], timestamps_ms=0, compression=codec)


@codecs
@given(rows)
def test_round_trip(codec: Any, found: list) -> None:
    plain, compressed = build(found), build(found, compression=codec, producer_id=7, producer_epoch=1)
    (info,) = scan(compressed)
    assert (info.compression, info.record_count, info.producer_id) == (codec, len(found), 7)
    assert list(records(compressed)) == list(records(plain))
    assert list(records(compressed, start_offset=len(found) - 1)) == list(records(plain))[-1:]


@codecs
def test_compression_pays_and_keeps_the_other_attributes(codec: Any) -> None:
    plain = big("none")
    data = build_batch(
        [None], [b"x" * (3 << 20)], timestamps_ms=0, compression=codec, transactional=True, base_sequence=5
    )
    assert len(data) < len(plain) / 15
    (info,) = scan(data)
    assert info.is_transactional
    assert info.base_sequence == 5
    (again,) = scan(restamp_producer(data, 9, 2, 11))
    assert (again.producer_id, again.base_sequence, again.compression) == (9, 11, codec)


def test_mixed_batches_are_read_in_order() -> None:
    parts, values = [], []
    for at, codec in enumerate(["none", *CODECS, "none"]):
        mine = [f"{codec}-{number}".encode() for number in range(1500)]
        data = bytearray(build_batch([b"k"] * 1500, mine, timestamps_ms=at, compression=codec))  # type: ignore[arg-type]
        struct.pack_into(">q", data, 0, 1500 * at)
        parts.append(bytes(data))
        values += mine
    data = b"".join(parts)
    read = list(records(data))
    assert [each.value for each in read] == values
    assert [each.offset for each in read] == list(range(len(values)))
    assert list(records(data, start_offset=2000, max_records=3000)) == read[2000:5000]
    columns = decode_columns(data, start_offset=2000)
    assert list(columns.offsets) == list(range(2000, len(values)))
    assert [
        columns.data[start : start + length]
        for start, length in zip(columns.value_starts, columns.value_lengths, strict=True)
    ] == values[2000:]


def test_snappy_is_read_with_and_without_frames_and_written_as_java_does() -> None:
    plain = batch(1000, size=100)
    body = plain[BATCH_OVERHEAD_BYTES:]
    raw = packed(2, bytes(cramjam.snappy.compress_raw(body)), plain)
    assert list(records(raw)) == list(records(plain))
    framed = build_batch([None], [b"x" * 100_000], timestamps_ms=0, compression="snappy")
    assert framed[BATCH_OVERHEAD_BYTES:].startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    first = int.from_bytes(framed[BATCH_OVERHEAD_BYTES + 16 :][:4])
    block = framed[BATCH_OVERHEAD_BYTES + 20 :][:first]
    assert cramjam.snappy.decompress_raw_len(block) == 32 << 10


def test_lz4_is_written_in_independent_blocks_and_read_in_either() -> None:
    data = build_batch([None], [b"x" * 300_000], timestamps_ms=0, compression="lz4")
    flags = data[BATCH_OVERHEAD_BYTES + 4]
    assert flags & 0x20, "Kafka's Java client reads no dependent blocks"
    linked = cramjam.lz4.Compressor(block_linked=True)
    plain = batch(5000, size=100)
    linked.compress(plain[BATCH_OVERHEAD_BYTES:])
    frame = bytes(linked.finish())
    assert not frame[4] & 0x20
    assert list(records(packed(3, frame, plain))) == list(records(plain))


def test_a_batch_emptied_by_compaction_holds_nothing() -> None:
    empty = bytearray(packed(4, b"", batch(3)))
    struct.pack_into(">i", empty, 57, 0)
    assert list(records(empty)) == []
    assert len(decode_columns(empty)) == 0
    assert [each.offset for each in records(bytes(empty) + batch(2))] == [0, 1]


@codecs
@pytest.mark.parametrize("read", [lambda *a, **k: list(records(*a, **k)), decode_columns])
def test_a_bomb_is_refused_without_its_memory(codec: Any, read: Callable[..., object]) -> None:
    data = batch() + big(codec, 16 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(InflatedTooLargeError, match=rf"byte {len(batch())}.*{codec}.*{1 << 20}"):
            read(data, max_inflated_bytes=1 << 20)
        # What was read, a copy of it, and room: nothing near the 16 MiB within.
        assert tracemalloc.get_traced_memory()[1] < len(data) * 4 + (4 << 20)
    finally:
        tracemalloc.stop()


@codecs
def test_the_bound_is_exact(codec: Any) -> None:
    data = big(codec)
    size = len(big("none")) - BATCH_OVERHEAD_BYTES
    assert len(next(records(data, max_inflated_bytes=size)).value or b"") == 3 << 20
    with pytest.raises(InflatedTooLargeError):
        next(records(data, max_inflated_bytes=size - 1))
    assert len(decode_columns(data + data, max_inflated_bytes=2 * size)) == 2
    with pytest.raises(InflatedTooLargeError):
        decode_columns(data + data, max_inflated_bytes=2 * size - 1)


@codecs
@given(garbage=st.binary(max_size=200), at=st.integers(0, 400), flip=st.integers(1, 255))
def test_damage_under_a_good_crc_is_an_error_and_never_more(
    codec: Any, garbage: bytes, at: int, flip: int
) -> None:
    number = 1 + CODECS.index(codec)
    good = build_batch([b"k"] * 9, [b"some value"] * 9, timestamps_ms=3, compression=codec)
    flipped = bytearray(good[BATCH_OVERHEAD_BYTES:])
    flipped[at % len(flipped)] ^= flip
    for payload in (garbage, bytes(flipped)):
        bad = packed(number, payload, good)
        for read in (lambda data: list(records(data)), decode_columns):
            try:
                read(batch() + bad)
            except CorruptBatchError as error:
                assert error.position == len(batch())
            except InflatedTooLargeError as error:
                assert error.position == len(batch())


def test_a_false_record_inside_names_the_batch_it_came_in() -> None:
    plain = batch(2)
    bad = packed(1, bytes(cramjam.gzip.compress(plain[BATCH_OVERHEAD_BYTES:-1] + b"\x07")), plain)
    first = build_batch([None], [b"a" * 500], timestamps_ms=0, compression="zstd")
    for read in (lambda data: list(records(data)), decode_columns):
        with pytest.raises(CorruptBatchError, match="do not match its header") as caught:
            read(first + bad)
        assert caught.value.position == len(first)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnsupportedCompressionError, match="brotli"):
        build_batch([None], [b"a"], timestamps_ms=0, compression="brotli")  # type: ignore[arg-type]

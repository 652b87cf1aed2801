"""CRC-32C: published vectors, and all ways of computing it."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.storage._native import ffi, lib
from insync.storage.batch import crc32c

# RFC 3720, B.4, and the check value of the catalogue of CRC algorithms.
VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


def by(way: int, data: bytes, crc: int = 0) -> int:
    return lib.isr_crc32c_by(way, crc, ffi.from_buffer(data), len(data))


WAYS = [partial(by, way) for way in range(lib.isr_crc32c_best_way() + 1)]
"""Those that this processor has."""


@pytest.mark.parametrize("way", [crc32c, *WAYS])
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_published_vectors(way, data: bytes, expected: int) -> None:
    assert way(data) == expected


BLOCKS = [767, 768, 769, 1023, 1024, 1025, 1279, 1280, 2047, 12287, 12288, 12289, 3 * 4096 * 2 + 3 * 256 + 7]


@pytest.mark.parametrize("size", [*BLOCKS, 100_000])
def test_all_ways_agree_around_the_block_sizes(size: int) -> None:
    data = bytes((at * 131 + (at >> 7)) & 0xFF for at in range(size + 8))
    for shift in range(8):
        part = data[shift : shift + size]
        assert {way(part) for way in WAYS} == {crc32c(part)}
        assert {way(part, 0x12345678) for way in WAYS} == {crc32c(part, 0x12345678)}


@given(st.binary(max_size=2000), st.integers(0, 2000), st.integers(1, 4))
def test_can_be_computed_in_parts(data: bytes, cut: int, times: int) -> None:
    data *= times
    for way in WAYS:
        assert way(data[cut:], way(data[:cut])) == crc32c(data)

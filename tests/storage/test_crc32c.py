"""CRC-32C: published vectors, and both ways of computing it."""

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


def portable(data: bytes, crc: int = 0) -> int:
    return lib.isr_crc32c_portable(crc, ffi.from_buffer(data), len(data))


@pytest.mark.parametrize("way", [crc32c, portable])
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_published_vectors(way, data: bytes, expected: int) -> None:
    assert way(data) == expected


@pytest.mark.parametrize("size", [767, 768, 769, 12287, 12288, 12289, 3 * 4096 * 2 + 3 * 256 + 7, 100_000])
def test_instruction_and_tables_agree_around_the_block_sizes(size: int) -> None:
    data = bytes((at * 131 + (at >> 7)) & 0xFF for at in range(size + 8))
    for shift in range(8):
        assert crc32c(data[shift : shift + size]) == portable(data[shift : shift + size])


@given(st.binary(max_size=2000), st.integers(0, 2000))
def test_can_be_computed_in_parts(data: bytes, cut: int) -> None:
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)
    assert portable(data[cut:], portable(data[:cut])) == crc32c(data)

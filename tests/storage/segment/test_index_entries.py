"""Index entries of many batches at once: all that there is room for, in order, whatever the pieces they come in."""

from __future__ import annotations

import struct
import tempfile
from array import array
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from insync.storage._native import ffi
from insync.storage.segment._index import OffsetIndex

BASE = 1_000


@given(
    sizes=st.lists(st.integers(0, 700), max_size=8),
    limit=st.integers(1, 2_000),
    again=st.booleans(),
)
def test_entries_come_in_pieces_of_any_size(sizes: list[int], limit: int, again: bool) -> None:
    expected: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.index"
        index = OffsetIndex(path, BASE)
        index.grow(8 * limit + 7)
        for size in sizes:
            first = len(expected) + 1
            entries = [(10 * number, 100 * number) for number in range(first, first + size)]
            index.add_all(array("i", [field for entry in entries for field in entry]))
            expected = (expected + entries)[:limit]
            assert index.is_full == (len(expected) == limit)
        assert len(index) == len(expected)
        view, count = index.in_c()
        assert count == len(expected)
        assert list(struct.iter_unpack(">ii", ffi.buffer(view)[: 8 * count] if count else b"")) == expected
        for number in range(1, len(expected) + 1, 97):
            assert index.position_for(BASE + 10 * number) == 100 * number
        index.trim()
        assert path.stat().st_size == 8 * len(expected)
        if again:
            assert OffsetIndex(path, BASE).last_entry() == (
                (BASE + expected[-1][0], expected[-1][1]) if expected else (BASE, 0)
            )

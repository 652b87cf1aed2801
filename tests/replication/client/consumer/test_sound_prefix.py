"""How much of an answer can be relied on, when the places of its batches do not fit together."""

from __future__ import annotations

import pytest

from insync.replication.client.consumer._corrupt import sound_prefix
from insync.storage.batch import build_batch


def at(offset: int) -> bytes:
    """A batch of two records whose base offset says so; its CRC does not cover that."""
    data = build_batch([None] * 2, [b"v"] * 2, timestamps_ms=1000)
    return offset.to_bytes(8) + data[8:]


def relied_on(*offsets: int, on_boundary: bool = True) -> list[int]:
    """Of an answer to a fetch from 10 on; the high watermark is 30."""
    data = b"".join(map(at, offsets))
    found = sound_prefix(data, 10, 30, verify_crc=True, on_boundary=on_boundary)
    assert (found.wrong is None) == (len(found.batches) == len(offsets))
    return [each.base_offset for each in found.batches]


@pytest.mark.parametrize(
    ("offsets", "relied"),
    [
        ([10, 12, 14], [10, 12, 14]),
        ([12, 14], [12, 14]),  # compaction leaves gaps
        ([8, 10], []),
        ([10, 11], [10]),
        ([10, 14, 13], [10]),  # either of the two is at a wrong place
        ([10, 12, 13], [10, 12]),
        ([10, 28, 30], [10, 28]),  # the last one follows it: that it ends too far speaks against itself alone
        ([10, 40], [10]),
    ],
)
def test_batches_follow_each_other_and_end_below_the_high_watermark(
    offsets: list[int], relied: list[int]
) -> None:
    assert relied_on(*offsets) == relied


def test_the_first_batch_of_an_answer_holds_what_was_asked_for() -> None:
    assert relied_on(9, 11, on_boundary=False) == [9, 11], "compaction and seeks end within a batch"
    assert relied_on(9, 11) == []
    assert relied_on(8, 10, on_boundary=False) == []

"""Whether two replicas hold the same bytes, and which record stands where they part.

Segments are compared as one stream: leader and follower may roll at different offsets, their bytes may not differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from ....storage.batch import Record
from .segments import SegmentError, read_blocks, segment_files

_CHUNK_BYTES = 1 << 20


@attrs.frozen
class Divergence:
    """The first byte that differs, counted over all segments, and the first record that does."""

    position: int
    offset: int
    key: bytes | None

    def record_key(self) -> bytes | None:
        return self.key


def first_divergence(one: Path, other: Path) -> Divergence | None:
    """Where two replicas' `.log` files begin to differ; None if they are identical."""
    position = _first_different_byte(one, other)
    if position is None:
        return None
    span = _batch_at(one, position) or _batch_at(other, position)
    if span is None:
        return Divergence(position, 0, None)
    offset, key = _first_different_record(_records(one, *span), _records(other, *span), span[0])
    return Divergence(position, offset, key)


def _first_different_byte(one: Path, other: Path) -> int | None:
    position = 0
    for left, right in zip(_chunks(one), _chunks(other), strict=False):
        if left != right:
            common = min(len(left), len(right))
            different = (n for n in range(common) if left[n] != right[n])
            return position + next(different, common)
        position += len(left)
    return None


def _chunks(folder: Path) -> Iterator[bytes]:
    """The bytes of all segments in pieces of one size, but for the last, which is shorter, if need be empty.

    So streams of different lengths differ in a piece that both have.
    """
    rest = b""
    for path in segment_files(folder):
        with path.open("rb") as file:
            while fresh := file.read(_CHUNK_BYTES - len(rest)):
                rest += fresh
                if len(rest) == _CHUNK_BYTES:
                    yield rest
                    rest = b""
    yield rest


def _batch_at(folder: Path, position: int) -> tuple[int, int] | None:
    """Offsets (exclusive end) of the batch that lies over a byte of the stream; None past readable data."""
    start = 0
    try:
        for block in read_blocks(folder):
            if position < start + len(block.data):
                batches = (
                    each for each in block.batches if start + each.position + each.size_bytes > position
                )
                return next((each.base_offset, each.next_offset) for each in batches)
            start += len(block.data)
    except SegmentError as error:
        return error.offset, error.offset + 1
    return None


def _records(folder: Path, start: int, stop: int) -> list[Record]:
    """The readable records with start <= offset < stop."""
    found: list[Record] = []
    try:
        for block in read_blocks(folder):
            if block.batches[-1].next_offset > start:
                found += [each for each in block.records(start) if each.offset < stop]
            if block.batches[-1].next_offset >= stop:
                break
    except SegmentError:
        return found
    return found


def _first_different_record(one: list[Record], other: list[Record], start: int) -> tuple[int, bytes | None]:
    for left, right in zip(one, other, strict=False):
        if left != right:
            return left.offset, left.key
    common = min(len(one), len(other))
    longer = one if len(one) > len(other) else other
    return (longer[common].offset, longer[common].key) if len(longer) > common else (start, None)

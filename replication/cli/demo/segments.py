"""The demo's own reader of a replica's segment files.

It shares nothing with the log, its indexes or the consumer: it takes the `.log` files of a partition's folder
in order and reads batch after batch (record batch format v2) from the first byte to the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from ....storage.batch import BatchInfo, Record, records, scan_prefix

READ_BYTES = 4 << 20


class SegmentError(Exception):
    """A segment file does not hold whole, valid batches whose offsets run on; says which file and where."""

    def __init__(self, path: Path, position: int, offset: int, reason: str) -> None:
        super().__init__(path, position, offset, reason)
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.reason}"


@attrs.frozen
class Block:
    """Whole batches as they lie in a file from `position` on; `data` is valid until the next block is read."""

    path: Path
    position: int
    data: memoryview
    batches: list[BatchInfo]

    def records(self, start_offset: int = 0) -> Iterator[Record]:
        return iter(records(self.data, start_offset=start_offset))


def segment_files(folder: Path) -> list[Path]:
    """The `.log` files of a partition's folder in order of their base offsets."""
    return sorted(folder.glob("*.log"))


def read_blocks(folder: Path) -> Iterator[Block]:
    """All batches of a replica, some megabytes at a time.

    Raises `SegmentError` at the first byte that is not part of a whole valid batch, and at the first batch
    whose base offset does not run on from the one before (or from its file's name).
    """
    next_offset = 0
    for path in segment_files(folder):
        if int(path.stem) != next_offset:
            raise SegmentError(path, 0, next_offset, f"the segment should begin at offset {next_offset}")
        for block in _read_file(path, next_offset):
            contiguous = _contiguous(block, next_offset)
            if contiguous.batches:
                next_offset = contiguous.batches[-1].next_offset
                yield contiguous
            if len(contiguous.batches) < len(block.batches):
                astray = block.batches[len(contiguous.batches)]
                reason = f"the batch has base offset {astray.base_offset}, {next_offset} should follow"
                raise SegmentError(path, block.position + astray.position, next_offset, reason)


def _contiguous(block: Block, next_offset: int) -> Block:
    """The part of a block whose offsets run on."""
    for number, batch in enumerate(block.batches):
        if batch.base_offset != next_offset:
            return Block(block.path, block.position, block.data[: batch.position], block.batches[:number])
        next_offset = batch.next_offset
    return block


def _read_file(path: Path, next_offset: int) -> Iterator[Block]:
    position, rest = 0, b""
    with path.open("rb") as file:
        while True:
            fresh = file.read(READ_BYTES)
            data = rest + fresh
            if not data:
                return
            batches, consumed, reason = scan_prefix(data)
            if not consumed and (not fresh or len(data) > 2 * READ_BYTES):
                raise SegmentError(path, position, next_offset, reason or "a batch is cut short")
            if batches:
                next_offset = batches[-1].next_offset
                yield Block(path, position, memoryview(data)[:consumed], batches)
            position, rest = position + consumed, data[consumed:]

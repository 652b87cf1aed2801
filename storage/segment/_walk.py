"""Going over the bytes of a segment file from end to end, damaged or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .._native import ffi, lib
from ..batch._scan import BATCH_OVERHEAD_BYTES, LENGTH, LENGTH_AT, LENGTH_END, BatchInfo, scan_prefix

_WINDOW = 4 << 20
_MAGIC_AT = 16
_NOTHING_KNOWN = -1


class Found(NamedTuple):
    """Some bytes of a segment: one batch, or what lies between two."""

    position: int
    size_bytes: int
    info: BatchInfo | None
    """None without a batch. With a `reason` these are the batch's own claims, which may be false."""
    reason: str
    """Why the batch is not whole and valid; empty if it is."""

    @property
    def end(self) -> int:
        """Position of the first byte behind it."""
        return self.position + self.size_bytes


def walk(data: memoryview, next_offset: int) -> Iterator[Found]:
    """All of a segment's bytes in order; `next_offset` is where its first batch should begin.

    Behind a damaged batch it goes on with the next that is whole and valid and may belong there.
    """
    position = 0
    while position < len(data):
        infos, consumed, reason = scan_prefix(data[position : position + _WINDOW])
        for info in infos:
            yield Found(position + info.position, info.size_bytes, info, "")
            next_offset = info.next_offset
        position += consumed
        if reason is not None and not consumed:
            found = _one(data, position, next_offset, reason)
            yield found
            position += found.size_bytes
            if found.info is not None:
                next_offset = found.info.next_offset


def _one(data: memoryview, position: int, next_offset: int, reason: str) -> Found:
    """A batch that is damaged, or longer than the window."""
    size = declared_size(data, position)
    if size:
        whole = data[position : position + size]
        infos, _, wrong = scan_prefix(whole)
        if infos:
            return Found(position, size, infos[0], "")
        claims, _, _ = scan_prefix(whole, verify_crc=False)
        if claims and _goes_on(data, position + size, claims[0].next_offset):
            return Found(position, size, claims[0], wrong or reason)
        reason = wrong or reason
    end = _next_valid(data, position + 1, next_offset)
    return Found(position, end - position, None, reason)


def declared_size(data: memoryview, position: int) -> int:
    """The size that the batch at `position` declares; 0 if that cannot be true."""
    if len(data) - position < BATCH_OVERHEAD_BYTES:
        return 0
    size: int = LENGTH.unpack_from(data, position + LENGTH_AT)[0] + LENGTH_END
    return size if BATCH_OVERHEAD_BYTES <= size <= len(data) - position else 0


def _goes_on(data: memoryview, position: int, offset: int) -> bool:
    """Whether the segment ends at `position`, or a batch with that base offset seems to start there."""
    if position == len(data):
        return True
    header = data[position : position + BATCH_OVERHEAD_BYTES]
    return (
        len(header) == BATCH_OVERHEAD_BYTES
        and header[_MAGIC_AT] == 2
        and int.from_bytes(header[:8]) == offset
    )


def _next_valid(data: memoryview, start: int, next_offset: int) -> int:
    """Where the next batch starts that may belong there; the end if there is none.

    A record takes at least seven bytes, so offsets cannot rise faster than positions; this keeps batches inside of
    record values from being taken for the log's own.
    """
    view = ffi.from_buffer(data)
    highest = next_offset + len(data) - start
    found = lib.isr_batch_search(view, len(view), start, next_offset, highest, _NOTHING_KNOWN)
    return found if found >= 0 else len(data)

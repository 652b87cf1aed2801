"""Batches that cannot be read: where they end, and the list of those that a consumer has stepped over."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ....storage.batch import BATCH_OVERHEAD_BYTES, BatchInfo, find_batch, scan_prefix
from ...core.types import PartitionId

_log = logging.getLogger("insync.client")

_REMEMBERED = 1000
_LEAST_RECORD_BYTES = 7
_BASE_OFFSET = slice(0, 8)
_LAST_OFFSET_DELTA = slice(23, 27)


class SkippedRecords(NamedTuple):
    """Offsets [`offset`, `next_offset`) of a partition that a consumer has stepped over, and why."""

    topic: str
    partition: int
    offset: int
    next_offset: int
    reason: str


class Skips:
    """The records that one consumer has skipped, the newest last; of very many only the newest are remembered."""

    def __init__(self) -> None:
        self._found: deque[SkippedRecords] = deque(maxlen=_REMEMBERED)

    def note(self, at: PartitionId, offset: int, next_offset: int, reason: str) -> None:
        """Remember a batch, and log it."""
        self._found.append(SkippedRecords(*at, offset, next_offset, reason))
        _log.warning(
            "%s: skipped offsets %d to %d, which cannot be read (on_corrupt=skip): %s",
            at,
            offset,
            next_offset - 1,
            reason,
        )

    def taken(self) -> list[SkippedRecords]:
        """The skipped records noted since the last call."""
        found = list(self._found)
        self._found.clear()
        return found


class Sound(NamedTuple):
    """The batches that an answer begins with and that can be relied on; what is wrong behind them, if anything."""

    batches: list[BatchInfo]
    end: int
    """Where they end, in bytes."""
    wrong: str | None


def sound_prefix(
    data: bytes, fetch_offset: int, high_watermark: int, *, verify_crc: bool, on_boundary: bool
) -> Sound:
    """Look at what was fetched from `fetch_offset` on; `on_boundary`: where a batch ended that was read before.

    A CRC leaves out the base offset of its batch, which a rotten disk may change as well (batch format v2). So
    batches must also follow each other, and end below the high watermark.
    """
    batches, end, wrong = scan_prefix(data, verify_crc=verify_crc)
    for count, batch in enumerate(batches):
        following = batches[count - 1].next_offset if count else fetch_offset if on_boundary else -1
        if batch.next_offset <= fetch_offset or batch.base_offset < following:
            reason = f"below the next expected offset, {max(fetch_offset, following)}"
        elif batch.next_offset > high_watermark:
            reason = f"too high: the batch ends above the high watermark, {high_watermark}"
        else:
            continue
        if (
            count
            and batch.base_offset < following
            and not _stands_where_due(batches, count - 1, fetch_offset)
        ):
            # Either of the two is at a wrong place, and nothing tells which.
            count -= 1
        wrong = f"byte {batch.position}: its base offset {batch.base_offset} is {reason}"
        return Sound(batches[:count], batches[count].position, wrong)
    return Sound(batches, end, None if wrong is None else f"byte {end}: {wrong}")


def _stands_where_due(batches: Sequence[BatchInfo], index: int, fetch_offset: int) -> bool:
    """Whether a batch begins exactly where the one before it ends."""
    due = batches[index - 1].next_offset if index else fetch_offset
    return batches[index].base_offset == due


def end_of_unreadable(data: bytes, fetch_offset: int, high_watermark: int) -> int:
    """The offset at which to go on behind the batch at the start of `data`, which cannot be read.

    The next sound batch says where it begins. Without one the broken batch's own header is asked; if that makes no
    sense either, one offset is left out, and the node asked again.
    """
    farthest = min(high_watermark, fetch_offset + len(data) // _LEAST_RECORD_BYTES + 1)
    at = find_batch(data, 1, min_base=fetch_offset + 1, max_base=farthest)
    if at >= 0:
        return int.from_bytes(data[at:][_BASE_OFFSET])
    if len(data) >= BATCH_OVERHEAD_BYTES:
        base = int.from_bytes(data[_BASE_OFFSET], signed=True)
        end = base + int.from_bytes(data[_LAST_OFFSET_DELTA], signed=True) + 1
        if base <= fetch_offset < end <= high_watermark:
            return end
    return fetch_offset + 1

"""The records that a reader with `isolation_level=read_committed` gets: none of a transaction before its commit.

Nodes send it what lies below the last stable offset, where every transaction is decided, and say which of them were
aborted (KIP-98).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from ....storage.batch import BatchInfo, marker_of
from ...core.messages import AbortedProducer

CODEC_BITS = 7
"""Of a batch's attributes: which codec its records are compressed with, 0 for none."""


@attrs.frozen(slots=True)
class Chunk:
    """Whole batches of one partition as they came; those records below `start_offset` are not wanted."""

    data: bytes
    batches: list[BatchInfo]
    start_offset: int
    next_offset: int
    is_compressed: bool = attrs.field(init=False)
    """Whether any of its batches is."""

    @is_compressed.default
    def _look_for_codecs(self) -> bool:
        return any(info.attributes & CODEC_BITS for info in self.batches)


def committed(chunk: Chunk, aborted: Sequence[AbortedProducer]) -> Chunk:
    """The chunk without batches of aborted transactions.

    `aborted`: by first offset, those that reach into the chunk, as its leader has told. The transactional batches
    of such a producer count for nothing from there up to its next ABORT marker.
    """
    aborting: set[int] = set()
    upcoming = deque(aborted)
    wanted: list[BatchInfo] = []
    for info in chunk.batches:
        while upcoming and upcoming[0].first_offset < info.next_offset:
            aborting.add(upcoming.popleft().producer_id)
        if info.is_control:
            marker = marker_of(chunk.data[info.position : info.position + info.size_bytes])
            if marker is not None and marker.is_abort:
                aborting.discard(info.producer_id)
        elif info.is_transactional and info.producer_id in aborting:
            continue
        wanted.append(info)
    return (
        chunk
        if len(wanted) == len(chunk.batches)
        else cut(chunk, wanted, chunk.start_offset, chunk.next_offset)
    )


def cut(chunk: Chunk, batches: list[BatchInfo], start_offset: int, next_offset: int) -> Chunk:
    """Some batches of a chunk, as a chunk."""
    if len(batches) == len(chunk.batches):
        return attrs.evolve(chunk, start_offset=start_offset, next_offset=next_offset)
    parts, moved, at = [], [], 0
    for info in batches:
        parts.append(chunk.data[info.position : info.position + info.size_bytes])
        moved.append(info._replace(position=at))
        at += info.size_bytes
    return Chunk(b"".join(parts), moved, start_offset, next_offset)

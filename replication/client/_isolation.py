"""What a reader with `isolation_level=read_committed` gets: nothing of a transaction before it is committed.

A record of a transaction counts if the next marker of its producer says so (KIP-98). So a reader needs no index of
what was aborted: it holds back what comes from the first record on of which no marker tells yet.
"""

from __future__ import annotations

from collections import deque

import attrs

from ...storage.batch import BatchInfo, control_type

_ABORT, _COMMIT = 0, 1
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


@attrs.define(eq=False, slots=True)
class CommittedOnly:
    """Takes the chunks of one partition in order and gives those of which the outcome is known.

    What it holds is bounded by `max_bytes`: past that it looks for markers (`scouting`) and keeps no data, which
    is then read a second time, from `kept_until` on.
    """

    max_bytes: int
    scouting: bool = False
    kept_until: int = -1
    _held: deque[Chunk] = attrs.Factory(deque)
    _held_bytes: int = 0
    _markers: dict[int, deque[tuple[int, bool]]] = attrs.Factory(dict)
    """Of each producer, in order: the offset and whether it commits."""
    _scanned: int = -1

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def take(self, chunk: Chunk) -> list[Chunk]:
        """What can be handed out now that this has come."""
        self._scan(chunk)
        if not self.scouting:
            self._held.append(chunk)
            self._held_bytes += len(chunk.data)
            self.kept_until = chunk.next_offset
        released = []
        while self._held:
            decided = self._decided(self._held[0])
            if decided is None:
                break
            released.append(decided)
        self.scouting = self._held_bytes >= self.max_bytes
        return released

    def _scan(self, chunk: Chunk) -> None:
        for info in chunk.batches:
            if info.is_control and info.base_offset >= self._scanned:
                kind = control_type(chunk.data[info.position : info.position + info.size_bytes])
                if kind in (_ABORT, _COMMIT):
                    marker = (info.base_offset, kind == _COMMIT)
                    self._markers.setdefault(info.producer_id, deque()).append(marker)
        self._scanned = max(self._scanned, chunk.next_offset)

    def _decided(self, chunk: Chunk) -> Chunk | None:
        """The first chunk held, up to the first batch of unknown outcome; None if that is its first one."""
        wanted: list[BatchInfo] = []
        count, end = 0, chunk.next_offset
        for info in chunk.batches:
            outcome = self._outcome(info)
            if outcome is None:
                end = info.base_offset
                break
            count += 1
            if outcome:
                wanted.append(info)
        if not count and chunk.batches:
            return None
        self._held.popleft()
        self._held_bytes -= len(chunk.data)
        if count < len(chunk.batches):
            rest = cut(chunk, chunk.batches[count:], max(chunk.start_offset, end), chunk.next_offset)
            self._held.appendleft(rest)
            self._held_bytes += len(rest.data)
        return cut(chunk, wanted, chunk.start_offset, end)

    def _outcome(self, info: BatchInfo) -> bool | None:
        if not info.is_transactional or info.is_control or not info.record_count:
            return True
        markers = self._markers.get(info.producer_id)
        while markers and markers[0][0] < info.base_offset:
            # Batches are asked about in order, so nobody asks about what it ended any more.
            markers.popleft()
        return markers[0][1] if markers else None


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

"""What a log holds of idempotent producers, and its snapshots on disk.

Only what happened is kept here; what a producer may do next (KIP-98's sequence rules) is not this room's matter.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import attrs

from ._files import replace_file
from ._log_scan import ProducerScan
from ._segment import Segment, segment_path
from .batch import SEQUENCE_MODULUS, BatchInfo, crc32c
from .errors import CorruptBatchError
from .log import ProducedBatch, ProducerSnapshot

WINDOW = 5
SNAPSHOT_SUFFIX = ".snapshot"

_VERSION = 1
_HEADER = struct.Struct(">hIi")  # version, CRC-32C of what follows it, number of entries
_ENTRY = struct.Struct(">qhiqiqiq")
_NO_COORDINATOR, _NO_TRANSACTION = -1, -1


@attrs.define(eq=False, slots=True)
class _Producer:
    epoch: int
    timestamp_ms: int = -1
    batches: deque[ProducedBatch] = attrs.Factory(lambda: deque(maxlen=WINDOW))


class ProducerTable:
    """Fed with every batch of the log in order."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def add(self, info: BatchInfo, base_offset: int) -> None:
        """Take notice of a batch that was written at `base_offset`."""
        if info.producer_id < 0:
            return
        producer = self._producers.get(info.producer_id)
        if producer is None or producer.epoch != info.producer_epoch:
            producer = self._producers[info.producer_id] = _Producer(info.producer_epoch)
        producer.timestamp_ms = info.max_timestamp
        if info.base_sequence >= 0:
            producer.batches.append(
                ProducedBatch(
                    info.base_sequence, info.last_sequence, base_offset, base_offset + info.last_offset_delta
                )
            )

    def absorb(self, later: ProducerScan) -> None:
        """Take the batches that follow those known."""
        for snapshot in later.snapshots():
            producer = self._producers.get(snapshot.producer_id)
            if producer is None or producer.epoch != snapshot.producer_epoch:
                producer = self._producers[snapshot.producer_id] = _Producer(snapshot.producer_epoch)
            producer.timestamp_ms = snapshot.timestamp_ms
            producer.batches.extend(snapshot.batches)

    def cut(self, log_end_offset: int) -> bool:
        """Forget batches at or above the log end; False if that is not enough and the log must be replayed.

        The batches that stay are those before the cut ones, so they still answer a retry of any of the five
        that a producer may have in flight. A producer none of whose batches stays may have older ones.
        """
        for producer in self._producers.values():
            while producer.batches and producer.batches[-1].last_offset >= log_end_offset:
                producer.batches.pop()
            if not producer.batches:
                return False
        return True

    def snapshots(self) -> tuple[ProducerSnapshot, ...]:
        return tuple(
            ProducerSnapshot(producer_id, producer.epoch, tuple(producer.batches), producer.timestamp_ms)
            for producer_id, producer in list(self._producers.items())
        )

    def save(self, path: Path, *, sync: bool = True) -> None:
        """Write Kafka's `.snapshot`, with an entry for each batch that is known, the last one last.

        Kafka writes an entry for a producer's last batch alone, and of several takes the last. But whoever leads
        after a restart has to know any of the five batches that a producer may send again: what it does not know it
        calls out of order, which tells the producer that it is not in the log.

        It has a checksum, so one that is not fsynced does no harm.
        """
        entries = [_encode(snapshot, batch) for snapshot in self.snapshots() for batch in snapshot.batches]
        body = struct.pack(">i", len(entries)) + b"".join(entries)
        replace_file(path, struct.pack(">hI", _VERSION, crc32c(body)) + body, sync=sync)

    @classmethod
    def load(cls, path: Path) -> ProducerTable | None:
        """From a `.snapshot`; None if it is damaged, for the log to be replayed from an earlier one."""
        data = path.read_bytes()
        if len(data) < _HEADER.size:
            return None
        version, crc, count = _HEADER.unpack_from(data)
        whole = len(data) == _HEADER.size + count * _ENTRY.size
        if version != _VERSION or not whole or crc32c(data[6:]) != crc:
            return None
        table = cls()
        table._fill(_ENTRY.iter_unpack(data[_HEADER.size :]))
        return table

    def _fill(self, entries: Iterable[tuple[int, ...]]) -> None:
        for producer_id, epoch, last_sequence, last_offset, delta, timestamp, _, _ in entries:
            producer = self._producers.setdefault(producer_id, _Producer(epoch))
            producer.epoch, producer.timestamp_ms = epoch, timestamp
            base_sequence = (last_sequence - delta) % SEQUENCE_MODULUS
            producer.batches.append(
                ProducedBatch(base_sequence, last_sequence, last_offset - delta, last_offset)
            )


def _encode(snapshot: ProducerSnapshot, batch: ProducedBatch) -> bytes:
    return _ENTRY.pack(
        snapshot.producer_id,
        snapshot.producer_epoch,
        batch.last_sequence,
        batch.last_offset,
        batch.last_offset - batch.base_offset,
        snapshot.timestamp_ms,
        _NO_COORDINATOR,
        _NO_TRANSACTION,
    )


class Tail(NamedTuple):
    """The producers of all batches from `start_offset`, the base of a segment, to the log end."""

    start_offset: int
    producers: ProducerScan


def snapshots_in(folder: Path) -> list[int]:
    """The offsets at which a partition's folder has snapshots, the latest first."""
    return sorted((int(path.stem) for path in folder.glob(f"*{SNAPSHOT_SUFFIX}")), reverse=True)


def replay(folder: Path, segments: Sequence[Segment], tail: Tail | None = None) -> ProducerTable:
    """The producers of a log: its latest good snapshot, and the headers of all batches behind that.

    What `tail` knows is not read again.
    """
    end = segments[-1].end.offset if tail is None else tail.start_offset
    table, start = _latest(folder, end)
    behind = ProducerScan()
    for segment in segments:
        if max(start, segment.base_offset) < min(end, segment.end.offset):
            position = segment.holding(max(start, segment.base_offset)).position
            stopped, reason = behind.add_headers(segment.file.fileno(), position, segment.end.position)
            if reason:
                raise CorruptBatchError(stopped, reason, path=str(segment.path))
    table.absorb(behind)
    if tail is not None:
        table.absorb(tail.producers)
    return table


def _latest(folder: Path, log_end_offset: int) -> tuple[ProducerTable, int]:
    for offset in snapshots_in(folder):
        if offset <= log_end_offset:
            table = ProducerTable.load(segment_path(folder, offset, SNAPSHOT_SUFFIX))
            if table is not None:
                return table, offset
    return ProducerTable(), 0

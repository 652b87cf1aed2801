"""A log's knowledge of idempotent producers, and its snapshots on disk.

Only what happened is kept here; what a producer may do next (KIP-98's sequence rules) is not this room's matter.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import attrs

from ._files import base_offset_in, replace_file
from ._native import lib
from ._opening import patiently, read_file
from ._transactions import CompletedTransaction, Marker
from .batch import SEQUENCE_MODULUS, BatchInfo, crc32c
from .batch._scan import TRANSACTIONAL
from .errors import CorruptBatchError
from .log import ProducedBatch, ProducerSnapshot
from .segment._log_scan import ProducerScan
from .segment._segment import Mended, Segment, segment_path

WINDOW = 5
SNAPSHOT_SUFFIX = ".snapshot"

_VERSION = 1
_HEADER = struct.Struct(">hIi")  # version, CRC-32C of what follows it, number of entries
_ENTRY = struct.Struct(">qhiqiqiq")
_produced = partial(tuple.__new__, ProducedBatch)
_NOTHING = -1
"""Stands for no coordinator epoch, no open transaction, no batch."""


@attrs.define(eq=False, slots=True)
class _Producer:
    epoch: int
    timestamp_ms: int = -1
    batches: deque[ProducedBatch] = attrs.Factory(lambda: deque(maxlen=WINDOW))
    coordinator_epoch: int = _NOTHING
    last_offset: int = -1
    """Below which all lies that is known of it."""

    def enter(self, epoch: int) -> None:
        """Sequences of another epoch say nothing any more; how its transaction stands goes on."""
        if epoch != self.epoch:
            self.epoch, self.batches = epoch, deque(maxlen=WINDOW)


class ProducerTable:
    """Fed with every batch of the log in order."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}
        """First offset of each producer's open transaction, the oldest first."""
        self._transactional_end = 0
        """Above it nothing is known of transactions."""

    def add(
        self, info: BatchInfo, base_offset: int, marker: Marker | None = None
    ) -> CompletedTransaction | None:
        """Take notice of a batch that was written at `base_offset`; the transaction that it ends, if any."""
        _, _, producer_id, _, newest, _, delta, _, _, sequence, epoch, bits = info
        if producer_id < 0:
            return None
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(epoch)
        elif producer.epoch != epoch:
            producer.enter(epoch)
        producer.timestamp_ms = newest
        producer.last_offset = last_offset = base_offset + delta
        if sequence >= 0:
            last_sequence = (sequence + delta) % SEQUENCE_MODULUS
            producer.batches.append(_produced((sequence, last_sequence, base_offset, last_offset)))
        if not bits & TRANSACTIONAL:
            return None
        self._transactional_end = producer.last_offset + 1
        if not info.is_control:
            self._open.setdefault(info.producer_id, base_offset)
        elif marker is not None:
            producer.coordinator_epoch = marker.coordinator_epoch
            return self._complete(info.producer_id, base_offset, marker.is_abort)
        return None

    def _complete(self, producer_id: int, offset: int, is_aborted: bool) -> CompletedTransaction | None:
        """None if none of the transaction's batches is there."""
        first = self._open.pop(producer_id, None)
        if first is None:
            return None
        stable = next(iter(self._open.values()), offset + 1)
        return CompletedTransaction(producer_id, first, offset, stable, is_aborted)

    def absorb(self, later: ProducerScan) -> list[CompletedTransaction]:
        """Take the batches that follow those known; the transactions that end in them, in order."""
        for snapshot in later.snapshots():
            producer = self._producers.get(snapshot.producer_id)
            if producer is None:
                producer = self._producers[snapshot.producer_id] = _Producer(snapshot.producer_epoch)
            producer.enter(snapshot.producer_epoch)
            producer.timestamp_ms = snapshot.timestamp_ms
            producer.batches.extend(snapshot.batches)
            producer.last_offset = later.end_offset - 1
            if snapshot.coordinator_epoch != _NOTHING:
                producer.coordinator_epoch = snapshot.coordinator_epoch
        completed = []
        for producer_id, offset, _, kind in later.steps():
            if kind == lib.ISR_TRANSACTION_BEGUN:
                self._open.setdefault(producer_id, offset)
            else:
                completed.append(self._complete(producer_id, offset, kind == lib.ISR_MARKER_ABORT))
            self._transactional_end = later.end_offset
        return [each for each in completed if each is not None]

    @property
    def has_transactions(self) -> bool:
        """Whether any producer is known to have begun or ended a transaction."""
        return bool(self._open) or any(
            each.coordinator_epoch != _NOTHING for each in self._producers.values()
        )

    def cut(self, log_end_offset: int) -> bool:
        """Forget batches at or above the log end; False if that is not enough and the log must be replayed.

        The batches that stay are those before the cut ones, so they still answer a retry of any of the five
        that a producer may have in flight. A producer none of whose batches stays may have older ones.
        """
        if self._transactional_end > log_end_offset:
            return False
        for producer in self._producers.values():
            was_there = bool(producer.batches)
            while producer.batches and producer.batches[-1].last_offset >= log_end_offset:
                producer.batches.pop()
            if not producer.batches and (was_there or producer.last_offset >= log_end_offset):
                return False
        return True

    def snapshots(self) -> tuple[ProducerSnapshot, ...]:
        return tuple(
            ProducerSnapshot(
                producer_id,
                producer.epoch,
                tuple(producer.batches),
                producer.timestamp_ms,
                producer.coordinator_epoch,
                self._open.get(producer_id, _NOTHING),
            )
            for producer_id, producer in list(self._producers.items())
        )

    def save(self, path: Path, *, sync: bool = True) -> None:
        """Write Kafka's `.snapshot`, with an entry for each batch that is known, the last one last, and one for a
        producer without any.

        Kafka writes an entry for a producer's last batch alone, and of several takes the last. But whoever leads
        after a restart has to know any of the five batches that a producer may send again: what it does not know it
        calls out of order, which tells the producer that it is not in the log.

        It has a checksum, so one that is not fsynced does no harm.
        """
        entries = [
            _encode(snapshot, batch)
            for snapshot in self.snapshots()
            for batch in snapshot.batches or (_NO_BATCH,)
        ]
        body = struct.pack(">i", len(entries)) + b"".join(entries)
        replace_file(path, struct.pack(">hI", _VERSION, crc32c(body)) + body, sync=sync)

    @classmethod
    def load(cls, path: Path) -> ProducerTable | None:
        """From a `.snapshot`; None if it is damaged, for the log to be replayed from an earlier one."""
        data = read_file(path)
        if len(data) < _HEADER.size:
            return None
        version, crc, count = _HEADER.unpack_from(data)
        whole = len(data) == _HEADER.size + count * _ENTRY.size
        if version != _VERSION or not whole or crc32c(data[6:]) != crc:
            return None
        table = cls()
        table._fill(_ENTRY.iter_unpack(data[_HEADER.size :]), base_offset_in(path.stem) or 0)
        return table

    def _fill(self, entries: Iterable[tuple[int, ...]], end_offset: int) -> None:
        begun: dict[int, int] = {}
        for producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator, first in entries:
            producer = self._producers.setdefault(producer_id, _Producer(epoch))
            producer.epoch, producer.timestamp_ms = epoch, timestamp
            producer.coordinator_epoch, producer.last_offset = coordinator, end_offset - 1
            begun[producer_id] = first
            if last_offset != _NOTHING:
                base_sequence = (last_sequence - delta) % SEQUENCE_MODULUS
                producer.batches.append(
                    ProducedBatch(base_sequence, last_sequence, last_offset - delta, last_offset)
                )
        in_order = sorted((first, producer_id) for producer_id, first in begun.items() if first != _NOTHING)
        self._open = {producer_id: first for first, producer_id in in_order}
        if self.has_transactions:
            self._transactional_end = end_offset


_NO_BATCH = ProducedBatch(_NOTHING, _NOTHING, _NOTHING, _NOTHING)


def _encode(snapshot: ProducerSnapshot, batch: ProducedBatch) -> bytes:
    return _ENTRY.pack(
        snapshot.producer_id,
        snapshot.producer_epoch,
        batch.last_sequence,
        batch.last_offset,
        batch.last_offset - batch.base_offset,
        snapshot.timestamp_ms,
        snapshot.coordinator_epoch,
        snapshot.first_offset,
    )


class Tail(NamedTuple):
    """The producers of all batches from `start_offset`, the base of a segment, to the log end."""

    start_offset: int
    producers: ProducerScan


def snapshots_in(folder: Path) -> list[int]:
    """The offsets at which a partition's folder has snapshots, the latest first."""
    names = (name for name in patiently(os.listdir, folder) if name.endswith(SNAPSHOT_SUFFIX))
    found = (base_offset_in(name.removesuffix(SNAPSHOT_SUFFIX)) for name in names)
    return sorted((each for each in found if each is not None), reverse=True)


def has_snapshot(folder: Path, offset: int) -> bool:
    """Whether what producers wrote below an offset can be had without the batches there."""
    return segment_path(folder, offset, SNAPSHOT_SUFFIX).exists()


def replay(
    folder: Path,
    segments: Sequence[Segment],
    tail: Tail | None = None,
    told: Mended = lambda path, why: None,
) -> ProducerTable:
    """The producers of a log: its latest good snapshot, and the headers of all batches behind that.

    Batches that `tail` knows are not read again. told: of snapshots that are damaged.
    """
    end = segments[-1].end.offset if tail is None else tail.start_offset
    table, start = _latest(folder, end, told)
    table.absorb(_scanned(segments, start, end))
    if tail is not None:
        tail.producers.end_offset = segments[-1].end.offset
        table.absorb(tail.producers)
    return table


def completed_since(folder: Path, segments: Sequence[Segment], offset: int) -> list[CompletedTransaction]:
    """The transactions whose markers stand at or above an offset, in order."""
    table, start = _latest(folder, offset)
    ended = table.absorb(_scanned(segments, start, segments[-1].end.offset))
    return [each for each in ended if each.last_offset >= offset]


def _scanned(segments: Sequence[Segment], start: int, end: int) -> ProducerScan:
    found = ProducerScan()
    found.end_offset = end
    for segment in segments:
        if max(start, segment.base_offset) < min(end, segment.end.offset):
            position = segment.holding(max(start, segment.base_offset)).position
            stopped, reason = found.add_headers(segment.file.fileno(), position, segment.end.position)
            if reason:
                raise CorruptBatchError(stopped, reason, path=str(segment.path))
    return found


def _latest(
    folder: Path, log_end_offset: int, told: Mended = lambda path, why: None
) -> tuple[ProducerTable, int]:
    for offset in snapshots_in(folder):
        if offset <= log_end_offset:
            path = segment_path(folder, offset, SNAPSHOT_SUFFIX)
            table = ProducerTable.load(path)
            if table is not None:
                return table, offset
            told(path, "its checksum does not match, or its form is another")
    return ProducerTable(), 0

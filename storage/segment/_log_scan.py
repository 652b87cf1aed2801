"""Going over segment files in C: every batch checked, what the indexes need, and what is said of producers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs

from .._native import ffi, lib
from ..batch._scan import REASONS
from ..log import EpochEntry, ProducedBatch, ProducerSnapshot

_CAPACITY = 1 << 14
_EPOCH = struct.Struct("@qq")
_STEP = struct.Struct("@qqii")
_MISPLACED = {lib.ISR_WRONG_OFFSET, lib.ISR_WRONG_EPOCH}


@attrs.define(eq=False, slots=True)
class LogScan:
    """The findings of a scan. `position` and `offset` are behind the last good batch."""

    position: int
    offset: int
    epoch: int
    """Of the last batch; -1 if there is none."""
    batches: int = 0
    max_timestamp: int = -1
    max_timestamp_offset: int = -1
    reason: str = ""
    """Why the batch at `position` is bad; empty if the file ends there."""
    misplaced: bool = False
    """It is whole and valid, but does not belong there."""
    epochs: list[EpochEntry] = attrs.Factory(list)
    index: bytearray = attrs.Factory(bytearray)
    """The entries of the index and the time index, as the files have them."""
    time_index: bytearray = attrs.Factory(bytearray)


class TransactionStep(NamedTuple):
    """The first batch of a producer's transaction (`type` ISR_TRANSACTION_BEGUN), or the marker that ends it."""

    producer_id: int
    offset: int
    coordinator_epoch: int
    type: int


class ProducerScan:
    """The idempotent producers of the batches that were gone over, each with its last five batches."""

    def __init__(self) -> None:
        self.table = ffi.gc(lib.isr_producers_new(), lib.isr_producers_free)
        if self.table == ffi.NULL:
            raise MemoryError
        self.end_offset = 0
        """Below which all of them lie; whoever goes over the log says so."""

    def add_headers(self, fd: int, start: int, end: int) -> tuple[int, str]:
        """Take the batches of a file's bytes [start, end) by their headers; where it stopped and why.

        The reason is empty at the end. Raises OSError.
        """
        position = ffi.new("int64_t *", start)
        reason = lib.isr_producers_replay(self.table, fd, position, end)
        return position[0], _reason(reason)

    def snapshots(self) -> Iterator[ProducerSnapshot]:
        for at in range(lib.isr_producers_count(self.table)):
            item = lib.isr_producers_at(self.table, at)
            batches = tuple(
                ProducedBatch(each.base_sequence, each.last_sequence, each.base_offset, each.last_offset)
                for each in ffi.unpack(item.batches, item.count)
            )
            yield ProducerSnapshot(
                item.producer_id, item.epoch, batches, item.timestamp, item.coordinator_epoch
            )

    @property
    def has_transactions(self) -> bool:
        return bool(lib.isr_producers_step_count(self.table))

    def steps(self) -> Iterator[TransactionStep]:
        """Where transactions begin and end, in the order of the log. One that was open before begins once more."""
        if not self.has_transactions:
            return iter(())
        raw = ffi.buffer(
            lib.isr_producers_steps(self.table), lib.isr_producers_step_count(self.table) * _STEP.size
        )
        return map(TransactionStep._make, _STEP.iter_unpack(raw[:]))


def scan_log(
    fd: int,
    end: int,
    *,
    base_offset: int,
    interval: int,
    offset: int,
    epoch: int = -1,
    start: int = 0,
    producers: ProducerScan | None = None,
    gaps: bool = False,
) -> LogScan:
    """Check every batch of a file's bytes [start, end): whole, CRC, offsets without a gap, epochs never falling.

    offset: base offset of the first batch; -1 takes any.
    epoch: the least leader epoch.
    gaps: whether offsets may be missing between batches.
    base_offset, interval: of the segment, and the bytes between its index entries.

    Raises OSError.
    """
    state = ffi.new("isr_log_state *", (base_offset, start, offset, -1, -1, -1))
    state.epoch, state.gaps = epoch, gaps
    index, times = (ffi.new("uint8_t[]", _CAPACITY * size) for size in (8, 12))
    epochs = ffi.new("isr_log_epoch[]", _CAPACITY)
    found = ffi.new("isr_log_found *", (index, times, epochs, _CAPACITY))
    table = ffi.NULL if producers is None else producers.table
    result = LogScan(start, offset, epoch)
    reason = lib.ISR_OK
    while state.position < end and reason == lib.ISR_OK:
        found.index_count = found.time_index_count = found.epoch_count = 0
        reason = lib.isr_log_scan(fd, end, interval, state, found, table)
        result.reason = _reason(reason, state)
        result.index += ffi.buffer(index, 8 * found.index_count)
        result.time_index += ffi.buffer(times, 12 * found.time_index_count)
        begun = ffi.buffer(epochs, _EPOCH.size * found.epoch_count)
        result.epochs += map(EpochEntry._make, _EPOCH.iter_unpack(begun[:]))
    result.position, result.offset, result.epoch = state.position, state.offset, state.epoch
    result.batches = state.batches
    result.max_timestamp, result.max_timestamp_offset = state.max_timestamp, state.max_timestamp_offset
    result.misplaced = reason in _MISPLACED
    return result


def _reason(reason: int, state: Any = None) -> str:
    """Empty if all is well."""
    if reason == lib.ISR_IO_ERROR:
        raise OSError(ffi.errno, os.strerror(ffi.errno))
    if reason == lib.ISR_WRONG_OFFSET:
        return f"its base offset is {state.found_offset} instead of {state.offset}"
    if reason == lib.ISR_WRONG_EPOCH:
        return f"its leader epoch {state.found_epoch} is below the {state.epoch} before it"
    return REASONS.get(reason, "")

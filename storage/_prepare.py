"""The checks of an append before it writes, and the bytes that it then writes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import attrs

from ._native import ffi, lib
from ._transactions import Marker, marker_of
from .batch._columns import Buffer
from .batch._scan import BATCH_OVERHEAD_BYTES, CONTROL, LENGTH_AT, LENGTH_END, BatchInfo
from .errors import AppendError
from .log import Chunk, EpochEntry

_HEAD = struct.Struct(">qii")
"""How a batch begins: base offset, length and leader epoch. The fields that a leader sets are all in there."""
_SIZE_AND_DELTA = struct.Struct(">i11xi")
"""Length and last offset delta, from the length on."""
_NOT_NAMED = "the bytes for {} are not the announced batches"
GATHERED_BYTES = 8192
"""Batches of this size or more are written from where they lie; copying smaller ones costs less than two more
buffers in a gathered write."""


def stamped(data: Buffer, base_offset: int, next_offset: int, leader_epoch: int) -> Buffer | None:
    """A copy of batches with new offsets and this epoch; None if their offsets do not end at `next_offset`."""
    copy = bytearray(data)
    end = lib.isr_batch_stamp(ffi.from_buffer(copy), len(copy), base_offset, leader_epoch)
    return copy if end == next_offset else None


def _new_head(data: Buffer, start: int, info: BatchInfo, base_offset: int, leader_epoch: int) -> bytes | None:
    """How the batch at `start` begins in the log; None if the bytes there are not the announced batch."""
    size, delta = info.size_bytes, info.last_offset_delta
    if size < BATCH_OVERHEAD_BYTES or _SIZE_AND_DELTA.unpack_from(data, start + LENGTH_AT) != (
        size - LENGTH_END,
        delta,
    ):
        return None
    return _HEAD.pack(base_offset, size - LENGTH_END, leader_epoch)


class Placed(NamedTuple):
    """Where a batch comes to lie; both offsets are within it, the timestamp is its greatest."""

    base_offset: int
    last_offset: int
    size: int
    max_timestamp: int


@attrs.define(eq=False, slots=True)
class Piece:
    """A chunk ready to be written: its bytes as they go to the file, one buffer behind the other, and each batch's
    place in the log.
    """

    buffers: list[Buffer]
    size: int
    batches: list[Placed]
    infos: Sequence[BatchInfo]
    max_timestamp: int
    skips: bool
    """Offsets are missing before or between the batches."""
    markers: dict[int, Marker]
    """By the base offset of the control batch."""


def prepare(
    name: str, chunks: Sequence[Chunk], offset: int, epoch: int
) -> tuple[list[Piece], list[EpochEntry]]:
    """Pieces that run on from `offset`, and the leader epochs after `epoch` that begin in them.

    An epoch begins where the batch before it ends, also if offsets are missing between them: nobody knows which of
    the two had those.

    Raises AppendError if the chunks are not contiguous or an epoch goes back.
    """
    pieces: list[Piece] = []
    epochs: list[EpochEntry] = []
    placed = _placed
    for chunk in chunks:
        skips = chunk.may_skip and chunk.leader_epoch is None
        wrong = chunk.base_offset < offset if skips else chunk.base_offset != offset
        if wrong or not chunk.batches:
            raise AppendError(
                f"{name} ends at offset {offset}: {len(chunk.batches)} batches at {chunk.base_offset} are "
                "not contiguous"
            )
        batches = []
        size, newest, gap, skipped = 0, -1, False, 0
        markers: dict[int, Marker] = {}
        given = chunk.leader_epoch
        # Unpacked at once, which is the cheapest way to get at several fields; there may be thousands of batches.
        for (
            base,
            _,
            _,
            _,
            newest_of_batch,
            batch_size,
            delta,
            batch_epoch,
            count,
            _,
            _,
            bits,
        ) in chunk.batches:
            if given is not None:
                batch_epoch = given
            else:
                skipped = base - offset
                if skipped < 0 or (skipped and not chunk.may_skip):
                    raise AppendError(f"a batch at offset {base} of {name} should be at {offset}")
            if batch_epoch != epoch:
                _check_epoch(name, offset, batch_epoch, epoch)
                epochs.append(EpochEntry(batch_epoch, offset))
                epoch = batch_epoch
            if skipped:
                offset, gap = base, True
            # What is found by time is records; compaction leaves batches without.
            timestamp = newest_of_batch if count else -1
            batches.append(placed((offset, offset + delta, batch_size, timestamp)))
            if timestamp > newest:
                newest = timestamp
            if bits & CONTROL:
                marker = marker_of(memoryview(chunk.data)[size : size + batch_size])
                if marker is not None:
                    markers[offset] = marker
            size += batch_size
            offset += delta + 1
        if size != len(chunk.data):
            raise AppendError(
                f"{len(chunk.data)} bytes for {name} are not the {len(batches)} announced batches"
            )
        pieces.append(
            Piece(_buffers_of(name, chunk, offset), size, batches, chunk.batches, newest, gap, markers)
        )
    return pieces, epochs


_placed = partial(tuple.__new__, Placed)


def _check_epoch(name: str, offset: int, batch_epoch: int, epoch: int) -> None:
    if batch_epoch < epoch:
        raise AppendError(
            f"a batch at offset {offset} of {name} has leader epoch {batch_epoch}, but {epoch} has begun"
        )


def _buffers_of(name: str, chunk: Chunk, next_offset: int) -> list[Buffer]:
    epoch = chunk.leader_epoch
    if epoch is None:
        return [chunk.data]
    if len(chunk.data) >= GATHERED_BYTES * len(chunk.batches):
        return _gathered(name, chunk, epoch)
    copy = stamped(chunk.data, chunk.base_offset, next_offset, epoch)
    if copy is None:
        raise AppendError(_NOT_NAMED.format(name))
    return [copy]


def _gathered(name: str, chunk: Chunk, leader_epoch: int) -> list[Buffer]:
    """Offsets and epoch set without a copy: new heads, each with the rest of its batch from where it lies."""
    data = memoryview(chunk.data)
    buffers: list[Buffer] = []
    offset, start = chunk.base_offset, 0
    for info in chunk.batches:
        head = _new_head(data, start, info, offset, leader_epoch)
        if head is None:
            raise AppendError(_NOT_NAMED.format(name))
        size = info.size_bytes
        buffers += (head, data[start + _HEAD.size : start + size])
        start += size
        offset += info.last_offset_delta + 1
    return buffers

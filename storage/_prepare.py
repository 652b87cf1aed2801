"""What an append checks before it writes, and the bytes it then writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs

from ._columns import Buffer
from ._native import ffi, lib
from .batch import BatchInfo
from .errors import AppendError
from .log import Chunk, EpochEntry


class Placed(NamedTuple):
    """Where a batch comes to lie; both offsets are within it, the timestamp is its greatest."""

    base_offset: int
    last_offset: int
    size: int
    max_timestamp: int


@attrs.frozen(slots=True)
class Piece:
    """A chunk ready to be written: its bytes as they go to the file, and each batch's place in the log."""

    data: Buffer
    batches: list[Placed]
    infos: Sequence[BatchInfo]


def prepare(
    name: str, chunks: Sequence[Chunk], offset: int, epoch: int
) -> tuple[list[Piece], list[EpochEntry]]:
    """Pieces that run on from `offset`, and the leader epochs after `epoch` that begin in them.

    Raises AppendError if the chunks do not run on or an epoch goes back.
    """
    pieces: list[Piece] = []
    epochs: list[EpochEntry] = []
    for chunk in chunks:
        if chunk.base_offset != offset or not chunk.batches:
            raise AppendError(
                f"{name} ends at offset {offset}: {len(chunk.batches)} batches at {chunk.base_offset} do not run on"
            )
        batches = []
        for info in chunk.batches:
            batch_epoch = _epoch_of(name, chunk, info, offset, epoch)
            if batch_epoch > epoch:
                epochs.append(EpochEntry(batch_epoch, offset))
                epoch = batch_epoch
            batches.append(
                Placed(offset, offset + info.last_offset_delta, info.size_bytes, info.max_timestamp)
            )
            offset += info.last_offset_delta + 1
        pieces.append(Piece(_bytes_of(name, chunk, offset), batches, chunk.batches))
    return pieces, epochs


def _epoch_of(name: str, chunk: Chunk, info: BatchInfo, offset: int, epoch: int) -> int:
    batch_epoch = info.leader_epoch if chunk.leader_epoch is None else chunk.leader_epoch
    if chunk.leader_epoch is None and info.base_offset != offset:
        raise AppendError(f"a batch at offset {info.base_offset} of {name} should be at {offset}")
    if batch_epoch < epoch:
        raise AppendError(
            f"a batch at offset {offset} of {name} has leader epoch {batch_epoch}, but {epoch} has begun"
        )
    return batch_epoch


def _bytes_of(name: str, chunk: Chunk, next_offset: int) -> Buffer:
    size = len(chunk.data)
    if size != sum(info.size_bytes for info in chunk.batches):
        raise AppendError(f"{size} bytes for {name} are not the {len(chunk.batches)} batches named")
    if chunk.leader_epoch is None:
        return chunk.data
    stamped = bytearray(chunk.data)
    view = ffi.from_buffer(stamped)
    reached = lib.isr_batch_stamp(view, view, size, chunk.base_offset, chunk.leader_epoch)
    if reached != next_offset:
        raise AppendError(f"the bytes for {name} are not the batches named")
    return stamped

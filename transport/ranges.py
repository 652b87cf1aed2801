"""File ranges for links that send bytes: read in pieces, and brought into memory first where the disk is slow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TypeGuard

import attrs
import trio

from ._native import lib
from .errors import RangeTruncated
from .parts import Buffer, FileRange, Part

PIECE_BYTES = 256 << 10

_warmers = trio.CapacityLimiter(4)


def is_range(part: Part) -> TypeGuard[FileRange]:
    """Whether a part is a range of a file, not bytes."""
    return not isinstance(part, bytes | bytearray | memoryview)


def pieces(parts: Sequence[Part], piece_bytes: int = PIECE_BYTES) -> Iterator[Buffer]:
    """All the bytes of parts in order; ranges are read in pieces of at most `piece_bytes`, when they are asked for.

    Raises:
      RangeTruncated: A file ends inside its range.
    """
    for part in parts:
        if isinstance(part, bytes | bytearray | memoryview):
            yield _as_bytes(part)
        else:
            yield from range_pieces(part, 0, piece_bytes)


def _as_bytes(part: Buffer) -> Buffer:
    wide = isinstance(part, memoryview) and (part.itemsize != 1 or part.ndim != 1)
    return memoryview(part).cast("B") if wide else part


def range_pieces(part: FileRange, done: int = 0, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The bytes of a range after the first `done`, in pieces. Raises RangeTruncated."""
    while done < part.length:
        piece = os.pread(part.fileno(), min(piece_bytes, part.length - done), part.offset + done)
        if not piece:
            raise truncated(part, done)
        yield piece
        done += len(piece)


def read_range(part: FileRange) -> bytes:
    """The bytes of a range, at once. Raises RangeTruncated."""
    return b"".join(range_pieces(part, 0, part.length))


async def warm(parts: Sequence[Part]) -> None:
    """Bring cold files into memory on another thread: reading them here would block the event loop on the disk."""
    for part in parts:
        if is_range(part) and not is_warm(part):
            await trio.to_thread.run_sync(_read_through, part, limiter=_warmers)


def is_warm(part: FileRange) -> bool:
    """Whether a range can be sent without waiting for a disk, as far as that can be told."""
    return lib.isr_tx_is_warm(part.fileno(), part.offset, part.length) != 0


@attrs.frozen
class RangeRest:
    """The rest of a range of which a part has been sent."""

    whole: FileRange
    offset: int
    length: int

    def fileno(self) -> int:
        return self.whole.fileno()


def after(parts: Sequence[Part], count: int) -> list[Part]:
    """The parts without their first `count` bytes."""
    for index, part in enumerate(parts):
        if isinstance(part, bytes):
            size = len(part)
        else:
            size = memoryview(part).nbytes if isinstance(part, bytearray | memoryview) else part.length
        if count < size:
            if count == 0:
                return list(parts[index:])
            return [_without(part, count), *parts[index + 1 :]]
        count -= size
    return []


def _without(part: Part, count: int) -> Part:
    if isinstance(part, bytes | bytearray | memoryview):
        return memoryview(part).cast("B")[count:]
    return RangeRest(part, part.offset + count, part.length - count)


def truncated(part: FileRange, done: int) -> RangeTruncated:
    """The error for a file that ends `done` bytes after the beginning of its range."""
    return RangeTruncated(
        f"a file ends at byte {part.offset + done}, inside the range of {part.length} bytes from {part.offset} "
        "that was being sent: a log must not be cut while its bytes are on their way"
    )


def _read_through(part: FileRange) -> None:
    with open(os.devnull, "wb") as sink:
        done = 0
        while done < part.length:
            count = os.sendfile(sink.fileno(), part.fileno(), part.offset + done, part.length - done)
            if count == 0:
                return
            done += count

"""Requests and frames on their way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs

from .._in_c import in_c
from ..frames import PAYLOAD_CRC, crc32c_of
from ..parts import Part
from ..ranges import is_range
from ..requests import OnDone


@attrs.define(slots=True, eq=False)
class Pending:
    """A request of ours. `corr` is 0 until it is its turn to be sent."""

    on_done: OnDone | None
    deadline: float
    kind: int
    body: bytes
    parts: Sequence[Part]
    max_response: int
    size: int = 0
    """Bytes of the payload."""
    flags: int = 0
    crc: int = 0
    """Of the payload, see `payload_of`."""
    corr: int = 0

    def __lt__(self, other: Pending) -> bool:
        return self.deadline < other.deadline


class RequestHandle:
    """A request under way."""

    __slots__ = ("_pending", "_withdraw")

    def __init__(self, withdraw: Callable[[Pending], None], pending: Pending) -> None:
        self._withdraw = withdraw
        self._pending = pending

    def cancel(self) -> None:
        """Withdraw it: `on_done` is not called any more, the peer is told. No-op when it is done."""
        self._withdraw(self._pending)


class Outgoing(NamedTuple):
    """A frame to send. `nbytes`: what of it occupies memory. `is_small`: its parts are few bytes, all in memory."""

    head: bytes
    parts: Sequence[Part]
    nbytes: int
    is_small: bool = False


def in_memory(parts: Sequence[Part]) -> int:
    """The bytes of parts that are no ranges of files."""
    return size_of([part for part in parts if not is_range(part)])


@in_c
def size_of(parts: Sequence[Part], /) -> int:
    """The bytes of a payload. ValueError for a memoryview with gaps."""
    size = 0
    for part in parts:
        if type(part) is bytes or isinstance(part, bytes | bytearray):
            size += len(part)
        elif isinstance(part, memoryview):
            if not part.c_contiguous:
                raise ValueError("a part of a payload must be contiguous: copy it with bytes() first")
            size += part.nbytes
        else:
            size += part.length
    return size


@in_c
def payload_of(parts: Sequence[Part], /) -> tuple[int, int, int]:
    """Bytes, flags and CRC of a payload. File ranges have no CRC: computing it would read what sendfile need not.

    ValueError for a memoryview with gaps.
    """
    size = size_of(parts)
    if not parts or any(map(is_range, parts)):
        return size, 0, 0
    return size, PAYLOAD_CRC, crc32c_of(parts)  # type: ignore[arg-type]

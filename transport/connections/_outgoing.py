"""Requests and frames on their way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs

from .. import _framing
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


size_of = _framing.size_of
"""The bytes of a payload."""
payload_of = _framing.payload_of
"""Bytes, flags and CRC of a payload. File ranges have no CRC: computing it would read what sendfile need not."""


def in_memory(parts: Sequence[Part]) -> int:
    """The bytes of parts that are no ranges of files."""
    return size_of([part for part in parts if not is_range(part)])

"""A shard's instructions to its host, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .shard_events import ProducerId


class ReadLog(msgspec.Struct, frozen=True, kw_only=True):
    """Read some of [start, end), off the event loop; answered by `LogRead` or `LogReadFailed` of this epoch."""

    leader_epoch: int
    start: int
    end: int


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """Offer one batch to the partition's own replica, in this turn: acks all, under the shard's leader epoch.

    Answered in the same turn by `Accepted` or `Refused`. `parts`: of each decision in it, whose request it decides
    (None: nobody's) and how many entries are its own.
    """

    write_id: int
    entries: tuple[tuple[Any, Any | None], ...]
    producer: ProducerId | None = None
    parts: tuple[tuple[int | None, int], ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The one reply to a request."""

    request_id: int
    reply: Any


class MarkerApplied(msgspec.Struct, frozen=True, kw_only=True):
    """The marker at `offset` has taken effect here: its coordinator may be told, once it is committed."""

    offset: int


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """For the operator: what has become of a group, and why. It stands in the log, and may be lost with it."""

    group: str
    reason: str
    details: Mapping[str, object]


class Resign(msgspec.Struct, frozen=True, kw_only=True):
    """The log cannot be read: this node must give up the leadership of that epoch, or nobody is served."""

    leader_epoch: int


class Outward(msgspec.Struct, frozen=True, kw_only=True):
    """A state machine's request to others than its log. An answer comes by `Heard` of the same leader epoch."""

    leader_epoch: int
    message: Any


Effect = ReadLog | Write | Answer | MarkerApplied | Noted | Outward | Resign

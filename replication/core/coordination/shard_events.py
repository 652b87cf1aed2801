"""The reports to a shard. Each event is handled in one step, with one reading of the host's clocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..errors import ErrorCode


class ProducerId(NamedTuple):
    """The writer of a transactional batch."""

    producer_id: int
    producer_epoch: int


class Entry(msgspec.Struct, frozen=True):
    """One record of the log, decoded. `key` is None for one that this software does not understand.

    `producer`: set for a record of a transaction; it counts only once its marker says so.
    """

    offset: int
    key: Any | None
    value: Any | None
    producer: ProducerId | None = None


class Marker(msgspec.Struct, frozen=True):
    """The end of a transaction in this log."""

    offset: int
    producer: ProducerId
    committed: bool


class ShardLed(msgspec.Struct, frozen=True, kw_only=True):
    """This node leads the partition since `leader_epoch`, whose first offset is `epoch_start`."""

    leader_epoch: int
    log_start: int
    epoch_start: int


class LogRead(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that a `ReadLog` of that epoch found, in offset order; `next_offset` is where to go on."""

    leader_epoch: int
    entries: tuple[Entry | Marker, ...]
    next_offset: int


class LogReadFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The outstanding `ReadLog` of that epoch found nothing that can be read."""

    leader_epoch: int


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request, answered by exactly one `Answer`, at `deadline` (monotonic) at the latest.

    `leader_epoch`: of the coordinator that the sender means; -1 if it does not say. A copy that comes so late that
    this node has lost the partition and leads it again is not meant for what it is now.

    `more`: what it leads to may be written together with others; the host tells `Flush` soon.

    `since`: as in a `Contacted` that comes right before it; minus infinity if the host does not say.
    """

    request_id: int
    message: Any
    deadline: float
    leader_epoch: int = -1
    more: bool = False
    since: float = float("-inf")


class Flush(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions that were gathered from `Ask`s with `more` are to be written now, as one batch."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The log has taken the `Write` at `base_offset`: it is applied, and may yet be lost with the leadership."""

    write_id: int
    base_offset: int


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The log has not taken the `Write`, and never will."""

    write_id: int
    error: ErrorCode


class Advanced(msgspec.Struct, frozen=True, kw_only=True):
    """All in-sync replicas have what lies below `high_watermark`."""

    high_watermark: int


class Contacted(msgspec.Struct, frozen=True, kw_only=True):
    """At `since` (monotonic) every member of the maximal ISR still followed this leader."""

    since: float


class MarkerWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction's marker stands in the log; told in offset order with all `Accepted`."""

    marker: Marker


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an `Outward` effect of that leader epoch, in the state machine's own words."""

    leader_epoch: int
    message: Any


class ViewChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The topics of the cluster, as the state machine reads them."""

    view: Any


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """The time of `Shard.deadline` has come; what arrived before it has been told before it."""


class ShardEnded(msgspec.Struct, frozen=True, kw_only=True):
    """This node does not lead the partition any more; who does, as far as it knows."""

    leader: int = -1
    leader_epoch: int = -1


Event = (
    ShardLed
    | LogRead
    | LogReadFailed
    | Ask
    | Flush
    | Accepted
    | Refused
    | Advanced
    | Contacted
    | MarkerWritten
    | Heard
    | ViewChanged
    | Tick
    | ShardEnded
)

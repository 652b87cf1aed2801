"""The reports to a broker. Events are handled one after the other, each with one reading of the driver's clock."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from ..control.admin_requests import Request as AdminRequest
from ..control.controller import AskReplicas
from ..control.view import ClusterView
from ..coordination.shard_events import Entry, Marker
from ..messages import DeleteRecordsRequest, FetchRequest, Kind, ProduceRequest, ReadIndexRequest
from ..partition import events as ev
from ..store_transaction import Outcome, Seen
from ..types import PartitionId
from .producing.payloads import Payload


class Report(NamedTuple):
    """Something that one replica is to know: above all what became of an effect on its log.

    Of a replica that has gone meanwhile it is ignored.
    """

    partition: PartitionId
    event: ev.Event


class LogFound(NamedTuple):
    """At the start of a process: a log of an earlier one, which is open, or cannot be used.

    `is_damaged`: it cannot be used because what it holds is damaged, so that another copy will do.
    """

    partition: PartitionId
    topic_id: str
    event: ev.Opened | ev.LogFailed
    is_damaged: bool = False


class LogDeleted(NamedTuple):
    """The log that `effects.DeleteLog` or `effects.SetLogAside` named is gone from its place."""

    partition: PartitionId


class LogChecked(NamedTuple):
    """The check of an `effects.CheckLog` is done. `damage`: what is wrong, for the operator; None if nothing is, or
    nothing is there (any more).
    """

    check: int
    partition: PartitionId
    damage: object | None


class ViewRead(NamedTuple):
    """The current content of the metadata store, never older than our registration: see `RecordChanged`."""

    view: ClusterView


class KeysRead(NamedTuple):
    """The values that `effects.ReadKeys` asked for, by key; None if the store could not be read."""

    seen: Mapping[str, Seen] | None


class IsrsWritten(NamedTuple):
    """The outcome of `effects.WriteIsrs`."""

    outcome: Outcome


# Connections to other nodes


class Connected(msgspec.Struct, frozen=True, kw_only=True):
    """A `Dial` has succeeded. hands_over_files: payloads arrive as files, which no wire carries."""

    dial: int
    connection: Hashable
    hands_over_files: bool = False


class DialFailed(msgspec.Struct, frozen=True, kw_only=True):
    """refused: the peer's machine answers that no process listens at the address."""

    dial: int
    reason: str
    refused: bool = False


class PeerDisconnected(msgspec.Struct, frozen=True, kw_only=True):
    """A dialled connection has ended, by either side."""

    connection: Hashable
    reason: str


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an `Ask`, decoded; an answer to a question that was given up changes nothing."""

    question: int
    message: object
    payload: Payload


class AskFailed(msgspec.Struct, frozen=True, kw_only=True):
    """An `Ask` gets no answer. malformed: what came cannot be decoded."""

    question: int
    reason: str
    malformed: bool = False


# Requests of others


class Peer(Protocol):
    """The identity that the other end of a connection has proved. `node_id`: negative for clients."""

    @property
    def node_id(self) -> int: ...

    @property
    def principal(self) -> str: ...


class FetchArrived(NamedTuple):
    """A fetch request. `connection` and `request` are the driver's own names; both are compared by identity."""

    connection: Hashable
    request: Hashable
    message: FetchRequest
    peer: Peer


class ProduceArrived(NamedTuple):
    """A produce request. The payload may be read during this step only; batches that are appended stay."""

    request: Hashable
    message: ProduceRequest
    payload: Payload


class DeleteRecordsArrived(NamedTuple):
    """A request to delete what lies below given offsets."""

    request: Hashable
    message: DeleteRecordsRequest


class ReadIndexArrived(NamedTuple):
    """A request for the current offsets of partitions."""

    request: Hashable
    message: ReadIndexRequest


class ForwardArrived(NamedTuple):
    """An admin request that this node is to pass on to the controller."""

    request: Hashable
    kind: Kind
    message: AdminRequest


class AskLogs(NamedTuple):
    """The controller of this node wants to know what logs hold; `effects.LogsGathered` follows."""

    asked: AskReplicas


class Cancelled(NamedTuple):
    """The sender of a request does not wait for its answer any more."""

    request: Hashable


class Disconnected(NamedTuple):
    """A connection has ended, and nothing is in flight on it any more."""

    connection: Hashable


class CoordinationArrived(NamedTuple):
    """A request to a coordinator, answered by exactly one `effects.CoordinatorReply`."""

    request: Hashable
    message: object


class OutsideAnswered(NamedTuple):
    """The answer to an `effects.AskOutside`."""

    partition: PartitionId
    leader_epoch: int
    message: object


class ShardRead(NamedTuple):
    """The entries that an `effects.ReadShard` found, in order; `entries` None: nothing that can be read.

    `next_offset`: where to read on; above the start even if compaction has left nothing there.
    """

    partition: PartitionId
    reading: int
    entries: tuple[Entry | Marker, ...] | None
    next_offset: int


class Warmed(NamedTuple):
    """The read that `effects.Warm` asked for is done, or has failed: the log says so when it is read."""

    partition: PartitionId
    offset: int


Event = (
    Report
    | LogFound
    | LogDeleted
    | LogChecked
    | ViewRead
    | KeysRead
    | IsrsWritten
    | Connected
    | DialFailed
    | PeerDisconnected
    | Answered
    | AskFailed
    | FetchArrived
    | ProduceArrived
    | DeleteRecordsArrived
    | ReadIndexArrived
    | ForwardArrived
    | AskLogs
    | Cancelled
    | Disconnected
    | CoordinationArrived
    | OutsideAnswered
    | ShardRead
    | Warmed
)

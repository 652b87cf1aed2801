"""A broker's instructions to its driver. The driver carries effects out in the order in which they stand.

Those of replicas are in `partition.effects`; the outcome of each on a log is reported by `events.Report`.

The most frequent are tuples: a record causes several of them, and a tuple costs a third of a value of attrs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

import msgspec

from ..control.elections import LogInfo
from ..control.records import NodeRecord, TopicConfig
from ..errors import ErrorCode
from ..messages import FetchResponse, Kind
from ..partition import effects as fx
from ..partition import events as ev
from ..store_transaction import Transaction
from ..types import PartitionId


class CreateLog(NamedTuple):
    """Make an empty log for a replica that the node was given; `events.Report` of `Opened` when there is one."""

    partition: PartitionId
    topic_id: str


class DeleteLog(NamedTuple):
    """The node holds no replica of the partition any more: delete the log; `events.LogDeleted` when it is gone.

    Nothing of the log is outstanding, and nothing that it still does is reported.
    """

    partition: PartitionId


class SetLogAside(NamedTuple):
    """The node can no longer use the log, and nothing shows that anybody gave its records up: keep it under another
    name, as a stray log. `events.LogDeleted` when the partition's own name is free.
    """

    partition: PartitionId
    why: str


class ConfigureLog(NamedTuple):
    """The topic has other settings now."""

    partition: PartitionId
    config: TopicConfig


# Connections to other nodes


class Dial(msgspec.Struct, frozen=True, kw_only=True):
    """Connect to a node, at the nearest of its endpoints. Answered by `Connected` or `DialFailed`, or never."""

    dial: int
    peer: int
    lane: str
    endpoints: tuple[str, ...]
    timeout: float


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Send a request. Answered by `Answered` or `AskFailed` within `timeout` seconds.

    raw: `Answered.message` is to be the body as it came, for somebody else to read.
    """

    question: int
    connection: Hashable
    kind: Kind
    message: object
    timeout: float
    raw: bool = False


class GiveUp(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody waits for this question any more."""

    question: int


class HangUp(msgspec.Struct, frozen=True, kw_only=True):
    """End a connection that was dialled."""

    connection: Hashable
    reason: str


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A node is gone, for this reason: have it elected away now.

    Its session would end by itself, later. If it lives after all, it registers again; failover is fenced, so the
    suspicion costs an election and nothing else.
    """

    node: NodeRecord
    reason: str
    silent_to: tuple[int, ...] = ()
    """The nodes that agree, if it is gone because it is silent."""


class SuspicionWrong(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was taken for silent has registered again at once: say so, and count it."""

    node: NodeRecord


class PeerFailing(msgspec.Struct, frozen=True, kw_only=True):
    """For the operator: a leader cannot be fetched from. Told once until a fetch succeeds again.

    malformed: it answers, and what it answers is not a fetch response; the connection is closed.
    """

    peer: int
    reason: str
    malformed: bool


class PartitionDamaged(msgspec.Struct, frozen=True, kw_only=True):
    """For the operator: what `peer` sends of this partition is damaged. Told once for each reason."""

    partition: PartitionId
    peer: int
    reason: str


# ISR changes

Settled = ev.IsrStored | ev.IsrRefused | ev.IsrUnclear


class ReadKeys(NamedTuple):
    """Read what stands under these keys now; answered by `events.KeysRead`. One is asked for at a time."""

    keys: tuple[str, ...]


class WriteIsrs(NamedTuple):
    """Carry out a transaction of ISR changes, of those `proposals`; answered by `events.IsrsWritten`."""

    transaction: Transaction
    proposals: tuple[fx.ProposeIsr, ...]


class IsrSettled(NamedTuple):
    """For the operator: what became of a change that a leader here has proposed."""

    proposal: fx.ProposeIsr
    outcome: Settled


# Requests of others


class Answer(NamedTuple):
    """Answer a fetch request: `parts` are the ranges of the results that have a size, in their order.

    The driver adds the client's throttle time, which it alone knows.
    """

    request: Hashable
    response: FetchResponse
    parts: list[object]


class Reply(NamedTuple):
    """Answer a request by a message, or by the bytes of one.

    The driver adds the client's throttle time, which it alone knows.
    """

    request: Hashable
    response: object


class LogsGathered(NamedTuple):
    """For the controller of this node: what other nodes have told of their logs, as `LogsTold`."""

    logs: Mapping[PartitionId, Mapping[int, LogInfo]]


class Fail(NamedTuple):
    """Answer a request by an error code and a text."""

    request: Hashable
    code: ErrorCode
    detail: str


class Refuse(NamedTuple):
    """Refuse a request that its sender may not make."""

    request: Hashable
    detail: str


class Warm(NamedTuple):
    """Have a range read where it may wait for the device; `events.Warmed` when it can be read without a wait."""

    partition: PartitionId
    offset: int
    max_bytes: int
    limit_offset: int


class CheckLog(NamedTuple):
    """A follower says that what it is sent of this partition is damaged: read the log from that offset on, where
    that may wait for the device, and check it; `events.LogChecked` names `check`.
    """

    check: int
    partition: PartitionId
    offset: int
    max_bytes: int


class LogDamaged(NamedTuple):
    """A log is damaged, as `events.LogChecked` has said. `given_up`: it is to be closed, which is reported as
    `LogFailed`, and its partition to be named as offline in the node's registration, for others to lead it.
    Otherwise there is nobody else, and it serves on what is sound: the operator has to know.
    """

    partition: PartitionId
    damage: object
    given_up: bool


class StepBack(NamedTuple):
    """Write that this node's copy of a partition counts for nothing: `damage.step_back`, from a fresh reading."""

    partition: PartitionId


class CloseConnection(NamedTuple):
    """End a connection at once, with whatever it still has to send; `events.Disconnected` when it has ended."""

    connection: Hashable
    reason: str


# Coordinators


class AskOutside(NamedTuple):
    """A coordinator's request to the metadata store; answered by `events.OutsideAnswered`, if at all."""

    partition: PartitionId
    leader_epoch: int
    message: object


class CoordinatorReply(NamedTuple):
    """Answer a request to a coordinator."""

    request: Hashable
    response: object


class ReadShard(NamedTuple):
    """Read some of [start, end) of a log and decode its records, off the event loop; `events.ShardRead` follows."""

    partition: PartitionId
    reading: int
    start: int
    end: int


class ShardLoaded(NamedTuple):
    """For the operator: this node coordinates what the partition keeps. `skipped`: records not understood."""

    partition: PartitionId
    leader_epoch: int
    records: int
    skipped: int
    seconds: float


class ShardUnreadable(NamedTuple):
    """Reads of the log of an internal partition that this node leads failed repeatedly.

    Nobody serves the state in that log until another node leads the partition.
    """

    partition: PartitionId
    leader_epoch: int


class ShardFaulty(NamedTuple):
    """For the operator: a decision cannot be written down, which is an error of this software. Told once."""

    partition: PartitionId
    problem: str


class GroupNoted(NamedTuple):
    """For the operator: what has become of a group, or of a transaction, and why."""

    partition: PartitionId
    group: str
    reason: str
    details: Mapping[str, object]


class CreateInternalTopic(NamedTuple):
    """Have the controller make an internal topic. The view shows it once it is there."""

    name: str


Effect = (
    fx.Effect
    | CreateLog
    | DeleteLog
    | SetLogAside
    | ConfigureLog
    | Dial
    | Ask
    | GiveUp
    | HangUp
    | Suspect
    | SuspicionWrong
    | PeerFailing
    | PartitionDamaged
    | ReadKeys
    | WriteIsrs
    | IsrSettled
    | Answer
    | Reply
    | LogsGathered
    | Fail
    | Refuse
    | Warm
    | CheckLog
    | LogDamaged
    | StepBack
    | CloseConnection
    | AskOutside
    | CoordinatorReply
    | ReadShard
    | ShardLoaded
    | ShardUnreadable
    | ShardFaulty
    | GroupNoted
    | CreateInternalTopic
)

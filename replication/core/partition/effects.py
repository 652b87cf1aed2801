"""The effects of a replica, for its driver (`Effect`), and its messages to the parts around it.

Log effects of one replica are carried out and reported in issue order.
"""

from __future__ import annotations

import msgspec

from ..control.records import PartitionRecord
from ..errors import ErrorCode
from ..types import NO_LEADER, BatchMeta, EpochEnd, PartitionId


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Write batches at `base_offset`; with a `leader_epoch` stamp both into them, without write them as they are.

    may_skip: offsets may be missing between them, and before the first. begins_inside: the log is empty, and its
    start lies inside the first batch: the log is laid again from there, with its start where it was.
    Answered by `Appended` or `LogFailed`.
    """

    partition: PartitionId
    handle: object
    batches: tuple[BatchMeta, ...]
    base_offset: int
    leader_epoch: int | None
    may_skip: bool = False
    begins_inside: bool = False


class AssignEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """Store (epoch, start offset) before any later append. Answered by `EpochAssigned` or `LogFailed`."""

    partition: PartitionId
    epoch: int
    start_offset: int


class Truncate(msgspec.Struct, frozen=True, kw_only=True):
    """Cut the log so that it ends at or before `offset`, on a batch boundary.

    With `restart` drop everything and begin again at `offset`. With `keep` first copy the part that goes, as a
    stray log: it may hold committed records. Answered by `Truncated` or `LogFailed`.
    """

    partition: PartitionId
    offset: int
    restart: bool = False
    keep: bool = False


class AdvanceLogStart(msgspec.Struct, frozen=True, kw_only=True):
    """Give up what lies below `offset`, on the device before it is reported.

    Answered by `LogStartAdvanced` or `LogFailed`.
    """

    partition: PartitionId
    offset: int


class ReplyDeleteRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a `DeleteRecords`; told exactly once for each.

    `low_watermark`: no replica that may serve or lead holds anything below it.
    """

    request_id: int
    error: ErrorCode
    low_watermark: int = -1
    leader: int = NO_LEADER
    leader_epoch: int = -1
    message: str = ""


class ReplyProduce(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a `Produce`; told exactly once for each, at acks=0 too."""

    request_id: int
    error: ErrorCode
    base_offset: int = -1
    log_start_offset: int = -1
    leader: int = NO_LEADER
    leader_epoch: int = -1
    message: str = ""


class KeepBatch(msgspec.Struct, frozen=True):
    """A batch waits beyond this step: an `Append` of it may follow, or a `DropBatch`."""

    handle: object


class DropBatch(msgspec.Struct, frozen=True):
    """A batch that was kept will not be appended."""

    handle: object


class AddToTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """Have the transaction's coordinator add this partition. Answered by `AddAnswered` of this attempt, once.

    `verify_only`: ask whether the client has added it. `delay`: seconds to wait before; the coordinator was busy.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    attempt: int
    verify_only: bool
    delay: float = 0.0


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an `Admit`, told exactly once for each; without an error, to be acted on in the same turn."""

    request_id: int
    error: ErrorCode


class FetchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that a `Fetch` may get now: an error, a divergence, or batches in [fetch_offset, limit_offset).

    No effect, but the value of `Replica.fetch`. `news`: there is something to say (data, an error, a divergence, a
    high watermark that the follower does not know); without it the request may be parked until `Parts.wake`.
    """

    error: ErrorCode
    news: bool
    fetch_offset: int = -1
    limit_offset: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1
    leader_epoch: int = -1
    leader: int = NO_LEADER
    diverging: EpochEnd | None = None
    last_stable_offset: int = -1


class FetchNext(msgspec.Struct, frozen=True, kw_only=True):
    """Ask `leader` for what follows `fetch_offset`. Answered by `Fetched` or `FetchFailed`.

    `delayed`: not before `replica_fetch_backoff` is over.
    """

    leader: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    high_watermark: int
    topic_id: str = ""
    delayed: bool = False


class ProposeIsr(msgspec.Struct, frozen=True, kw_only=True):
    """Store `record` if the key still has `version` and every node of `joining` this incarnation.

    Answered by `IsrStored`, `IsrRefused` or `IsrUnclear`.
    """

    proposal_id: int
    record: PartitionRecord
    version: int
    joining: tuple[tuple[int, int], ...]
    reason: str
    removing: tuple[int, ...] = ()
    """Members that it takes out of the ISR."""


class ReadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Read the partition's record again and tell it by `RecordChanged`."""

    partition: PartitionId


class Retire(msgspec.Struct, frozen=True, kw_only=True):
    """This node holds no replica of the partition any more: its log goes, and this machine is forgotten.

    Its last effect; nothing of the log is outstanding. Should the node be given a replica again, that is another
    machine with another log. `moved`: this process held the replica by an earlier record, and a later one names
    other nodes.
    """

    leader_epoch: int
    moved: bool = False


class RoleChanged(msgspec.Struct, frozen=True, kw_only=True):
    """For the log book: what this replica is from now on, and why."""

    partition: PartitionId
    role: str
    leader: int
    leader_epoch: int
    reason: str


class CutRefused(msgspec.Struct, frozen=True, kw_only=True):
    """For the operator: to follow its leader this replica would have to drop what it knows to be committed.

    Its leader lacks committed records though no unclean election has taken place: it was put back to an older
    state, or its device has lost what it said it had. The replica keeps what it has, and asks again.
    """

    partition: PartitionId
    leader: int
    leader_epoch: int
    offset: int
    high_watermark: int


Effect = (
    Append
    | AssignEpoch
    | Truncate
    | AdvanceLogStart
    | KeepBatch
    | DropBatch
    | ReadRecord
    | RoleChanged
    | CutRefused
)

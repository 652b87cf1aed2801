"""The reports to a replica. Each event is handled in one step, with one reading of the host's clock."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

import attrs

from ..control.records import Versioned
from ..errors import ErrorCode
from ..types import NO_EPOCH, BatchMeta, EndedTransaction, EpochEnd, EpochEntry, ProducerEntry


class Origin(enum.Enum):
    """The sender of a request for an append."""

    CLIENT = enum.auto()
    COORDINATOR = enum.auto()


class TransactionTag(NamedTuple):
    """`version` 2: each transaction has its own epoch (KIP-890), and the partition's leader adds the partition to
    it. Before, clients add partitions, and the leader only asks whether they have.
    """

    transactional_id: str
    version: int = 2


@attrs.frozen(kw_only=True, slots=True)
class Opened:
    """The log is open (or open again): what it holds. Everything known of it before is void."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    epochs: tuple[EpochEntry, ...]
    producers: tuple[ProducerEntry, ...]
    ended: tuple[EndedTransaction, ...] = ()
    """Transactions whose marker stands at or above the high watermark, in the order of the markers."""


@attrs.frozen(kw_only=True, slots=True)
class LogFailed:
    """The log took an effect neither wholly nor at all; it serves nothing until `Opened`."""

    reason: str


@attrs.frozen(kw_only=True, slots=True)
class RecordChanged:
    """The partition's record as the store has it now (older ones are ignored).

    Never as it was before this process registered: that may name its predecessor as leader.
    """

    versioned: Versioned


@attrs.frozen(kw_only=True, slots=True)
class TopicDeleted:
    """The store has no such topic any more, or another of the same name: this replica is of neither."""


@attrs.frozen(kw_only=True, slots=True)
class NodesChanged:
    """The living nodes and their incarnations, as the store has them now."""

    live: Mapping[int, int]


@attrs.frozen(kw_only=True, slots=True)
class Produce:
    """One batch to append. `handle` is the host's name for the bytes; it comes back in `Append`.

    `transaction`: of which transactional id a batch is; markers and batches of a coordinator have `origin`
    COORDINATOR, and are asked of nobody.
    """

    request_id: int
    acks: int
    batch: BatchMeta
    deadline: float
    handle: object
    leader_epoch: int = NO_EPOCH
    origin: Origin = Origin.CLIENT
    transaction: TransactionTag | None = None


@attrs.frozen(kw_only=True, slots=True)
class Admit:
    """May a transactional write of a coordinator's shard be decided on? Answered by one `Admission`.

    As a producer's batch, it waits until its partition is in the transaction.
    """

    request_id: int
    producer_id: int
    producer_epoch: int
    transaction: TransactionTag
    deadline: float


@attrs.frozen(kw_only=True, slots=True)
class AddAnswered:
    """The answer of the transaction's coordinator to an `AddToTransaction`, or why it could not be asked."""

    producer_id: int
    leader_epoch: int
    attempt: int
    error: ErrorCode


@attrs.frozen(kw_only=True, slots=True)
class Appended:
    """The oldest outstanding `Append` is in the log and readable."""

    log_end_offset: int


@attrs.frozen(kw_only=True, slots=True)
class EpochAssigned:
    """The oldest outstanding `AssignEpoch` is stored."""


@attrs.frozen(kw_only=True, slots=True)
class Truncated:
    """The oldest outstanding `Truncate` is done: what the log holds now."""

    log_start_offset: int
    log_end_offset: int
    epochs: tuple[EpochEntry, ...]
    producers: tuple[ProducerEntry, ...]
    ended: tuple[EndedTransaction, ...] = ()
    """As in `Opened`."""


@attrs.frozen(kw_only=True, slots=True)
class DeleteRecords:
    """A client's request that nothing below `offset` is kept; -1 stands for the high watermark (KIP-107)."""

    request_id: int
    offset: int
    deadline: float


@attrs.frozen(kw_only=True, slots=True)
class LogStartAdvanced:
    """The oldest outstanding `AdvanceLogStart` is done, and the new log start is on the device."""

    log_start_offset: int


@attrs.frozen(kw_only=True, slots=True)
class LogStartRaised:
    """Retention has removed the oldest segments: the log begins here now, and a restart will find it so."""

    log_start_offset: int


@attrs.frozen(kw_only=True, slots=True)
class Fetch:
    """A follower's (or a consumer's, `replica_id` -1) question for one partition.

    Asked by `Replica.fetch`, and again when a parked request is looked at again. `high_watermark` is the one that
    the follower knows, so that news of a greater one is never lost with an answer (KIP-1166); `log_start_offset`
    where its log begins, on its disk; `topic_id` which topic of that name is meant (KIP-516), empty if unsaid.
    `read_committed`: a consumer's, who is shown nothing of transactions that are not decided (KIP-98). `max_bytes`
    bounds what the host reads; a replica does not look at it.
    """

    replica_id: int
    incarnation: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int = -1
    log_start_offset: int = 0
    topic_id: str = ""
    read_committed: bool = False
    max_bytes: int = 0


@attrs.frozen(kw_only=True, slots=True)
class Fetched:
    """The answer to our own `FetchNext` of the same offset and epochs; `handle` names its bytes.

    Without `last_fetched_epoch` the host vouches that no answer is told after `FetchFailed` or `Parts.stop`: a
    late divergence, asked for before a truncation, would cut what has been fetched since.
    """

    fetch_offset: int
    leader_epoch: int
    error: ErrorCode
    last_fetched_epoch: int | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1
    diverging: EpochEnd | None = None
    batches: tuple[BatchMeta, ...] = ()
    handle: object = None
    may_skip: bool = False
    """Offsets may be missing between batches, as compaction leaves them."""


@attrs.frozen(kw_only=True, slots=True)
class FetchFailed:
    """Our `FetchNext` of this offset and leader epoch got no answer."""

    fetch_offset: int
    leader_epoch: int


@attrs.frozen(kw_only=True, slots=True)
class IsrStored:
    """The proposal was stored; the key has this version now."""

    proposal_id: int
    version: int


@attrs.frozen(kw_only=True, slots=True)
class IsrRefused:
    """The proposal is certainly not stored, because a member is not (or not the same) in the store."""

    proposal_id: int


@attrs.frozen(kw_only=True, slots=True)
class IsrUnclear:
    """The record changed under the proposal, or the outcome of the write is unknown."""

    proposal_id: int


@attrs.frozen(kw_only=True, slots=True)
class Tick:
    """Time has passed; told a few times in each `replica_lag_time_max`."""


Event = (
    Opened
    | LogFailed
    | RecordChanged
    | TopicDeleted
    | NodesChanged
    | Produce
    | Admit
    | AddAnswered
    | Appended
    | EpochAssigned
    | Truncated
    | DeleteRecords
    | LogStartAdvanced
    | LogStartRaised
    | Fetched
    | FetchFailed
    | IsrStored
    | IsrRefused
    | IsrUnclear
    | Tick
)

"""The reports to a replica. Each event is handled in one step, with one reading of the host's clock."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

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


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The log is open (or open again): what it holds. Everything known of it before is void."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    epochs: tuple[EpochEntry, ...]
    producers: tuple[ProducerEntry, ...]
    ended: tuple[EndedTransaction, ...] = ()
    """Transactions whose marker stands at or above the high watermark, in the order of the markers."""


class LogFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The log took an effect neither wholly nor at all; it serves nothing until `Opened`."""

    reason: str


class RecordChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The partition's record as the store has it now (older ones are ignored).

    Never as it was before this process registered: that may name its predecessor as leader.
    """

    versioned: Versioned


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The store has no such topic any more, or another of the same name: this replica is of neither."""


class NodesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The living nodes and their incarnations, as the store has them now."""

    live: Mapping[int, int]


class Produce(msgspec.Struct, frozen=True, kw_only=True):
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


class Admit(msgspec.Struct, frozen=True, kw_only=True):
    """May a transactional write of a coordinator's shard be decided on? Answered by one `Admission`.

    As a producer's batch, it waits until its partition is in the transaction.
    """

    request_id: int
    producer_id: int
    producer_epoch: int
    transaction: TransactionTag
    deadline: float


class AddAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the transaction's coordinator to an `AddToTransaction`, or why it could not be asked."""

    producer_id: int
    leader_epoch: int
    attempt: int
    error: ErrorCode


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest outstanding `Append` is in the log and readable."""

    log_end_offset: int


class EpochAssigned(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest outstanding `AssignEpoch` is stored."""


class Truncated(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest outstanding `Truncate` is done: what the log holds now."""

    log_start_offset: int
    log_end_offset: int
    epochs: tuple[EpochEntry, ...]
    producers: tuple[ProducerEntry, ...]
    ended: tuple[EndedTransaction, ...] = ()
    """As in `Opened`."""


class DeleteRecords(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request that nothing below `offset` is kept; -1 stands for the high watermark (KIP-107)."""

    request_id: int
    offset: int
    deadline: float


class LogStartAdvanced(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest outstanding `AdvanceLogStart` is done, and the new log start is on the device."""

    log_start_offset: int


class LogStartRaised(msgspec.Struct, frozen=True, kw_only=True):
    """Retention has removed the oldest segments: the log begins here now, and a restart will find it so."""

    log_start_offset: int


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
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


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
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


class FetchFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Our `FetchNext` of this offset and leader epoch got no answer."""

    fetch_offset: int
    leader_epoch: int


class IsrStored(msgspec.Struct, frozen=True, kw_only=True):
    """The proposal was stored; the key has this version now."""

    proposal_id: int
    version: int


class IsrRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The proposal is certainly not stored, because a member is not (or not the same) in the store."""

    proposal_id: int


class IsrUnclear(msgspec.Struct, frozen=True, kw_only=True):
    """The record changed under the proposal, or the outcome of the write is unknown."""

    proposal_id: int


class Tick(msgspec.Struct, frozen=True, kw_only=True):
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

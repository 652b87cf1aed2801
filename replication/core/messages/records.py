"""Requests and answers about records: writing, reading, finding and deleting them.

Record batches do not stand in them: they follow as the payload, in the order of the partitions named here,
`size` bytes for each.
"""

from __future__ import annotations

import msgspec

from ..types import NO_EPOCH, NO_LEADER, EpochEnd
from .admin import PartitionName

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
GREATEST_TIMESTAMP = -3
"""That of the record whose timestamp is the greatest (KIP-734)."""
MOST_LOOK_UPS = 1_000
"""Timestamps of records that one `ListOffsetsRequest` may have looked for in logs."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class ProducePartition(msgspec.Struct, frozen=True, kw_only=True):
    """One record batch for one partition; `leader_epoch` -1 means that the producer does not say."""

    topic: str
    partition: int
    size: int
    leader_epoch: int = NO_EPOCH


class ProduceTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """The transaction of a request's batches. `version` 2: each transaction has a producer epoch of its own."""

    transactional_id: str
    version: int = 2


class ProduceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`acks`: 0 (no answer is awaited), 1 (the leader wrote it) or -1 (all in-sync replicas have it).

    `client_id`: what the client calls itself, for its quota. `transaction`: None if no batch is transactional.
    """

    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]
    client_id: str = ""
    transaction: ProduceTransaction | None = None


class ProduceResult(msgspec.Struct, frozen=True, kw_only=True):
    """`leader` and `leader_epoch` hint where to go when `error` says that this node does not lead."""

    topic: str
    partition: int
    error: int
    base_offset: int = -1
    log_start_offset: int = -1
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    message: str = ""


class ProduceResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`throttle_time_ms` (KIP-219): the client is over its quota; for so long the node serves no more of its
    produce requests, so it had better send none.
    """

    partitions: list[ProduceResult]
    throttle_time_ms: int = 0


class FetchPartition(msgspec.Struct, frozen=True, kw_only=True):
    """`leader_epoch`: the epoch under which the reader believes to read (-1: a consumer that does not care).

    `last_fetched_epoch`: the epoch of the last batch before `fetch_offset` (KIP-595); -1 for none.
    `high_watermark`: the one that the follower knows (KIP-1166); -1 from a consumer. `topic_id` (KIP-516): which
    topic of that name is meant; empty from one that does not care. `damaged`: the last answer from this offset on
    held a damaged batch.
    """

    topic: str
    partition: int
    fetch_offset: int
    max_bytes: int
    leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    high_watermark: int = -1
    log_start_offset: int = 0
    topic_id: str = ""
    damaged: bool = False


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`replica_id` -1 for consumers; `incarnation` tells a restarted follower from its former self (KIP-903).

    `session_epoch` (KIP-227): -1 without a session; 0 asks for one; else how many answers have arrived in
    `session_id`, and `partitions` are only those whose question is new, `forgotten` those that are withdrawn.
    `time_ms`: a follower's wall clock, in milliseconds since 1970; 0 from others. `isolation_level` (of
    consumers): with READ_COMMITTED the answer ends where a transaction is not decided (KIP-98).
    """

    replica_id: int
    incarnation: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: list[FetchPartition]
    session_id: int = 0
    session_epoch: int = -1
    forgotten: list[PartitionName] = msgspec.field(default_factory=list)
    client_id: str = ""
    time_ms: int = 0
    isolation_level: int = READ_UNCOMMITTED


class FetchResult(msgspec.Struct, frozen=True, kw_only=True):
    """`size` bytes of the payload are whole batches from (at or before) the fetch offset on."""

    topic: str
    partition: int
    error: int
    high_watermark: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1
    leader_epoch: int = NO_EPOCH
    leader: int = NO_LEADER
    diverging: EpochEnd | None = None
    size: int = 0
    message: str = ""


class AbortedProducer(msgspec.Struct, frozen=True, kw_only=True):
    """The transactional batches of a producer from `first_offset` up to its next ABORT marker count for nothing."""

    producer_id: int
    first_offset: int


class FetchedTransactions(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a reader of committed records needs for the batches of a partition in a fetch response.

    `aborted`: by first offset, every transaction that was aborted and reaches into the batches.
    """

    topic: str
    partition: int
    last_stable_offset: int
    aborted: list[AbortedProducer]


class FetchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions that have nothing to say are left out of an answer to a consumer or a follower.

    `session_id`: the session that this belongs to, 0 for none. `error`: the session is over; begin another with
    every question. `throttle_time_ms`: as in `ProduceResponse`, for fetches. `transactions`: of each partition
    without an error, if only committed records were asked for.
    """

    partitions: list[FetchResult]
    session_id: int = 0
    error: int = 0
    throttle_time_ms: int = 0
    transactions: list[FetchedTransactions] | None = None


class ListOffsetsPartition(msgspec.Struct, frozen=True, kw_only=True):
    """`timestamp`: EARLIEST_TIMESTAMP, LATEST_TIMESTAMP (the high watermark; for readers of committed records the
    last stable offset), GREATEST_TIMESTAMP, or milliseconds since 1970.
    """

    topic: str
    partition: int
    timestamp: int
    leader_epoch: int = NO_EPOCH


class ListOffsetsRequest(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[ListOffsetsPartition]
    isolation_level: int = READ_UNCOMMITTED


class ListOffsetsResult(msgspec.Struct, frozen=True, kw_only=True):
    """`offset` -1 without an error: no committed record has that timestamp or a later one. `offset_epoch`: the
    leader epoch that wrote it, -1 if there is none or a node of an earlier release answers. `timestamp`: of the
    record that was found by its time, in ms since 1970; -1 otherwise.
    """

    topic: str
    partition: int
    error: int
    offset: int = -1
    leader_epoch: int = NO_EPOCH
    leader: int = NO_LEADER
    offset_epoch: int = NO_EPOCH
    timestamp: int = -1


class ListOffsetsResponse(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[ListOffsetsResult]


class EpochEndPartition(msgspec.Struct, frozen=True, kw_only=True):
    """`leader_epoch`: the one whose end is asked for. `current_leader_epoch`: that in which the partition is to be,
    as the asker knows it; -1: it does not say.
    """

    topic: str
    partition: int
    leader_epoch: int
    current_leader_epoch: int = NO_EPOCH


class EpochEndsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where leader epochs end in the logs of leaders (KIP-101, KIP-320): a reader that was further has read what
    was cut since.
    """

    partitions: list[EpochEndPartition]


class EpochEndResult(msgspec.Struct, frozen=True, kw_only=True):
    """`epoch`: the greatest that the leader's log has and that is not above the one that was asked for;
    `end_offset`: where that ends, of the newest the end of the log. -1 both: the log cannot tell.
    """

    topic: str
    partition: int
    error: int
    epoch: int = NO_EPOCH
    end_offset: int = -1
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH


class EpochEndsResponse(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[EpochEndResult]


class ReadIndexRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks leaders for offsets behind every write that was acknowledged (acks=all) before they are asked."""

    timeout_ms: int
    partitions: list[PartitionName]


class ReadIndexResult(msgspec.Struct, frozen=True, kw_only=True):
    """`offset`: what was acknowledged before the question came lies below it, whoever acknowledged it."""

    topic: str
    partition: int
    error: int
    offset: int = -1
    leader_epoch: int = NO_EPOCH
    leader: int = NO_LEADER


class ReadIndexResponse(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[ReadIndexResult]


class DeleteRecordsPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Delete what lies below `offset`; -1 stands for the high watermark (KIP-107)."""

    topic: str
    partition: int
    offset: int


class DeleteRecordsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asked of the partitions' leader."""

    timeout_ms: int
    partitions: list[DeleteRecordsPartition]


class DeleteRecordsResult(msgspec.Struct, frozen=True, kw_only=True):
    """`low_watermark`: no replica that is alive or may lead holds anything below it any more."""

    topic: str
    partition: int
    error: int
    low_watermark: int = -1
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    message: str = ""


class DeleteRecordsResponse(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[DeleteRecordsResult]

"""Requests to a transaction's coordinator, and to the leaders of its partitions (KIP-98, KIP-890); their answers.

Every answer has an `error` and a `message`, and with NOT_COORDINATOR a hint where to go.
"""

from __future__ import annotations

import msgspec

from .admin import PartitionName


class InitTransactionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Take a transactional id over: whatever an earlier producer of that id has open is aborted.

    `producer_id`, `producer_epoch`: what the asking producer was told last, -1 on its first request. It is fenced
    if another producer has taken the id over since (KIP-360).
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


class EndTransactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Commit or abort. `version` 2: the transaction had its epoch for itself, and the answer has the next one's."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    version: int = 2


class ProducerIdResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Producer id and epoch of the next transaction."""

    error: int = 0
    message: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    leader: int = -1
    leader_epoch: int = -1


class AddPartitionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Have partitions belong to the transaction of a producer.

    `verify_only`: say whether they do. `view_revision`: of the store, as the asking leader had read it: the topics
    were there then.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: list[PartitionName]
    verify_only: bool = False
    view_revision: int = 0
    version: int = 2


class AddPartitionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One outcome for all partitions: they stand in one record."""

    error: int = 0
    message: str = ""
    leader: int = -1
    leader_epoch: int = -1


class TransactionMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one transaction, for partitions that one node leads. `producer_epoch` is that of the marker."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    version: int
    start_ms: int
    partitions: list[PartitionName]


class WriteMarkersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`coordinator_epoch`: the leader epoch of the coordinator's partition; each entry has its own."""

    coordinator_epoch: int
    markers: list[TransactionMarkers]


class MarkerOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome without an error: the marker is committed in the partition."""

    producer_id: int
    topic: str
    partition: int
    error: int = 0


class WriteMarkersResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of each marker; partitions that are missing were not looked at."""

    outcomes: list[MarkerOutcome]


class DescribeTransactionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Transactional ids that the same partition coordinates."""

    transactional_ids: list[str]


class TransactionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is TRANSACTIONAL_ID_NOT_FOUND for an id that nobody has used, or that has expired.

    `refused`: partitions that the coordinator cannot end, as their leaders refuse its marker.
    """

    transactional_id: str
    error: int = 0
    status: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = -1
    start_ms: int = -1
    partitions: list[PartitionName] = msgspec.field(default_factory=list)
    refused: list[PartitionName] = msgspec.field(default_factory=list)


class DescribeTransactionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: int = 0
    message: str = ""
    transactions: list[TransactionDescription] = msgspec.field(default_factory=list)
    leader: int = -1
    leader_epoch: int = -1


class ListTransactionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`statuses`, `producer_ids`: those alone, if any are named. `longer_than_ms`: those alone whose transaction
    began at least so long ago, whatever has become of it since; -1: all.

    `partitions`: of the topic that keeps them, those alone; it is an error if the node does not lead one of them.
    """

    statuses: list[str] = msgspec.field(default_factory=list)
    producer_ids: list[int] = msgspec.field(default_factory=list)
    longer_than_ms: int = -1
    partitions: list[int] = msgspec.field(default_factory=list)


class TransactionListing(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: int
    status: str


class ListTransactionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: int = 0
    message: str = ""
    transactions: list[TransactionListing] = msgspec.field(default_factory=list)
    leader: int = -1
    leader_epoch: int = -1


class AbortTransactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Abort what a producer has open in one partition, which no coordinator knows of any more (KIP-664).

    `start_offset`: where that begins; -1: the sender knows the `coordinator_epoch` instead, which must not be below
    that of the producer's last marker. Asked of the partition's leader, which asks the coordinators.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    coordinator_epoch: int = -1


class AbortTransactionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Without an error the marker is committed."""

    error: int = 0
    message: str = ""
    leader: int = -1
    leader_epoch: int = -1


Request = (
    InitTransactionsRequest
    | EndTransactionRequest
    | AddPartitionsRequest
    | DescribeTransactionsRequest
    | ListTransactionsRequest
)
RESPONSES: dict[type, type] = {
    InitTransactionsRequest: ProducerIdResponse,
    EndTransactionRequest: ProducerIdResponse,
    AddPartitionsRequest: AddPartitionsResponse,
    DescribeTransactionsRequest: DescribeTransactionsResponse,
    ListTransactionsRequest: ListTransactionsResponse,
}
"""The response type of each request to a coordinator."""

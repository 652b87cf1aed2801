"""The kinds of requests; and messages about producer ids and kept offsets, too few for a file of their own."""

from __future__ import annotations

import enum

import msgspec


class Kind(enum.IntEnum):
    """The kinds of requests (Kafka's api keys where there is one)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    CREATE_TOPIC = 19
    DELETE_TOPIC = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    ALTER_CONFIG = 33
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    ALTER_PARTITION_REASSIGNMENTS = 45
    OFFSET_DELETE = 47
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USERS = 50
    ALTER_USER = 51
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_PARTITIONS = 75
    GET_REPLICA_LOG_INFO = 93
    DESCRIBE_NODE = 1000
    COMMIT_GROUP_OFFSETS = 1008
    GROUP_OFFSETS = 1009
    INIT_TRANSACTIONS = 1011
    DESCRIBE_CHANGES = 1020
    READ_INDEX = 1021
    ABORT_TRANSACTION = 1022
    IS_SILENT = 1023
    VERIFY_USER = 1030
    """Kafka has none of these, from `DESCRIBE_NODE` on."""


class InitProducerIdRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`producer_id` -1 asks for a new identity; otherwise its epoch is raised.

    `identity` names a producer that outlives its processes: whoever asks under the same name gets the same id and
    the next epoch, which fences whoever had it before. With `producer_id` and `producer_epoch` only if they are
    still those of the name, otherwise whoever asks is fenced itself (KIP-360). `forget`: no more of it, nor of any
    whose name begins so.
    """

    producer_id: int = -1
    producer_epoch: int = -1
    identity: str = ""
    forget: bool = False


class InitProducerIdResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: int
    producer_id: int = -1
    producer_epoch: int = -1
    message: str = ""


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int


class OffsetCommitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Keep offsets under the name of a group of readers, or of one, beside those of other partitions.

    No offsets: forget all that are kept.

    `if_absent`: only if none are kept; the answer has those that are kept then, whoever was first.
    """

    group: str
    offsets: list[CommittedOffset]
    if_absent: bool = False


class OffsetFetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    group: str


class OffsetsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets that are kept; empty: none are."""

    error: int
    offsets: list[CommittedOffset] = msgspec.field(default_factory=list)
    message: str = ""

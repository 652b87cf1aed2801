"""Requests that only the controller can grant, and its answers. All of them stand in `messages`, too."""

from __future__ import annotations

import msgspec

from ..types import Value


class CreateTopicRequest(msgspec.Struct, frozen=True, kw_only=True):
    """assignments: nodes of each partition, in order of preference; empty: the controller chooses. `partitions` and
    `replication_factor` are to be the same as theirs. validate_only: say whether it can be done, and do nothing.
    """

    name: str
    partitions: int
    replication_factor: int
    config: dict[str, Value] = msgspec.field(default_factory=dict)
    creation_id: str = ""
    """Drawn by the client, the same in each of its attempts: so that one whose answer was lost is known again."""
    assignments: list[list[int]] = msgspec.field(default_factory=list)
    validate_only: bool = False
    forwarded: bool = False
    """Set by the node that passes the request on to the controller, so that it is passed on once at most."""


class CreateTopicResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`revision` of every answer: the store revision that it refers to; 0 without a look at the store."""

    error: int
    message: str = ""
    topic_id: str = ""
    revision: int = 0


class PartitionName(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int


class PartitionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a request for one partition."""

    topic: str
    partition: int
    error: int
    message: str = ""


class ElectLeadersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Elect the preferred replicas; with `unclean`, for partitions without a leader, the most complete living ones.

    `partitions` None means all of them.
    """

    unclean: bool = False
    partitions: list[PartitionName] | None = None
    forwarded: bool = False


class ElectLeadersResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is about the request as a whole."""

    error: int
    message: str = ""
    partitions: list[PartitionOutcome] = msgspec.field(default_factory=list)
    revision: int = 0


class PartitionReassignment(msgspec.Struct, frozen=True, kw_only=True):
    """Where a partition is to be, in order of preference; `replicas` None cancels what is under way (KIP-455)."""

    topic: str
    partition: int
    replicas: list[int] | None


class AlterReassignmentsRequest(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[PartitionReassignment]
    forwarded: bool = False


class AlterReassignmentsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is about the request as a whole."""

    error: int
    message: str = ""
    partitions: list[PartitionOutcome] = msgspec.field(default_factory=list)
    revision: int = 0


class DeleteTopicRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`topic_id`: delete this topic and no other of the same name; empty for whichever there is."""

    name: str
    topic_id: str = ""
    forwarded: bool = False


class CreatePartitionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`partitions`: how many the topic is to have in all; never fewer than it has (KIP-195).

    assignments: of the new ones, as in `CreateTopicRequest`; so `validate_only`.
    """

    name: str
    partitions: int
    assignments: list[list[int]] = msgspec.field(default_factory=list)
    validate_only: bool = False
    forwarded: bool = False


class AlterConfigRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a topic to be changed, and those to be as by default again (KIP-339)."""

    name: str
    config: dict[str, Value] = msgspec.field(default_factory=dict)
    reset: list[str] = msgspec.field(default_factory=list)
    forwarded: bool = False


class TopicChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to all requests about a topic that exists; `config`: its settings from now on."""

    error: int
    message: str = ""
    config: dict[str, Value] = msgspec.field(default_factory=dict)
    revision: int = 0


class AlterQuotasRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one entity: `limits` are set, those of `remove` are taken away, the others stay.

    `entity_type` and `name`: see `insync.replication.core.control.quotas`. An empty name is the type's default.
    """

    entity_type: str
    name: str = ""
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    remove: list[str] = msgspec.field(default_factory=list)
    forwarded: bool = False


class AlterQuotasResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`limits`: those of the entity from now on."""

    error: int
    message: str = ""
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    revision: int = 0

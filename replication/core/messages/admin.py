"""Requests that only the controller can grant, and its answers. All of them stand in `messages`, too."""

from __future__ import annotations

import attrs

from ..types import Value


@attrs.frozen(kw_only=True)
class CreateTopicRequest:
    """assignments: nodes of each partition, in order of preference; empty: the controller chooses. `partitions` and
    `replication_factor` are to be the same as theirs. validate_only: say whether it can be done, and do nothing.
    """

    name: str
    partitions: int
    replication_factor: int
    config: dict[str, Value] = attrs.Factory(dict)
    creation_id: str = ""
    """Drawn by the client, the same in each of its attempts: so that one whose answer was lost is known again."""
    assignments: list[list[int]] = attrs.Factory(list)
    validate_only: bool = False
    forwarded: bool = False
    """Set by the node that passes the request on to the controller, so that it is passed on once at most."""


@attrs.frozen(kw_only=True)
class CreateTopicResponse:
    """`revision` of every answer: the store revision that it refers to; 0 without a look at the store."""

    error: int
    message: str = ""
    topic_id: str = ""
    revision: int = 0


@attrs.frozen(kw_only=True)
class PartitionName:
    topic: str
    partition: int


@attrs.frozen(kw_only=True)
class PartitionOutcome:
    """The outcome of a request for one partition."""

    topic: str
    partition: int
    error: int
    message: str = ""


@attrs.frozen(kw_only=True)
class ElectLeadersRequest:
    """Elect the preferred replicas; with `unclean`, for partitions without a leader, the most complete living ones.

    `partitions` None means all of them.
    """

    unclean: bool = False
    partitions: list[PartitionName] | None = None
    forwarded: bool = False


@attrs.frozen(kw_only=True)
class ElectLeadersResponse:
    """`error` is about the request as a whole."""

    error: int
    message: str = ""
    partitions: list[PartitionOutcome] = attrs.Factory(list)
    revision: int = 0


@attrs.frozen(kw_only=True)
class PartitionReassignment:
    """Where a partition is to be, in order of preference; `replicas` None cancels what is under way (KIP-455)."""

    topic: str
    partition: int
    replicas: list[int] | None


@attrs.frozen(kw_only=True)
class AlterReassignmentsRequest:
    partitions: list[PartitionReassignment]
    forwarded: bool = False


@attrs.frozen(kw_only=True)
class AlterReassignmentsResponse:
    """`error` is about the request as a whole."""

    error: int
    message: str = ""
    partitions: list[PartitionOutcome] = attrs.Factory(list)
    revision: int = 0


@attrs.frozen(kw_only=True)
class DeleteTopicRequest:
    """`topic_id`: delete this topic and no other of the same name; empty for whichever there is."""

    name: str
    topic_id: str = ""
    forwarded: bool = False


@attrs.frozen(kw_only=True)
class CreatePartitionsRequest:
    """`partitions`: how many the topic is to have in all; never fewer than it has (KIP-195).

    assignments: of the new ones, as in `CreateTopicRequest`; so `validate_only`.
    """

    name: str
    partitions: int
    assignments: list[list[int]] = attrs.Factory(list)
    validate_only: bool = False
    forwarded: bool = False


@attrs.frozen(kw_only=True)
class AlterConfigRequest:
    """Settings of a topic to be changed, and those to be as by default again (KIP-339)."""

    name: str
    config: dict[str, Value] = attrs.Factory(dict)
    reset: list[str] = attrs.Factory(list)
    forwarded: bool = False


@attrs.frozen(kw_only=True)
class TopicChanged:
    """The answer to all requests about a topic that exists; `config`: its settings from now on."""

    error: int
    message: str = ""
    config: dict[str, Value] = attrs.Factory(dict)
    revision: int = 0


@attrs.frozen(kw_only=True)
class AlterQuotasRequest:
    """Limits of one entity: `limits` are set, those of `remove` are taken away, the others stay.

    `entity_type` and `name`: see `insync.replication.core.control.quotas`. An empty name is the type's default.
    """

    entity_type: str
    name: str = ""
    limits: dict[str, int] = attrs.Factory(dict)
    remove: list[str] = attrs.Factory(list)
    forwarded: bool = False


@attrs.frozen(kw_only=True)
class AlterQuotasResponse:
    """`limits`: those of the entity from now on."""

    error: int
    message: str = ""
    limits: dict[str, int] = attrs.Factory(dict)
    revision: int = 0

"""Limits on what clients and reassignments may take of a node, as the metadata store keeps them.

An entity has a type and a name; the empty name is the default of its type. `user` is who a client proved to be by
its certificate or its password, `client_id` what it calls itself; both may have `producer_byte_rate` and
`consumer_byte_rate` (KIP-13, KIP-546). `node` is a node by its id: what reassignments may take (KIP-73). All are
bytes a second, on each node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ..errors import ErrorCode
from ..messages import AlterQuotasRequest
from .records import QuotaRecord
from .topics import TopicError

USER = "user"
CLIENT_ID = "client_id"
NODE = "node"

Rate = Literal["producer_byte_rate", "consumer_byte_rate"]
PRODUCER: Rate = "producer_byte_rate"
CONSUMER: Rate = "consumer_byte_rate"
LEADER_THROTTLE = "leader_replication_throttled_rate"
FOLLOWER_THROTTLE = "follower_replication_throttled_rate"

LIMITS: Mapping[str, tuple[str, ...]] = {
    USER: (PRODUCER, CONSUMER),
    CLIENT_ID: (PRODUCER, CONSUMER),
    NODE: (LEADER_THROTTLE, FOLLOWER_THROTTLE),
}
"""The limits that an entity of each type may have."""

_MOST = 2**63 - 1
_LONGEST_NAME = 249


class Entity(NamedTuple):
    """The holder of a limit; prints as `client_id etl`."""

    entity_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.entity_type} {self.name or '(default)'}"


Quotas = Mapping[Entity, QuotaRecord]


def limit_of(quotas: Quotas, user: str, client_id: str, rate: Rate) -> tuple[Entity, int] | None:
    """The limit that holds for a client, and who shares it; None if there is none.

    In this order: the user's own, the client id's own, the default of users (for those who have proved a name),
    the default of client ids. A default is a limit for each of them, not one for all together.
    """
    own = [Entity(USER, user)] if user else []
    own.append(Entity(CLIENT_ID, client_id))
    for entity in own:
        record = quotas.get(entity)
        if record is not None and rate in record.limits:
            return entity, record.limits[rate]
    for entity in own:
        record = quotas.get(Entity(entity.entity_type, ""))
        if record is not None and rate in record.limits:
            return entity, record.limits[rate]
    return None


def throttle_of(quotas: Quotas, node_id: int, rate: str) -> int | None:
    """The throttle of a node's reassignments, by its own limit or by the default of nodes; None if neither says."""
    for name in (str(node_id), ""):
        record = quotas.get(Entity(NODE, name))
        if record is not None and rate in record.limits:
            return record.limits[rate]
    return None


def changed(request: AlterQuotasRequest, known: QuotaRecord | None) -> QuotaRecord:
    """The entity's record after a request.

    Raises:
      TopicError: A type, name or limit is unknown, or a limit is out of range.
    """
    allowed = LIMITS.get(request.entity_type)
    if allowed is None:
        raise _bad(f"{request.entity_type!r} has no limits: name one of {', '.join(LIMITS)}")
    if len(request.name) > _LONGEST_NAME or not request.name.isprintable():
        raise _bad(f"{request.name!r} is not a valid name: use up to {_LONGEST_NAME} printable characters")
    if request.entity_type == NODE and request.name and not request.name.isdecimal():
        raise _bad(f"{request.name!r} is not a node id: give the id of a node, or no name for all nodes")
    for name in (*request.limits, *request.remove):
        if name not in allowed:
            raise _bad(f"a {request.entity_type} has no limit {name!r}: use {' or '.join(allowed)}")
    for name, value in request.limits.items():
        if not 1 <= value <= _MOST:
            raise _bad(f"{name}={value}: use 1 byte a second or more, or remove the limit")
    limits = {**(known.limits if known is not None else {}), **request.limits}
    return QuotaRecord(
        entity_type=request.entity_type,
        name=request.name,
        limits={name: value for name, value in sorted(limits.items()) if name not in request.remove},
    )


def _bad(message: str) -> TopicError:
    return TopicError(ErrorCode.INVALID_CONFIG, message)

"""The rules that say who may ask a node for what.

A rule is `WHO=OPERATION[+OPERATION]`: WHO is `client` (all of them), `client/NAME` (whose certificate says so;
`*` and `?` stand for any characters) or `*`; an operation is produce, consume, admin or store. Without rules
clients may do the first three; with rules what some rule lets them do, and nothing else. Using a metadata store
that is served (store) is as much as ruling the cluster, and never let to clients without a rule. Replicating is for
the cluster's nodes alone, and they may do everything.

A user of the cluster (`insync user`) may have a rule of its own, on all nodes: as if each had `client/NAME=...`.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Protocol

import attrs

from ....transport import PeerIdentity
from ...core.control.internal_topics import STANDARD as INTERNAL_TOPICS
from ...core.messages import Kind
from ...metadata import STORE_KINDS
from ..errors import InvalidSettingError


class Operation(enum.Enum):
    """The purposes of requests."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"
    STORE = "store"
    """Read and write the metadata store, where a node or `insync store` serves it."""
    REPLICATE = "replicate"

    __hash__ = object.__hash__
    """An enumeration hashes names, by a function of Python; who may do what is asked for each request."""


CLIENTS = frozenset({Operation.PRODUCE, Operation.CONSUME, Operation.ADMIN})
"""The operations that clients may do where there are no rules."""
GRANTABLE = CLIENTS | {Operation.STORE}
"""The operations that rules can let clients do."""
_ADMINS = frozenset({Operation.ADMIN})
_GRANTABLE = ", ".join(sorted(operation.value for operation in GRANTABLE))

OPERATIONS: dict[int, frozenset[Operation]] = {
    Kind.PRODUCE: frozenset({Operation.PRODUCE}),
    # Followers fetch by the same kind: that a client does not pass for one is checked where it is served.
    Kind.FETCH: frozenset({Operation.CONSUME}),
    # Where a partition begins and ends says nothing of its records: whoever may do anything with topics may ask.
    Kind.LIST_OFFSETS: CLIENTS,
    Kind.READ_INDEX: frozenset({Operation.CONSUME}),
    Kind.OFFSET_FOR_LEADER_EPOCH: CLIENTS,
    Kind.METADATA: CLIENTS,
    Kind.INIT_PRODUCER_ID: CLIENTS,
    Kind.DESCRIBE_PARTITIONS: CLIENTS,
    Kind.DESCRIBE_NODE: CLIENTS,
    Kind.DESCRIBE_CHANGES: CLIENTS,
    Kind.DESCRIBE_PRODUCERS: frozenset({Operation.PRODUCE, Operation.ADMIN}),
    Kind.OFFSET_COMMIT: frozenset({Operation.CONSUME}),
    Kind.OFFSET_FETCH: frozenset({Operation.CONSUME}),
    Kind.FIND_COORDINATOR: CLIENTS,
    Kind.JOIN_GROUP: frozenset({Operation.CONSUME}),
    Kind.SYNC_GROUP: frozenset({Operation.CONSUME}),
    Kind.HEARTBEAT: frozenset({Operation.CONSUME}),
    Kind.CONSUMER_GROUP_HEARTBEAT: frozenset({Operation.CONSUME}),
    # An operator may put a member out, and set the offsets of a group that has none.
    Kind.LEAVE_GROUP: frozenset({Operation.CONSUME, Operation.ADMIN}),
    Kind.COMMIT_GROUP_OFFSETS: frozenset({Operation.CONSUME, Operation.ADMIN}),
    Kind.GROUP_OFFSETS: frozenset({Operation.CONSUME, Operation.ADMIN}),
    Kind.DESCRIBE_GROUPS: frozenset({Operation.CONSUME, Operation.ADMIN}),
    Kind.CONSUMER_GROUP_DESCRIBE: frozenset({Operation.CONSUME, Operation.ADMIN}),
    **dict.fromkeys(
        (Kind.INIT_TRANSACTIONS, Kind.ADD_PARTITIONS_TO_TXN, Kind.END_TXN, Kind.TXN_OFFSET_COMMIT),
        frozenset({Operation.PRODUCE}),
    ),
    Kind.DESCRIBE_TRANSACTIONS: frozenset({Operation.PRODUCE, Operation.ADMIN}),
    Kind.LIST_TRANSACTIONS: frozenset({Operation.PRODUCE, Operation.ADMIN}),
    Kind.WRITE_TXN_MARKERS: frozenset({Operation.REPLICATE}),
    Kind.GET_REPLICA_LOG_INFO: frozenset({Operation.REPLICATE}),
    Kind.IS_SILENT: frozenset({Operation.REPLICATE}),
    **dict.fromkeys(STORE_KINDS, frozenset({Operation.STORE})),
}
"""The operations that a kind of request is part of: any one suffices. Kinds that are not here are for admins."""
ALSO: dict[int, frozenset[Operation]] = {
    # The offsets of a group move, as by any other commit.
    Kind.TXN_OFFSET_COMMIT: OPERATIONS[Kind.COMMIT_GROUP_OFFSETS],
}
"""Of a kind that is part of two things: one of these operations is needed besides."""


@attrs.frozen
class Rule:
    """Lets those whose principal matches do some operations."""

    who: str
    operations: frozenset[Operation]

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read `WHO=OPERATION[+OPERATION]`. InvalidSettingError names what is wrong."""
        who, equals, names = (part.strip() for part in text.partition("="))
        known = {operation.value: operation for operation in GRANTABLE}
        given = [name.strip() for name in names.split("+")]
        if not equals or not (who in ("*", "client") or who.startswith("client/")):
            raise InvalidSettingError(
                f"allow={text!r}: write WHO=OPERATION[+OPERATION] with WHO client, client/NAME or *"
            )
        for name in given:
            if name not in known:
                raise InvalidSettingError(f"allow={text!r}: {name!r} is not one of {_GRANTABLE}")
        return cls(who, frozenset(known[name] for name in given))

    def matches(self, principal: str) -> bool:
        return self.who == principal.partition("/")[0] or fnmatchcase(principal, self.who)


class UserRules(Protocol):
    """A node's knowledge of the cluster's users."""

    def exists(self, name: str) -> bool: ...

    def rule_of(self, name: str) -> frozenset[Operation] | None:
        """The operations that the rule about a user alone lets it do; None: there is none."""


class Authoriser:
    """The rules of one node, or of a store that is served, as the transport asks for them."""

    def __init__(self, rules: Iterable[str] = (), users: UserRules | None = None) -> None:
        self._rules = tuple(Rule.parse(text) for text in rules)
        self._users = users

    def __call__(self, peer: PeerIdentity, kind: int) -> str | None:
        """None if the peer may send this kind of request, else why not."""
        if peer.node_id >= 0:
            return None
        needed, allowed = OPERATIONS.get(kind, _ADMINS), self.allowed(peer)
        if not needed & allowed:
            return refusal(peer, needed)
        also = ALSO.get(kind)
        if also is not None and not also & allowed:
            return refusal(peer, also)
        return None

    def allowed(self, peer: PeerIdentity) -> frozenset[Operation]:
        """The operations that a client may do."""
        own = None
        if peer.name and self._users is not None:
            if peer.method == "sasl" and not self._users.exists(peer.name):
                return frozenset()  # it was deleted, and is still connected
            own = self._users.rule_of(peer.name)
        if own is None and not self._rules:
            return CLIENTS
        granted = [rule.operations for rule in self._rules if rule.matches(peer.principal)]
        return (own or frozenset[Operation]()).union(*granted)


def may_read(topic: str, allowed: Collection[Operation]) -> bool:
    """Whether a client that may do this may read the records of a topic. Those of an internal topic are for admins:
    they tell the transactional ids, groups and offsets of everybody.
    """
    return Operation.CONSUME in allowed and (topic not in INTERNAL_TOPICS or Operation.ADMIN in allowed)


def refusal(peer: PeerIdentity, needed: Iterable[Operation]) -> str:
    """The words for a peer that may do none of these."""
    names = " or ".join(sorted(operation.value for operation in needed))
    if names == Operation.STORE.value:
        return (
            f"{peer.principal} may not use the metadata store: only nodes, and clients with a rule in `allow`"
        )
    if names == Operation.REPLICATE.value:
        return f"{peer.principal} may not {names} here: only nodes may"
    return f"{peer.principal} may not {names} here: it needs a rule in `allow` of the nodes, or of the user"

"""Errors in when a node is taken for silent, and in what it may still write when it was taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.broker.membership.registration import Membership
from insync.replication.core.broker.membership.suspicion import Suspicion
from insync.replication.core.control.records import node_key
from insync.replication.core.store_transaction import AtVersion, Seen, Transaction

from ..catalogue import Patch, mutant


@mutant("K220", "declare a node silent that is silent to one of its watchers")
def _(patch: Patch) -> None:
    def tell(self: Suspicion, request: m.IsSilentRequest) -> m.IsSilentResponse:
        return m.IsSilentResponse(silent=True)

    patch.setattr(Suspicion, "tell", tell)


@mutant("K221", "agree that a node is silent although it has answered since")
def _(patch: Patch) -> None:
    def is_silent(self: Suspicion, node: Any) -> bool:
        watch = self._watches.get(node.node_id)
        return watch is not None and watch.asked is not None

    patch.setattr(Suspicion, "_is_silent", is_silent)


@mutant("K223", "treat an agreement that waited while this process was paused as current")
def _(patch: Patch) -> None:
    patch.setattr(Suspicion, "_is_current", lambda self, asked: True)


@mutant("K222", "compare a registration by its version, which begins at 1 again")
def _(patch: Patch) -> None:
    def by_version(right: Any, *, at_all: bool = True) -> Any:
        def write(self: Membership, seen: Mapping[str, Seen], *args: Any) -> Transaction | None:
            transaction: Transaction | None = right(self, seen, *args)
            if transaction is None:
                return None
            key = node_key(self.node_id)
            others = tuple(each for each in transaction.compares if each.key != key)
            version = (AtVersion(key, seen[key].version),) if at_all else ()
            return structs.replace(transaction, compares=version + others)

        return write

    patch.setattr(Membership, "say_offline", by_version(Membership.say_offline))
    patch.setattr(Membership, "say_leaving", by_version(Membership.say_leaving))
    patch.setattr(Membership, "enter_again", by_version(Membership.enter_again, at_all=False))

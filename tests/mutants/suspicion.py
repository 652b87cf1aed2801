"""Errors in when a node is taken for silent, and in what it may still write when it was taken out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from insync.replication.core import messages as m
from insync.replication.core.broker.membership import Membership
from insync.replication.core.broker.suspicion import Suspicion
from insync.replication.core.control.records import node_key
from insync.replication.core.transaction import AtVersion, Seen, Transaction

from .catalogue import Patch, mutant


@mutant("K220", "take a node for silent that is silent to one of its watchers")
def _(patch: Patch) -> None:
    def tell(self: Suspicion, request: m.IsSilentRequest) -> m.IsSilentResponse:
        return m.IsSilentResponse(silent=True)

    patch.setattr(Suspicion, "tell", tell)


@mutant("K221", "agree that a node is silent which has answered since")
def _(patch: Patch) -> None:
    def is_silent(self: Suspicion, node: Any) -> bool:
        watch = self._watches.get(node.node_id)
        return watch is not None and watch.asked is not None

    patch.setattr(Suspicion, "_is_silent", is_silent)


@mutant("K222", "say that a process leaves over the registration of the next one")
def _(patch: Patch) -> None:
    right = Membership.say_leaving

    def say_leaving(
        self: Membership, seen: Mapping[str, Seen], session: object, endpoints: Collection[str]
    ) -> Transaction | None:
        transaction = right(self, seen, session, endpoints)
        if transaction is None:
            return None
        key = node_key(self.node_id)
        return attrs.evolve(transaction, compares=(AtVersion(key, seen[key].version),))

    patch.setattr(Membership, "say_leaving", say_leaving)

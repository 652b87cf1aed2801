"""Errors in how a process enters the cluster and proves what it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import structs

from insync.replication.core.broker.membership import registration as membership
from insync.replication.core.broker.membership.registration import (
    Entry,
    Evidence,
    Held,
    Membership,
    NodeIdTakenError,
)
from insync.replication.core.control.controller import Controller
from insync.replication.core.control.records import IncarnationRecord, incarnation_key
from insync.replication.core.control.view import ClusterView
from insync.replication.core.store_transaction import SameValue, Seen, Transaction

from ..catalogue import Patch, mutant


@mutant("K15", "register against records other than those that the proof was made for")
def _(patch: Patch) -> None:
    right = Membership.enter

    def enter(self: Membership, seen: Mapping[str, Seen], *given: Any) -> Entry:
        entry = right(self, seen, *given)
        written = {put.key for put in entry.transaction.puts}
        kept = tuple(
            each
            for each in entry.transaction.compares
            if not isinstance(each, SameValue) or each.key in written
        )
        return structs.replace(entry, transaction=structs.replace(entry.transaction, compares=kept))

    patch.setattr(Membership, "enter", enter)


@mutant("K100", "take a folder that was restored to an older state for complete")
def _(patch: Patch) -> None:
    def is_behind(found: Evidence, pulses: Mapping[str, int]) -> bool:
        return False

    patch.setattr(membership, "_is_behind", is_behind)


@mutant("K101", "advance the count of a folder that is behind before the store knows what it lacks")
def _(patch: Patch) -> None:
    patch.setattr(Membership, "_to_prove", lambda self, directories: list(directories))


@mutant("K102", "take a log for complete that ends before the high watermark in its checkpoint")
def _(patch: Patch) -> None:
    patch.setattr(Held, "is_whole", property(lambda self: self.home is not None))


@mutant("K103", "register after a lost session without checking for a newer process")
def _(patch: Patch) -> None:
    right = Membership.enter_again

    def enter_again(self: Membership, seen: Mapping[str, Seen], endpoints: Collection[str]) -> Transaction:
        return structs.replace(right(self, seen, endpoints), compares=())

    patch.setattr(Membership, "enter_again", enter_again)


@mutant("K106", "take its own record for that of another process, after an answer that was lost")
def _(patch: Patch) -> None:
    right = Membership.enter

    def enter(self: Membership, seen: Mapping[str, Seen], *given: Any) -> Entry:
        own = seen.get(incarnation_key(self.node_id))
        record = own.record if own is not None else None
        if isinstance(record, IncarnationRecord) and record.incarnation >= self.incarnation:
            raise NodeIdTakenError("another process has entered")
        return right(self, seen, *given)

    patch.setattr(Membership, "enter", enter)


@mutant("K105", "examine no partition again when nodes come or go")
def _(patch: Patch) -> None:
    def look_at(self: Controller, view: ClusterView) -> None:
        before, self._view = self._view, view
        changed = view.differs_from(before)
        self._unsettled |= set(view.partitions) if changed is None else changed

    patch.setattr(Controller, "_look_at", look_at)


@mutant("K104", "take the lock on a copy of a folder as proof that the folder's own process is dead")
def _(patch: Patch) -> None:
    right = Membership.replaces_holder

    def replaces_holder(self: Membership, seen: Mapping[str, Seen]) -> bool:
        behind: Any = self.behind
        self.behind = ()
        try:
            return right(self, seen)
        finally:
            self.behind = behind

    patch.setattr(Membership, "replaces_holder", replaces_holder)

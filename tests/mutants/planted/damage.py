"""Errors about logs that are damaged in the middle."""

from __future__ import annotations

from collections.abc import Collection

from insync.replication.core.broker.effects import DeleteLog, SetLogAside
from insync.replication.core.broker.fetching.gathering import Gathering
from insync.replication.core.broker.membership import damage
from insync.replication.core.broker.membership.assignments import Assignments
from insync.replication.core.broker.membership.damage import DamagedLogs
from insync.replication.core.broker.membership.registration import Membership
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.types import NO_LEADER, PartitionId

from ..catalogue import Patch, mutant


@mutant("K160", "check no log that a follower doubts")
def _(patch: Patch) -> None:
    patch.setattr(DamagedLogs, "doubted", lambda self, *doubt: None)


@mutant("K224", "ignore damage that this node cannot read in its own log")
def _(patch: Patch) -> None:
    patch.setattr(Gathering, "_found_damaged", lambda self, partition, offset: None)


@mutant("K161", "give up a damaged log although no other replica has everything committed")
def _(patch: Patch) -> None:
    patch.setattr(damage, "may_give_up", lambda record, node_id, live: True)


@mutant("K162", "give up a damaged log only in favour of members of the ISR")
def _(patch: Patch) -> None:
    def may_give_up(record: PartitionRecord, node_id: int, live: Collection[int]) -> bool:
        return any(each != node_id and each in live for each in record.isr)

    patch.setattr(damage, "may_give_up", may_give_up)


@mutant("K163", "delete a damaged log while an election may count on it")
def _(patch: Patch) -> None:
    def may_copy_again(record: PartitionRecord, node_id: int, live: Collection[int]) -> bool:
        return record.leader not in (NO_LEADER, node_id) and record.leader in live

    patch.setattr(damage, "may_copy_again", may_copy_again)


@mutant("K164", "never copy a damaged log again")
def _(patch: Patch) -> None:
    patch.setattr(DamagedLogs, "look", lambda self: None)


@mutant("K165", "keep a damaged log as an eligible replica although no other replica can fill the ISR")
def _(patch: Patch) -> None:
    patch.setattr(damage, "must_step_back", lambda record, node_id, live: False)


@mutant("K166", "count a log that could not be opened at a start as complete")
def _(patch: Patch) -> None:
    patch.setattr(Membership, "_is_lost", lambda self, partition, whole: False)


@mutant("K167", "never copy again a log that a start finds damaged")
def _(patch: Patch) -> None:
    patch.setattr(DamagedLogs, "found", lambda self, event: None)


@mutant("K290", "delete a log that cannot be used, instead of setting it aside")
def _(patch: Patch) -> None:
    right = Assignments._remove

    def remove(self: Assignments, partition: PartitionId, effect: DeleteLog | SetLogAside) -> None:
        right(self, partition, DeleteLog(partition))

    patch.setattr(Assignments, "_remove", remove)


@mutant("K298", "delete the log of a topic that the store does not know, as that of a deleted one")
def _(patch: Patch) -> None:
    def retire(self: Assignments, partition: PartitionId, effect: object) -> None:
        self._remove(partition, DeleteLog(partition))

    patch.setattr(Assignments, "retire", retire)

"""Errors about a metadata store that is put back to an older state, and its repair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from insync.replication.core.broker.membership import registration as membership
from insync.replication.core.broker.membership.registration import Membership
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.recovery import repair
from insync.replication.core.recovery.repair import FoundLog
from insync.replication.core.types import NO_LEADER

from ..catalogue import Patch, mutant


@mutant("K170", "start in a store that is older than the folder's knowledge of it")
def _(patch: Patch) -> None:
    patch.setattr(Membership, "_check_store", lambda self, revision, pulses: None)


@mutant("K171", "continue in a store that was restored while the process ran")
def _(patch: Patch) -> None:
    patch.setattr(membership, "was_put_back", lambda revision, known: False)
    right = Membership.beat

    def beat(self: Membership, *given: Any) -> Any:
        self._stored = {}
        return right(self, *given)

    patch.setattr(Membership, "beat", beat)


@mutant("K197", "enter a store that was restored after the folder was judged by it")
def _(patch: Patch) -> None:
    right = Membership.enter

    def enter(self: Membership, seen: Any, endpoints: Any, revision: int) -> Any:
        self._stored = {}
        return right(self, seen, endpoints, max(revision, self._revision))

    patch.setattr(Membership, "enter", enter)


@mutant("K172", "repair with the epoch that follows those that folders know")
def _(patch: Patch) -> None:
    right = repair._partition
    patch.setattr(repair, "_partition", lambda *given: right(*given[:-1], 1))


@mutant("K196", "repair with the epochs that logs know, not those that nodes have seen")
def _(patch: Patch) -> None:
    right = repair._partition
    patch.setattr(repair, "_partition", lambda *given: right(*given[:-2], 0, given[-1]))


@mutant("K173", "repair with the longest log, whatever its last epoch")
def _(patch: Patch) -> None:
    patch.setattr(FoundLog, "completeness", property(lambda self: (0, self.log_end_offset)))


@mutant("K174", "repair with the ISR that the older store has")
def _(patch: Patch) -> None:
    right = repair._partition

    def partition(*given: Any) -> PartitionRecord:
        after, before = right(*given), given[2]
        # One of them, as the plan names one leader; which one the folders do not say.
        members = before.isr[-1:] if before is not None else ()
        return structs.replace(after, isr=members) if members else after

    patch.setattr(repair, "_partition", partition)


@mutant("K241", "repair with a log that ends below what another log has deleted")
def _(patch: Patch) -> None:
    patch.setattr(repair, "deleted_without_epoch", lambda topic, before, logs: 0)


@mutant("K198", "repair with the last epoch, whatever the folders know to be committed")
def _(patch: Patch) -> None:
    patch.setattr(FoundLog, "committed", property(lambda self: (-1, 0)))


@mutant("K267", "repair with a log that still has what another one, as complete, has deleted")
def _(patch: Patch) -> None:
    def most_complete(held: Mapping[int, FoundLog], deleted: int) -> int:
        committed = max((each.committed for each in held.values()), default=(-1, 0))
        complete = [
            node for node, log in held.items() if log.has(committed) and log.log_end_offset >= deleted
        ]
        return max(complete, key=lambda node: (*held[node].completeness, -node), default=NO_LEADER)

    patch.setattr(repair, "most_complete", most_complete)


@mutant("K268", "take the first epoch that a log knows for that of what it has deleted")
def _(patch: Patch) -> None:
    def committed(self: FoundLog) -> tuple[int, int]:
        end = min(self.high_watermark, self.log_end_offset)
        return (self.epoch_at(end - 1), end) if end else (-1, 0)

    patch.setattr(FoundLog, "committed", property(committed))

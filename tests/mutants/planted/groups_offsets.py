"""Planted errors of offsets: expiry, transactions, deletion."""

from __future__ import annotations

from typing import Any

import attrs
from msgspec import structs

from insync.replication.core.coordination import shard_effects as fx
from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.coordination.shard import Shard
from insync.replication.core.groups import expiry as group_expiry
from insync.replication.core.groups import offset_commits
from insync.replication.core.groups import shard as group_shard
from insync.replication.core.groups.classic_state import ClassicPhase
from insync.replication.core.groups.shard import GroupCoordinator

from ..catalogue import Patch, mutant


@mutant("GZ31", "offsets expire while a rebalance is running")
def _(patch: Patch) -> None:
    right = group_expiry._is_over

    def is_over(state: Any, classic: Any, *rest: Any) -> bool:
        if classic is not None and classic.members:
            classic = attrs.evolve(classic, phase=ClassicPhase.STABLE)
        return right(state, classic, *rest)

    patch.setattr(group_expiry, "_is_over", is_over)


@mutant("GZ34", "a marker is reported as applied while the log is still being read")
def _(patch: Patch) -> None:
    right = Shard._mark

    def mark(self: Shard, marker: ev.Marker) -> None:
        if self._role is not None and not self.active:
            self._effects.append(fx.MarkerApplied(offset=marker.offset))
        right(self, marker)

    patch.setattr(Shard, "_mark", mark)


@mutant("GZ35", "an offset that a transaction is about to replace is reported as stable")
def _(patch: Patch) -> None:
    patch.setattr(offset_commits, "_undecided", lambda state: set())


@mutant("GZ32", "offsets expire that a transaction is about to replace")
def _(patch: Patch) -> None:
    right = group_expiry.expire

    def expire(state: Any, classic: Any, context: Any) -> Any:
        return right(attrs.evolve(state, pending={}), classic, context)

    patch.setattr(group_shard, "expire", expire)


@mutant("GZ33", "a transaction's offsets count from its marker")
def _(patch: Patch) -> None:
    right = GroupCoordinator.mark

    def mark(self: GroupCoordinator, marker: Any) -> frozenset[str]:
        for state in self.groups.values():
            for place in state.pending.get(marker.producer.producer_id, {}):
                if marker.committed:
                    state.offsets.pop(place, None)
        return right(self, marker)

    patch.setattr(GroupCoordinator, "mark", mark)


@mutant("GZ46", "offsets expire although a member reads the topic")
def _(patch: Patch) -> None:
    right = group_expiry._is_over

    def is_over(state: Any, *rest: Any) -> bool:
        return right(attrs.evolve(state, members={}), *rest)

    patch.setattr(group_expiry, "_is_over", is_over)


@mutant("GZ47", "an aborted transaction's offsets count")
def _(patch: Patch) -> None:
    right = GroupCoordinator.mark
    patch.setattr(
        GroupCoordinator, "mark", lambda self, marker: right(self, structs.replace(marker, committed=True))
    )

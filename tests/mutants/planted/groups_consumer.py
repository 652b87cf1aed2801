"""Planted errors of the consumer protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups import consumer_group, consumer_members, offset_commits
from insync.replication.core.groups import records as r
from insync.replication.core.groups.assignors import uniform
from insync.replication.core.groups.assignors.assignment import Partition, subscribers
from insync.replication.core.groups.consumer_members import ConsumerMembers
from insync.replication.core.messages import groups as gm

from ..catalogue import Patch, mutant


def _commit_rule(patch: Patch, rule: Callable[[int, int, int | None], bool]) -> None:
    right = offset_commits._check_partition

    def check(offset: Any, owned: Any, epoch: int, state: Any, member_id: str, context: Any) -> ErrorCode:
        error = right(offset, owned, epoch, state, member_id, context)
        if owned is None or error not in (ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH):
            return error
        info = context.view.topics[offset.topic]
        given = owned.get(r.TopicPartition(info.topic_id, offset.partition))
        held = rule(epoch, state.current(member_id).epoch, given)
        return ErrorCode.NONE if held else ErrorCode.STALE_MEMBER_EPOCH

    patch.setattr(offset_commits, "_check_partition", check)


@mutant("GZ17", "a commit must carry the member's present epoch (KAFKA-19779)")
def _(patch: Patch) -> None:
    _commit_rule(patch, lambda epoch, current, given: epoch == current)


@mutant("GZ18", "a member whose answer was lost is fenced")
def _(patch: Patch) -> None:
    right = consumer_group._check_epoch

    def check(current: Any, beat: Any) -> None:
        right(structs.replace(current, previous_epoch=-7), beat)

    patch.setattr(consumer_group, "_check_epoch", check)


@mutant("GZ17b", "any partition may be committed at any earlier epoch")
def _(patch: Patch) -> None:
    _commit_rule(patch, lambda epoch, current, given: epoch <= current)


@mutant("GZ19", "a partition that a member still has to release counts as free")
def _(patch: Patch) -> None:
    right = consumer_group.reconcile
    plain = consumer_group.advance

    def advance(draft: Any, member_id: str, owned: Any, context: Any) -> bool:
        taken: set[r.TopicPartition] = set()
        for other, value in draft.state.currents.items():
            if other != member_id:
                taken |= r.as_set(value.assigned)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(
                consumer_group,
                "reconcile",
                lambda current, seen: right(current, structs.replace(seen, taken=taken)),
            )
            return plain(draft, member_id, owned, context)

    patch.setattr(consumer_members, "advance", advance)


@mutant("GZ20", "a partition that a member has released itself stays blocked for it")
def _(patch: Patch) -> None:
    right = consumer_group.reconcile

    def reconcile(current: Any, seen: Any) -> Any:
        return right(current, structs.replace(seen, taken=seen.taken | r.as_set(current.pending)))

    patch.setattr(consumer_group, "reconcile", reconcile)


@mutant("GZ21", "an empty group's target epoch is left behind")
def _(patch: Patch) -> None:
    right = consumer_group._retarget

    def retarget(draft: Any, context: Any) -> None:
        if draft.state.members:
            right(draft, context)

    patch.setattr(consumer_group, "_retarget", retarget)


@mutant("GZ22", "the timer of an earlier revocation keeps running")
def _(patch: Patch) -> None:
    right = ConsumerMembers.applied

    def applied(self: ConsumerMembers, *rest: Any) -> None:
        drop = self._drop

        def keep(kind: str, group: str, member_id: str) -> None:
            if kind != consumer_members.REVOCATION:
                drop(kind, group, member_id)

        self._drop = keep  # type: ignore[method-assign]
        right(self, *rest)
        del self._drop

    patch.setattr(ConsumerMembers, "applied", applied)


@mutant("GZ23", "a static member that leaves for a while is removed")
def _(patch: Patch) -> None:
    right = ConsumerMembers.beat

    def beat(self: ConsumerMembers, request_id: int, asked: Any, *rest: Any) -> Any:
        if asked.member_epoch == gm.LEAVE_STATIC:
            asked = structs.replace(asked, member_epoch=gm.LEAVE)
        return right(self, request_id, asked, *rest)

    patch.setattr(ConsumerMembers, "beat", beat)


@mutant("GZ39", "the members with one partition more have fixed places")
def _(patch: Patch) -> None:
    right = uniform.keep_quotas

    def keep_quotas(counts: Any, members: Any, owners: Any) -> Any:
        sharing, quota, _ = right(counts, members, owners)
        topics = subscribers(counts, members)
        every = [Partition(topic, number) for topic in topics for number in range(counts[topic])]
        extras = len(every) % len(sharing.order)
        for place, member_id in enumerate(sharing.order):
            mine = sorted(each for each, owner in owners.items() if owner == member_id)
            sharing.held[member_id] = set(mine[: quota + (place < extras)])
        kept = set().union(*sharing.held.values())
        sharing.free = [each for each in every if each not in kept]
        return sharing, quota, extras - sum(len(each) > quota for each in sharing.held.values())

    patch.setattr(uniform, "keep_quotas", keep_quotas)


@mutant("GZ48", "a late copy of an earlier heartbeat is believed")
def _(patch: Patch) -> None:
    right = ConsumerMembers.beat

    def beat(self: ConsumerMembers, request_id: int, asked: Any, *rest: Any) -> Any:
        return right(self, request_id, structs.replace(asked, sequence=-1), *rest)

    patch.setattr(ConsumerMembers, "beat", beat)


@mutant("GZ49", "a member is asked once to release a partition, and believed to have done so")
def _(patch: Patch) -> None:
    right = consumer_group.reconcile

    def reconcile(current: Any, seen: Any) -> Any:
        return right(current, structs.replace(seen, owned=frozenset()))

    patch.setattr(consumer_group, "reconcile", reconcile)

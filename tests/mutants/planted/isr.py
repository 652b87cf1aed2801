"""Errors in who counts, who joins and who leaves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import structs

from insync.replication.core.broker.events import IsrsWritten
from insync.replication.core.broker.membership import proposing
from insync.replication.core.broker.membership.proposing import Proposing
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition import isr as rules
from insync.replication.core.partition.isr_change import IsrChange
from insync.replication.core.partition.leader import LeaderRole
from insync.replication.core.partition.replica import Replica

from ..catalogue import Patch, mutant
from .calls import telling


def _join_whether_or_not_caught_up(patch: Patch) -> None:
    right = IsrChange.maybe_expand

    def maybe_expand(self: IsrChange, follower: rules.Follower) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(LeaderRole, "caught_up", lambda leader, follower: True)
            right(self, follower)

    patch.setattr(IsrChange, "maybe_expand", maybe_expand)


@mutant("K16", "let a follower join at the high watermark if it has caught up with the end of its last fetch")
def _(patch: Patch) -> None:
    patch.setattr(
        rules, "may_join", lambda follower, high_watermark, start: follower.log_end_offset >= high_watermark
    )


@mutant("Z4", "let a follower join that lacks part of the earlier epochs (KAFKA-7128)")
def _(patch: Patch) -> None:
    _join_whether_or_not_caught_up(patch)
    patch.setattr(
        rules, "may_join", lambda follower, high_watermark, start: follower.log_end_offset >= high_watermark
    )


@mutant("Z5", "count a joining member only after it has joined (KIP-497)")
def _(patch: Patch) -> None:
    patch.setattr(rules, "maximal_isr", lambda isr, joining: frozenset(isr))


@mutant("Z6", "stop counting a leaving member before the store has recorded it (KIP-497)")
def _(patch: Patch) -> None:
    def maximal(self: LeaderRole) -> frozenset[int]:
        pending = self.change.pending
        return frozenset(self.record.isr if pending is None else pending.proposal.record.isr)

    patch.setattr(LeaderRole, "maximal_isr", maximal)


@mutant("Z28", "move the high watermark under the minimum ISR (KAFKA-15583)")
def _(patch: Patch) -> None:
    right = rules.high_watermark

    def high_watermark(
        current: int, leader_end: int, holders: Iterable[int], isr_size: int, min_isr: int
    ) -> int:
        return right(current, leader_end, holders, isr_size, 0)

    patch.setattr(rules, "high_watermark", high_watermark)


@mutant("Z23", "restart the numbering of ISR proposals in each epoch (Fluss #2146)")
def _(patch: Patch) -> None:
    def number(self: Replica) -> int:
        return 1

    patch.setattr(Replica, "new_proposal_id", number)


@mutant("Z23b", "keep a proposal across leader epochs")
def _(patch: Patch) -> None:
    kept: dict[Replica, Any] = {}
    right = LeaderRole.enter

    def enter(self: LeaderRole) -> None:
        self.change.pending = kept.get(self.replica)
        right(self)

    def leave(self: LeaderRole, error: Any) -> None:
        kept[self.replica] = self.change.pending
        left(self, error)

    left = LeaderRole.leave
    patch.setattr(LeaderRole, "enter", enter)
    patch.setattr(LeaderRole, "leave", leave)


@mutant("K5", "drop an ISR proposal whose outcome is unknown")
def _(patch: Patch) -> None:
    right = IsrChange.on_outcome

    def on_outcome(self: IsrChange, event: ev.IsrStored | ev.IsrRefused | ev.IsrUnclear) -> None:
        if isinstance(event, ev.IsrUnclear) and self.pending is not None:
            self.pending = None
            self._replica.parts.read_again(fx.ReadRecord(partition=self._replica.partition))
        else:
            right(self, event)

    patch.setattr(IsrChange, "on_outcome", on_outcome)


@mutant("Z22", "never ask again about an ISR proposal whose outcome is unknown (KAFKA-14144)")
def _(patch: Patch) -> None:
    patch.setattr(IsrChange, "_look_again", lambda self, pending: None)


@mutant("Z16", "add a member without checking its incarnation (KIP-903)")
def _(patch: Patch) -> None:
    right = IsrChange._propose

    def propose(self: IsrChange, isr: Any, *, joining: int | None, reason: str) -> Any:
        with telling(self._replica, "propose", lambda proposal: structs.replace(proposal, joining=())):
            pending = right(self, isr, joining=joining, reason=reason)
        pending.proposal = structs.replace(pending.proposal, joining=())
        return pending

    patch.setattr(IsrChange, "_propose", propose)
    patch.setattr(LeaderRole, "eligible", lambda self, follower: True)


@mutant("Z56", "let no member join before the high watermark is past the epoch's start")
def _(patch: Patch) -> None:
    right = IsrChange.maybe_expand

    def maybe_expand(self: IsrChange, follower: rules.Follower) -> None:
        if self._replica.log.high_watermark >= self._leader.epoch_start:
            right(self, follower)

    patch.setattr(IsrChange, "maybe_expand", maybe_expand)


@mutant("Z15", "let a replica of a fenced node join (KIP-841, KAFKA-13916)")
def _(patch: Patch) -> None:
    right = proposing.conditions

    def conditions(proposal: fx.ProposeIsr, seen: Any) -> Any:
        return right(structs.replace(proposal, joining=()), seen)

    patch.setattr(proposing, "conditions", conditions)
    patch.setattr(LeaderRole, "eligible", lambda self, follower: follower.incarnation >= 0)


@mutant("Z17", "name the incarnation in the store, not the one that fetched (KAFKA-15221)")
def _(patch: Patch) -> None:
    right = IsrChange._propose

    def propose(self: IsrChange, isr: Any, *, joining: int | None, reason: str) -> Any:
        def change(proposal: fx.ProposeIsr) -> fx.ProposeIsr:
            if joining is None:
                return proposal
            return structs.replace(proposal, joining=((joining, self._replica.live.get(joining, -1)),))

        with telling(self._replica, "propose", change):
            pending = right(self, isr, joining=joining, reason=reason)
        pending.proposal = change(pending.proposal)
        return pending

    patch.setattr(IsrChange, "_propose", propose)
    patch.setattr(LeaderRole, "eligible", lambda self, follower: follower.node_id in self.replica.live)
    patch.setattr(LeaderRole, "_replaced", lambda self, follower: follower)


@mutant("Z26", "start a new epoch with members that have never caught up (Fluss #3698)")
def _(patch: Patch) -> None:
    right = LeaderRole.enter

    def enter(self: LeaderRole) -> None:
        for follower in self.followers.values():
            follower.last_caught_up = float("-inf")
        right(self)

    patch.setattr(LeaderRole, "enter", enter)


@mutant("K16b", "remove at once a member that joined by a proposal made before the log was reopened")
def _(patch: Patch) -> None:
    patch.setattr(LeaderRole, "_meet_new_members", lambda self: None)


@mutant("K29", "forget a joining replica when the log is reopened")
def _(patch: Patch) -> None:
    patch.setattr(IsrChange, "take_over", lambda self, earlier: None)


@mutant("Z27", "measure lag in records (KAFKA-1546)")
def _(patch: Patch) -> None:
    patch.setattr(
        rules, "caught_up", lambda follower, end, now, lag_max: end - max(0, follower.log_end_offset) <= 2
    )


@mutant("Z27b", "measure lag in time alone (KAFKA-7152)")
def _(patch: Patch) -> None:
    patch.setattr(
        rules, "caught_up", lambda follower, end, now, lag_max: now - follower.last_caught_up <= lag_max
    )


@mutant("Z48", "let a follower join under the minimum ISR before it has caught up (KAFKA-19996)")
def _(patch: Patch) -> None:
    _join_whether_or_not_caught_up(patch)


@mutant("K180", "let no more time pass for a replica that once had no use for it")
def _(patch: Patch) -> None:
    step, fetch = Replica.step, Replica.fetch

    def stepped(self: Replica, event: ev.Event, now: float) -> None:
        wanted = self.wants_tick
        step(self, event, now)
        self.wants_tick = wanted and self.wants_tick

    def fetched(self: Replica, question: ev.Fetch, now: float) -> Any:
        wanted = self.wants_tick
        answer = fetch(self, question, now)
        self.wants_tick = wanted and self.wants_tick
        return answer

    patch.setattr(Replica, "step", stepped)
    patch.setattr(Replica, "fetch", fetched)


@mutant("K183", "forget ISR changes that met a conflict together")
def _(patch: Patch) -> None:
    right = Proposing.written

    def written(self: Proposing, event: IsrsWritten) -> None:
        taken = list(self._taken)
        right(self, event)
        if len(taken) > 1:
            self._alone.clear()
            self._waiting = [each for each in self._waiting if each not in taken]

    patch.setattr(Proposing, "written", written)


@mutant("K184", "report the outcome of a refused ISR change to nobody")
def _(patch: Patch) -> None:
    right = Proposing._step

    def step(self: Proposing, proposed: Any, outcome: Any) -> None:
        if not isinstance(outcome, ev.IsrRefused):
            right(self, proposed, outcome)

    patch.setattr(Proposing, "_step", step)

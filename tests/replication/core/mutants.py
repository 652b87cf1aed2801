"""Known ways to get replication wrong, each planted over the core; the storm must notice every one of them.

Each entry of `MUTANTS` applies one by a `pytest.MonkeyPatch`. The names say what is wrong and where it was met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest

from insync.replication.core import effects as fx
from insync.replication.core import events as ev
from insync.replication.core import follower as follower_module
from insync.replication.core import isr as rules
from insync.replication.core import leader as leader_module
from insync.replication.core import transitions
from insync.replication.core.epochs import EpochCache, EpochEnd
from insync.replication.core.errors import ErrorCode
from insync.replication.core.follower import FollowerRole
from insync.replication.core.isr_change import IsrChange
from insync.replication.core.leader import LeaderRole
from insync.replication.core.log_state import LogState
from insync.replication.core.producers import ProducerTable
from insync.replication.core.records import PartitionRecord
from insync.replication.core.replica import Replica

Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(name: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def add(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS[name] = plant
        return plant

    return add


@mutant("truncate to the high watermark on becoming follower (KIP-101)")
def _(patch: Patch) -> None:
    right = FollowerRole.enter

    def enter(self: FollowerRole) -> None:
        log = self._replica.log
        if log.high_watermark < log.log_end_offset and self._leader != -1:
            self._truncate(log.high_watermark)
        else:
            right(self)

    patch.setattr(FollowerRole, "enter", enter)


@mutant("truncate to the leader's answer only, and go on from its epoch (KIP-279)")
def _(patch: Patch) -> None:
    def cut(cache: EpochCache, log_end_offset: int, leader_end: EpochEnd) -> int:
        return min(leader_end.end_offset, log_end_offset)

    claimed: dict[FollowerRole, int] = {}
    right_cut, right_ask = FollowerRole._cut, FollowerRole._ask

    def remember(self: FollowerRole, leader_end: EpochEnd) -> None:
        claimed[self] = leader_end.epoch
        right_cut(self, leader_end)

    def ask(self: FollowerRole, *, delayed: bool = False) -> None:
        right_ask(self, delayed=delayed)
        sent = self._replica._effects[-1] if self._replica._effects else None
        if self in claimed and isinstance(sent, fx.FetchNext):
            epoch = claimed.pop(self)
            self._asked = (sent.fetch_offset, epoch)
            self._replica._effects[-1] = attrs.evolve(sent, last_fetched_epoch=epoch)

    patch.setattr(follower_module, "truncation_point", cut)
    patch.setattr(FollowerRole, "_cut", remember)
    patch.setattr(FollowerRole, "_ask", ask)


@mutant("serve a fetch of another leader epoch (KIP-320)")
def _(patch: Patch) -> None:
    right = LeaderRole.on_fetch

    def on_fetch(self: LeaderRole, event: ev.Fetch) -> None:
        right(self, attrs.evolve(event, leader_epoch=self.epoch) if event.replica_id >= 0 else event)

    patch.setattr(LeaderRole, "on_fetch", on_fetch)


@mutant("let a follower join that has not all of the earlier epochs (KAFKA-7128)")
def _(patch: Patch) -> None:
    patch.setattr(
        rules, "may_join", lambda follower, high_watermark, start: follower.log_end_offset >= high_watermark
    )


@mutant("count a joining member only when it has joined (KIP-497)")
def _(patch: Patch) -> None:
    patch.setattr(rules, "maximal_isr", lambda isr, joining: frozenset(isr))


@mutant("stop counting a leaving member before that is stored (KIP-497)")
def _(patch: Patch) -> None:
    def maximal(self: LeaderRole) -> frozenset[int]:
        pending = self.change.pending
        return frozenset(self.record.isr if pending is None else pending.proposal.record.isr)

    patch.setattr(LeaderRole, "maximal_isr", maximal)


@mutant("count what a follower has past the divergence (KAFKA-13141)")
def _(patch: Patch) -> None:
    right = LeaderRole._answer

    def answer(
        self: LeaderRole, event: ev.Fetch, error: ErrorCode, *, diverging: EpochEnd | None = None
    ) -> None:
        if diverging is not None and event.replica_id >= 0:
            self._account(event)
        right(self, event, error, diverging=diverging)

    patch.setattr(LeaderRole, "_answer", answer)


@mutant("believe the high watermark of a diverging answer (KAFKA-14704)")
def _(patch: Patch) -> None:
    right = FollowerRole.on_fetched

    def on_fetched(self: FollowerRole, event: ev.Fetched) -> None:
        if event.diverging is not None:
            self._learn(event.high_watermark)
        right(self, event)

    patch.setattr(FollowerRole, "on_fetched", on_fetched)


@mutant("take the leader's high watermark whatever one has")
def _(patch: Patch) -> None:
    def learn(self: LogState, leader_high_watermark: int) -> bool:
        self.high_watermark = max(self.high_watermark, leader_high_watermark)
        return True

    patch.setattr(LogState, "learn_high_watermark", learn)


@mutant("do not record the epoch's start before its first append (KAFKA-7415)")
def _(patch: Patch) -> None:
    right = LeaderRole.enter

    def enter(self: LeaderRole) -> None:
        entries = self._replica.log.epochs.entries
        right(self)
        self._replica.log.epochs = EpochCache(entries)

    patch.setattr(LeaderRole, "enter", enter)


@mutant("do not ask where the logs part (Fluss, Kafka before KIP-101; KAFKA-7164)")
def _(patch: Patch) -> None:
    right = LeaderRole._epoch_end

    def epoch_end(self: LeaderRole, event: ev.Fetch) -> Any:
        return right(self, event) if event.replica_id < 0 else None

    patch.setattr(LeaderRole, "_epoch_end", epoch_end)


@mutant("keep followers' offsets over a leader epoch")
def _(patch: Patch) -> None:
    kept: dict[Replica, dict[int, rules.Follower]] = {}
    right = LeaderRole.enter

    def enter(self: LeaderRole) -> None:
        for node, earlier in kept.get(self.replica, {}).items():
            self.followers[node].log_end_offset = earlier.log_end_offset
            self.followers[node].incarnation = earlier.incarnation
        kept[self.replica] = self.followers
        right(self)

    patch.setattr(LeaderRole, "enter", enter)


@mutant("move the high watermark under the minimum ISR (KAFKA-15583)")
def _(patch: Patch) -> None:
    right = rules.high_watermark

    def high_watermark(
        current: int, leader_end: int, holders: Iterable[int], isr_size: int, min_isr: int
    ) -> int:
        return right(current, leader_end, holders, isr_size, 0)

    patch.setattr(rules, "high_watermark", high_watermark)


@mutant("keep eligible replicas though the ISR is at its minimum (KIP-966)")
def _(patch: Patch) -> None:
    right = transitions._next

    def after(record: PartitionRecord, **change: Any) -> PartitionRecord:
        done = right(record, **change)
        kept = tuple(node for node in record.elr if node not in done.isr)
        return attrs.evolve(done, elr=done.elr or kept)

    patch.setattr(transitions, "_next", after)


@mutant("forget the eligible replicas under the minimum ISR (KIP-966)")
def _(patch: Patch) -> None:
    right = transitions._next
    patch.setattr(
        transitions, "_next", lambda record, **change: attrs.evolve(right(record, **change), elr=())
    )


@mutant("take a lossy restart for a lossless one (KAFKA-15586)")
def _(patch: Patch) -> None:
    patch.setattr(transitions, "forget", transitions.restarted)


@mutant("let a new process lead in the epoch of its predecessor")
def _(patch: Patch) -> None:
    patch.setattr(transitions, "restarted", lambda record, node: None)


@mutant("answer what was parked in an earlier epoch by offset alone")
def _(patch: Patch) -> None:
    kept: dict[Replica, Any] = {}
    right = FollowerRole._learn

    def leave(self: LeaderRole, error: ErrorCode) -> None:
        kept[self.replica] = self

    def learn(self: FollowerRole, leader_high_watermark: int) -> None:
        right(self, leader_high_watermark)
        if self._replica in kept:
            kept[self._replica].maximal_isr = lambda: frozenset(range(9))
            kept[self._replica]._complete_produce()

    patch.setattr(LeaderRole, "leave", leave)
    patch.setattr(FollowerRole, "_learn", learn)


@mutant("keep the producers' sequences over a truncation (KAFKA-5494)")
def _(patch: Patch) -> None:
    right = LogState.truncated

    def truncated(self: LogState, *facts: Any) -> LogState:
        state = right(self, *facts)
        state.producers = self.producers
        return state

    patch.setattr(LogState, "truncated", truncated)


@mutant("remember nothing of idempotent producers")
def _(patch: Patch) -> None:
    patch.setattr(ProducerTable, "record", lambda self, batch: None)
    patch.setattr(ProducerTable, "get", lambda self, producer: None)
    patch.setattr(ProducerTable, "__init__", lambda self, entries=(): setattr(self, "_entries", {}))


@mutant("expose all that a new leader has at once")
def _(patch: Patch) -> None:
    right = LeaderRole.enter

    def enter(self: LeaderRole) -> None:
        self.replica.log.high_watermark = self.replica.log.log_end_offset
        right(self)

    patch.setattr(LeaderRole, "enter", enter)


@mutant("apply any answer that begins at one's own end (KAFKA-9087)")
def _(patch: Patch) -> None:
    def current(self: FollowerRole, offset: int, leader_epoch: int, last_epoch: int | None) -> bool:
        return offset == self._replica.log.log_end_offset and not self._replica.log.outstanding

    patch.setattr(FollowerRole, "_is_current", current)


@mutant("believe a late divergence of the same leader epoch")
def _(patch: Patch) -> None:
    def current(self: FollowerRole, offset: int, leader_epoch: int, last_epoch: int | None) -> bool:
        return self._asked is not None and (offset, leader_epoch) == (self._asked[0], self._leader_epoch)

    patch.setattr(FollowerRole, "_is_current", current)


@mutant("lead before the log has done what the earlier role asked for")
def _(patch: Patch) -> None:
    right = Replica._enter_waiting_epoch

    def enter(self: Replica) -> None:
        outstanding, self.log.outstanding = self.log.outstanding, 0
        log = self.log
        right(self)
        log.outstanding += outstanding

    patch.setattr(Replica, "_enter_waiting_epoch", enter)


@mutant("number the ISR proposals anew in each epoch (Fluss #2146)")
def _(patch: Patch) -> None:
    def number(self: Replica) -> int:
        return 1

    patch.setattr(Replica, "new_proposal_id", number)


@mutant("drop an ISR proposal whose fate is not known")
def _(patch: Patch) -> None:
    right = IsrChange.on_outcome

    def on_outcome(self: IsrChange, event: ev.IsrStored | ev.IsrRefused | ev.IsrUnclear) -> None:
        if isinstance(event, ev.IsrUnclear) and self.pending is not None:
            self.pending = None
            self._replica.emit(fx.ReadRecord())
        else:
            right(self, event)

    patch.setattr(IsrChange, "on_outcome", on_outcome)


@mutant("never ask again about an ISR proposal whose fate is not known (KAFKA-14144)")
def _(patch: Patch) -> None:
    patch.setattr(IsrChange, "_look_again", lambda self, pending: None)


@mutant("add a member without a check of its incarnation (KIP-903)")
def _(patch: Patch) -> None:
    right = IsrChange._propose

    def propose(self: IsrChange, isr: Any, *, joining: int | None, reason: str) -> Any:
        pending = right(self, isr, joining=joining, reason=reason)
        bare = attrs.evolve(pending.proposal, joining=())
        self._replica._effects[-1] = pending.proposal = bare
        return pending

    patch.setattr(IsrChange, "_propose", propose)
    patch.setattr(LeaderRole, "eligible", lambda self, follower: True)


@mutant("let no member join before the high watermark is past the epoch's start")
def _(patch: Patch) -> None:
    right = IsrChange.maybe_expand

    def maybe_expand(self: IsrChange, follower: rules.Follower) -> None:
        if self._replica.log.high_watermark >= self._leader.epoch_start:
            right(self, follower)

    patch.setattr(IsrChange, "maybe_expand", maybe_expand)


@mutant("expose a batch when it is asked to be written")
def _(patch: Patch) -> None:
    right = leader_module.LeaderRole._append

    def append(self: LeaderRole, event: ev.Produce) -> None:
        right(self, event)
        self.replica.log.log_end_offset = self.replica.log.next_offset

    patch.setattr(LeaderRole, "_append", append)

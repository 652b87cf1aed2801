"""Errors in what a replica does with its own log."""

from __future__ import annotations

import random
from typing import Any

from msgspec import structs

from insync.replication.core.epochs import EpochCache, EpochEnd
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition import follower as follower_module
from insync.replication.core.partition.follower import FollowerRole
from insync.replication.core.partition.log_state import LogState
from insync.replication.core.partition.producers import ProducerTable
from insync.replication.core.partition.replica import Replica

from ..catalogue import Patch, mutant
from .calls import telling


@mutant("Z1", "truncate to the high watermark on becoming follower (KIP-101)")
def _(patch: Patch) -> None:
    right = FollowerRole.enter

    def enter(self: FollowerRole) -> None:
        log = self._replica.log
        if log.high_watermark < log.log_end_offset and self._leader != -1:
            self._truncate(log.high_watermark)
        else:
            right(self)

    patch.setattr(FollowerRole, "enter", enter)


@mutant("Z2", "truncate to the leader's answer only, and continue from its epoch (KIP-279)")
def _(patch: Patch) -> None:
    def cut(cache: EpochCache, log_end_offset: int, leader_end: EpochEnd) -> int:
        return min(leader_end.end_offset, log_end_offset)

    claimed: dict[FollowerRole, int] = {}
    right_cut, right_ask = FollowerRole._cut, FollowerRole._ask

    def remember(self: FollowerRole, leader_end: EpochEnd, leader_log_start: int) -> None:
        claimed[self] = leader_end.epoch
        right_cut(self, leader_end, leader_log_start)

    def ask(self: FollowerRole, *, delayed: bool = False) -> None:
        def change(asked: fx.FetchNext) -> fx.FetchNext:
            if self not in claimed:
                return asked
            epoch = claimed.pop(self)
            self._asked = (asked.fetch_offset, epoch)
            return structs.replace(asked, last_fetched_epoch=epoch)

        with telling(self._replica, "want", change):
            right_ask(self, delayed=delayed)

    patch.setattr(follower_module, "truncation_point", cut)
    patch.setattr(FollowerRole, "_cut", remember)
    patch.setattr(FollowerRole, "_ask", ask)


@mutant("Z9", "believe the high watermark of a diverging answer (KAFKA-14704)")
def _(patch: Patch) -> None:
    right = FollowerRole.on_fetched

    def on_fetched(self: FollowerRole, event: ev.Fetched) -> None:
        if event.diverging is not None:
            self._replica.log.learn_high_watermark(event.high_watermark)
        right(self, event)

    patch.setattr(FollowerRole, "on_fetched", on_fetched)


@mutant("Z10", "adopt the leader's high watermark beyond the follower's log end")
def _(patch: Patch) -> None:
    def learn(self: LogState, leader_high_watermark: int) -> bool:
        self.high_watermark = max(self.high_watermark, leader_high_watermark)
        return True

    patch.setattr(LogState, "learn_high_watermark", learn)


@mutant("Z40", "keep the producers' sequences after a truncation (KAFKA-5494)")
def _(patch: Patch) -> None:
    right = LogState.truncated

    def truncated(self: LogState, *facts: Any) -> LogState:
        state = right(self, *facts)
        state.producers = self.producers
        return state

    patch.setattr(LogState, "truncated", truncated)


@mutant("K2", "remember nothing of idempotent producers")
def _(patch: Patch) -> None:
    patch.setattr(ProducerTable, "record", lambda self, batch: None)
    patch.setattr(ProducerTable, "get", lambda self, producer: None)
    right = ProducerTable.__init__
    patch.setattr(ProducerTable, "__init__", lambda self, *found: right(self))


@mutant("K18", "accept no batch behind a gap that compaction has left")
def _(patch: Patch) -> None:
    right = FollowerRole._take

    def take(self: FollowerRole, event: ev.Fetched) -> None:
        if event.batches[0].base_offset > self._replica.log.log_end_offset:
            self._ask(delayed=True)
        else:
            right(self, event)

    patch.setattr(FollowerRole, "_take", take)


@mutant("K19", "count the offsets that compaction removed to the earlier epoch")
def _(patch: Patch) -> None:
    right = LogState.expect

    def expect(self: LogState, batches: Any, leader_epoch: int | None = None) -> None:
        for batch in batches:
            epoch = batch.leader_epoch if leader_epoch is None else leader_epoch
            self.epochs.assign(epoch, max(batch.base_offset, self.log_start_offset))
        right(self, batches, leader_epoch)

    patch.setattr(LogState, "expect", expect)


@mutant("K20", "let chance decide what a follower reports of its high watermark")
def _(patch: Patch) -> None:
    right = FollowerRole._ask

    def ask(self: FollowerRole, *, delayed: bool = False) -> None:
        def change(asked: fx.FetchNext) -> fx.FetchNext:
            return structs.replace(asked, high_watermark=-1) if random.random() < 0.2 else asked

        with telling(self._replica, "want", change):
            right(self, delayed=delayed)

    patch.setattr(FollowerRole, "_ask", ask)


@mutant("Z50", "apply any answer that begins at the follower's log end (KAFKA-9087)")
def _(patch: Patch) -> None:
    def current(self: FollowerRole, offset: int, leader_epoch: int, last_epoch: int | None) -> bool:
        return offset == self._replica.log.log_end_offset and not self._replica.log.outstanding

    patch.setattr(FollowerRole, "_is_current", current)


@mutant("K3", "accept a late divergence of the same leader epoch")
def _(patch: Patch) -> None:
    def current(self: FollowerRole, offset: int, leader_epoch: int, last_epoch: int | None) -> bool:
        return self._asked is not None and (offset, leader_epoch) == (self._asked[0], self._leader_epoch)

    patch.setattr(FollowerRole, "_is_current", current)


@mutant("Z45", "fall back to the high watermark when no leader answers (Liftbridge)")
def _(patch: Patch) -> None:
    failures: dict[Replica, int] = {}
    right = FollowerRole.on_fetch_failed

    def on_fetch_failed(self: FollowerRole, event: ev.FetchFailed) -> None:
        count = failures[self._replica] = failures.get(self._replica, 0) + 1
        log = self._replica.log
        if count % 3 == 0 and self._asked is not None and log.high_watermark < log.log_end_offset:
            self._truncate(log.high_watermark)
        else:
            right(self, event)

    patch.setattr(FollowerRole, "on_fetch_failed", on_fetch_failed)


@mutant("Z14", "do not ask where the logs diverge while the leader is the same node (KAFKA-7164)")
def _(patch: Patch) -> None:
    last: dict[Replica, int] = {}
    right = FollowerRole._ask

    def ask(self: FollowerRole, *, delayed: bool = False) -> None:
        same = last.get(self._replica) == self._leader
        last[self._replica] = self._leader

        def change(asked: fx.FetchNext) -> fx.FetchNext:
            if not same:
                return asked
            self._asked = (asked.fetch_offset, -1)
            return structs.replace(asked, last_fetched_epoch=-1)

        with telling(self._replica, "want", change):
            right(self, delayed=delayed)

    patch.setattr(FollowerRole, "_ask", ask)


@mutant("K7", "remember only the last batch of a producer")
def _(patch: Patch) -> None:
    right = ProducerTable.record

    def record(self: ProducerTable, batch: Any) -> None:
        right(self, batch)
        entry = self._entries.get(batch.producer_id)
        if entry is not None:
            self._entries[batch.producer_id] = structs.replace(entry, batches=entry.batches[-1:])

    patch.setattr(ProducerTable, "record", record)


@mutant("K8", "never learn the leader's high watermark")
def _(patch: Patch) -> None:
    patch.setattr(LogState, "learn_high_watermark", lambda self, leader_high_watermark: False)


@mutant("K291", "keep nothing of what is cut off after an unclean election")
def _(patch: Patch) -> None:
    right = FollowerRole._truncate

    def truncate(self: FollowerRole, offset: int, *, restart: bool = False) -> None:
        with telling(self._replica, "truncate", lambda cut: structs.replace(cut, keep=False)):
            right(self, offset, restart=restart)

    patch.setattr(FollowerRole, "_truncate", truncate)

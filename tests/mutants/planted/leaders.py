"""Errors in what a leader answers, counts and exposes."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from insync.replication.core.epochs import EpochCache, EpochEnd
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition import isr as rules
from insync.replication.core.partition import leader as leader_module
from insync.replication.core.partition.follower import FollowerRole
from insync.replication.core.partition.leader import LeaderRole
from insync.replication.core.partition.purgatory import Parked, ProducePurgatory
from insync.replication.core.partition.replica import Replica

from ..catalogue import Patch, mutant
from .calls import telling


@mutant("Z3", "serve a fetch of another leader epoch (KIP-320)")
def _(patch: Patch) -> None:
    right = LeaderRole.on_fetch

    def on_fetch(self: LeaderRole, event: ev.Fetch) -> fx.FetchAnswer:
        return right(
            self, structs.replace(event, leader_epoch=self.epoch) if event.replica_id >= 0 else event
        )

    patch.setattr(LeaderRole, "on_fetch", on_fetch)


@mutant("Z7", "count a follower's records past the divergence (KAFKA-13141)")
def _(patch: Patch) -> None:
    right = LeaderRole._answer

    def answer(
        self: LeaderRole, event: ev.Fetch, error: ErrorCode, *, diverging: EpochEnd | None = None
    ) -> fx.FetchAnswer:
        if diverging is not None and event.replica_id >= 0:
            self._account(event)
        return right(self, event, error, diverging=diverging)

    patch.setattr(LeaderRole, "_answer", answer)


@mutant("Z13", "do not record the epoch's start before its first append (KAFKA-7415)")
def _(patch: Patch) -> None:
    right = LeaderRole.enter

    def enter(self: LeaderRole) -> None:
        entries = self._replica.log.epochs.entries
        right(self)
        self._replica.log.epochs = EpochCache(entries)

    patch.setattr(LeaderRole, "enter", enter)


@mutant("Z53", "do not ask where the logs diverge (Fluss, Kafka before KIP-101; KAFKA-7164)")
def _(patch: Patch) -> None:
    right = LeaderRole._epoch_end

    def epoch_end(self: LeaderRole, event: ev.Fetch) -> Any:
        return right(self, event) if event.replica_id < 0 else None

    patch.setattr(LeaderRole, "_epoch_end", epoch_end)


@mutant("Z25", "keep followers' offsets across leader epochs")
def _(patch: Patch) -> None:
    kept: dict[Replica, dict[int, rules.Follower]] = {}
    right = LeaderRole.enter

    def enter(self: LeaderRole) -> None:
        former = kept.get(self.replica, {})
        for node, earlier in ((node, former[node]) for node in self.followers if node in former):
            self.followers[node].log_end_offset = earlier.log_end_offset
            self.followers[node].incarnation = earlier.incarnation
        kept[self.replica] = self.followers
        right(self)

    patch.setattr(LeaderRole, "enter", enter)


@mutant("Z39", "answer a request parked in an earlier epoch by offset alone")
def _(patch: Patch) -> None:
    kept: dict[Replica, Any] = {}
    right = FollowerRole._learn

    def leave(self: LeaderRole, error: ErrorCode) -> None:
        kept[self.replica] = self

    def learn(self: FollowerRole) -> None:
        right(self)
        if self._replica in kept:
            kept[self._replica].maximal_isr = lambda: frozenset(range(9))
            kept[self._replica]._complete_produce()

    patch.setattr(LeaderRole, "leave", leave)
    patch.setattr(FollowerRole, "_learn", learn)


@mutant("Z52", "expose a new leader's whole log at once")
def _(patch: Patch) -> None:
    right = LeaderRole.enter

    def enter(self: LeaderRole) -> None:
        self.replica.log.high_watermark = self.replica.log.log_end_offset
        right(self)

    patch.setattr(LeaderRole, "enter", enter)


@mutant("K4", "lead before the log has completed the operations of the earlier role")
def _(patch: Patch) -> None:
    right = Replica._enter_waiting_epoch

    def enter(self: Replica) -> None:
        outstanding, self.log.outstanding = self.log.outstanding, 0
        log = self.log
        right(self)
        log.outstanding += outstanding

    patch.setattr(Replica, "_enter_waiting_epoch", enter)


@mutant("K6", "expose a batch before it has been written")
def _(patch: Patch) -> None:
    right = leader_module.LeaderRole.append

    def append(self: LeaderRole, event: ev.Produce) -> None:
        right(self, event)
        self.replica.log.log_end_offset = self.replica.log.next_offset

    patch.setattr(LeaderRole, "append", append)


@mutant("Z41", "compare offsets and not epochs (Osiris)")
def _(patch: Patch) -> None:
    patch.setattr(leader_module, "diverges", lambda end, last_epoch, offset: end.end_offset < offset)


@mutant("Z38", "do not recompute the high watermark when the ISR has changed (KAFKA-13091)")
def _(patch: Patch) -> None:
    def on_tick(self: LeaderRole) -> None:
        for parked in self._parked.expired(self.replica.now):
            self.reply(parked.request_id, ErrorCode.REQUEST_TIMED_OUT)
        self.change.on_tick()

    patch.setattr(LeaderRole, "_reconsider", lambda self: None)
    patch.setattr(LeaderRole, "on_tick", on_tick)


@mutant("Z55", "serve no fetch under the minimum ISR (LavinMQ #789)")
def _(patch: Patch) -> None:
    right = LeaderRole._fetch_error

    def fetch_error(self: LeaderRole, event: ev.Fetch) -> ErrorCode:
        if len(self.record.isr) < self.record.min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return right(self, event)

    patch.setattr(LeaderRole, "_fetch_error", fetch_error)


@mutant("K9", "answer acks=all after the local write")
def _(patch: Patch) -> None:
    def committed(self: ProducePurgatory, high_watermark: int) -> list[Parked]:
        found, self._for_commit = self._for_commit, []
        return found

    patch.setattr(ProducePurgatory, "committed", committed)


@mutant("K10", "refuse a batch under the minimum ISR, but write it")
def _(patch: Patch) -> None:
    right = LeaderRole.on_produce

    def on_produce(self: LeaderRole, event: ev.Produce) -> None:
        if self._refusal(event) == ErrorCode.NOT_ENOUGH_REPLICAS and event.batch.producer_id < 0:
            with telling(self.replica, "replied", lambda reply: None):
                self.append(structs.replace(event, acks=0, request_id=-1))
        right(self, event)

    patch.setattr(LeaderRole, "on_produce", on_produce)


@mutant("K11", "report the latest offset before the leader's own high watermark can be trusted (KIP-207)")
def _(patch: Patch) -> None:
    def latest(self: LeaderRole, *, read_committed: bool = False) -> tuple[ErrorCode, int]:
        return ErrorCode.NONE, self.replica.log.high_watermark

    patch.setattr(LeaderRole, "latest_offset", latest)


@mutant("K12", "let no parked produce request time out")
def _(patch: Patch) -> None:
    patch.setattr(ProducePurgatory, "expired", lambda self, now: [])


@mutant("K115", "let a lookup by time return the record at the high watermark")
def _(patch: Patch) -> None:
    def is_committed(self: LeaderRole, offset: int, *, read_committed: bool = False) -> bool:
        return offset <= self._replica.log.high_watermark

    patch.setattr(LeaderRole, "is_committed", is_committed)


@mutant("K116", "count a proposed member for the minimum ISR of a write")
def _(patch: Patch) -> None:
    right = LeaderRole._refusal

    def refusal(self: LeaderRole, event: ev.Produce) -> ErrorCode:
        error = right(self, event)
        if error == ErrorCode.NOT_ENOUGH_REPLICAS and len(self.maximal_isr()) >= self.record.min_isr:
            return ErrorCode.NONE
        return error

    patch.setattr(LeaderRole, "_refusal", refusal)


@mutant("K117", "treat every follower as caught up when the next batch arrives")
def _(patch: Patch) -> None:
    right = LeaderRole.append

    def append(self: LeaderRole, event: ev.Produce) -> None:
        right(self, event)
        for follower in self.followers.values():
            follower.last_caught_up = max(follower.last_caught_up, self._replica.now)

    patch.setattr(LeaderRole, "append", append)


@mutant("K118", "treat every follower that fetches as caught up, whatever its offset")
def _(patch: Patch) -> None:
    right = rules.Follower.fetched

    def fetched(
        self: rules.Follower, offset: int, leader_end: int, now: float, log_start: int = rules.UNKNOWN_OFFSET
    ) -> None:
        right(self, offset, leader_end, now, log_start)
        self.last_caught_up = now

    patch.setattr(rules.Follower, "fetched", fetched)


@mutant("K119", "acknowledge an append that failed (acks=1)")
def _(patch: Patch) -> None:
    right = LeaderRole.leave

    def leave(self: LeaderRole, error: ErrorCode) -> None:
        if error == ErrorCode.KAFKA_STORAGE_ERROR:
            for parked in self._parked.written(self._replica.log.next_offset):
                self.reply(parked.request_id, ErrorCode.NONE, parked.base_offset)
        right(self, error)

    patch.setattr(LeaderRole, "leave", leave)

"""Errors in what is deleted, and in who is told that it is gone."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition import isr as rules
from insync.replication.core.partition.deletions import Deletions
from insync.replication.core.partition.follower import FollowerRole
from insync.replication.core.partition.leader import LeaderRole
from insync.replication.core.partition.log_state import LogState
from insync.replication.core.partition.purgatory import ParkedDeletion
from insync.replication.core.types import EndedTransaction, EpochEntry, ProducerEntry

from ..catalogue import Patch, mutant
from .calls import telling


@mutant("Z35", "delete above the high watermark (KAFKA-5634)")
def _(patch: Patch) -> None:
    def on_delete_records(self: Deletions, event: ev.DeleteRecords) -> None:
        log = self._replica.log
        offset = log.log_end_offset if event.offset < 0 else min(event.offset, log.log_end_offset)
        if offset > log.log_start_offset:
            log.outstanding += 1
            self._replica.emit(fx.AdvanceLogStart(partition=self._replica.partition, offset=offset))
        self._parked.park(ParkedDeletion(offset, event.request_id, event.deadline))

    patch.setattr(Deletions, "on_delete_records", on_delete_records)


@mutant("K17b", "compare with a deleted epoch, and keep a log that ends in it")
def _(patch: Patch) -> None:
    patch.setattr(LeaderRole, "_deleted", lambda self, event: False)
    patch.setattr(FollowerRole, "_ends_before", lambda self, leader_log_start: False)


@mutant("Z36", "expect the first batch to begin at the log start (KAFKA-6975)")
def _(patch: Patch) -> None:
    patch.setattr(LogState, "is_empty", False)


@mutant("Z11", "keep the old high watermark when a log restarts (KAFKA-9491)")
def _(patch: Patch) -> None:
    def truncated(
        self: LogState,
        log_start_offset: int,
        log_end_offset: int,
        epochs: Iterable[EpochEntry],
        producers: Iterable[ProducerEntry],
        ended: Iterable[EndedTransaction] = (),
    ) -> LogState:
        log = LogState.opened(log_start_offset, log_end_offset, 0, epochs, producers, ended)
        log.high_watermark = min(self.high_watermark, log_end_offset)
        return log

    patch.setattr(LogState, "truncated", truncated)


@mutant("K21", "report records as deleted when the leader alone has deleted them")
def _(patch: Patch) -> None:
    patch.setattr(Deletions, "low_watermark", lambda self: self._replica.log.log_start_offset)


@mutant("K22", "wait only for live replicas before reporting a deletion (as Kafka does, KIP-107)")
def _(patch: Patch) -> None:
    def low_watermark(self: Deletions) -> int:
        followers = self._leader.followers.items()
        starts = [each.log_start_offset for node, each in followers if node in self._replica.live]
        return rules.low_watermark(self._replica.log.log_start_offset, starts)

    patch.setattr(Deletions, "low_watermark", low_watermark)


@mutant("K23", "let a replica join that still has deleted records")
def _(patch: Patch) -> None:
    patch.setattr(rules, "has_let_go", lambda follower, log_start: True)


@mutant("K24", "report the leader's log start as the follower's own before it is")
def _(patch: Patch) -> None:
    right = FollowerRole._ask

    def ask(self: FollowerRole, *, delayed: bool = False) -> None:
        def change(asked: fx.FetchNext) -> fx.FetchNext:
            start = max(asked.log_start_offset, self._leader_log_start)
            return structs.replace(asked, log_start_offset=start)

        with telling(self._replica, "want", change):
            right(self, delayed=delayed)

    def learn(self: FollowerRole) -> None:
        self._replica.log.learn_high_watermark(self._leader_high_watermark)
        if not self._replica.stepping:
            ask(self)

    patch.setattr(FollowerRole, "_ask", ask)
    patch.setattr(FollowerRole, "_learn", learn)


@mutant("K25", "never copy the leader's log start")
def _(patch: Patch) -> None:
    right = FollowerRole._learn

    def learn(self: FollowerRole) -> None:
        self._leader_log_start = -1
        right(self)

    patch.setattr(FollowerRole, "_learn", learn)

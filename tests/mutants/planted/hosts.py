"""Errors between a replica and what its driver tells it: of logs that were opened or cut, of views, of time."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median_low
from typing import Any

from msgspec import structs

from insync.replication.core.broker.events import ViewRead
from insync.replication.core.broker.machine import Broker
from insync.replication.core.broker.membership.assignments import Assignments
from insync.replication.core.broker.membership.clocks import ClockVerdict, WallClocks
from insync.replication.core.broker.membership.stalls import StallWatch
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.leader import LeaderRole
from insync.replication.core.partition.log_state import LogState
from insync.replication.core.partition.replica import Replica
from insync.replication.core.types import CONSUMER, PartitionId

from ..catalogue import Patch, mutant


@mutant("Z12", "keep the epochs when a truncation removes nothing (KAFKA-10706)")
def _(patch: Patch) -> None:
    right = LogState.truncated

    def truncated(self: LogState, start: int, end: int, epochs: Any, *rest: Any) -> LogState:
        kept = tuple(self.epochs.entries) if end == self.next_offset else epochs
        return right(self, start, end, kept, *rest)

    patch.setattr(LogState, "truncated", truncated)


@mutant("Z18b", "let a process lead by what its predecessor had read")
def _(patch: Patch) -> None:
    patch.setattr(Assignments, "may_read", lambda self, revision: True)


def found_as(patch: Patch, change: Callable[[ev.Opened], ev.Opened]) -> None:
    """Have a replica go by something else than what was found when its log was opened."""
    right = Replica._on_opened

    def on_opened(self: Replica, event: ev.Opened) -> None:
        right(self, change(event))

    patch.setattr(Replica, "_on_opened", on_opened)


@mutant("Z32", "treat everything that a checkpoint mentions as written (Pegasus #719)")
def _(patch: Patch) -> None:
    def up_to_the_mark(event: ev.Opened) -> ev.Opened:
        return structs.replace(event, log_end_offset=max(event.log_end_offset, event.high_watermark))

    found_as(patch, up_to_the_mark)


@mutant("Z33", "omit epoch 0 when epochs are recovered (KAFKA-10432)")
def _(patch: Patch) -> None:
    found_as(
        patch,
        lambda event: structs.replace(event, epochs=tuple(e for e in event.epochs if e.epoch > 0)),
    )


@mutant("Z34", "lose the epochs in a power failure, and assume that there were none (KAFKA-16541)")
def _(patch: Patch) -> None:
    found_as(patch, lambda event: structs.replace(event, epochs=event.epochs[:1]))


@mutant("Z37", "bound a consumer's read by the end of the file (KAFKA-9807)")
def _(patch: Patch) -> None:
    right = LeaderRole._answer

    def answer(self: LeaderRole, event: ev.Fetch, *rest: Any, **named: Any) -> fx.FetchAnswer:
        answered = right(self, event, *rest, **named)
        if event.replica_id == CONSUMER and answered.error == ErrorCode.NONE:
            return structs.replace(answered, limit_offset=answered.log_end_offset, news=True)
        return answered

    patch.setattr(LeaderRole, "_answer", answer)


@mutant("Z47", "compact records that are not committed (KAFKA-13194)")
def _(patch: Patch) -> None:
    patch.setattr(Replica, "cleaning_bound", property(lambda self: self.log.log_end_offset))


@mutant("Z54", "keep the session while the disk hangs (LavinMQ #2151)")
def _(patch: Patch) -> None:
    patch.setattr(StallWatch, "look", lambda self, at, elapsed: False)


@mutant("K28", "remember only the last batch of each producer after a start (Kafka's snapshots)")
def _(patch: Patch) -> None:
    def last_alone(event: ev.Opened) -> ev.Opened:
        last = tuple(structs.replace(each, batches=each.batches[-1:]) for each in event.producers)
        return structs.replace(event, producers=last)

    found_as(patch, last_alone)


@mutant("K120", "let no time pass for replicas")
def _(patch: Patch) -> None:
    patch.setattr(Broker, "tick_replicas", lambda self: None)


@mutant("K121", "use a reading of the store that is older than the known one")
def _(patch: Patch) -> None:
    right = Assignments.read

    def read(self: Assignments, event: ViewRead) -> None:
        known = self._context.view
        if event.view.revision < known.revision:
            self._context.view = ClusterView()
        right(self, event)

    patch.setattr(Assignments, "read", read)


@mutant("K122", "report the live nodes to replicas only when they begin")
def _(patch: Patch) -> None:
    right = Assignments.read

    def read(self: Assignments, event: ViewRead) -> None:
        nodes = event.view.nodes.values()
        self._alive = {(each.node_id, each.incarnation, each.offline, each.leaving) for each in nodes}
        right(self, event)

    patch.setattr(Assignments, "read", read)


@mutant("K123", "take the log of a deleted topic for that of its namesake")
def _(patch: Patch) -> None:
    def has_lost_topic(self: Assignments, partition: PartitionId) -> bool:
        return partition.topic not in self._context.view.topics

    patch.setattr(Assignments, "_has_lost_topic", has_lost_topic)


@mutant("K181", "notify the first portion of the replicas that a reading concerns, and forget the others")
def _(patch: Patch) -> None:
    right = Assignments._tell_some

    def tell_some(self: Assignments) -> None:
        right(self)
        self._untold.clear()

    patch.setattr(Assignments, "_tell_some", tell_some)


@mutant("K182", "notify a replica in its turn of the changed nodes, but not of its record")
def _(patch: Patch) -> None:
    right = Assignments._tell

    def tell(self: Assignments, partition: Any, *, nodes_changed: bool) -> None:
        record = self._tell_record
        if nodes_changed and partition in self._context.replicas:
            self._tell_record = lambda partition: None  # type: ignore[method-assign]
        try:
            right(self, partition, nodes_changed=nodes_changed)
        finally:
            self._tell_record = record  # type: ignore[method-assign]

    patch.setattr(Assignments, "_tell", tell)


@mutant("K300", "doubt the own clock if it differs from the median of the others' clocks")
def _(patch: Patch) -> None:
    def judge(self: WallClocks, own_distance: float) -> ClockVerdict:
        expected = median_low(self._peers.values()) if self._peers else self._at_start
        return ClockVerdict(difference=self._beyond(own_distance - expected))

    patch.setattr(WallClocks, "judge", judge)


@mutant("K301", "compare the own clock with its own start alone")
def _(patch: Patch) -> None:
    def judge(self: WallClocks, own_distance: float) -> ClockVerdict:
        return ClockVerdict(difference=self._beyond(own_distance - self._at_start))

    patch.setattr(WallClocks, "judge", judge)

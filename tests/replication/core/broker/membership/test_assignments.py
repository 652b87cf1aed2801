"""What a reading of the store means for the replicas of a node."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from msgspec import structs

from insync.replication.core.broker.context import BrokerSettings, Context
from insync.replication.core.broker.effects import (
    ConfigureLog,
    CreateLog,
    DeleteLog,
    Effect,
    SetLogAside,
)
from insync.replication.core.broker.events import LogDeleted, LogFound, Report, ViewRead
from insync.replication.core.broker.machine import Broker
from insync.replication.core.broker.membership.assignments import BREATH
from insync.replication.core.control.records import (
    DeletedTopicRecord,
    NodeRecord,
    QuotaRecord,
    TopicConfig,
    TopicRecord,
    Versioned,
)
from insync.replication.core.control.view import ClusterView
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.types import EpochEntry, PartitionId
from tests.replication.core.partition.test_isr_change import LIVE, A, B, record

from ..test_broker import OPENED, NoLogs

PARTITION = PartitionId("x", 0)
TOPIC = TopicRecord(name="x", topic_id="x", partitions=1, replication_factor=3, config=TopicConfig())
NODES = {
    each: NodeRecord(node_id=each, incarnation=incarnation, endpoints=())
    for each, incarnation in LIVE.items()
}


DELETED = {"x": (DeletedTopicRecord(name="x", topic_id="x", number=1), 1)}


def view(revision: int, version: int = 1, **change: Any) -> ClusterView:
    versioned = Versioned(structs.replace(record(isr=(A, B)), **change), version)
    return ClusterView(revision=revision, nodes=NODES, topics={"x": TOPIC}, partitions={PARTITION: versioned})


class Viewer:
    def __init__(self) -> None:
        self.broker = Broker(Context(A, LIVE[A], BrokerSettings(), NoLogs()), b"")
        self.context = self.broker.context
        self.now = 1.0
        self.proposed: list[fx.ProposeIsr] = []
        self.context.parts = structs.replace(
            self.context.parts, propose=lambda partition, proposal: self.proposed.append(proposal)
        )

    def read(self, view: ClusterView) -> list[Effect]:
        return [
            each for each in self.broker.step(ViewRead(view), self.now) if not isinstance(each, fx.Effect)
        ]

    def report(self, event: ev.Event) -> list[Effect]:
        return self.broker.step(Report(PARTITION, event), self.now)

    @property
    def role(self) -> str:
        return self.context.replicas[PARTITION].role


def test_a_replica_that_the_node_is_given_gets_a_log_and_then_its_role() -> None:
    viewer = Viewer()
    assert viewer.read(view(1)) == [CreateLog(PARTITION, "x")]
    replica = viewer.context.replicas[PARTITION]
    assert (viewer.role, dict(replica.live)) == ("closed", LIVE)
    viewer.report(OPENED)
    assert viewer.role == "leader"
    assert viewer.read(view(2)) == [], "once"


def test_a_log_that_was_found_waits_for_its_record() -> None:
    viewer = Viewer()
    viewer.broker.step(LogFound(PARTITION, "x", OPENED), 1.0)
    assert viewer.role == "closed"
    assert viewer.read(view(1)) == []
    assert viewer.role == "leader"


def test_a_log_that_cannot_be_used_leads_nothing() -> None:
    viewer = Viewer()
    viewer.broker.step(LogFound(PARTITION, "x", ev.LogFailed(reason="offline")), 1.0)
    viewer.read(view(1))
    assert (viewer.role, viewer.context.replicas[PARTITION].failure) == ("closed", "offline")


def test_a_partition_of_others_is_none_of_ours() -> None:
    viewer = Viewer()
    assert viewer.read(view(1, replicas=(B, 3), isr=(B,), leader=B)) == []
    assert viewer.context.replicas == {}


def test_an_older_reading_is_ignored() -> None:
    viewer = Viewer()
    viewer.read(view(5))
    viewer.report(OPENED)
    viewer.report(ev.EpochAssigned())
    later = view(4, 2, leader=B, leader_epoch=2)
    assert viewer.read(later) == []
    assert (viewer.role, viewer.context.view.revision) == ("leader", 5)
    viewer.read(attrs.evolve(later, revision=6))
    assert viewer.role == "follower"


@pytest.mark.parametrize("again", [False, True])
def test_a_log_goes_with_its_topic_and_is_made_anew_only_when_it_is_gone(again: bool) -> None:
    viewer = Viewer()
    viewer.read(view(1))
    viewer.report(OPENED)
    viewer.report(ev.EpochAssigned())
    gone = ClusterView(revision=2, nodes=NODES, deleted=DELETED)
    made_again = attrs.evolve(
        view(3, topic_id="other"),
        topics={"x": structs.replace(TOPIC, topic_id="other")},
        deleted=DELETED,
    )
    assert viewer.read(made_again if again else gone) == [DeleteLog(PARTITION)]
    assert viewer.context.replicas == {}
    assert viewer.read(attrs.evolve(made_again, revision=4)) == [], "the old log is still there"
    assert viewer.broker.step(LogDeleted(PARTITION), 1.0) == [CreateLog(PARTITION, "other")]
    assert viewer.context.topic_ids == {PARTITION: "other"}


@pytest.mark.parametrize("found", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_the_log_of_a_topic_that_the_store_has_forgotten_is_set_aside(again: bool, found: bool) -> None:
    """It says nowhere that the topic was deleted."""
    viewer = Viewer()
    if found:
        viewer.broker.step(LogFound(PARTITION, "x", OPENED), 1.0)
    else:
        viewer.read(view(1))
        viewer.report(OPENED)
        viewer.report(ev.EpochAssigned())
    other = DeletedTopicRecord(name="x", topic_id="earlier", number=1)
    forgotten = ClusterView(revision=2, nodes=NODES, deleted={"earlier": (other, 1)})
    made_again = attrs.evolve(
        view(3, topic_id="other"), topics={"x": structs.replace(TOPIC, topic_id="other")}
    )
    (aside,) = viewer.read(made_again if again else forgotten)
    assert isinstance(aside, SetLogAside)
    assert aside.partition == PARTITION
    assert ("topic x has the id other" if again else "knows no topic x") in aside.why
    assert viewer.context.replicas == {}
    assert viewer.read(attrs.evolve(made_again, revision=4)) == [], "the old log is in its place"
    assert viewer.broker.step(LogDeleted(PARTITION), 1.0) == [CreateLog(PARTITION, "other")]


def test_a_log_whose_move_this_process_has_not_seen_is_set_aside() -> None:
    """Whether the store is older than the move that brought the replica here cannot be told."""
    viewer = Viewer()
    viewer.broker.step(LogFound(PARTITION, "x", OPENED), 1.0)
    (aside,) = viewer.read(view(2, 2, replicas=(B, 3), isr=(B,), leader=B, leader_epoch=2))
    assert isinstance(aside, SetLogAside)
    assert "assigns the partition to other nodes" in aside.why


def test_a_replica_that_was_moved_away_goes_and_stays_away() -> None:
    viewer = Viewer()
    viewer.read(view(1))
    viewer.report(OPENED)
    viewer.report(ev.EpochAssigned())
    moved = view(2, 2, replicas=(B, 3), isr=(B,), leader=B, leader_epoch=2)
    assert viewer.read(moved) == [DeleteLog(PARTITION)]
    assert viewer.broker.step(LogDeleted(PARTITION), 1.0) == []
    back = view(3, 3, replicas=(B, 3, A), isr=(B,), leader=B, leader_epoch=3)
    assert viewer.read(back) == [CreateLog(PARTITION, "x")]


def test_a_log_that_still_works_is_deleted_when_it_has_done_what_it_was_asked_for() -> None:
    viewer = Viewer()
    viewer.read(view(1))
    viewer.report(OPENED)
    assert viewer.read(ClusterView(revision=2, deleted=DELETED)) == []
    assert viewer.report(ev.EpochAssigned()) == [DeleteLog(PARTITION)]


def test_a_topic_that_cannot_be_read_is_not_taken_for_deleted() -> None:
    viewer = Viewer()
    viewer.read(view(1))
    viewer.report(OPENED)
    viewer.report(ev.EpochAssigned())
    unreadable = attrs.evolve(view(2), topics={}, unreadable=frozenset({"/topics/x"}))
    assert viewer.read(unreadable) == []
    assert viewer.role == "leader"


def test_every_replica_hears_who_lives_when_that_has_changed() -> None:
    viewer = Viewer()
    viewer.read(view(1))
    fewer = attrs.evolve(view(2), nodes={A: NODES[A], B: structs.replace(NODES[B], leaving=True)})
    viewer.read(fewer)
    assert dict(viewer.context.replicas[PARTITION].live) == {A: LIVE[A]}


def test_a_replica_that_is_begun_later_hears_who_lives_too() -> None:
    viewer = Viewer()
    viewer.read(attrs.evolve(view(1), partitions={}, topics={}))
    viewer.read(view(2))
    assert dict(viewer.context.replicas[PARTITION].live) == LIVE


def test_a_record_is_told_once_unless_the_replica_awaits_it() -> None:
    viewer = Viewer()
    viewer.read(view(1))
    viewer.report(OPENED)
    viewer.report(ev.EpochAssigned())
    told: list[ev.Event] = []
    step = viewer.context.step_replica

    def noted(partition: PartitionId, event: ev.Event) -> None:
        told.append(event)
        step(partition, event)

    viewer.context.step_replica = noted  # type: ignore[method-assign]
    viewer.read(view(2))
    assert told == []
    question = ev.Fetch(
        replica_id=3, incarnation=LIVE[3], leader_epoch=1, fetch_offset=0, last_fetched_epoch=-1
    )
    viewer.context.ask_replica(PARTITION, question)
    assert viewer.proposed
    viewer.read(view(3))
    assert told == [ev.RecordChanged(versioned=view(3).partitions[PARTITION])]


def test_logs_go_by_the_settings_of_their_topics_and_moves_by_the_limits_of_the_store() -> None:
    viewer = Viewer()
    viewer.read(view(1))
    config = TopicConfig(retention_ms=77)
    quota = QuotaRecord(
        entity_type="node",
        name="",
        limits={"leader_replication_throttled_rate": 5, "follower_replication_throttled_rate": 6},
    )
    changed = attrs.evolve(
        view(2),
        topics={"x": structs.replace(TOPIC, config=config)},
        quotas={"/quotas/node/": (quota, 1)},
    )
    assert viewer.read(changed) == [ConfigureLog(PARTITION, config)]
    assert viewer.read(attrs.evolve(changed, revision=3)) == []
    assert (viewer.broker.serving.throttle.rate, viewer.broker.following.throttle.rate) == (5, 6)
    viewer.read(attrs.evolve(changed, revision=4, quotas={}))
    assert viewer.broker.serving.throttle.rate == BrokerSettings().leader_replication_throttled_rate


def test_of_a_delta_only_what_has_changed_is_looked_at_and_whoever_awaits_its_record() -> None:
    viewer = Viewer()
    other = PartitionId("x", 1)
    both = {PARTITION: view(1).partitions[PARTITION], other: view(1, partition=1).partitions[PARTITION]}
    first = attrs.evolve(view(1), partitions=both)
    viewer.read(first)
    for partition in both:
        for event in (OPENED, ev.EpochAssigned()):
            viewer.broker.step(Report(partition, event), 1.0)
    told: list[tuple[PartitionId, ev.Event]] = []
    step = viewer.context.step_replica

    def noted(partition: PartitionId, event: ev.Event) -> None:
        told.append((partition, event))
        step(partition, event)

    viewer.context.step_replica = noted  # type: ignore[method-assign]
    newer = Versioned(structs.replace(both[other].record, partition_epoch=1), 2)
    second = attrs.evolve(
        first, revision=2, since=1, changed=frozenset({other}), partitions={**both, other: newer}
    )
    viewer.read(second)
    assert told == [(other, ev.RecordChanged(versioned=newer))]
    question = ev.Fetch(
        replica_id=3, incarnation=LIVE[3], leader_epoch=1, fetch_offset=0, last_fetched_epoch=-1
    )
    viewer.context.ask_replica(PARTITION, question)
    (proposal,) = viewer.proposed
    viewer.report(ev.IsrUnclear(proposal_id=proposal.proposal_id))
    # The log fails, and whatever is read meanwhile is of no use to a replica that leads no more.
    viewer.report(ev.LogFailed(reason="an I/O error"))
    viewer.read(attrs.evolve(second, revision=3, since=2, changed=frozenset()))
    viewer.report(structs.replace(OPENED, epochs=(EpochEntry(1, 0),)))
    del told[:]
    viewer.read(attrs.evolve(second, revision=4, since=3, changed=frozenset()))
    assert told == [(PARTITION, ev.RecordChanged(versioned=both[PARTITION]))]


def many(revision: int, count: int, version: int = 1) -> ClusterView:
    versioned = Versioned(record(isr=(A, B)), version)
    partitions = {
        PartitionId("x", number): structs.replace(
            versioned, record=structs.replace(versioned.record, partition=number)
        )
        for number in range(count)
    }
    return ClusterView(revision=revision, nodes=NODES, topics={"x": TOPIC}, partitions=partitions)


def test_replicas_are_told_in_portions_and_the_others_after_a_breath() -> None:
    viewer = Viewer()
    made = [each for each in viewer.read(many(1, 250)) if isinstance(each, CreateLog)]
    portions = [len(made)]
    while viewer.context.timers.deadline <= viewer.now + 2 * BREATH:
        viewer.now = max(viewer.now, viewer.context.timers.deadline)
        effects = viewer.broker.tick(viewer.now)
        portions.append(sum(isinstance(each, CreateLog) for each in effects))
    assert [each for each in portions if each] == [100, 100, 50]
    assert len(viewer.context.replicas) == 250


def test_whose_turn_comes_late_hears_of_the_newest_reading() -> None:
    viewer = Viewer()
    viewer.read(many(1, 150))
    assert PartitionId("x", 149) not in viewer.context.replicas
    viewer.read(attrs.evolve(many(2, 150, version=2), since=1, changed=frozenset([PartitionId("x", 149)])))
    viewer.now += 1.0
    viewer.broker.tick(viewer.now)
    last = viewer.context.replicas[PartitionId("x", 149)]
    assert last._waiting is not None and last._waiting.version == 2


def test_a_partition_that_is_gone_before_its_turn_is_never_begun() -> None:
    viewer = Viewer()
    viewer.read(many(1, 150))
    viewer.read(ClusterView(revision=2, nodes=NODES))
    for _ in range(4):
        viewer.now += 1.0
        viewer.broker.tick(viewer.now)
    assert not [each for each in viewer.context.replicas if each.partition >= 100]

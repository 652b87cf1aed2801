"""Logs that are damaged in the middle: what is checked, who is given up, and when a copy is made again."""

from __future__ import annotations

from typing import Any

import attrs
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.broker.effects import (
    CheckLog,
    CreateLog,
    DeleteLog,
    LogDamaged,
    SetLogAside,
    StepBack,
)
from insync.replication.core.broker.events import FetchArrived, LogChecked, LogDeleted, LogFound, ViewRead
from insync.replication.core.broker.membership.damage import step_back
from insync.replication.core.control.records import PartitionRecord, partition_key
from insync.replication.core.partition import events as ev
from insync.replication.core.store_transaction import Put, SameValue, Seen
from insync.replication.core.types import NO_LEADER
from insync.replication.simulation.driver.fetches import Peer
from tests.replication.core.partition.test_isr_change import A, B, record

from ..test_broker import OPENED
from .test_assignments import PARTITION, TOPIC, Viewer, view

BITS = "a bit is another"


def leading(**change: Any) -> Viewer:
    """A node that leads the partition."""
    viewer = Viewer()
    viewer.broker.step(LogFound(PARTITION, "x", OPENED), 1.0)
    viewer.read(view(1, **change))
    viewer.report(ev.EpochAssigned())
    assert viewer.role == "leader"
    return viewer


def doubt(viewer: Viewer, offset: int = 0, by: int = B, now: float = 1.0) -> list[CheckLog]:
    """A follower (or a client, -1) says that what it is sent is damaged; what the node wants checked."""
    asked = m.FetchPartition(
        topic="x",
        partition=0,
        fetch_offset=offset,
        max_bytes=1000,
        leader_epoch=1,
        topic_id="x",
        damaged=True,
    )
    message = m.FetchRequest(
        replica_id=by, incarnation=-1, max_wait_ms=0, min_bytes=1, max_bytes=1000, partitions=[asked]
    )
    effects = viewer.broker.step(FetchArrived("c", object(), message, Peer(by, "node")), now)
    return [each for each in effects if isinstance(each, CheckLog)]


def test_one_check_at_a_time() -> None:
    viewer = leading()
    (check,) = doubt(viewer)
    assert (check.partition, check.offset, check.max_bytes) == (PARTITION, 0, 1000)
    assert doubt(viewer) == []
    assert viewer.broker.step(LogChecked(check.check, PARTITION, None), 1.0) == [], "damaged on its way"
    (again,) = doubt(viewer)
    assert again.check != check.check


def test_a_client_is_heard_about_one_batch_once_in_a_while() -> None:
    """It may say so of anything. A follower is heard meanwhile."""
    viewer = leading()
    (check,) = doubt(viewer, by=-1)
    assert (check.partition, check.offset, check.max_bytes) == (PARTITION, 0, 1)
    viewer.broker.step(LogChecked(check.check, PARTITION, None), 1.0)
    assert doubt(viewer, by=-1, now=1.9) == []
    (other,) = doubt(viewer, now=1.9)
    viewer.broker.step(LogChecked(other.check, PARTITION, None), 1.9)
    (again,) = doubt(viewer, by=-1, now=2.1)
    viewer.broker.step(LogChecked(again.check, PARTITION, None), 2.1)
    viewer.broker.step(ViewRead(view(2)), 9.0)
    assert viewer.broker.damaged_logs._heard == {}


def test_what_is_damaged_is_given_up_once_and_copied_again_when_nobody_counts_on_it() -> None:
    viewer = leading()
    (check,) = doubt(viewer)
    assert viewer.broker.step(LogChecked(check.check, PARTITION, BITS), 1.0) == [
        LogDamaged(PARTITION, BITS, given_up=True)
    ]
    viewer.report(ev.LogFailed(reason=BITS))
    assert doubt(viewer) == [], "it is not led here any more"
    assert viewer.read(view(2, 2, isr=(B,), elr=(A,), leader=B, leader_epoch=2, replicas=(A, B, 3))) == []
    assert viewer.read(view(3, 3, isr=(B, 3), leader=B, leader_epoch=2)) == [SetLogAside(PARTITION, BITS)]
    assert viewer.broker.step(LogDeleted(PARTITION), 1.0) == [CreateLog(PARTITION, "x")]


def test_the_only_one_that_may_lead_serves_on() -> None:
    viewer = leading(isr=(A,), elr=())
    (check,) = doubt(viewer)
    assert viewer.broker.step(LogChecked(check.check, PARTITION, BITS), 1.0) == [
        LogDamaged(PARTITION, BITS, given_up=False)
    ]
    assert viewer.role == "leader"


def test_a_check_of_a_log_that_was_deleted_meanwhile_says_nothing_of_the_next() -> None:
    viewer = leading()
    (check,) = doubt(viewer)
    moved = view(2, 2, replicas=(B, 3), isr=(B,), leader=B, leader_epoch=2)
    assert viewer.read(moved) == [DeleteLog(PARTITION)]
    viewer.broker.step(LogDeleted(PARTITION), 1.0)
    viewer.read(view(3, 3, replicas=(B, 3, A), isr=(B,), leader=B, leader_epoch=3))
    assert viewer.broker.step(LogChecked(check.check, PARTITION, BITS), 1.0) == []


def test_a_topic_made_again_gives_up_no_log_of_the_one_before() -> None:
    viewer = leading(isr=(A,), elr=())
    (check,) = doubt(viewer)
    # Many replicas are told of a view before this one is.
    viewer.context.settings = structs.replace(viewer.context.settings, told_at_a_time=0)
    topics = {"x": structs.replace(TOPIC, topic_id="other")}
    assert viewer.read(attrs.evolve(view(2, 2, topic_id="other"), topics=topics)) == []
    assert viewer.broker.step(LogChecked(check.check, PARTITION, BITS), 1.0) == [
        LogDamaged(PARTITION, BITS, given_up=False)
    ]


def test_a_copy_that_nobody_else_can_stand_in_for_steps_back_until_that_is_stored() -> None:
    viewer = Viewer()
    viewer.broker.step(LogFound(PARTITION, "x", ev.LogFailed(reason=BITS), is_damaged=True), 1.0)
    two = {"replicas": (A, B), "leader": B, "leader_epoch": 2, "isr": (B,)}
    assert viewer.read(view(2, 2, elr=(A,), **two)) == [StepBack(PARTITION)]
    assert StepBack(PARTITION) in viewer.broker.tick(3.0), "the write may have failed"
    assert viewer.read(view(3, 3, elr=(), **two)) == [SetLogAside(PARTITION, BITS)]
    assert StepBack(PARTITION) not in viewer.broker.tick(9.0)


def test_no_step_back_from_a_topic_made_again() -> None:
    viewer = Viewer()
    viewer.broker.step(LogFound(PARTITION, "x", ev.LogFailed(reason=BITS), is_damaged=True), 1.0)
    viewer.context.settings = structs.replace(viewer.context.settings, told_at_a_time=0)
    record = {"replicas": (A, B), "leader": B, "leader_epoch": 2, "isr": (B,), "elr": (A,)}
    topics = {"x": structs.replace(TOPIC, topic_id="other")}
    assert viewer.read(attrs.evolve(view(2, 2, topic_id="other", **record), topics=topics)) == []


def seen(**change: Any) -> dict[str, Seen]:
    stored = structs.replace(record(isr=(B,)), topic="x", replicas=(A, B), **change)
    key = partition_key(stored.id)
    return {key: Seen(key=key, record=stored, version=1, value=b"as it is")}


def test_stepping_back_takes_the_copy_out_of_all_that_an_election_counts_on() -> None:
    transaction = step_back(seen(elr=(A,), leader=B, min_insync_replicas=2), A, PARTITION)
    assert transaction is not None
    (put,) = transaction.puts
    assert transaction.compares == (SameValue(put.key, b"as it is"),)
    assert isinstance(put, Put) and isinstance(put.record, PartitionRecord)
    assert (put.record.isr, put.record.elr, put.record.last_known_elr) == ((B,), (), ())


def test_nothing_is_given_back_that_nobody_else_leads_or_counts_on() -> None:
    assert step_back({}, A, PARTITION) is None
    assert step_back(seen(leader=NO_LEADER, elr=(A,), min_insync_replicas=2), A, PARTITION) is None
    assert step_back(seen(leader=B, elr=()), A, PARTITION) is None


def test_a_log_that_a_start_found_whole_is_left_alone() -> None:
    viewer = Viewer()
    viewer.broker.step(LogFound(PARTITION, "x", ev.LogFailed(reason="offline")), 1.0)
    assert viewer.broker.step(ViewRead(view(2, 2, isr=(B, 3), leader=B, leader_epoch=2)), 1.0) == []

"""Partition records by example: who leads, who is in sync, who is eligible, after each kind of change."""

from __future__ import annotations

import attrs
import pytest

from insync.replication.core import transitions
from insync.replication.core.records import PartitionRecord

RECORD = PartitionRecord(
    topic="t", partition=0, topic_id="x", replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, min_insync_replicas=2
)


def after(record: PartitionRecord | None) -> PartitionRecord:
    assert record is not None
    return record


def test_the_first_replica_in_assignment_order_that_is_alive_and_in_sync_leads() -> None:
    shuffled = attrs.evolve(RECORD, replicas=(3, 1, 2), isr=(3, 1, 2), leader=3)
    assert after(transitions.elect(shuffled, {1, 2})).leader == 1
    out_of_sync = attrs.evolve(shuffled, isr=(3, 2))
    assert after(transitions.elect(out_of_sync, {1, 2})).leader == 2


def test_a_dead_follower_leaves_without_a_new_leader_epoch() -> None:
    record = after(transitions.elect(RECORD, {1, 2}))
    assert (record.leader, record.leader_epoch, record.partition_epoch) == (1, 0, 1)
    assert (record.isr, record.elr) == ((1, 2), ())


def test_nothing_to_change_changes_nothing() -> None:
    assert transitions.elect(RECORD, {1, 2, 3}, 1) is None
    assert transitions.restarted(RECORD, 2) is None
    assert transitions.forget(attrs.evolve(RECORD, isr=(1, 2)), 3) is None


def test_who_leaves_an_isr_under_its_minimum_stays_eligible_and_leads_again() -> None:
    alone = after(transitions.elect(attrs.evolve(RECORD, isr=(1, 2)), {1}))
    assert (alone.isr, alone.elr) == ((1,), (2,))
    dark = after(transitions.elect(alone, set()))
    assert (dark.isr, dark.elr, dark.leader, dark.leader_epoch) == ((), (1, 2), -1, 1)
    assert transitions.elect(dark, {3}) is None
    back = after(transitions.elect(dark, {2, 3}))
    assert (back.leader, back.isr, back.elr, back.recovering) == (2, (2,), (1,), False)
    healed = transitions.change_isr(back, (2, 3))
    assert (healed.isr, healed.elr) == ((2, 3), ())


@pytest.mark.parametrize(("unclean", "leader"), [(-1, -1), (3, 3), (2, -1), (4, -1)])
def test_when_nobody_is_eligible_only_a_living_replica_that_was_chosen_leads(
    unclean: int, leader: int
) -> None:
    record = attrs.evolve(RECORD, isr=(1, 2))
    assert not transitions.has_clean_leader(record, {3, 4})
    dark = after(transitions.elect(record, {3, 4}, unclean))
    assert dark.leader == leader
    if leader >= 0:
        assert (dark.isr, dark.elr, dark.recovering) == ((3,), (), True)


def test_nobody_is_chosen_uncleanly_while_somebody_may_lead_cleanly() -> None:
    record = attrs.evolve(RECORD, isr=(1, 2))
    assert transitions.has_clean_leader(record, {2, 3})
    assert after(transitions.elect(record, {2, 3}, 3)).leader == 2


def test_a_new_process_never_leads_in_its_predecessors_epoch() -> None:
    record = after(transitions.restarted(RECORD, 1))
    assert (record.leader, record.leader_epoch, record.isr) == (-1, 1, (1, 2, 3))
    again = after(transitions.elect(record, {1, 2, 3}))
    assert (again.leader, again.leader_epoch) == (1, 2)


def test_without_proof_a_node_is_neither_in_sync_nor_eligible_but_a_last_resort() -> None:
    only = attrs.evolve(RECORD, replicas=(1,), isr=(1,), min_insync_replicas=1)
    record = after(transitions.forget(only, 1))
    assert (record.isr, record.elr, record.last_known_elr, record.leader) == ((), (), (1,), -1)
    assert transitions.elect(record, {1}) is None
    led = after(transitions.elect(record, {1}, 1))
    assert (led.leader, led.recovering) == (1, True)


def test_a_node_that_has_nothing_is_no_last_resort() -> None:
    only = attrs.evolve(RECORD, replicas=(1,), isr=(1,), min_insync_replicas=1)
    record = after(transitions.forget(only, 1, has_nothing=True))
    assert (record.isr, record.elr, record.last_known_elr) == ((), (), ())
    assert transitions.elect(record, {1}) is None
    assert after(transitions.elect(record, {1}, 1)).leader == 1
    known = after(transitions.forget(only, 1))
    assert after(transitions.forget(known, 1, has_nothing=True)).last_known_elr == ()

"""Partition records by example: who leads, who is in sync, who is eligible, after each kind of change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core.control import transitions
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.types import NO_LEADER

RECORD = PartitionRecord(
    topic="t", partition=0, topic_id="x", replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, min_insync_replicas=2
)


def after(record: PartitionRecord | None) -> PartitionRecord:
    assert record is not None
    return record


def test_the_first_replica_in_assignment_order_that_is_alive_and_in_sync_leads() -> None:
    shuffled = structs.replace(RECORD, replicas=(3, 1, 2), isr=(3, 1, 2), leader=3)
    assert after(transitions.elect(shuffled, {1, 2})).leader == 1
    out_of_sync = structs.replace(shuffled, isr=(3, 2))
    assert after(transitions.elect(out_of_sync, {1, 2})).leader == 2


def test_a_dead_follower_leaves_without_a_new_leader_epoch() -> None:
    record = after(transitions.elect(RECORD, {1, 2}))
    assert (record.leader, record.leader_epoch, record.partition_epoch) == (1, 0, 1)
    assert (record.isr, record.elr) == ((1, 2), ())


def test_nothing_to_change_changes_nothing() -> None:
    assert transitions.elect(RECORD, {1, 2, 3}, 1) is None
    assert transitions.restarted(RECORD, 2) is None
    assert transitions.forget(structs.replace(RECORD, isr=(1, 2)), 3) is None


def test_who_leaves_an_isr_under_its_minimum_stays_eligible_and_leads_again() -> None:
    alone = after(transitions.elect(structs.replace(RECORD, isr=(1, 2)), {1}))
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
    record = structs.replace(RECORD, isr=(1, 2))
    assert not transitions.has_clean_leader(record, {3, 4})
    dark = after(transitions.elect(record, {3, 4}, unclean))
    assert dark.leader == leader
    if leader >= 0:
        assert (dark.isr, dark.elr, dark.recovering) == ((3,), (), True)


def test_nobody_is_chosen_uncleanly_while_somebody_may_lead_cleanly() -> None:
    record = structs.replace(RECORD, isr=(1, 2))
    assert transitions.has_clean_leader(record, {2, 3})
    assert after(transitions.elect(record, {2, 3}, 3)).leader == 2


def test_a_new_process_never_leads_in_its_predecessors_epoch() -> None:
    record = after(transitions.restarted(RECORD, 1))
    assert (record.leader, record.leader_epoch, record.isr) == (-1, 1, (1, 2, 3))
    again = after(transitions.elect(record, {1, 2, 3}))
    assert (again.leader, again.leader_epoch) == (1, 2)


def test_without_proof_a_node_is_neither_in_sync_nor_eligible_but_a_last_resort() -> None:
    only = structs.replace(RECORD, replicas=(1,), isr=(1,), min_insync_replicas=1)
    record = after(transitions.forget(only, 1))
    assert (record.isr, record.elr, record.last_known_elr, record.leader) == ((), (), (1,), -1)
    assert transitions.elect(record, {1}) is None
    led = after(transitions.elect(record, {1}, 1))
    assert (led.leader, led.recovering) == (1, True)


def test_a_node_that_has_nothing_is_no_last_resort() -> None:
    only = structs.replace(RECORD, replicas=(1,), isr=(1,), min_insync_replicas=1)
    record = after(transitions.forget(only, 1, has_nothing=True))
    assert (record.isr, record.elr, record.last_known_elr) == ((), (), ())
    assert transitions.elect(record, {1}) is None
    assert after(transitions.elect(record, {1}, 1)).leader == 1
    known = after(transitions.forget(only, 1))
    assert after(transitions.forget(known, 1, has_nothing=True)).last_known_elr == ()


# Against a slow second version: what KIP-966 says of each replica by itself


some = st.sets(st.integers(1, 4))
ORDER = (3, 1, 4, 2)


@st.composite
def records(draw: st.DrawFn) -> PartitionRecord:
    """Any record that keeps the rules: nobody is eligible beside an ISR that is large enough."""
    minimum = draw(st.integers(1, 4))
    isr = draw(some)
    under = len(isr) < minimum
    elr = draw(some) - isr if under else set()
    known = draw(some) - isr - elr if under else set()
    return PartitionRecord(
        topic="t",
        partition=0,
        topic_id="x",
        replicas=ORDER,
        isr=ordered(isr),
        elr=ordered(elr),
        last_known_elr=ordered(known),
        leader=draw(st.sampled_from((NO_LEADER, *sorted(isr)))),
        leader_epoch=7,
        partition_epoch=20,
        min_insync_replicas=minimum,
        recovering=len(isr) == 1 and draw(st.booleans()),
    )


def ordered(nodes: set[int]) -> tuple[int, ...]:
    return tuple(node for node in ORDER if node in nodes)


def check_eligible(before: PartitionRecord, now: PartitionRecord, *, lost: int | None = None) -> None:
    """Under the minimum whoever was in sync or eligible is so still, but for one that lost what it had."""
    if len(now.isr) >= now.min_isr:
        assert (now.elr, now.last_known_elr) == ((), ())
        return
    complete = ({*before.isr, *before.elr} - set(now.isr)) - {lost}
    assert now.elr == ordered(complete)
    known = {*before.last_known_elr, *({lost} if lost in {*before.isr, *before.elr} else ())}
    assert now.last_known_elr == ordered(
        {node for node in known if node is not None} - complete - set(now.isr)
    )


def check_epochs(before: PartitionRecord, now: PartitionRecord, *, above: int | None = None) -> None:
    """`above`: which epoch is left behind by far, as logs may have later ones than are known."""
    assert now.partition_epoch == 21
    if above is None:
        assert now.leader_epoch == (7 if now.leader == before.leader else 8)
    else:
        assert now.leader_epoch - above in range(1000, 2000)


@given(records(), some)
def test_the_leaders_change_touches_nobodys_leadership(record: PartitionRecord, isr: set[int]) -> None:
    isr |= {record.leader} - {NO_LEADER}
    now = transitions.change_isr(record, isr)
    assert (now.isr, now.leader) == (ordered(isr), record.leader)
    assert now.recovering == (record.recovering and len(isr) <= 1)
    check_epochs(record, now)
    check_eligible(record, now)


@settings(max_examples=300, deadline=None)
@given(records(), some, st.sampled_from((NO_LEADER, 1, 2, 3, 4, 5)), st.booleans())
def test_an_election(record: PartitionRecord, live: set[int], unclean: int, dark: bool) -> None:
    if dark:
        live -= {*record.isr, *record.elr}
    now = transitions.elect(record, live, unclean)
    alive = set(record.isr) & live
    clean = ordered(alive or set(record.elr) & live)
    assert transitions.has_clean_leader(record, live) == bool(clean)
    if record.leader in alive:
        leader = record.leader
    elif clean:
        leader = clean[0]
    else:
        leader = unclean if unclean in live and unclean in ORDER else NO_LEADER
    if now is None:
        assert (leader, alive) == (record.leader, set(record.isr))
        return
    assert now.leader == leader
    by_policy = leader != NO_LEADER and not clean
    # A leader that was only eligible, or only chosen, is in sync with itself and nobody else.
    assert now.isr == (ordered(alive) if leader in alive or leader == NO_LEADER else (leader,))
    check_epochs(record, now, above=7 if by_policy else None)
    assert now.unclean_epoch == (now.leader_epoch if by_policy else -1)
    assert now.recovering == (by_policy or (record.recovering and len(now.isr) <= 1))
    if by_policy:
        assert (now.elr, now.last_known_elr) == ((), ())
    else:
        check_eligible(record, now)


@given(records(), st.integers(1, 4), st.booleans())
def test_a_process_without_proof_is_forgotten(record: PartitionRecord, node: int, nothing: bool) -> None:
    now = transitions.forget(record, node, has_nothing=nothing)
    counted = {*record.isr, *record.elr, *(record.last_known_elr if nothing else ())}
    if node not in counted:
        assert now is None
        return
    assert now is not None
    assert now.isr == ordered(set(record.isr) - {node})
    assert now.leader == (NO_LEADER if record.leader == node else record.leader)
    check_epochs(record, now)
    if not nothing:
        check_eligible(record, now, lost=node)
    assert node not in now.elr
    assert not nothing or node not in now.last_known_elr


@given(records(), st.integers(1, 4))
def test_a_restarted_leader_leads_no_more_and_keeps_its_place(record: PartitionRecord, node: int) -> None:
    now = transitions.restarted(record, node)
    if record.leader != node:
        assert now is None
        return
    assert now is not None
    assert (now.leader, now.leader_epoch, now.isr, now.elr) == (NO_LEADER, 8, record.isr, record.elr)


@given(st.permutations((1, 2, 3)), some, st.integers(1, 3))
def test_a_new_partition_is_led_by_the_first_that_lives(
    order: list[int], live: set[int], minimum: int
) -> None:
    made = transitions.create(
        topic="t", partition=4, topic_id="x", replicas=order, live=live, min_insync=minimum
    )
    living = tuple(node for node in order if node in live)
    assert (made.topic, made.partition, made.topic_id, made.replicas) == ("t", 4, "x", tuple(order))
    assert (made.isr, made.leader) == (living, living[0] if living else NO_LEADER)
    assert (made.elr, made.last_known_elr, made.min_insync_replicas) == ((), (), minimum)
    assert (made.leader_epoch, made.partition_epoch) == (0, 0)


@given(records(), st.integers(1, 4), st.integers(-1, 12), st.booleans(), st.text(max_size=3))
def test_a_process_whose_log_has_a_later_epoch_than_the_store_raises_it_above(
    record: PartitionRecord, node: int, last_epoch: int, whole: bool, process: str
) -> None:
    """The store has forgotten elections; whatever else the return of the process means stays as it is."""
    come_in = transitions.restarted if whole else transitions.forget
    now = come_in(record, node, last_epoch=last_epoch, process=process)
    otherwise = come_in(record, node)
    if last_epoch <= record.leader_epoch:
        assert now == otherwise
        return
    assert now is not None
    check_epochs(record, now, above=last_epoch)
    left = otherwise if otherwise is not None else structs.replace(record, partition_epoch=21)
    assert structs.replace(now, leader_epoch=left.leader_epoch) == left


def test_no_two_processes_skip_to_the_same_epoch() -> None:
    """Another process may repeat, step by step, the elections that a store has forgotten."""
    texts = [f"{number:032x}" for number in range(100)]
    assert len({transitions.above(7, text) for text in texts}) == len(texts)

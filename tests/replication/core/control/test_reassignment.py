"""Moving partitions, racks and rebalance: by example, and against the oracle's own idea of what is allowed."""

from __future__ import annotations

from collections import Counter

import attrs
import hypothesis
import pytest
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core.control import rebalance, transitions
from insync.replication.core.control.records import NodeRecord, PartitionRecord, Versioned, partition_key
from insync.replication.core.control.topics import assign
from insync.replication.core.control.view import ClusterView
from insync.replication.core.types import NO_LEADER
from insync.replication.simulation.oracles import chain

RECORD = PartitionRecord(
    topic="t", partition=0, topic_id="x", replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, min_insync_replicas=2
)


def after(record: PartitionRecord | None) -> PartitionRecord:
    assert record is not None
    return record


def test_a_move_adds_before_it_removes() -> None:
    moving = after(transitions.reassign(RECORD, (4, 2, 5)))
    assert moving.replicas == (4, 2, 5, 1, 3)
    assert (moving.adding, moving.removing) == ((4, 5), (1, 3))
    assert (moving.origin, moving.target) == ((2, 1, 3), (4, 2, 5))
    assert (set(moving.isr), moving.leader, moving.leader_epoch) == ({1, 2, 3}, 1, 0)
    assert transitions.finish_reassignment(moving) is None
    half = transitions.change_isr(moving, (1, 2, 3, 4))
    assert transitions.finish_reassignment(half) is None
    done = after(transitions.finish_reassignment(transitions.change_isr(half, (1, 2, 3, 4, 5))))
    assert (done.replicas, done.isr, done.leader) == ((4, 2, 5), (4, 2, 5), 4)
    assert (done.adding, done.removing, done.leader_epoch) == ((), (), 1)


def test_who_stays_leads_on_but_never_in_the_same_epoch_once_somebody_has_gone() -> None:
    moving = transitions.change_isr(after(transitions.reassign(RECORD, (1, 2, 4))), (1, 2, 4))
    done = after(transitions.finish_reassignment(moving))
    assert (done.leader, done.leader_epoch) == (1, 1)
    grown = transitions.change_isr(after(transitions.reassign(RECORD, (1, 2, 3, 4))), (1, 2, 3, 4))
    assert after(transitions.finish_reassignment(grown)).leader_epoch == 0


def test_the_same_target_again_is_no_change_and_another_order_is_one() -> None:
    assert transitions.reassign(RECORD, (1, 2, 3)) is None
    turned = after(transitions.reassign(RECORD, (3, 2, 1)))
    assert (turned.replicas, turned.reassigning, turned.leader_epoch) == ((3, 2, 1), False, 0)
    moving = after(transitions.reassign(RECORD, (4, 5, 6)))
    assert transitions.reassign(moving, (4, 5, 6)) is None


def test_a_cancelled_move_ends_as_soon_as_enough_of_the_old_ones_are_in_sync() -> None:
    moving = after(transitions.reassign(RECORD, (4, 5, 6)))
    caught_up = transitions.change_isr(moving, (1, 4))
    back = after(transitions.reassign(caught_up, caught_up.origin))
    assert (back.target, set(back.removing), set(back.adding)) == ((1, 2, 3), {4, 5, 6}, {4, 5, 6})
    assert transitions.finish_reassignment(back) is None, "one of the old replicas is too few"
    done = after(transitions.finish_reassignment(transitions.change_isr(back, (1, 2, 4))))
    assert (done.replicas, done.isr, done.leader) == ((1, 2, 3), (1, 2), 1)


def test_a_move_to_more_replicas_ends_when_the_isr_is_large_enough_for_all_of_them() -> None:
    two = structs.replace(RECORD, replicas=(1, 2), isr=(1, 2), min_insync_replicas=3)
    growing = after(transitions.reassign(two, (1, 2, 3)))
    assert growing.min_isr == 2
    assert transitions.finish_reassignment(transitions.change_isr(growing, (1, 3))) is None
    done = after(transitions.finish_reassignment(transitions.change_isr(growing, (1, 2, 3))))
    assert (done.isr, done.min_isr) == ((1, 2, 3), 3)


def test_a_target_that_is_given_up_for_another_leaves_nobody_behind() -> None:
    first = after(transitions.reassign(RECORD, (4, 5, 6)))
    second = after(transitions.reassign(first, (1, 2, 7)))
    assert (set(second.adding), set(second.removing)) == ({4, 5, 6, 7}, {3, 4, 5, 6})
    assert set(second.origin) == {1, 2, 3}
    done = after(transitions.finish_reassignment(transitions.change_isr(second, (1, 2, 7))))
    assert done.replicas == (1, 2, 7)


def test_the_minimum_isr_is_that_of_the_smaller_side() -> None:
    alone = structs.replace(RECORD, replicas=(1,), isr=(1,))
    growing = after(transitions.reassign(alone, (1, 2)))
    assert (growing.min_isr, growing.elr) == (1, ())
    assert after(transitions.finish_reassignment(transitions.change_isr(growing, (1, 2)))).min_isr == 2
    shrinking = after(transitions.reassign(structs.replace(RECORD, isr=(1,), elr=(2,)), (1,)))
    assert (shrinking.min_isr, shrinking.elr) == (1, ())


def slowly_finished(record: PartitionRecord) -> tuple[int, tuple[int, ...]] | None:
    """Who leads and who is in sync when the move is over; None while it cannot end (KIP-455)."""
    target = [node for node in record.replicas if node not in record.removing]
    there = [node for node in target if node in record.isr]
    missing = [node for node in target if node not in record.isr]
    if not record.adding and not record.removing:
        return None
    enough = len(there) >= max(1, min(record.min_insync_replicas, len(target)))
    if missing and (not enough or set(missing) & set(record.adding)):
        return None
    if record.leader == NO_LEADER:
        return None
    return record.leader if record.leader in target else there[0], tuple(there)


@st.composite
def moving_records(draw: st.DrawFn) -> PartitionRecord:
    """Any partition in the middle of any move."""
    order = draw(st.permutations(range(1, 6)))
    everybody = tuple(order[: draw(st.integers(1, 5))])
    some = st.sets(st.sampled_from(everybody))
    adding, removing, isr = draw(some), draw(some), draw(some)
    hypothesis.assume(set(everybody) - adding and set(everybody) - removing)
    return structs.replace(
        RECORD,
        replicas=everybody,
        adding=tuple(node for node in everybody if node in adding),
        removing=tuple(node for node in everybody if node in removing),
        isr=tuple(node for node in everybody if node in isr),
        leader=draw(st.sampled_from((NO_LEADER, *sorted(isr)))),
        leader_epoch=7,
        min_insync_replicas=draw(st.integers(1, 4)),
    )


@pytest.mark.slow
@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(moving_records())
def test_a_move_ends_when_all_that_it_needs_are_in_sync(record: PartitionRecord) -> None:
    expected, done = slowly_finished(record), transitions.finish_reassignment(record)
    if expected is None:
        assert done is None
        return
    assert done is not None
    leader, isr = expected
    assert (done.leader, done.isr, done.replicas) == (leader, isr, record.target)
    assert (done.adding, done.removing) == ((), ())
    # Who leaves takes the leader epoch along, though the leader be the same.
    assert done.leader_epoch - 7 == (leader != record.leader or bool(record.removing))
    assert done.partition_epoch == record.partition_epoch + 1


@hypothesis.given(moving_records(), st.permutations(range(1, 6)), st.integers(1, 4))
def test_a_new_target_keeps_where_the_partition_came_from(
    record: PartitionRecord, order: list[int], size: int
) -> None:
    target = tuple(order[:size])
    moved = transitions.reassign(record, target)
    after = moved or record
    assert after.target == target
    assert set(after.origin) == set(record.origin)
    assert set(after.replicas) == {*record.replicas, *target}
    assert (set(after.adding), set(after.removing)) == (
        {*record.replicas, *target} - set(record.origin),
        set(record.replicas) - set(target),
    )
    assert (set(after.isr), after.leader, after.leader_epoch) == (set(record.isr), record.leader, 7)


replicas = st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True).map(tuple)
nodes = st.sets(st.integers(1, 5))
steps = st.one_of(
    st.tuples(st.just("reassign"), replicas),
    st.tuples(st.just("cancel"), st.none()),
    st.tuples(st.just("join"), st.integers(1, 5)),
    st.tuples(st.just("leave"), nodes),
    st.tuples(st.just("elect"), nodes),
    st.tuples(st.just("prefer"), nodes),
)


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(replicas, st.integers(1, 3), st.lists(steps, max_size=25))
def test_whatever_befalls_a_move_each_step_is_allowed_and_it_ends(
    first: tuple[int, ...], minimum: int, story: list[tuple[str, object]]
) -> None:
    record = transitions.create(
        topic="t",
        partition=0,
        topic_id="x",
        replicas=first,
        live=first,
        min_insync=min(minimum, len(first)),
    )
    for kind, what in story:
        step = _take(record, kind, what)
        moved = step is None or _move(step) != _move(record)
        writer = f"leader {record.leader}" if kind in ("join", "leave") and not moved else "controller 1"
        if step is not None:
            chain.check_step(record, step, writer)
            chain.check_shape(step)
            assert step.min_isr == chain.minimum(step)
            record = step
    _check_ends(record)


def _move(record: PartitionRecord) -> tuple[object, ...]:
    return record.replicas, record.adding, record.removing


def _take(record: PartitionRecord, kind: str, what: object) -> PartitionRecord | None:
    leads = record.leader != NO_LEADER
    match kind, what:
        case "reassign", tuple():
            return transitions.reassign(record, what)
        case "cancel", _:
            return transitions.reassign(record, record.origin)
        case "join", int() if leads and what in record.replicas and what not in record.isr:
            return transitions.change_isr(record, (*record.isr, what))
        case "leave", set() if leads and set(record.isr) & what - {record.leader}:
            return transitions.change_isr(record, set(record.isr) - what | {record.leader})
        case "elect", set():
            return transitions.elect(record, what)
        case "prefer", set():
            return transitions.prefer(record, what)
    return transitions.finish_reassignment(record)


def _check_ends(record: PartitionRecord) -> None:
    """With everybody alive and caught up the target is reached, whatever was before."""
    target = record.target
    everybody = {1, 2, 3, 4, 5}
    if not transitions.has_clean_leader(record, everybody):
        return
    record = transitions.elect(record, everybody) or record
    record = transitions.change_isr(record, record.replicas)
    record = transitions.finish_reassignment(record) or record
    assert (record.replicas, record.isr, record.reassigning) == (target, target, False)


# Racks


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.dictionaries(st.integers(0, 30), st.sampled_from("abc"), min_size=1, max_size=9),
    st.integers(1, 30),
    st.integers(0, 60),
    st.data(),
)
def test_replicas_stand_in_as_many_racks_as_there_are(
    racks: dict[int, str], partitions: int, seed: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    assignment = assign(racks, partitions, factor, seed)
    assert assignment == assign(dict(reversed(racks.items())), partitions, factor, seed)
    sizes = Counter(racks.values())
    for chosen in assignment:
        assert len(set(chosen)) == factor
        held = Counter(racks[node] for node in chosen)
        for rack, count in held.items():
            # No rack has a second one more than another that still has nodes to give.
            assert all(count <= held[other] + 1 or held[other] == sizes[other] for other in sizes), (
                rack,
                held,
            )
    leads = Counter(chosen[0] for chosen in assignment)
    assert max(leads.values()) - min(leads.get(node, 0) for node in racks) <= 1


def test_a_node_without_a_rack_makes_racks_count_for_nothing() -> None:
    named = assign({1: "a", 2: "a", 3: "b"}, 1, 2, 0)
    assert {frozenset(chosen) for chosen in named} <= {frozenset({1, 3}), frozenset({2, 3})}
    plain = assign({1: "", 2: "a", 3: "b"}, 6, 2, 0)
    assert plain == assign({1: "", 2: "", 3: ""}, 6, 2, 0)


# Rebalance


def balance_view(
    leaders: list[int], *, isr: tuple[int, ...] = (1, 2, 3), live: tuple[int, ...] = (1, 2, 3)
) -> ClusterView:
    partitions = {}
    for number, leader in enumerate(leaders):
        record = structs.replace(RECORD, partition=number, leader=leader, isr=isr)
        partitions[record.id] = Versioned(record, 1)
    return ClusterView(
        nodes={node: NodeRecord(node_id=node, incarnation=1, endpoints=()) for node in live},
        partitions=partitions,
    )


@pytest.mark.parametrize(("elsewhere", "moved"), [(0, 0), (1, 0), (2, 2), (10, 10)])
def test_leaderships_go_back_when_more_than_a_tenth_is_elsewhere(elsewhere: int, moved: int) -> None:
    changes = rebalance.plan(balance_view([2] * elsewhere + [1] * (10 - elsewhere)), 10)
    assert len(changes) == moved
    assert all(record.leader == 1 and before.record.leader == 2 for record, before in changes)


def test_nothing_goes_to_whom_cannot_lead_and_nothing_that_moves_is_touched() -> None:
    assert rebalance.plan(balance_view([2] * 4, live=(2, 3)), 10) == []
    assert rebalance.plan(balance_view([2] * 4, isr=(2, 3)), 10) == []
    assert rebalance.plan(balance_view([NO_LEADER] * 4), 10) == []
    view = balance_view([2])
    (versioned,) = view.partitions.values()
    moving = after(transitions.reassign(versioned.record, (1, 2, 4)))
    assert rebalance.plan(attrs.evolve(view, partitions={moving.id: Versioned(moving, 2)}), 10) == []
    spoilt = attrs.evolve(view, unreadable=frozenset({partition_key(moving.id)}))
    assert rebalance.plan(spoilt, 10) == []

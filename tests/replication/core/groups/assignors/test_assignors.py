"""The textbook's assignments to the partition, and what holds of every assignment."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from insync.replication.core.groups.assignors.assignment import (
    Assignment,
    Assignor,
    Partition,
    Subscription,
    in_order,
)
from insync.replication.core.groups.assignors.names import CLIENT_ASSIGNORS, SERVER_ASSIGNORS, elect
from insync.replication.core.groups.assignors.range import RangeAssignor, RoundRobinAssignor
from insync.replication.core.groups.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from insync.replication.core.groups.assignors.uniform import UniformAssignor

RANGE, ROUND_ROBIN, STICKY = RangeAssignor(), RoundRobinAssignor(), StickyAssignor()
COOPERATIVE, UNIFORM = CooperativeStickyAssignor(), UniformAssignor()
TWO = {"t0": 3, "t1": 3}
STEPS = {"t0": 1, "t1": 2, "t2": 3}
PAIRS = {f"t{number}": 2 for number in range(4)}


def parts(text: str) -> list[Partition]:
    """`t0p0 t2p0-2` as partitions."""
    found = []
    for topic, first, last in re.findall(r"(t\d+)p(\d+)(?:-(\d+))?", text):
        found += [Partition(topic, number) for number in range(int(first), int(last or first) + 1)]
    return found


def readers(names: str, topics: str, owned: Assignment | None = None) -> dict[str, Subscription]:
    return {
        name: Subscription(topics=frozenset(topics.split()), owned=frozenset((owned or {}).get(name, ())))
        for name in names
    }


def stairs(names: str = "ABC", owned: Assignment | None = None) -> dict[str, Subscription]:
    """A reads the first topic of `STEPS`, B two, C all."""
    found = {}
    for place, name in enumerate("ABC", 1):
        found |= readers(name, " ".join(sorted(STEPS)[:place]), owned)
    return {name: found[name] for name in names}


def wanted(**text: str) -> Assignment:
    return {name: parts(each) for name, each in text.items()}


def test_range_divides_each_topic() -> None:
    found = RANGE.assign(TWO, readers("AB", "t0 t1"))
    assert found == wanted(A="t0p0 t0p1 t1p0 t1p1", B="t0p2 t1p2")


def test_range_is_computed_from_nothing_when_one_joins() -> None:
    before = RANGE.assign(TWO, readers("AB", "t0 t1"))
    found = RANGE.assign(TWO, readers("ABC", "t0 t1", before))
    assert found == wanted(A="t0p0 t1p0", B="t0p1 t1p1", C="t0p2 t1p2")


def test_round_robin_deals_all_topics() -> None:
    assert ROUND_ROBIN.assign(TWO, readers("AB", "t0 t1")) == wanted(A="t0p0 t0p2 t1p1", B="t0p1 t1p0 t1p2")


def test_round_robin_passes_over_who_does_not_subscribe() -> None:
    assert ROUND_ROBIN.assign(STEPS, stairs()) == wanted(A="t0p0", B="t1p0", C="t1p1 t2p0-2")


def test_sticky_evens_out_subscriptions_that_differ() -> None:
    found = STICKY.assign(STEPS, stairs())
    assert found == wanted(A="t0p0", B="t1p0 t1p1", C="t2p0-2")
    assert STICKY.assign(STEPS, stairs("BC", found)) == wanted(B="t0p0 t1p0 t1p1", C="t2p0-2")


def test_sticky_moves_what_has_lost_its_reader_and_nothing_else() -> None:
    topics = " ".join(PAIRS)
    found = STICKY.assign(PAIRS, readers("ABC", topics))
    assert found == wanted(A="t0p0 t1p1 t3p0", B="t0p1 t2p0 t3p1", C="t1p0 t2p1")
    after = STICKY.assign(PAIRS, readers("AC", topics, found))
    assert after == wanted(A="t0p0 t1p1 t2p0 t3p0", C="t0p1 t1p0 t2p1 t3p1")


def test_the_greater_generation_is_believed_and_of_equal_ones_none() -> None:
    members = readers("ABC", "t0")
    mine = frozenset(parts("t0p0"))
    members["A"] = structs.replace(members["A"], owned=mine, generation=3)
    members["B"] = structs.replace(members["B"], owned=mine, generation=4)
    assert STICKY.assign({"t0": 2}, members) == wanted(A="t0p1", B="t0p0", C="")
    members["C"] = structs.replace(members["C"], owned=mine, generation=4)
    assert STICKY.assign({"t0": 2}, members) == wanted(A="t0p0", B="t0p1", C="")


def test_claims_to_what_is_not_there_or_not_subscribed_are_void() -> None:
    members = readers("AB", "t0", wanted(A="t1p0 t0p7") | {"B": [Partition("t0", -1)]})
    assert STICKY.assign({"t0": 1, "t1": 1}, members) == wanted(A="t0p0", B="")


def test_cooperative_withholds_for_one_round_what_another_owns() -> None:
    before = wanted(A="t0p0-2")
    first = COOPERATIVE.assign({"t0": 3}, readers("AB", "t0", before))
    assert first == wanted(A="t0p0 t0p1", B="")
    second = COOPERATIVE.assign({"t0": 3}, readers("AB", "t0", first))
    assert second == wanted(A="t0p0 t0p1", B="t0p2")


def test_cooperative_withholds_what_two_claim_for_one_generation() -> None:
    both = wanted(A="t0p0", B="t0p0")
    assert COOPERATIVE.assign({"t0": 1}, readers("AB", "t0", both)) == wanted(A="", B="")


def test_cooperative_does_not_wait_for_a_claim_of_the_past() -> None:
    members = readers("AB", "t0", wanted(A="t0p0 t0p1", B="t0p1"))
    members["A"] = structs.replace(members["A"], generation=1)
    members["B"] = structs.replace(members["B"], generation=2)
    assert COOPERATIVE.assign({"t0": 2}, members) == wanted(A="t0p0", B="t0p1")


def test_uniform_step_by_step() -> None:
    first = UNIFORM.assign(TWO, readers("AB", "t0 t1"))
    assert first == wanted(A="t0p0 t0p2 t1p1", B="t0p1 t1p0 t1p2")
    second = UNIFORM.assign(TWO, readers("ABC", "t0 t1", first))
    assert second == wanted(A="t0p0 t0p2", B="t0p1 t1p0", C="t1p1 t1p2")
    third = UNIFORM.assign(TWO, readers("BC", "t0 t1", second))
    assert third == wanted(B="t0p0 t0p1 t1p0", C="t0p2 t1p1 t1p2")


def test_uniform_lets_whoever_has_one_more_keep_it() -> None:
    before = wanted(A="t0p0", B="t0p1 t0p2")
    assert UNIFORM.assign({"t0": 3}, readers("AB", "t0", before)) == before


def test_uniform_with_subscriptions_that_differ() -> None:
    assert UNIFORM.assign(STEPS, stairs()) == wanted(A="t0p0", B="t1p0 t1p1", C="t2p0-2")


def test_a_partition_moves_to_who_has_two_fewer() -> None:
    members = readers("A", "t0 t1", wanted(A="t0p0 t0p1 t0p2")) | readers("B", "t0")
    assert STICKY.assign({"t0": 3, "t1": 1}, members) == wanted(A="t0p2 t1p0", B="t0p0 t0p1")


def test_static_members_come_first_by_instance() -> None:
    members = readers("ABCD", "t0")
    members["D"] = structs.replace(members["D"], instance_id="i1")
    members["B"] = structs.replace(members["B"], instance_id="i2")
    assert in_order(members) == ["D", "B", "A", "C"]
    assert RANGE.assign({"t0": 1}, members)["D"] == parts("t0p0")


@pytest.mark.parametrize("assignor", [*CLIENT_ASSIGNORS, *SERVER_ASSIGNORS], ids=lambda each: each.name)
def test_nobody_and_nothing(assignor: Assignor) -> None:
    assert assignor.assign(TWO, {}) == {}
    assert assignor.assign({}, readers("AB", "t0")) == {"A": [], "B": []}
    assert assignor.assign({"t0": 0}, readers("A", "t0")) == {"A": []}


def test_the_assignor_of_most_members_is_taken() -> None:
    assert elect([None, None, "range"], SERVER_ASSIGNORS).name == "range"
    assert elect(["uniform", "range"], SERVER_ASSIGNORS).name == "uniform"
    assert elect([], SERVER_ASSIGNORS).name == "uniform"
    assert elect(["mine", "mine", "range"], SERVER_ASSIGNORS).name == "range"


TOPICS = st.dictionaries(st.sampled_from(["t0", "t1", "t2", "t3"]), st.integers(0, 9), max_size=4)
NAMES = [f"m{number}" for number in range(6)]


@st.composite
def equal_members(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, Subscription]]:
    counts = draw(TOPICS)
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    every = [Partition(topic, number) for topic, count in counts.items() for number in range(count)]
    owner = {each: draw(st.sampled_from([None, *names])) for each in every}
    return counts, {
        name: Subscription(
            topics=frozenset(counts), owned=frozenset(each for each in every if owner[each] == name)
        )
        for name in names
    }


@st.composite
def any_members(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, Subscription]]:
    """Claims that contradict each other, of topics that are gone, of generations that are over."""
    counts = draw(TOPICS)
    partition = st.builds(Partition, st.sampled_from(["t0", "t1", "t2", "t3"]), st.integers(0, 10))
    subscription = st.builds(
        Subscription,
        topics=st.frozensets(st.sampled_from(["t0", "t1", "t2", "t3", "t4"])),
        instance_id=st.none(),
        owned=st.frozensets(partition),
        generation=st.integers(-1, 2),
    )
    return counts, draw(st.dictionaries(st.sampled_from(NAMES), subscription, max_size=6))


ALL = st.sampled_from([RANGE, ROUND_ROBIN, STICKY, UNIFORM])


@given(ALL, any_members())
def test_each_subscribed_partition_goes_to_one_subscriber(assignor: Assignor, given_: tuple) -> None:
    counts, members = given_
    found = assignor.assign(counts, members)
    assert found.keys() == members.keys()
    dealt = [partition for mine in found.values() for partition in mine]
    read = set().union(*(said.topics for said in members.values()))
    assert sorted(dealt) == sorted(
        Partition(topic, number) for topic in read & counts.keys() for number in range(counts[topic])
    )
    for member_id, mine in found.items():
        assert {partition.topic for partition in mine} <= members[member_id].topics
        assert mine == sorted(mine)


@given(st.sampled_from([RANGE, ROUND_ROBIN, STICKY, COOPERATIVE, UNIFORM]), any_members(), st.randoms())
def test_the_order_of_the_input_changes_nothing(assignor: Assignor, given_: tuple, random: Random) -> None:
    counts, members = given_
    names, topics = list(members), list(counts)
    random.shuffle(names)
    random.shuffle(topics)
    again = assignor.assign({each: counts[each] for each in topics}, {each: members[each] for each in names})
    assert again == assignor.assign(counts, members)


@given(st.sampled_from([ROUND_ROBIN, STICKY, UNIFORM]), equal_members())
def test_equal_subscriptions_differ_by_one_at_most(assignor: Assignor, given_: tuple) -> None:
    loads = [len(mine) for mine in assignor.assign(*given_).values()]
    assert max(loads) - min(loads) <= 1


@given(st.sampled_from([STICKY, UNIFORM]), equal_members())
def test_no_even_assignment_moves_less(assignor: Assignor, given_: tuple) -> None:
    """What each may keep is bounded by its quota alone, and the places for one more go to those that need them."""
    counts, members = given_
    quota, extras = divmod(sum(counts.values()), len(members))
    found = assignor.assign(counts, members)
    kept = sum(len(members[name].owned & set(found[name])) for name in members)
    over = sum(len(said.owned) > quota for said in members.values())
    assert kept == sum(min(len(said.owned), quota) for said in members.values()) + min(over, extras)


@given(st.sampled_from([STICKY, COOPERATIVE, UNIFORM]), any_members())
def test_what_was_given_is_given_again(assignor: Assignor, given_: tuple) -> None:
    counts, members = given_
    # The withheld part of a cooperative round is given in the next one.
    for _ in range(3):
        found = assignor.assign(counts, members)
        members = {
            name: structs.replace(said, owned=frozenset(found[name]), generation=5)
            for name, said in members.items()
        }
    assert assignor.assign(counts, members) == found


@given(any_members())
def test_cooperative_gives_nobody_what_another_may_own(given_: tuple) -> None:
    counts, members = given_
    for name, mine in COOPERATIVE.assign(counts, members).items():
        for partition in mine:
            mine_since = members[name].generation if partition in members[name].owned else -2
            others = [said for other, said in members.items() if other != name and partition in said.owned]
            assert all(said.generation < mine_since or mine_since == -2 for said in others) or not others
            if mine_since == -2:
                assert not others


@given(st.sampled_from([STICKY, UNIFORM]), any_members())
def test_no_move_to_another_subscriber_would_lower_the_spread(assignor: Assignor, given_: tuple) -> None:
    counts, members = given_
    found = assignor.assign(counts, members)
    for mine in found.values():
        for partition in mine:
            loads = [len(found[name]) for name, said in members.items() if partition.topic in said.topics]
            assert len(mine) - min(loads) <= 1

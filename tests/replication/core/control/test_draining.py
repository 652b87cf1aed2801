"""The plan for taking a node out of a cluster."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from insync.replication.core.control.draining import drained
from insync.replication.core.types import PartitionId


def at(number: int) -> PartitionId:
    return PartitionId("t", number)


def test_the_successor_takes_the_place_in_the_order_of_preference() -> None:
    plan = drained({at(0): [3, 1], at(1): [1, 3], at(2): [1, 2]}, 3, {1: "", 2: "", 4: ""})
    assert plan == {at(0): [4, 1], at(1): [1, 2]}


def test_a_rack_without_a_replica_comes_before_a_node_with_fewer() -> None:
    racks = {1: "a", 2: "a", 4: "b"}
    assert drained({at(0): [1, 3], at(1): [4, 3]}, 3, racks) == {at(0): [1, 4], at(1): [4, 2]}


def test_a_partition_that_is_everywhere_cannot_be_moved() -> None:
    assert drained({at(0): [1, 2, 3]}, 3, {1: "", 2: "", 3: ""}) == {at(0): None}


@given(
    st.integers(4, 8),
    st.lists(st.permutations(range(8)), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_nothing_stays_and_nobody_is_loaded_unevenly(
    nodes: int, orders: list[list[int]], factor: int, leaving: int
) -> None:
    replicas = {at(n): [each for each in order if each < nodes][:factor] for n, order in enumerate(orders)}
    plan = drained(replicas, leaving, dict.fromkeys(range(nodes), ""))
    assert set(plan) == {partition for partition, having in replicas.items() if leaving in having}
    before = Counter(each for having in replicas.values() for each in having)
    after = Counter(before)
    for partition, target in plan.items():
        assert target is not None and leaving not in target and len(set(target)) == factor
        assert [each for each in target if each in replicas[partition]] == [
            each for each in replicas[partition] if each != leaving
        ]
        (successor,) = set(target) - set(replicas[partition])
        others = [each for each in range(nodes) if each != leaving and each not in replicas[partition]]
        assert after[successor] == min(after[each] for each in others)
        after[successor] += 1

"""A wall clock is compared with those of the other nodes, and without others with itself."""

from __future__ import annotations

import pytest

from insync.replication.core.broker.membership.clocks import WallClocks

DAY = 86_400.0


def difference(clocks: WallClocks, own_distance: float) -> float:
    return clocks.judge(own_distance).difference


def test_alone_it_may_not_jump() -> None:
    clocks = WallClocks(1000.0, 60.0)
    assert difference(clocks, 1059.0) == difference(clocks, 941.0) == 0
    assert difference(clocks, 1000.0 + DAY) == DAY
    assert difference(clocks, 1000.0 - DAY) == -DAY


def test_a_jump_is_seen_before_anybody_is_heard_again() -> None:
    clocks = WallClocks(1000.0, 60.0)
    clocks.heard(2, 1010.0)
    assert difference(clocks, 1000.0) == 0
    assert difference(clocks, 1000.0 + DAY) == DAY - 10


def test_one_that_is_wrong_among_several_does_not_count() -> None:
    clocks = WallClocks(1000.0, 60.0)
    clocks.heard(2, 1000.0 + DAY)
    assert difference(clocks, 1000.0) == -DAY, "of two nobody knows which is right"
    clocks.heard(3, 1001.0)
    assert difference(clocks, 1000.0) == 0
    clocks.heard(2, 1002.0)
    assert difference(clocks, 1000.0 + DAY) == DAY - 2


@pytest.mark.parametrize("by", [DAY, -30 * DAY])
def test_the_clock_that_is_wrong_is_named_by_the_majority_and_doubted_by_its_own_node_alone(
    by: float,
) -> None:
    """One that was behind had all others doubt theirs."""
    distances = {1: 1000.0, 2: 1001.0, 3: 1000.0 + by}
    verdicts = {}
    for me, own in distances.items():
        clocks = WallClocks(own, 60.0)
        for node_id, distance in distances.items():
            if node_id != me:
                clocks.heard(node_id, distance)
        verdicts[me] = clocks.judge(own)
    assert [bool(verdicts[each].difference) for each in (1, 2, 3)] == [False, False, True]
    found = verdicts[3]
    said = f"{abs(found.difference):.0f} s {'ahead of' if by > 0 else 'behind'} those of most nodes"
    assert abs(found.difference - by) <= 1
    assert (
        found.problem == f"this node's clock is {said}, so nothing is deleted or compacted here; set it right"
    )
    assert verdicts[3].wrong == {}
    for me in (1, 2):
        assert verdicts[me].problem == "" and [*verdicts[me].wrong] == [3]
        assert f"the clock of node 3 is {said}: set it right there" in verdicts[me].other_problem(3)
        assert verdicts[me].finding != verdicts[3].finding


@pytest.mark.parametrize("others", [{2: DAY}, {2: 0.0, 3: DAY, 4: DAY}, {2: DAY, 3: -DAY}])
def test_without_a_majority_every_node_doubts_its_own_clock(others: dict[int, float]) -> None:
    distances = {1: 0.0, **others}
    for me, own in distances.items():
        clocks = WallClocks(own, 60.0)
        for node_id, distance in distances.items():
            if node_id != me:
                clocks.heard(node_id, distance)
        verdict = clocks.judge(own)
        assert verdict.difference and not verdict.is_decided and not verdict.wrong
        named = ", ".join(str(each) for each in distances if each != me)
        assert f"hears of ({named}), and no majority shows which are wrong" in verdict.problem


def test_a_clock_that_was_wrong_from_the_start_is_found_out() -> None:
    clocks = WallClocks(1000.0 + DAY, 60.0)
    clocks.heard(2, 1000.0)
    clocks.heard(3, 1001.0)
    assert difference(clocks, 1000.0 + DAY) == DAY - 1
    assert difference(clocks, 1000.0) == 0, "it was set right"


def test_a_jump_is_other_news_than_a_difference_from_others() -> None:
    clocks = WallClocks(1000.0, 60.0)
    assert not clocks.judge(1000.0).finding, "no news"
    alone = clocks.judge(1000.0 + DAY)
    assert alone.problem.startswith(
        "this node's clock has jumped 86400 s ahead of its start, so nothing is deleted"
    )
    clocks.heard(2, 1000.0)
    one = clocks.judge(1000.0 + DAY)
    clocks.heard(3, 1000.0)
    assert len({each.finding for each in (alone, one, clocks.judge(1000.0 + DAY), clocks.judge(1000.0))}) == 4


def test_who_has_left_is_forgotten() -> None:
    clocks = WallClocks(1000.0, 60.0)
    clocks.heard(2, 1000.0 + DAY)
    clocks.keep({2, 3})
    assert difference(clocks, 1000.0) == -DAY
    clocks.keep({1, 3})
    assert difference(clocks, 1000.0) == 0

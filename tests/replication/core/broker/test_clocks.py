"""A wall clock is compared with those of the other nodes, and without others with itself."""

from __future__ import annotations

from insync.replication.core.broker.clocks import WallClocks

DAY = 86_400.0


def test_alone_it_may_not_jump() -> None:
    clocks = WallClocks(1000.0, 60.0)
    assert clocks.difference(1059.0) == clocks.difference(941.0) == 0
    assert clocks.difference(1000.0 + DAY) == DAY
    assert clocks.difference(1000.0 - DAY) == -DAY


def test_a_jump_is_seen_before_anybody_is_heard_again() -> None:
    clocks = WallClocks(1000.0, 60.0)
    clocks.heard(2, 1010.0)
    assert clocks.difference(1000.0) == 0
    assert clocks.difference(1000.0 + DAY) == DAY - 10


def test_one_that_is_wrong_among_several_does_not_count() -> None:
    clocks = WallClocks(1000.0, 60.0)
    clocks.heard(2, 1000.0 + DAY)
    assert clocks.difference(1000.0) == -DAY, "of two nobody knows which is right"
    clocks.heard(3, 1001.0)
    assert clocks.difference(1000.0) == 0
    clocks.heard(2, 1002.0)
    assert clocks.difference(1000.0 + DAY) == DAY - 1


def test_a_clock_that_was_wrong_from_the_start_is_found_out() -> None:
    clocks = WallClocks(1000.0 + DAY, 60.0)
    clocks.heard(2, 1000.0)
    clocks.heard(3, 1001.0)
    assert clocks.difference(1000.0 + DAY) == DAY
    assert clocks.difference(1000.0) == 0, "it was set right"


def test_who_has_left_is_forgotten() -> None:
    clocks = WallClocks(1000.0, 60.0)
    clocks.heard(2, 1000.0 + DAY)
    clocks.keep({2, 3})
    assert clocks.difference(1000.0) == -DAY
    clocks.keep({1, 3})
    assert clocks.difference(1000.0) == 0

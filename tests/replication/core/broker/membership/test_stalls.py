"""When work on a device counts as hanging."""

from __future__ import annotations

from insync.replication.core.broker.membership.stalls import StallWatch


def test_a_worker_that_stays_at_one_work_hangs() -> None:
    watch = StallWatch(2.0)
    assert [watch.look((7, 0), 1.0) for _ in range(3)] == [False, False, True]


def test_whoever_goes_on_or_rests_does_not_hang() -> None:
    watch = StallWatch(2.0)
    assert not any(watch.look((number, 0), 1.0) for number in range(1, 9))
    assert not any(watch.look((0, 0), 1.0) for _ in range(9))
    assert [watch.look((9, 0), 1.0) for _ in range(2)] == [False, False]
    assert not watch.look((10, 0), 1.0), "counted from its beginning again"


def test_the_first_look_begins_the_count() -> None:
    watch = StallWatch(2.0)
    assert [watch.look((1,), 1.0) for _ in range(3)] == [False, False, True]


def test_each_worker_is_looked_at_by_itself() -> None:
    watch = StallWatch(2.0)
    assert [watch.look((number, 5), 1.0) for number in range(1, 4)] == [False, False, True]
    assert not watch.look((9, 6), 1.0)

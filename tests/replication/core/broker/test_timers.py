from __future__ import annotations

import pytest

from insync.replication.core.broker.fetching.throttle import Throttle
from insync.replication.core.broker.timers import NEVER, Timers


def test_timers_come_in_the_order_of_their_deadlines() -> None:
    timers, came = Timers(), list[str]()
    assert timers.deadline == NEVER
    for deadline, name in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (1.0, "a2")):
        timers.call_at(deadline, lambda name=name: came.append(name))  # type: ignore[misc]
    assert timers.deadline == 1.0
    timers.run(0.9)
    assert came == []
    timers.run(2.0)
    assert (came, timers.deadline) == (["a", "a2", "b"], 3.0)


def test_a_callback_may_add_what_is_due_at_once() -> None:
    timers, came = Timers(), list[int]()

    def first() -> None:
        came.append(1)
        timers.call_at(1.0, lambda: came.append(2))

    timers.call_at(1.0, first)
    timers.run(1.0)
    assert came == [1, 2]


def test_a_cancelled_timer_never_comes_and_is_not_kept_for_long() -> None:
    timers, came = Timers(), list[int]()
    for number in range(1000):
        timers.call_at(5.0 + number, lambda number=number: came.append(number)).cancel()  # type: ignore[misc]
    assert len(timers) < 100
    last = timers.call_at(1.0, lambda: came.append(-1))
    last.cancel()
    last.cancel()
    timers.run(10_000.0)
    assert (came, len(timers)) == ([], 0)


def test_nobody_is_woken_for_a_cancelled_timer() -> None:
    timers, came = Timers(), list[int]()
    first, second = timers.call_at(1.0, lambda: came.append(1)), timers.call_at(2.0, lambda: came.append(2))
    timers.call_at(3.0, lambda: came.append(3))
    second.cancel()
    assert timers.deadline == 1.0
    first.cancel()
    assert (timers.deadline, len(timers)) == (3.0, 1)
    timers.run(3.0)
    assert (came, timers.deadline, len(timers)) == ([3], NEVER, 0)
    for _ in range(1000):
        timers.call_at(5.0, lambda: came.append(5)).cancel()
    assert len(timers) < 100, "what was dropped is not counted among those that wait to be dropped"


def test_timers_that_are_cancelled_while_others_come_do_not_disturb_them() -> None:
    timers, came = Timers(), list[int]()
    later = [timers.call_at(2.0, lambda: came.append(0)) for _ in range(300)]

    def cancel_all() -> None:
        for each in later:
            each.cancel()

    timers.call_at(1.0, cancel_all)
    timers.call_at(1.5, lambda: came.append(1))
    timers.call_at(3.0, lambda: came.append(2))
    timers.run(4.0)
    assert (came, timers.deadline) == ([1, 2], NEVER)


def test_a_throttle_pauses_for_as_long_as_the_bytes_should_have_taken() -> None:
    throttle = Throttle(100)
    assert throttle.pause(5.0) == 0.0
    throttle.took(50, 5.0)
    assert throttle.pause(5.0) == pytest.approx(0.5)
    throttle.took(100, 5.2)
    assert throttle.pause(5.2) == pytest.approx(1.3)
    assert throttle.pause(7.0) == 0.0

"""Deadlines that slip together."""

from __future__ import annotations

from insync.replication.core.coordination.timers import Timers


def test_what_slips_is_what_was_set_by_then() -> None:
    timers: Timers[str] = Timers()
    timers.set("early", 10.0)
    timers.slip(5.0)
    timers.set("late", 12.0)
    assert (timers.due("early"), timers.due("late"), timers.due("never")) == (15.0, 12.0, None)
    assert timers.deadline == 12.0
    assert timers.pop(11.9) is None
    assert [timers.pop(20.0), timers.pop(20.0), timers.pop(20.0)] == ["late", "early", None]
    assert timers.due("late") is None


def test_a_timer_that_is_set_again_moves() -> None:
    timers: Timers[str] = Timers()
    for due in range(200):
        timers.set("one", float(due))
    timers.set("other", 50.0)
    timers.cancel("other")
    assert timers.deadline == 199.0 and timers.pop(100.0) is None

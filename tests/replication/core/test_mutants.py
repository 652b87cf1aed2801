"""Every planted error is noticed: by the storm within a few seeds, or by the schedule that was written for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import test_follower, test_isr_change
from .mutants import MUTANTS
from .storm import run

SEEDS = 60
SCHEDULES: dict[str, Callable[[], None]] = {
    "serve a fetch of another leader epoch (KIP-320)": (
        test_isr_change.test_a_fetch_of_an_earlier_epoch_counts_for_nothing
    ),
    "count a joining member only when it has joined (KIP-497)": (
        test_isr_change.test_a_joining_member_counts_while_nobody_knows_whether_it_has_joined
    ),
    "apply any answer that begins at one's own end (KAFKA-9087)": (
        test_follower.test_an_answer_for_another_offset_or_epoch_is_ignored
    ),
    "believe a late divergence of the same leader epoch": (
        test_follower.test_a_late_divergence_does_not_cut_what_was_fetched_since
    ),
    "number the ISR proposals anew in each epoch (Fluss #2146)": (
        test_isr_change.test_an_outcome_of_an_earlier_epoch_settles_nothing
    ),
    "drop an ISR proposal whose fate is not known": (
        test_isr_change.test_a_joining_member_counts_while_nobody_knows_whether_it_has_joined
    ),
    "never ask again about an ISR proposal whose fate is not known (KAFKA-14144)": (
        test_isr_change.test_an_unclear_change_is_asked_about_again_until_the_record_tells
    ),
    "add a member without a check of its incarnation (KIP-903)": (
        test_isr_change.test_the_proposal_names_the_incarnation_that_fetched
    ),
}


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - SCHEDULES.keys()))
def test_the_storm_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            run(seed)


@pytest.mark.parametrize("name", SCHEDULES)
def test_its_schedule_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SCHEDULES[name]()
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        SCHEDULES[name]()

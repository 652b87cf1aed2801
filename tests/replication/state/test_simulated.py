"""The search for an order that explains what was seen; `tests.mutants.services` uses it on whole runs."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.replication.simulation.oracles.linearizable import (
    UNKNOWN,
    Call,
    UndecidedError,
    is_linearizable,
)


def register(state: int, action: Hashable) -> tuple[int, object]:
    assert isinstance(action, tuple)
    do, value = action
    return (value, None) if do == "write" else (state, state)


def call(began: float, ended: float, *action: object, answer: object = None) -> Call:
    return Call(began=began, ended=ended, action=action, answer=answer)


def test_a_read_of_what_is_no_longer_there_is_no_order() -> None:
    write, late = call(0, 1, "write", 1), call(2, 3, "read", None, answer=0)
    assert not is_linearizable([write, late], 0, register)
    assert is_linearizable([write, call(0.5, 3, "read", None, answer=0)], 0, register)


def test_reads_that_go_back_in_time_are_no_order() -> None:
    write = call(0, 10, "write", 1)
    new, old = call(1, 2, "read", None, answer=1), call(3, 4, "read", None, answer=0)
    assert not is_linearizable([write, new, old], 0, register)
    assert is_linearizable(
        [write, call(1, 2, "read", None, answer=0), call(3, 4, "read", None, answer=1)], 0, register
    )


def test_a_call_without_an_answer_may_have_been_done_or_not() -> None:
    lost = Call(began=0, action=("write", 1), answer=UNKNOWN)
    for seen in (0, 1):
        assert is_linearizable([lost, call(5, 6, "read", None, answer=seen)], 0, register)
    assert not is_linearizable([lost, call(5, 6, "read", None, answer=7)], 0, register)


def test_an_unknown_outcome_may_explain_what_comes_much_later() -> None:
    """Thirty writes without an answer, of which every third is seen: what the others do is not tried."""
    lost = [Call(began=0, action=("write", number), answer=UNKNOWN) for number in range(1, 31)]
    reads = [call(5 + seen, 5.5 + seen, "read", None, answer=seen) for seen in range(1, 31, 3)]
    assert is_linearizable([*lost, *reads], 0, register, most=1_000)
    again = call(90, 91, "read", None, answer=1)
    assert not is_linearizable([*lost, *reads, again], 0, register, most=1_000)
    with pytest.raises(UndecidedError):
        is_linearizable([*lost, *reads, again], 0, register, most=10)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_a_real_register_answers_is_linearizable_and_a_changed_answer_mostly_not(seed: int) -> None:
    dice = random.Random(seed)
    state, now, calls = 0, 0.0, []
    for _ in range(12):
        now += 1
        action = ("write", dice.randint(1, 50)) if dice.random() < 0.5 else ("read", None)
        state, answer = register(state, action)
        # It took effect at `now`, and was under way for some time around.
        calls.append(
            Call(began=now - 3 * dice.random(), ended=now + 3 * dice.random(), action=action, answer=answer)
        )
    assert is_linearizable(calls, 0, register)
    reads = [index for index, each in enumerate(calls) if each.answer is not None]
    if reads:
        index = dice.choice(reads)
        wrong = Call(began=calls[index].began, ended=calls[index].ended, action=("read", None), answer=-1)
        assert not is_linearizable([*calls[:index], wrong, *calls[index + 1 :]], 0, register)

"""Each way in which a history of replicated state can be wrong is noticed, and nothing in a right one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from .state_history import StateHistory, judge_state

KEY = "0:1"
Line = dict[str, Any]


class Told:
    """A history as clients tell it; times are given."""

    def __init__(self) -> None:
        self.history = StateHistory()
        self._number = 0

    def call(
        self,
        began: float,
        ended: float | None,
        *action: Any,
        answer: Any = None,
        client: str = "c1",
        key: str = KEY,
    ) -> int:
        """ended: None if there was no answer."""
        self._number += 1
        self._hear(client, {"call": self._number, "at": float(began), "key": key, "action": list(action)})
        if ended is not None:
            self._hear(client, {"answered": self._number, "at": float(ended), "answer": answer})
        return self._number

    def _hear(self, client: str, line: Line) -> None:
        self.history.hear(client, json.dumps(line))

    def refused(self, number: int, client: str = "c1") -> None:
        self._hear(client, {"refused": number})


def right() -> Told:
    """Two clients; the put of `c` has no answer, and was seen later."""
    told = Told()
    told.call(1, 2, "put", "a")
    told.call(1.5, 4, "put_if", "a", "b", answer=True, client="c2")
    told.call(3, 5, "get", answer="b")
    told.call(5, None, "put", "c", client="c2")
    told.call(6, 7, "get", answer="b")
    told.call(8, 9, "get", answer="c")
    told.call(10, 11, "delete", answer=True)
    told.call(12, 13, "get", answer=None)
    told.call(1, 2, "get", answer=None, key="0:2")
    return told


def test_a_right_history_passes() -> None:
    told = right()
    assert judge_state(told.history) == []
    assert (told.history.open_commands, told.history.latest, len(told.history.by_key())) == (1, 10, 2)


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (("get",), "b"),  # stale: what was deleted before it began
        (("get",), "z"),  # nobody put it
        (("put_if", "c", "d"), True),  # compared with what is not there any more
        (("put_if", None, "d"), False),  # refused, and nothing is there
        (("delete",), True),  # of what is not there
    ],
)
def test_an_answer_that_follows_from_no_order(action: tuple[Any, ...], answer: Any) -> None:
    told = right()
    told.call(14, 15, *action, answer=answer)
    (said,) = judge_state(told.history)
    assert said.startswith(f"not linearizable: {KEY}: {action} at 14.0000 to 15.0000: {answer!r}")


def test_an_acknowledged_put_that_is_lost() -> None:
    told = right()
    told.call(14, 15, "put", "d")
    told.call(16, 17, "get", answer=None)
    assert len(judge_state(told.history)) == 1


def test_a_put_that_is_done_twice() -> None:
    told = right()
    told.call(14, 15, "put", "d")
    told.call(16, 17, "put", "e", client="c2")
    told.call(18, 19, "get", answer="d")
    assert len(judge_state(told.history)) == 1


def test_two_reads_in_the_wrong_order() -> None:
    told = right()
    told.call(14, 20, "put", "d")
    told.call(15, 16, "get", answer="d", client="c2")
    assert judge_state(told.history) == []
    told.call(17, 18, "get", answer=None, client="c2")
    assert len(judge_state(told.history)) == 1


def test_two_comparisons_that_both_succeed() -> None:
    told = right()
    told.call(14, 20, "put_if", None, "d", answer=True)
    told.call(15, 19, "put_if", None, "e", answer=True, client="c2")
    assert len(judge_state(told.history)) == 1


def test_a_command_that_was_refused_and_is_seen() -> None:
    told = right()
    told.refused(told.call(14, None, "put", "d"))
    assert judge_state(told.history) == [] and told.history.refused == 1
    told.call(16, 17, "get", answer="d")
    assert len(judge_state(told.history)) == 1


def test_another_key_explains_nothing() -> None:
    told = right()
    told.call(14, 15, "put", "d", key="0:2")
    told.call(16, 17, "get", answer="d")
    assert len(judge_state(told.history)) == 1


@pytest.mark.parametrize("first", ["put", "put_if"])
def test_which_of_two_unknown_outcomes_was_seen_is_left_open(first: str) -> None:
    """The comparison explains the first read alone, and the put the second: the order found first is given up."""
    told = Told()
    actions = {"put": ("put", "x"), "put_if": ("put_if", None, "x")}
    for name in sorted(actions, key=lambda each: each != first):
        told.call(0, None, *actions[name], client=name)
    told.call(1, 2, "get", answer="x")
    told.call(3, 4, "put", "y")
    told.call(5, 6, "get", answer="x")
    assert judge_state(told.history) == []
    told.call(7, 8, "put", "z")
    told.call(9, 10, "get", answer="x")
    assert len(judge_state(told.history)) == 1


def test_a_command_explains_nothing_that_ended_before_it_began() -> None:
    told = right()
    told.call(14, 15, "get", answer="d")
    told.call(15.5, None, "put", "d", client="c2")
    assert len(judge_state(told.history)) == 1


def test_a_search_that_is_broken_off_has_explained_nothing() -> None:
    told = right()
    assert judge_state(told.history, most=20) == []
    assert len(judge_state(told.history, most=3)) == 1


def test_a_copy_that_differs() -> None:
    told = right()
    told.history.hear("c1", '{"broken": "digest"}')
    assert judge_state(told.history) == ["a copy differs: c1: digest"]


def test_a_line_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="c1 says"):
        StateHistory().hear("c1", '{"call": "one"}')


@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_calls_with_unknown_outcomes_are_judged(seed: int) -> None:
    dice, told, value, first = random.Random(seed), Told(), None, ""
    for now in range(1_000):
        times = now - 3 * dice.random(), now + 3 * dice.random()
        if dice.random() < 0.5:
            told.call(*times, "get", answer=value, client=f"c{now}")
        elif dice.random() < 0.02:
            # Half of those without an answer take effect.
            told.call(times[0], None, "put", f"v{now}", client=f"c{now}")
            value = f"v{now}" if dice.random() < 0.5 else value
        else:
            told.call(*times, "put", f"v{now}", client=f"c{now}")
            first, value = first or f"v{now}", f"v{now}"
    assert judge_state(told.history) == []
    told.call(3_000, 3_001, "get", answer=first)
    assert len(judge_state(told.history, most=3_000)) == 1

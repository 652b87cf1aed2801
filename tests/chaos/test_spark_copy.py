"""The check of the copy under kills notices what is wrong, and the kills are those that are promised."""

from __future__ import annotations

import random
from collections import Counter

import attrs

from .spark_copy.run import Kill, Outcome, compare, kinds

SOURCE = {0: [b"1", b"2", b"3"], 1: [b"4", b"5"]}


def test_what_is_lost_twice_or_out_of_order_is_noticed() -> None:
    assert compare(SOURCE, {0: [b"1", b"2", b"3"], 1: [b"4", b"5"]}) == (0, 0, True)
    assert compare(SOURCE, {0: [b"1", b"3"], 1: [b"4", b"5"]}) == (1, 0, False)
    assert compare(SOURCE, {0: [b"1", b"2", b"3", b"2"], 1: [b"4", b"5"]}) == (0, 1, False)
    assert compare(SOURCE, {0: [b"1", b"3", b"2"], 1: [b"4", b"5"]}) == (0, 0, False)
    assert compare(SOURCE, {0: [b"1", b"2", b"3", b"9"], 1: [b"4"]}) == (1, 1, False)


def test_twenty_kills_are_of_all_kinds() -> None:
    counted = Counter(kinds(20, random.Random(3)))
    assert counted.total() == 20 and set(counted) == {"driver", "executor", "node", "leader"}
    assert counted["driver"] >= 7
    assert kinds(1, random.Random(3)) == ["driver"]


def test_an_outcome_passes_only_if_everything_is_there() -> None:
    kill = Kill("driver", 3, replayed=True, written_before=7, batch_s=1.0, recovery_s=2.0)
    right = {"rows": 5, "lost": 0, "duplicated": 0, "in_order": True, "replicas_equal": True}
    rest = {"kills": [kill], "batches": 4, "drivers_ended_by_themselves": 0}
    assert Outcome(**right, **rest).passed and Outcome(**right, **rest).replays == 1  # type: ignore[arg-type]
    for wrong in (
        {"rows": 0},
        {"lost": 1},
        {"duplicated": 1},
        {"in_order": False},
        {"replicas_equal": False},
        {"kills": [attrs.evolve(kill, replayed=False)]},
    ):
        assert not Outcome(**{**right, **rest, **wrong}).passed  # type: ignore[arg-type]

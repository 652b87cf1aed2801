"""The difference of two sequences of hashes: right for any two, small for small defects."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.replication.cli.demo.check import Edit, differences


def apply(expected: array[int], actual: array[int], edits: list[Edit]) -> list[int]:
    """Rebuild `actual` from `expected` and the edits."""
    out: list[int] = []
    at = 0
    for edit in edits:
        out += expected[at : edit.expected_start]
        assert len(out) == edit.actual_start
        out += actual[edit.actual_start : edit.actual_stop]
        at = edit.expected_stop
    return out + expected[at:].tolist()


few = st.lists(st.integers(0, 3), max_size=60)


@given(few, few)
def test_edits_turn_one_sequence_into_the_other(left: list[int], right: list[int]) -> None:
    expected, actual = array("q", left), array("q", right)
    edits = differences(expected, actual)
    assert apply(expected, actual, edits) == right
    assert (not edits) == (left == right)


@given(st.integers(20, 200), st.data())
def test_one_dropped_element_is_one_edit(length: int, data: st.DataObject) -> None:
    values = [n % 7 * n for n in range(length)]
    at = data.draw(st.integers(0, length - 1))
    edits = differences(array("q", values), array("q", values[:at] + values[at + 1 :]))
    assert sum(each.expected_stop - each.expected_start for each in edits) == 1
    assert sum(each.actual_stop - each.actual_start for each in edits) == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("more", [-1, 1])
def test_one_element_more_or_less_among_repeated_ones_is_one_edit(seed: int, more: int) -> None:
    rng = random.Random(seed)
    values = [rng.randrange(4) for _ in range(300)]
    at = rng.randrange(300)
    other = values[: at + 1] + values[at:] if more > 0 else values[:at] + values[at + 1 :]
    edits = differences(array("q", values), array("q", other))
    assert sum(each.expected_stop - each.expected_start for each in edits) == max(0, -more)
    assert sum(each.actual_stop - each.actual_start for each in edits) == max(0, more)


def test_few_defects_in_many_elements_stay_few() -> None:
    expected = array("q", range(300_000))
    actual = expected[:1000] + array("q", [-1]) + expected[1000:200_000] + expected[200_003:]
    assert differences(expected, actual) == [
        Edit(1000, 1000, 1000, 1001),
        Edit(200_000, 200_003, 200_001, 200_001),
    ]


def test_sequences_without_anything_in_common_differ_as_a_whole() -> None:
    edits = differences(array("q", range(5000)), array("q", range(10_000, 13_000)))
    assert edits == [Edit(0, 5000, 0, 3000)]


def test_a_long_gap_is_bridged() -> None:
    expected = array("q", range(100_000))
    assert differences(expected, expected[:10] + expected[40_000:]) == [Edit(10, 40_000, 10, 10)]

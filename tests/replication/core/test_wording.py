from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from insync.replication.core.wording import counted, first_of, printable


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (counted(1, "partition"), "1 partition"),
        (counted(0, "partition"), "0 partitions"),
        (counted(2, "batch", "batches"), "2 batches"),
        (counted(1, "batch", "batches"), "1 batch"),
        (counted(1200, "record", form=","), "1,200 records"),
    ],
)
def test_one_thing_is_not_several(told: str, said: str) -> None:
    assert told == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, ""), (1, "0"), (3, "0, 1, 2"), (4, "0, 1, 2 and 1 more"), (1003, "0, 1, 2 and 1,000 more")],
)
def test_of_a_list_the_first_are_named_and_the_others_counted(count: int, said: str) -> None:
    assert first_of(range(count), 3, form=",") == said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Bücher und 本", "Bücher und 本"),
        ("\x1b[2Jgone\r\n", r"\u001b[2Jgone\r\n"),
        ("\x7f\x9b31m", r"\u007f\u009b31m"),
        ("a\u202eb\u2028", r"a\u202eb\u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_nothing_that_is_shown_acts_on_a_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


@example("\x7f\x85\x9b\u202e\ud800\U000e0001")
@given(st.text(st.characters()))
def test_json_stays_the_same_json(text: str) -> None:
    shown = printable(json.dumps(text, ensure_ascii=False))
    assert shown.isprintable() and json.loads(shown) == text

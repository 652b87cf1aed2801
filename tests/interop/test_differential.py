"""Answers of ours and of a real Kafka of three brokers to one script, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import differential
from .answers import compare as jobs
from .answers.allowed import ALLOWED, Allowed
from .answers.cluster import HANGS_UP
from .kafka import Java

pytestmark = pytest.mark.interop

_UNKNOWN_SERVER_ERROR = -1


def test_nothing_differs_that_may_not(java: Java, tmp_path: Path) -> None:
    count, wrong = differential.run(java, tmp_path)
    assert not wrong, "\n".join(wrong)
    assert count > 150


def test_a_difference_is_named_and_one_that_is_gone_is_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differential, "ALLOWED", {"a: error_code": "on purpose", "c: x": "never met"})
    ours = {("a", 1): {"error_code": 3, "x": [1]}, ("b", 2): {"x": [{"y": 1}, {"y": 2}]}, ("d", 9): {"x": 1}}
    theirs = {("a", 1): {"error_code": 0, "x": [1, 2]}, ("b", 2): {"x": [{"y": 1}, {"y": 3}]}}
    wrong, met = differential.compare(ours, theirs)
    assert wrong == [
        "a: x (version 1): ours [1], Kafka's [1, 2]",
        "b: y (version 2): ours 2, Kafka's 3",
    ]
    assert met == {"a: error_code"}


@pytest.mark.parametrize(
    ("ours", "is_allowed"),
    [
        ([["set", 40]], True),
        ([("set", 40)], True),
        ([["set", 42]], False),
        ([["set", -1]], False),
        (HANGS_UP, False),
        (jobs.ABSENT, False),
    ],
)
def test_where_a_difference_is_allowed_our_answer_is_a_certain_one(
    monkeypatch: pytest.MonkeyPatch, ours: Any, is_allowed: bool
) -> None:
    monkeypatch.setattr(jobs, "ALLOWED", {"a: x": Allowed("on purpose", [["set", 40]])})
    told = {} if ours == jobs.ABSENT else {"a: x": ours}
    wrong, met = jobs.compare(told, {"a: x": "something else"})
    assert (not wrong, met == {"a: x"}) == (is_allowed, is_allowed)


def test_no_difference_allows_an_internal_error_or_no_answer() -> None:
    assert [event for event, allowed in ALLOWED.items() if _fails(allowed.ours)] == []
    assert all(
        map(_fails, ([["set", -1]], [-1, 5], {"responses": [{"error_code": -1}]}, HANGS_UP, jobs.ABSENT))
    )
    assert not _fails({"responses": [{"error_code": 40, "partition": -1}]})


def _fails(told: Any) -> bool:
    """Whether an answer is none, or has an internal error in it. told: plain values; lists begin with a code, or
    with a name and a code.
    """
    if isinstance(told, dict):
        return any(
            value == _UNKNOWN_SERVER_ERROR if name.endswith("error_code") else _fails(value)
            for name, value in told.items()
        )
    if isinstance(told, list):
        code = next((each for each in told[:2] if not isinstance(each, str)), None)
        return code == _UNKNOWN_SERVER_ERROR or any(map(_fails, told))
    return told in (jobs.ABSENT, HANGS_UP)


def test_a_job_that_breaks_off_at_both_is_wrong() -> None:
    told = {"a: ends with": "AssertionError()"}
    wrong, _ = jobs.compare(told, dict(told))
    assert len(wrong) == 1

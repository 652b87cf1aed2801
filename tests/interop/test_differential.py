"""Answers of ours and of a real Kafka of three brokers to one script, field by field."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import differential
from .kafka import Java

pytestmark = pytest.mark.interop


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

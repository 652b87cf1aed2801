"""Which executor gets which slot, and when a slot is tried again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from insync.plugins.spark import ExecutorLogs
from insync.plugins.spark.executors import TooFewExecutorsError, _jobs
from insync.plugins.spark.executors._host import Outcome
from insync.plugins.spark.executors._jobs import Executor
from insync.plugins.spark.executors._keeping import Address
from insync.plugins.spark.executors._manager import Place, brief, choose

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A, B, C = Executor("1", "a", 2), Executor("2", "b", 2), Executor("3", "a", 2)


def test_the_same_executor_then_the_same_host_then_any() -> None:
    place = Place((1,))
    assert choose(place, []) is None and choose(place, [B, A]) == B
    place.executor = A
    assert choose(place, [B, C, A]) == A
    assert choose(place, [B, C]) == C, "the files of the slot are on that host"
    assert choose(place, [B]) == B


def test_a_slot_that_failed_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    place = Place((1,))
    pauses = []
    for _ in range(8):
        place.ended(Outcome(failure="no space"))
        pauses.append(round(place.retry_at - time.monotonic(), 2))
    assert pauses == sorted(pauses) and 0.4 < pauses[0] <= 0.5 and 9.9 < pauses[-1] <= 10
    for _ in range(2000):
        place.ended(Outcome(failure="no space"))
    assert 9 < place.retry_at - time.monotonic() <= 10, "however long it goes on"
    place.ended(Outcome(misplaced=True))
    assert (place.failures, place.failure) == (0, "") and round(place.retry_at - time.monotonic(), 2) <= 0.2


def test_a_failed_job_is_told_in_one_line() -> None:
    text = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure\n"
        'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n'
        "ModuleNotFoundError: No module named 'insync'\n\n\tat org.apache.spark.api.python.X(Y.scala:1)\n"
        "org.apache.spark.SparkException: again\n"
    )
    assert brief(RuntimeError(text)) == "ModuleNotFoundError: No module named 'insync'"
    group = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  + Exception Group Traceback (most recent call last):\n  |   File "_host.py", line 75, in host\n'
        "  | ExceptionGroup: Exceptions from Trio nursery (1 sub-exception)\n  +-+---------------- 1 ------\n"
        "    | AttributeError: function 'isr_wake' not found\n    +------------------------------------\n"
    )
    assert brief(RuntimeError(group)) == "AttributeError: function 'isr_wake' not found"
    assert brief(RuntimeError("Job 3 was cancelled\n\tat x")) == "Job 3 was cancelled"


def test_too_few_executors_are_told(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jobs, "is_local", lambda context: False)
    monkeypatch.setattr(_jobs, "executors", lambda context: [A, B])
    with pytest.raises(TooFewExecutorsError, match=r"there are 2 executors after 0\.3 s .* needs 3"):
        ExecutorLogs(spark, start_timeout_ms=300).__enter__()


@pytest.mark.parametrize(
    ("host", "contact"), [("driver-1", "driver-1"), ("2001:db8::1", "[2001:db8::1]"), ("[::1]", "[::1]")]
)
def test_the_keeper_advertises_an_address_in_brackets(host: str, contact: str) -> None:
    assert Address(bind="0.0.0.0", host=host).listening(0) == f"tcp://0.0.0.0:0?contact={contact}"

"""What a task knows of where it runs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from insync.plugins.spark.executors import NoRoomError, _jobs
from insync.plugins.spark.executors._host import Assignment, Outcome, executor_id, host
from insync.plugins.spark.executors._jobs import Executor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHILD = "from insync.plugins.spark.executors._host import executor_id; print(executor_id())"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}], check=True)"


def test_the_executor_is_told_by_the_command_line_of_its_jvm() -> None:
    backend = (
        "org.apache.spark.executor.CoarseGrainedExecutorBackend",
        "--cores",
        "2",
        "--executor-id",
        "17",
    )
    found = subprocess.run(
        [sys.executable, "-c", PARENT, *backend], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "17"


def test_elsewhere_it_is_what_the_environment_says_or_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_EXECUTOR_ID", raising=False)
    assert executor_id() == "driver"
    monkeypatch.setenv("SPARK_EXECUTOR_ID", "5")
    assert executor_id() == "5"


def test_a_misplaced_task_does_nothing() -> None:
    assignment = Assignment(
        run="r",
        slots=(1,),
        executor="17",
        host="127.0.0.1",
        directory="tcp://127.0.0.1:1",
        store="remote+tcp://127.0.0.1:1",
        secret="0123456789abcdef",
        places=("/proc/nowhere",),
        keep=False,
        settings={},
    )
    assert list(host([assignment])) == [Outcome(misplaced=True)]
    assert "0123456789abcdef" not in repr(assignment)


def test_a_node_that_would_leave_no_core_for_tasks_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    monkeypatch.setattr(_jobs, "is_local", lambda context: False)
    _jobs.check_room(context, Executor("0", "a", 2), 0.25)
    with pytest.raises(NoRoomError, match=r"has 1 cores, .* set spark\.task\.cpus to 0\.75"):
        _jobs.check_room(context, Executor("0", "a", 1), 0.25)

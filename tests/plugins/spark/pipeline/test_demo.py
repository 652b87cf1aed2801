"""The demo's Spark step: a real job beside real nodes, and what is told when it cannot be, or is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import trio

from insync.plugins.spark import JavaError, SparkMissingError, check_java, check_pyspark
from insync.replication.cli.demo.inputs import Lines
from insync.replication.cli.demo.report import Counted, ReadingAlong, Report, StepTask
from insync.replication.cli.demo.scene import Scene
from tests.replication.cli.command_process import all_end, command
from tests.requires import missing
from tests.tiers import uses

RECORDS = 3000
DEADLINE_S = 400.0


@pytest.fixture
@uses("jvm")
def _spark_runs() -> None:
    try:
        check_pyspark()
        check_java()
    except (SparkMissingError, JavaError) as error:
        missing(str(error))


def is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.Error:
        return False


@pytest.mark.usefixtures("_spark_runs")
def test_spark_counts_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.replication.cli.command_process.DEADLINE", DEADLINE_S)
    with command(["demo", "--records", str(RECORDS), "--seed", "5", "--json"], tmp_path) as run:
        run.wait_for_line("Spark has committed its first batch", "stderr")
        started = run.children()
        assert any(map(is_java, started))
        assert run.finish() == 0, run.lines
        told = json.loads(run.lines["stdout"][-1])
        said = "\n".join(run.lines["stderr"])
        assert not list(run.temporary.iterdir()), "the temporary folder is removed"
    assert told["verdict"] == "passed"
    assert (told["spark"]["rows"], told["spark"]["wrong_keys"]) == (RECORDS, 0)
    assert told["spark"]["batches"] > 1, "the first is committed before there is anything to read"
    assert said.index("Spark has committed its first batch") < said.index("SIGKILL to node")
    assert all_end(started), "no JVM, worker or node is left"


@pytest.mark.slow
def test_without_java_it_is_left_out_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with command(["demo", "--records", str(RECORDS), "--seed", "5", "--json"], tmp_path) as run:
        assert run.finish() == 0, run.lines
        told = json.loads(run.lines["stdout"][-1])
        [said] = [line for line in run.lines["stderr"] if "without Spark" in line]
    assert told["verdict"] == "passed"
    assert told["spark"] is None
    assert "install Java 17" in said or "pip install 'insync[spark]'" in said


class _Counting:
    """Says that it counted what it is told to."""

    def __init__(self, counts: dict[bytes, int]) -> None:
        self._counts = counts

    async def start(self, task: StepTask) -> None:
        pass

    async def finish(self, records: int) -> Counted:
        return Counted(self._counts, 3)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("counts", "rows", "wrong"),
    [
        ({b"a": 2, b"b": 1}, 3, 0),
        ({b"a": 1, b"b": 2}, 3, 2),
        ({b"a": 2}, 2, 1),
        ({b"a": 2, b"b": 1, b"c": 1}, 4, 1),
    ],
)
async def test_counts_are_held_against_the_input(counts: dict[bytes, int], rows: int, wrong: int) -> None:
    def stream() -> Iterator[Lines]:
        yield Lines(b"a", [b"1"])
        yield Lines(b"b", [b"2"])
        yield Lines(b"a", [b"3"])

    report = Report(nodes=3, seed=1, records=3)
    with trio.fail_after(30):
        await ReadingAlong(_Counting(counts), Scene("a demo"), report).compare(stream)
    assert report.spark == {"rows": rows, "wrong_keys": wrong, "batches": 3}
    assert report.as_dict()["spark"] == report.spark
    assert bool(report.problems) == (wrong > 0)

"""`insync simulate`: figures, exit status, and a failing seed that is printed, stored and replayed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from insync.replication.cli import main
from insync.replication.core.partition.leader import LeaderRole
from insync.replication.simulation import FAULTS

KEYS = {
    "seeds",
    "events",
    "events_per_second",
    "violations",
    "elections",
    "truncations",
    "isr_changes",
    "crashes",
    "cuts",
    "committed_records",
    "faults",
}


@pytest.mark.slow
def test_the_figures_of_some_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "0:12", "--jobs", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures.keys() >= KEYS
    assert (figures["seeds"], figures["violations"]) == (12, 0)
    assert figures["events"] > 12 * 1000
    assert figures["faults"].keys() == FAULTS.keys()
    assert main(["simulate", "--seeds", "0:12", "--jobs", "1", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    same = KEYS - {"events_per_second"}
    assert {key: figures[key] for key in same} == {key: again[key] for key in same}


@pytest.mark.slow
def test_a_broken_promise_is_printed_stored_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "found.json"
    with monkeypatch.context() as patch:
        patch.setattr(LeaderRole, "maximal_isr", lambda self: frozenset())
        assert main(["simulate", "--seeds", "0:2", "--jobs", "1", "--save", str(file)]) == 1
        found = capsys.readouterr()
        assert "2 violations\n" in found.out
        assert "seed 0: " in found.err and "seed 1: " in found.err
        assert f"insync simulate --replay {file}" in found.err
        assert main(["simulate", "--replay", str(file), "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["violation"][:2] in found.err
    assert main(["simulate", "--replay", str(file)]) == 0
    assert "every promise was kept" in capsys.readouterr().err


@pytest.mark.parametrize("seeds", ["5:5", "x", "7:3", "-1:2"])
def test_a_range_that_is_none_is_one_line(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", f"--seeds={seeds}"]) == 2
    assert "write for example 0:5000" in capsys.readouterr().err


def test_a_file_that_is_no_replay_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nothing.json"
    assert main(["simulate", "--replay", str(file)]) == 1
    assert f"{file} cannot be read" in capsys.readouterr().err


def test_no_worker_outlives_the_command() -> None:
    command = [sys.executable, "-m", "insync.replication.cli", "simulate", "--seeds", "0:5000", "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        try:
            found = psutil.Process(parent.pid)
            deadline = time.monotonic() + 60
            while len(workers := found.children()) < 3:
                assert time.monotonic() < deadline, "no workers were started"
                assert parent.poll() is None
        finally:
            parent.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    for worker in alive:
        worker.kill()
    assert not alive


@pytest.mark.slow
def test_a_service_of_ones_own_is_simulated_made_short_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = Path(__file__).parents[3] / "docs" / "examples"
    monkeypatch.syspath_prepend(str(examples))
    assert main(["simulate", "--service", "seats:Booking", "--seeds", "0:4", "--jobs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == 4
    file = tmp_path / "failure.json"
    wrong = ["simulate", "--service", "seats:HastyBooking"]
    assert main([*wrong, "--seeds", "0:30", "--jobs", "1", "--save", str(file)]) == 1
    found = capsys.readouterr().err
    assert "ONE SEAT EACH" in found and f"--service seats:HastyBooking --replay {file}" in found
    assert main([*wrong, "--replay", str(file), "--json"]) == 1
    assert "ONE SEAT EACH" in json.loads(capsys.readouterr().out)["violation"]
    for name in ("seats", "seats:", "seats:nothing", "no_such_module:x", "seats:Path"):
        assert main(["simulate", "--service", name, "--seeds", "0:1"]) == 2

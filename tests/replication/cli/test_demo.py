"""The demo from the outside: real nodes, a real kill, its exit status and its last line."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from ...requires import missing
from ...tiers import slow_but
from .command_process import Command, all_end, command

RECORDS = 3000
MANY = 400_000
"""With so many it goes on for some seconds after they are acknowledged."""


def last_line(run: Command) -> dict[str, Any]:
    assert run.lines["stdout"], run.lines["stderr"]
    found: dict[str, Any] = json.loads(run.lines["stdout"][-1])
    return found


def test_a_killed_leader_loses_nothing(tmp_path: Path) -> None:
    with command(["demo", "--no-spark", "--records", str(RECORDS), "--seed", "5", "--json"], tmp_path) as run:
        assert run.finish() == 0, run.lines
        told = last_line(run)
        assert told["verdict"] == "passed"
        assert told["records_acked"] == told["records_read"] == RECORDS
        assert (told["lost"], told["duplicated"], told["out_of_order"]) == (0, 0, 0)
        assert told["replicas_identical"] is True
        assert told["in_flight_at_kill"] > 0
        assert RECORDS / 2 <= told["kill_at_record"] <= 3 * RECORDS / 4
        assert 0 < told["failover_ms"] < 30_000 and 0 < told["rejoin_ms"] < 30_000
        assert told["produce_mb_per_s"] > 0 and told["elapsed_s"] > 0
        assert set(told["rss_mb"]) == {"demo", "node-1", "node-2", "node-3"}
        assert len(run.lines["stdout"]) == 1, "with --json everything else goes to standard error"
        assert not list(run.temporary.iterdir()), "the temporary folder is removed"


@pytest.mark.slow
@pytest.mark.parametrize("transport", slow_but(["tls", "unix", "shm", "mix"], "mix"))
def test_nothing_is_lost_over_any_transport(tmp_path: Path, transport: str) -> None:
    if transport == "tls" and shutil.which("openssl") is None:
        missing("no openssl on the path")
    arguments = [
        "demo",
        "--no-spark",
        "--records",
        str(RECORDS),
        "--seed",
        "5",
        "--transport",
        transport,
        "--json",
    ]
    with command(arguments, tmp_path) as run:
        assert run.finish() == 0, run.lines
        told = last_line(run)
        assert told["verdict"] == "passed" and told["transport"] == transport
        (up,) = [line for line in run.lines["stderr"] if "nodes are up" in line]
        if transport == "mix":
            assert "tcp://" in up
        else:
            assert up.count(f"{transport}://") == 3
        assert not list(run.temporary.iterdir()), "the temporary folder is removed"


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but(["drop", "flip"], "drop"))
def test_a_planted_defect_fails_the_demo(tmp_path: Path, kind: str) -> None:
    arguments = ["demo", "--no-spark", "--records", str(RECORDS), "--seed", "6", "--plant", kind, "--json"]
    with command(arguments, tmp_path) as run:
        assert run.finish() == 1
        told = last_line(run)
    assert told["verdict"] == "failed"
    assert told["replicas_identical"] == (kind == "drop")
    assert told["lost"] == 1 or kind == "flip"
    where = told["planted"].split(" at ")[1].split(" on nodes")[0]
    assert any(where in defect for defect in told["defects"]), (where, told["defects"])


@pytest.mark.slow
def test_data_is_kept_on_request(tmp_path: Path) -> None:
    source = tmp_path / "poem.txt"
    source.write_text("roses are red\nviolets are blue\n" * 40)
    keep = tmp_path / "keep"
    arguments = ["demo", "--no-spark", "--input", str(source), "--records", "1000", "--keep", str(keep)]
    with command(arguments, tmp_path) as run:
        assert run.finish() == 0, run.lines
        assert "PASSED: 1,000 records acknowledged" in run.wait_for_line("PASSED")
    logs = {
        path.parent.parent.name: path.read_bytes()
        for path in keep.glob("node-*/demo-*/*.log")
        if path.stat().st_size
    }
    assert set(logs) == {"node-1", "node-2", "node-3"}
    assert len(set(logs.values())) == 1
    assert next(iter(logs.values())).count(b"roses are red") == 500


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", slow_but(["nodes are up", "SIGKILL to node", "acknowledged by all"], "SIGKILL to node")
)
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    with command(["demo", "--no-spark", "--records", str(MANY), "--seed", "7"], tmp_path) as run:
        run.wait_for_line(moment)
        nodes = run.children()
        assert len(nodes) >= 2
        run.signal(signal.SIGINT)
        assert run.finish() == 130
        assert all_end(nodes, 5.0)
        assert not list(run.temporary.iterdir())
        assert not run.lines["stderr"]


@pytest.mark.slow
def test_nodes_do_not_outlive_a_killed_demo(tmp_path: Path) -> None:
    with command(["demo", "--no-spark", "--records", "3000000"], tmp_path) as run:
        run.wait_for_line("nodes are up")
        nodes = run.children()
        assert len(nodes) == 6, "three nodes, each with the process that writes to the store for it"
        run.signal(signal.SIGKILL)
        run.finish()
        assert all_end(nodes)

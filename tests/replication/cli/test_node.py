"""`insync node` as a process: its ready line, its orderly end, its errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .command_process import command


def arguments(folder: Path, *more: str) -> list[str]:
    store = f"sqlite://{folder / 'metadata.db'}"
    return ["node", "--node-id", "7", "--data-dir", str(folder / "data"), "--store", store, *more]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_node_tells_when_it_serves_and_stops_cleanly(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with command(arguments(tmp_path, "--json"), tmp_path) as run:
        ready = json.loads(run.wait_for_line("ready"))
        assert ready["event"] == "ready" and ready["node_id"] == 7 and ready["pid"] == run.process.pid
        assert ready["cluster_id"] and ready["endpoints"][0].startswith("tcp://127.0.0.1:")
        assert not (tmp_path / "data/.kafka_cleanshutdown").exists()
        run.signal(number)
        assert run.finish() == status
    assert (tmp_path / "data/.kafka_cleanshutdown").exists()


def test_for_people_it_says_so_in_words(tmp_path: Path) -> None:
    with command(arguments(tmp_path), tmp_path) as run:
        assert "serves tcp://127.0.0.1:" in run.wait_for_line("node 7 of cluster ")
        run.signal(signal.SIGTERM)
        assert run.finish() == 0


def test_a_node_stops_when_its_standard_input_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "insync.replication.cli", *arguments(tmp_path, "--json", "--stop-with-stdin")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            assert json.loads(process.stdout.readline())["event"] == "ready"
            process.stdin.close()
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_a_second_node_with_the_same_folder_names_the_first(tmp_path: Path) -> None:
    with command(arguments(tmp_path, "--json"), tmp_path) as first:
        first.wait_for_line("ready")
        (tmp_path / "second").mkdir()
        with command(arguments(tmp_path), tmp_path / "second") as second:
            assert second.finish() == 1
            message = second.lines["stderr"][-1]
        assert message.startswith("insync: ") and str(first.process.pid) in message
        assert not any("Traceback" in line for line in second.lines["stderr"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--store", "sqlite:////nowhere/at/all.db"], "/nowhere/at"),
        (["--store", "carrier-pigeon://roof"], "carrier-pigeon"),
        (["--listen", "smoke://hill"], "smoke"),
        (["--session-timeout-ms", "0"], "session_timeout_ms"),
        (["--busy-poll-us", "2000000"], "busy_poll_us=2000000"),
        (["--cluster-id", "another"], "another"),
    ],
)
def test_what_cannot_work_is_one_line(tmp_path: Path, more: list[str], said: str) -> None:
    given = arguments(tmp_path)
    if more[0] == "--store":
        at = given.index("--store")
        del given[at : at + 2]
    if more[0] == "--cluster-id":
        with command(arguments(tmp_path), tmp_path) as founder:
            founder.wait_for_line("node 7 of cluster")
            founder.signal(signal.SIGTERM)
            assert founder.finish() == 0
    (tmp_path / "run").mkdir()
    with command([*given, *more], tmp_path / "run") as run:
        assert run.finish() == 1
    last = run.lines["stderr"][-1]
    assert last.startswith("insync: ") and said in last
    assert not any("Traceback" in line for line in run.lines["stderr"])


LOGS = """
import logging, types
from insync.replication.cli.node import _log_to_stderr
_log_to_stderr(types.SimpleNamespace(log_format="text", node_id=7), "info")
for name in ("insync.node", "httpx"):
    logging.getLogger(name).info("%s talks", name)
    logging.getLogger(name).warning("%s warns", name)
"""


def test_what_other_libraries_tell_at_info_is_not_the_nodes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGS], capture_output=True, text=True, timeout=60, check=True
    )
    said = [line.rpartition(": ")[2] for line in done.stderr.splitlines()]
    assert said == ["insync.node talks", "insync.node warns", "httpx warns"]

"""The program that embeds a node keeps what belongs to it (law 7)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    "way",
    [
        "trio",
        pytest.param("asyncio", marks=pytest.mark.slow),
        pytest.param("threads", marks=pytest.mark.slow),
    ],
)
def test_a_program_with_a_node_and_clients_keeps_all_that_is_its_own(way: str, tmp_path: Path) -> None:
    """Processors, handlers, collector, logging, warnings, environment, limits; no thread or descriptor is left."""
    command = [sys.executable, "-m", "tests.replication.host_program", way, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr

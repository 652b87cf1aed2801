"""Groups under faults: a few seeds, and one of them twice. The command runs as many as one likes."""

from __future__ import annotations

import json

import attrs
import pytest

from insync.replication.simulation.groups import run
from insync.replication.simulation.groups.__main__ import main


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_seed_is_clean(seed: int) -> None:
    found = run(seed)
    assert found.violation is None
    assert found.batches > 20 and found.handed > 20 and found.elections > 1


def test_a_seed_is_one_run() -> None:
    assert attrs.asdict(run(1)) == attrs.asdict(run(1))


def test_the_command_says_what_was_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["groups", "--seeds", "2:3", "--json"])
    assert main() == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seeds"] == 1 and told["broken"] == [] and told["commits"] > 0

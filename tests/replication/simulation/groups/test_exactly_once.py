"""Groups that feed transactions: every input counts once, through rebalances and zombies (T11)."""

from __future__ import annotations

import json

import attrs
import pytest

from insync.replication.simulation.groups.__main__ import main
from insync.replication.simulation.groups.exactly_once import run


@pytest.mark.slow
def test_no_input_counts_twice_or_never() -> None:
    results = [run(seed) for seed in range(12)]
    assert [(each.seed, str(each.violation)) for each in results if each.violation] == []
    for what in ("committed", "aborted", "inputs", "refused", "elections"):
        assert sum(getattr(each, what) for each in results) > 3, what


def test_a_seed_is_one_run() -> None:
    assert attrs.asdict(run(1)) == attrs.asdict(run(1))


def test_the_command_says_what_was_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["groups", "--transactions", "--seeds", "2:3", "--json"])
    assert main() == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seeds"] == 1 and told["broken"] == [] and told["committed"] > 0

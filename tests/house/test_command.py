"""Digests of seeds in processes, and the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from insync.replication.simulation import run

from . import __main__ as command
from . import tree, way, words
from .digests import Digest, hash_of
from .scope import Row


@pytest.mark.slow
def test_digests_are_those_of_the_runs_in_the_order_of_the_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "digests"
    arguments = ["digests", "--seeds", "3:5", "--jobs", "2", "--json", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["house", *arguments])
    assert command.main() == 0
    expected = [Digest(seed, run(seed).digest, "") for seed in (3, 4)]
    assert out.read_text() == "".join(f"{each.seed} {each.digest}\n" for each in expected)
    assert json.loads(capsys.readouterr().out) == {
        "seeds": "3:5",
        "hash": hash_of(expected),
        "violations": [],
    }


def test_one_other_digest_changes_the_hash() -> None:
    one, two, other = Digest(1, "a", ""), Digest(2, "b", ""), Digest(2, "c", "")
    assert len({hash_of([one, two]), hash_of([one, other]), hash_of([two, one])}) == 3


def test_rows_are_printed_shown_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(way, "rows", lambda tree: [Row("calls", 1234, "calls", ("3 a", "1 b"))])
    for module in (tree, words):
        monkeypatch.setattr(module, "rows", lambda tree: [])

    def printed(*arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["house", *arguments])
        assert command.main() == 0
        return capsys.readouterr().out.splitlines()

    table, line = printed("--json")
    assert table.split() == ["calls", "1,234", "calls"]
    assert json.loads(line) == {"rows": [{"name": "calls", "value": 1234, "unit": "calls"}]}
    assert printed("--show", "calls") == ["3 a", "1 b"]
    with pytest.raises(SystemExit, match="no row is called 'way': there are calls"):
        printed("--show", "way")

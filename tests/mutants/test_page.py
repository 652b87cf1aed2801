"""docs/planted-errors.md is made of results, and names errors that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import attrs

from . import confirm
from .catalogue import load
from .hunt import Found
from .page import order, page, read

PAGE = Path(__file__).parents[2] / "docs" / "planted-errors.md"


def of(name: str, invariant: str, seed: int) -> Found:
    return Found(mutant=name, title="a|b", invariant=invariant, seed=seed, seeds=9, events=1, seconds=2.5)


def test_of_several_results_the_last_counts_and_what_was_not_tried_is_named(tmp_path: Path) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    early.write_text("".join(json.dumps({"found": attrs.asdict(of(n, "", -1))}) + "\n" for n in ("K1", "K2")))
    late.write_text(json.dumps({"found": attrs.asdict(of("K1", "S7", 3))}) + "\n")
    text = page(read([early, late]), ["K1", "K2", "K10"])
    assert "1 of 3 noticed; missed: K2." in text
    assert "Not tried in this run: K10." in text
    assert "| K1 | a\\|b | S7 | 3 | 2.5 |" in text


def test_the_page_of_the_docs_names_errors_that_there_are() -> None:
    rows = re.findall(
        r"^\| ((?:[GT]?Z|K)\d+[a-z]?) \| .* \| [A-Z]+\d+b? \| \d+ \| [\d.]+ \|$",
        PAGE.read_text("utf-8"),
        re.M,
    )
    assert len(rows) > 80
    assert set(rows) <= load().keys()
    assert rows == sorted(rows, key=order)


def test_the_page_counts_its_rows_and_the_catalogue() -> None:
    text = PAGE.read_text("utf-8")
    found = re.search(r"^(\d+) of (\d+) noticed; missed: (.*)\.$", text, re.MULTILINE)
    assert found is not None
    untried = re.search(r"^Not tried in this run: (.*)\.$", text, re.MULTILINE)
    left = [found[3], *([untried[1]] if untried else [])]
    names = {name for each in left if each != "none" for name in each.split(", ")}
    rows = {row.mutant for row in confirm.rows()} & load().keys()
    assert (int(found[1]), int(found[2])) == (len(rows), len(load()))
    assert rows | names == load().keys()
    assert not rows & names


def test_a_row_is_confirmed_at_its_seed_alone() -> None:
    row = confirm.Row(mutant="Z53", invariant="S7", seed=0)
    assert confirm.confirm(row).found == "S7"
    one = confirm.confirm(attrs.evolve(row, mutant="GZ51", invariant="G4"))
    assert one.found == "G4"
    assert not confirm.confirm(attrs.evolve(row, mutant="TZ45")).found
    assert "GZ51 at seed 0: G4, the page says G4" in str(one)

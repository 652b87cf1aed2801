"""The table of what once broke a cluster names tests that exist; every fault that is made is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos import groups, state, transactions
from tests.chaos.faults import FAULTS

HERE = Path(__file__).parent
PAGE = (HERE.parent / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = PAGE.split("| failure | behaviour now | test |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]


def test_each_line_is_shown_by_tests_that_exist() -> None:
    assert len(ROWS) >= 30
    for row in ROWS:
        _, _, tests = (cell.strip() for cell in row.strip("|").split("|"))
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert named, row
        for file, name in named:
            text = (HERE / file).read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {name}\b", text, re.M), (file, name)


def test_pages_that_are_linked_to_exist() -> None:
    for link in re.findall(r"\]\(([\w/.-]+\.md)", PAGE):
        assert (HERE.parent / "docs" / link).exists(), link


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_fault_is_explained_and_counted() -> None:
    names = {fault.name for fault in FAULTS}
    explained, counted = section("Real processes under faults").split("### Results")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", explained, re.M)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == names
    assert set(re.findall(r"^\| `(\w+)` \|", counted, re.M)) == names


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Groups under faults", groups.FAULT_NAMES),
        ("Transactions under faults", transactions.FAULT_NAMES),
        ("Replicated state under faults", state.CLIENT_FAULTS),
    ],
)
def test_every_fault_of_groups_and_transactions_is_explained(title: str, names: tuple[str, ...]) -> None:
    told = section(title).split("\nThe faults: ")[1].split("Then `")[0]
    assert set(re.findall(r"`([a-z_]+)`", told)) >= set(names)

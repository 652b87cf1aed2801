"""The table of what once broke a cluster names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parent / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = PAGE.split("| what broke | what happens now | test |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]


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

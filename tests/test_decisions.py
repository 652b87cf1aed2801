"""The index of the decisions names each page once, by its own title."""

from __future__ import annotations

import re
from pathlib import Path

DECISIONS = Path(__file__).parent.parent / "docs" / "decisions"


def test_the_index_lists_every_decision_once_by_its_title() -> None:
    listed = re.findall(r"^- \[(.+)\]\((.+\.md)\)$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    pages = {page.name: page.read_text().splitlines()[0] for page in DECISIONS.glob("0*.md")}
    assert sorted(listed, key=lambda each: each[1]) == [
        (title.removeprefix("# "), name) for name, title in sorted(pages.items())
    ]

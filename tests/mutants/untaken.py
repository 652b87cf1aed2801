"""The branches of the core that no seed needs to take, each with its reason: a table of docs/protocol.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
HEADING = "| module | a branch that need not be taken | why |"


def reasons() -> dict[tuple[str, str], str]:
    """By module and text of the line that branches."""
    table = PAGE.read_text(encoding="utf-8").split(HEADING, 1)[1].split("\n\n", 1)[0]
    found: dict[tuple[str, str], str] = {}
    for row in table.splitlines()[2:]:
        module, branch, why = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        found[module.strip("`"), branch.strip("`").replace("\\|", "|")] = why
    return found

"""docs/operations.md names every setting of nodes and topics, and no other, with its default."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from insync.replication import NodeSettings
from insync.replication.core.control.records import TopicConfig

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def rows(heading: str) -> dict[str, str]:
    """The settings named in the first column of a section's table, each with its row's default."""
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, default = line.split(" | ")[:2]
            default = default.split(" (")[0]
            shared = [each.strip() for each in default.split(",")]
            named = re.findall(r"`(\w+)`", names)
            found |= dict(
                zip(named, shared if len(shared) == len(named) else [default] * len(named), strict=True)
            )
    return found


@pytest.mark.parametrize(
    ("heading", "settings"), [("Settings of a node", NodeSettings), ("Settings of a topic", TopicConfig)]
)
def test_the_table_has_every_setting_and_its_default(heading: str, settings: type) -> None:
    told = rows(heading)
    fields = {field.name: field.default for field in attrs.fields(settings)}
    assert told.keys() == fields.keys()
    for name, default in fields.items():
        if type(default) is int and default < 100_000:
            assert told[name] == str(default), name
        if type(default) is bool:
            assert told[name] == ("yes" if default else "no"), name

"""docs/operations.md names every setting of nodes and topics, and no other, with its default; and every file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
from msgspec import structs

from insync.replication import BlockingAdmin, BlockingNode, BlockingProducer, NodeSettings
from insync.replication.core.control.records import DAY_MS, TopicConfig
from insync.replication.node.settings import NEVER

from .test_cluster import settings as node_settings

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "operations.md"
_UNITS = {"MiB": 1 << 20, "GiB": 1 << 30, "day": DAY_MS, "days": DAY_MS}
_BY_CIRCUMSTANCES = {"data_dir", "log_dirs", "session_timeout_ms"}


def rows(heading: str) -> dict[str, str]:
    """The settings named in the first column of a section's table, each with its row's default."""
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, default = (cell.strip() for cell in line.strip("|").split("|")[:2])
            default = default.split(" (")[0]
            shared = [each.strip() for each in default.split(",")]
            named = re.findall(r"`(\w+)`", names)
            found |= dict(
                zip(named, shared if len(shared) == len(named) else [default] * len(named), strict=True)
            )
    return found


def shown(default: object) -> str:
    """A default as the page should have it, without its unit; numbers by their value."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    if default in (NEVER, None, (), ""):
        return "none"
    return ", ".join(default) if isinstance(default, tuple) else str(default)


def read(cell: str) -> str:
    """A default as the page has it: with a unit it is a number of bytes or milliseconds."""
    text = cell.replace("`", "")
    number, _, unit = text.partition(" ")
    if unit in _UNITS:
        return str(int(number) * _UNITS[unit])
    return "none" if text in ("never", "empty") else text


@pytest.mark.parametrize(
    ("heading", "settings"),
    [
        ("Settings of a node", attrs.fields(NodeSettings)),
        ("Settings of a topic", structs.fields(TopicConfig)),
    ],
)
def test_the_table_has_every_setting_and_its_default(heading: str, settings: Iterable[Any]) -> None:
    told = rows(heading)
    fields = {field.name: field.default for field in settings}
    assert told.keys() == fields.keys()
    for name, default in fields.items():
        if default is not attrs.NOTHING and name not in _BY_CIRCUMSTANCES:
            assert read(told[name]) == shown(default), name


def test_every_file_of_a_node_is_told(tmp_path: Path) -> None:
    with BlockingNode(node_settings(tmp_path, 1)) as node, BlockingAdmin(node.endpoints) as admin:
        admin.create_topic("t", 1, 1)
        with BlockingProducer(node.endpoints) as producer:
            producer.send_and_wait("t", b"x")
    files = [path for path in (tmp_path / "node-1").rglob("*") if path.is_file()]
    names = {path.suffix if path.stem.isdigit() else path.name for path in files}
    assert {".log", ".snapshot", "partition.metadata"} < names
    for page in (PAGE, DOCS / "storage-format.md"):
        text = page.read_text()
        assert [name for name in sorted(names) if name not in text] == [], page.name

"""docs/monitoring.md: its tables have every event of the log with its facts, and every check of health."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
NODE = ROOT / "replication" / "node"
PAGE = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
_GIVEN_BY_THE_MACHINE = {
    "group_changed": {"epoch", "members"},
    "transaction_aborted": {"producer_id", "partitions", "seconds"},
}
"""Facts that reach the event as a mapping, from `replication/core/coordination`."""


def events() -> dict[str, set[str]]:
    """Of each `event("name", fact=...)` of a node: all of its facts but the reason."""
    found: dict[str, set[str]] = {}
    for path in NODE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "event" or not call.args:
                continue
            name = call.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                facts = {each.arg for each in call.keywords if each.arg}
                found[name.value] = found.get(name.value, set()) | (facts - {"why"})
    return found


def test_the_table_has_every_event_and_its_facts() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:[^|]*) \| (.*) \|$", PAGE.split("## The log")[1], re.M)
    told = {name: set(re.findall(r"`(\w+)`", facts)) for name, facts in rows}
    made = events()
    assert len(made) > 10
    for name, facts in _GIVEN_BY_THE_MACHINE.items():
        made[name] |= facts
    assert told == made


def test_the_table_has_every_check_in_its_order() -> None:
    source = (NODE / "operations" / "health.py").read_text("utf-8")
    checks = dict.fromkeys(re.findall(r'_check\(\s*"(\w+)"', source))
    section = PAGE.split("## Health")[1].split("## The log")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(checks)

"""The branches of the core that no seed needs to take, each with its reason: `untaken.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

PAGE = Path(__file__).with_suffix(".toml")


def reasons() -> dict[tuple[str, str], str]:
    """By module, as a path in the core, and text of the line that branches; without one for the whole module."""
    found: dict[tuple[str, str], str] = {}
    for entry in tomllib.loads(PAGE.read_text(encoding="utf-8"))["reason"]:
        for branch in entry["branches"] or [""]:
            assert (entry["module"], branch) not in found, f"{entry['module']} names {branch!r} twice"
            found[entry["module"], branch] = entry["why"]
    return found

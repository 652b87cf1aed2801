"""Changes that survive because nothing observable depends on them: the reason for each."""

from __future__ import annotations

import tomllib
from pathlib import Path

FILE = Path(__file__).parent / "explained.toml"


def explained() -> dict[str, str]:
    """The reason for each change that is known to alter nothing that anybody can see."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8")).get("survivor", [])
    return {entry["id"]: entry["why"] for entry in entries}

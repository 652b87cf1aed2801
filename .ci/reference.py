"""How the reference shows docstrings: lines such as `name: meaning`, which describe fields, become a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIELD = re.compile(r"^(`?)([a-z_]\w*(?:, [a-z_]\w*)*)\1: (?=\S)")


class Fields(griffe.Extension):
    """For each object that mkdocstrings loads."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite its docstring."""
        if obj.docstring is None:
            return
        lines: list[str] = []
        for line in obj.docstring.lines:
            item = _FIELD.sub(lambda found: f"- `{found[2]}`: ", line)
            if item != line and lines and lines[-1] and not lines[-1].startswith(("- ", "  ")):
                lines.append("")  # a list begins after an empty line
            lines.append(item)
        obj.docstring.value = "\n".join(lines)

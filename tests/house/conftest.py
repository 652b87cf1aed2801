"""A small made-up tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from .scope import Tree

Plant = Callable[[Mapping[str, str]], Tree]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Writes files with the given texts and returns their tree."""

    def write(files: Mapping[str, str]) -> Tree:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return Tree(tmp_path, tuple(files))

    return write

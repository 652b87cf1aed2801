"""The tree that is measured: its product folders, its files, and the rows of figures."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
PRODUCT = ("replication", "storage", "transport", "plugins", "csrc")
"""Scope: the product folders."""
TESTS = ("tests",)


@attrs.frozen
class Row:
    """One figure. `behind` lists the things that it counts, for `--show`."""

    name: str
    value: float
    unit: str
    behind: tuple[str, ...] = ()


@attrs.frozen
class Tree:
    """A folder and the files in it that count, named by their paths below it."""

    root: Path
    files: tuple[str, ...]

    @classmethod
    def tracked(cls, root: Path = ROOT) -> Tree:
        """Files that git tracks and that exist."""
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
        ).stdout.split("\0")
        return cls(root, tuple(name for name in listed if name and (root / name).is_file()))

    def under(self, *folders: str, endings: tuple[str, ...] = (".py",)) -> Iterator[str]:
        """Files below any of `folders` with one of these endings."""
        below = tuple(f"{folder}/" for folder in folders)
        return (name for name in self.files if name.startswith(below) and name.endswith(endings))

    def text(self, name: str) -> str:
        return (self.root / name).read_text("utf-8")


def share(part: int, whole: int) -> float:
    """In percent; 0 of nothing."""
    return round(100 * part / whole, 2) if whole else 0.0


def most(counts: Counter[str]) -> tuple[str, ...]:
    """One line for each name, the largest count first."""
    return tuple(f"{count:,} {name}" for name, count in counts.most_common())

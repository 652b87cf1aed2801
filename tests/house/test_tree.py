"""Lines, folders, comments, circles and private names of small made-up trees."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from .conftest import Plant
from .scope import Row, Tree
from .tree import circles, comments, comments_and_code, folders, lines, privacy


def by_name(rows: Iterable[Row]) -> dict[str, Row]:
    return {row.name: row for row in rows}


def test_only_tracked_files_that_exist_are_measured(tmp_path: Path) -> None:
    for name in ("kept.py", "deleted.py", "untracked.py"):
        (tmp_path / name).touch()
    for command in (["init", "--quiet"], ["add", "kept.py", "deleted.py"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "deleted.py").unlink()
    assert Tree.tracked(tmp_path).files == ("kept.py",)


def test_lines_of_python_and_c_are_counted_in_the_product_alone(plant: Plant) -> None:
    tree = plant(
        {
            "storage/one.py": "a = 1\n\n# of storage\n",
            "csrc/two.c": "int a;\n",
            "csrc/two.h": "int b;\nint c;\n",
            "replication/simulation/run.py": "b = 2\n",
            "replication/simulation/world/clock.py": "c = 3\nd = 4\n",
            "plugins/tcp/README.md": "No code.\n",
            "tests/test_one.py": "e = 5\n",
        }
    )
    found = by_name(lines(tree))
    assert (found["lines"].value, found["simulation lines"].value) == (9, 3)
    assert found["lines"].behind[0] == "3 storage"


def test_files_side_by_side_are_counted_without_those_in_folders_below(plant: Plant) -> None:
    product = {f"transport/{name}.py": "" for name in "abcd"} | {
        "transport/below/e.py": "",
        "transport/f.c": "",
    }
    tests = {f"tests/transport/test_{name}.py": "" for name in "ab"}
    found = by_name(folders(plant(product | tests)))
    assert (found["fullest folder"].value, found["fullest test folder"].value) == (4, 2)
    assert found["fullest folder"].behind == ("4 transport", "1 transport/below")


def test_comments_for_readers_are_counted_beside_lines_of_code(plant: Plant) -> None:
    source = '''"""A docstring # without a comment."""

# First the log, then the answer.
written = """
# no comment
"""
answer = 1  # of one record
import os  # noqa: F401
'''
    assert comments_and_code(source) == (2, 5)
    tree = plant({"storage/_sender.py": source, "storage/other.py": "a = 1\n" * 5})
    found = by_name(comments(tree))
    assert (found["comments"].value, found["comments in sender"].value) == (0.2, 0.4)
    assert found["comments in leader"].value == 0.0


def test_a_planted_circle_is_found_and_a_small_one_is_harmless(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = plant(
        {
            "planted/__init__.py": "from . import h, i, j",
            "planted/_compiled.abi3.so": "",
            **{f"planted/{name}.py": "def later():\n    from . import _compiled" for name in "hij"},
            "planted/a.py": "from . import b",
            "planted/b.py": "from .c import C",
            "planted/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .d import D\nC = 1",
            "planted/d.py": "def later():\n    from . import a\nD = 1",
            "planted/e.py": "from . import a, f",
            "planted/f.py": "from . import g",
            "planted/g.py": "from . import e",
        }
    )
    monkeypatch.syspath_prepend(tree.root)
    row = circles("planted")
    assert (row.value, row.behind) == (1, ("4: planted.a planted.b planted.c planted.d",))


def test_tests_that_reach_for_private_names_are_counted(plant: Plant) -> None:
    tree = plant(
        {
            "storage/_hidden.py": "",
            "tests/test_by_path.py": "from insync.storage._hidden import open_log",
            "tests/test_by_name.py": "from insync.storage import _hidden",
            "tests/test_by_import.py": "import insync.storage._hidden",
            "tests/test_public.py": "from __future__ import annotations\nfrom insync.storage import Log",
            "tests/helper.py": "from ._other import help",
            "tests/test_uses.py": "def test_a(log):\n    log._file\n\ndef test_b(self):\n    self._log.__class__",
        }
    )
    found = by_name(privacy(tree))
    assert found["underscore imports"].value == 50
    assert found["private names"].value == 50
    assert found["private names"].behind == ("tests/test_uses.py::test_a: _file",)

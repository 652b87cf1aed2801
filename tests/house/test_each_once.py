"""Law 6: a rule in C has no twin in Python, and C touches no field of a class in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .scope import PRODUCT

ROOT = Path(__file__).parents[2]
_SLOTS = re.compile(r"PyMemberDescr|\bd_member\b|__slots__|__dict__")
"""The ways by which C finds where the fields of a class in Python lie."""


def twins(source: str, extensions: set[str]) -> Iterator[str]:
    """Extensions that a module can do without: their imports stand in a `try`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try):
            for each in ast.walk(node):
                if isinstance(each, ast.Import | ast.ImportFrom):
                    names = [alias.name.rpartition(".")[2] for alias in each.names]
                    names += (getattr(each, "module", None) or "").split(".")
                    yield from extensions.intersection(names)


def extensions() -> set[str]:
    return set(re.findall(r'"insync\.[\w.]*\.(_\w+)"', (ROOT / "setup.py").read_text())) | {"_native"}


def modules() -> Iterator[Path]:
    for room in PRODUCT:
        yield from (ROOT / room).rglob("*.py")


def test_no_module_can_do_without_an_extension() -> None:
    names = extensions()
    assert {"_joining", "_framing", "_native"} <= names
    found = {str(path): list(twins(path.read_text(), names)) for path in modules()}
    assert len(found) > 500
    assert {path: each for path, each in found.items() if each} == {}


def test_commands_print_by_the_function_that_escapes() -> None:
    """`say` and `one_line` show what clients have named; `print` would let it act on the terminal."""
    found = [
        str(path.relative_to(ROOT))
        for path in modules()
        if path.is_relative_to(ROOT / "replication/cli") or path.name == "command.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id == "print"
    ]
    assert sorted(found) == ["replication/cli/app.py", "replication/cli/clusters.py"]


def test_c_looks_up_no_slots() -> None:
    files = sorted((ROOT / "csrc").glob("*.[ch]"))
    assert len(files) > 20
    assert [path.name for path in files if _SLOTS.search(path.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    from . import _joining\nexcept ImportError:\n    _joining = None",
        "try:\n    from .._framing import take_frames\nexcept ImportError:\n    pass",
        "try:\n    import insync.storage._native\nexcept ImportError:\n    pass",
    ],
)
def test_an_import_that_may_fail_is_seen(source: str) -> None:
    assert list(twins(source, extensions()))
    assert not list(twins(source.replace("try:", "if True:").partition("except")[0], extensions()))


def test_a_look_at_slots_is_seen() -> None:
    assert _SLOTS.search("if (Py_TYPE(found) == &PyMemberDescr_Type)")

"""Tests that fail once: run again if processes may be the reason, told, and never hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAILS_ONCE = """
from pathlib import Path
import pytest
@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("case", {cases})
def test_it(case):
    seen = Path(__file__).with_name(f"seen-{{case}}")
    there = seen.exists()
    with seen.open("a") as file:
        file.write("run ")
    print("said of", case, "later" if there else "first")
    assert there, f"a busy machine and {{case}}"
"""
_FEW_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"}
"""The others take most of a start, of which there are many here."""
ALWAYS_FAILS = "def test_it():\n    assert False, 'broken'\n"


def setup_cfg() -> Mapping[str, str]:
    """What pytest is told there."""
    parser = ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser["tool:pytest"]


def indented(value: str) -> str:
    return value.replace("\n", "\n    ")


class Suite:
    """A small suite of tests in a folder of its own, run as ours is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.write("conftest.py", "from tests.unsteady import register as pytest_configure\n")
        # A conftest.py of a folder has pytest choose among its plugins.
        self.write("room/conftest.py", "")
        self.write("room/test_r.py", "def test_r(): pass\n")
        ours = setup_cfg()
        options = "".join(f"{key} = {indented(ours[key])}\n" for key in ("addopts", "markers"))
        (folder / "pytest.ini").write_text(f"[pytest]\ntestpaths = suite\n{options}")

    def write(self, file: str, text: str) -> None:
        path = self._folder / "suite" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **_FEW_PLUGINS, **(env or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2", "--dist", "loadgroup")], ids=["one", "several"])
def test_one_that_passes_alone_is_told_with_both_outputs(
    suite: Suite, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    suite.write("test_a.py", FAILS_ONCE.format(cases=["x@y", "plain"]))
    code, text = suite.run(*processes)
    assert code == 0, text
    assert "2 unsteady" in text.splitlines()[-1], text
    assert "a busy machine and plain" in text, text
    assert "said of plain first" in text, text
    assert "passed alone: suite/test_a.py::test_it[x@y]" in text, text
    assert text.count("1 passed in") == 2, text
    assert (tmp_path / "suite" / "seen-plain").read_text() == "run run ", "by the controller alone, and once"
    assert "FAILED" not in text, text


@pytest.mark.slow
def test_one_that_fails_again_fails_the_run(suite: Suite) -> None:
    suite.write("test_a.py", FAILS_ONCE.format(cases=["once"]))
    suite.write("test_b.py", ALWAYS_FAILS)
    code, text = suite.run()
    assert code == 1, text
    assert "2 failed" in text.splitlines()[-1], text
    assert "failed among others, passed alone: suite/test_a.py::test_it[once]" in text, text


@pytest.mark.slow
def test_more_than_three_are_too_many(suite: Suite) -> None:
    suite.write("test_a.py", FAILS_ONCE.format(cases=[1, 2, 3, 4]))
    code, text = suite.run()
    assert (code, "4 failed" in text.splitlines()[-1]) == (1, True), text


@pytest.mark.slow
def test_pure_ones_are_not_run_again(suite: Suite) -> None:
    conftest = (
        "from tests import unsteady\nunsteady.PURE = ('suite/core',)\npytest_configure = unsteady.register\n"
    )
    suite.write("conftest.py", conftest)
    suite.write("core/test_a.py", FAILS_ONCE.format(cases=["once"]))
    code, text = suite.run()
    assert (code, "1 failed" in text.splitlines()[-1]) == (1, True), text


def test_a_run_of_chosen_tests_tells_each_failure(suite: Suite) -> None:
    suite.write("test_a.py", FAILS_ONCE.format(cases=["once"]))
    code, text = suite.run("suite/test_a.py")
    assert (code, "1 failed" in text.splitlines()[-1]) == (1, True), text


@pytest.mark.slow
def test_one_that_is_unsteady_twice_is_to_be_mended(suite: Suite, tmp_path: Path) -> None:
    suite.write("test_a.py", FAILS_ONCE.format(cases=["once"]))
    assert "second time" not in suite.run()[1]
    (tmp_path / "suite" / "seen-once").unlink()
    code, text = suite.run()
    assert code == 0, text
    assert "unsteady for the second time, to be mended: suite/test_a.py::test_it[once]" in text, text
    assert "unsteady in earlier runs: suite/test_a.py::test_it[once]" in suite.run()[1]


def test_one_of_the_slower_tier_is_run_alone_whatever_its_tier(suite: Suite) -> None:
    marked = FAILS_ONCE.format(cases=["once"]).replace("@pytest", "@pytest.mark.slow\n@pytest", 1)
    suite.write("test_a.py", marked)
    code, text = suite.run("-m", "slow or jvm")
    assert (code, "1 unsteady" in text.splitlines()[-1]) == (0, True), text


def test_nothing_is_kept_where_pytest_keeps_nothing(suite: Suite) -> None:
    suite.write("test_a.py", FAILS_ONCE.format(cases=["once"]))
    code, text = suite.run("-p", "no:cacheprovider")
    assert (code, "1 unsteady" in text.splitlines()[-1]) == (0, True), text

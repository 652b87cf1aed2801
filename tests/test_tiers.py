"""The quick tier and the slower one: each test is in exactly one, and a run names the tests that it leaves out."""

from __future__ import annotations

import re
import shlex
from itertools import chain, combinations
from pathlib import Path

import pytest

from .test_unsteady import ROOT, Suite, setup_cfg
from .tiers import TIERS

CONFTEST = "from tests.tiers import register as pytest_configure\n"
ONE_OF_EACH = """
import pytest
def test_plain(): print("seen: plain")
@pytest.mark.slow
def test_marked(): print("seen: marked")
"""
FIXTURE = """
import pytest
from tests.tiers import uses
@pytest.fixture
@uses("jvm")
def kafka(): return 1
@pytest.fixture
def topic(kafka): return kafka
def test_with_it(topic): print("seen: with it")
def test_without_it(): print("seen: without it")
"""
STARTS_JAVA = """
import subprocess, pytest
def run():
    assert subprocess.run(["java"], check=True, capture_output=True, text=True).stdout == "Java itself\\n"
def test_forgotten():
    run()
@pytest.mark.jvm
def test_marked():
    run()
"""


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    suite = Suite(tmp_path)
    suite.write("conftest.py", CONFTEST)
    return suite


def seen(text: str) -> set[str]:
    return set(re.findall("seen: (.*)", text))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2", "--dist", "loadgroup")], ids=["one", "several"])
def test_a_marked_test_is_left_out_unless_all_are_asked_for(suite: Suite, processes: tuple[str, ...]) -> None:
    suite.write("test_a.py", ONE_OF_EACH)
    code, text = suite.run("-rP", *processes)
    assert (code, seen(text)) == (0, {"plain"}), text
    assert (
        '1 test of the slower tier (slow, jvm, browser, power) was left out; python -m pytest -m ""' in text
    )
    code, text = suite.run("-rP", "-m", "", *processes)
    assert (code, seen(text)) == (0, {"plain", "marked"}), text
    assert "left out" not in text


def test_a_test_that_is_named_and_left_out_is_told_of(suite: Suite) -> None:
    suite.write("test_a.py", ONE_OF_EACH)
    code, text = suite.run("suite/test_a.py::test_marked")
    assert (code, "1 deselected" in text) == (5, True), text
    assert 'left out; python -m pytest -m "" runs all tests, and runs a test that it is given' in text


def test_an_expression_of_the_user_is_not_commented_on(suite: Suite) -> None:
    suite.write("test_a.py", ONE_OF_EACH)
    assert "left out" not in suite.run("-m", "not slow")[1]
    assert "left out" not in suite.run("-k", "plain", "-m", "")[1]


def test_the_marker_comes_from_the_fixture(suite: Suite) -> None:
    suite.write("test_a.py", FIXTURE)
    assert seen(suite.run("-rP")[1]) == {"without it"}
    assert seen(suite.run("-rP", "-m", "jvm")[1]) == {"with it"}


def test_a_forgotten_marker_fails_the_test(suite: Suite, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho Java itself\n")
    java.chmod(0o755)
    suite.write("test_a.py", STARTS_JAVA)
    code, text = suite.run("-m", "", env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (code, "1 failed, 2 passed, 1 error" in text) == (1, True), text
    assert "a test without the marker 'jvm' starts java" in text, text


def expression(command: str) -> str:
    words = shlex.split(command)
    return words[words.index("-m") + 1]


def ci_run() -> str:
    return (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_nothing_falls_between_the_tiers() -> None:
    """Python reads the two expressions as pytest does: names, `not` and `or`."""
    quick = expression(setup_cfg()["addopts"])
    ((slower, _),) = re.findall(r"^slower=\"\$\{command##\*&& \}.* -m '(.*)'(.*)\"$", ci_run(), re.MULTILINE)
    for marks in chain.from_iterable(combinations(TIERS, count) for count in range(len(TIERS) + 1)):
        names = {each: each in marks for each in TIERS}
        assert eval(quick, {}, names) is (not marks), marks
        assert eval(slower, {}, names) is bool(marks), marks


def test_each_tier_is_a_declared_marker() -> None:
    declared = {line.partition(":")[0].strip() for line in setup_cfg()["markers"].splitlines()}
    assert declared >= set(TIERS)


def test_the_command_of_the_page_runs_the_quick_tier() -> None:
    """It gives no expression of its own; CI takes it from the page and runs the rest with the same command."""
    block = re.search(
        r"^## Tests\n+```sh\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert block is not None
    run = shlex.split(block[1].rpartition("&& ")[2])
    assert run[:3] == [".venv/bin/python", "-m", "pytest"]
    assert "-m" not in run[3:]
    assert 'bash -euo pipefail -c "$command"' in ci_run()
    assert 'bash -euo pipefail -c "$slower"' in ci_run()

"""Two tiers of tests: the quick one is what `pytest` runs, the slower one has the tests marked as in `TIERS`.

`slow` stands in the modules of tests. The markers of resources come from the fixtures that a test uses (`uses`), or
stand in its module. For a test without such a marker, programs that fail take the place of the resource's own, so a
forgotten marker fails the test on every machine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest

TIERS = ("slow", "jvm", "browser", "power")
PROGRAMS = {"jvm": ("java",), "browser": ("chromium", "chromedriver")}
"""By marker: the programs through which a test gets at the resource."""
JVM_SECONDS = 600
"""The timeout of a test that starts Java, unless it has its own."""
ALL = 'python -m pytest -m ""'
_BARRED = """#!/bin/sh
echo "a test without the marker '{marker}' starts {program}; mark it with pytest.mark.{marker}" >>"{told}"
exit 97
"""
_TOLD = "told"
_ATTRIBUTE = "_insync_uses"
_LEFT_OUT = "insync_left_out"

F = TypeVar("F", bound=Callable[..., Any])


def uses(marker: str) -> Callable[[F], F]:
    """For the function of a fixture: each test that uses the fixture has the marker."""
    assert marker in TIERS, marker

    def mark(function: F) -> F:
        setattr(function, _ATTRIBUTE, marker)
        return function

    return mark


def quick(config: pytest.Config) -> str:
    """The expression of the quick tier, which holds unless the command line gives another."""
    options: Sequence[str] = config.getini("addopts")
    return options[options.index("-m") + 1] if "-m" in options else ""


@attrs.define(eq=False)  # pytest keeps its plugins in sets
class Tiers:
    """Marks tests, bars programs from those without a marker, and tells how many tests were left out."""

    config: pytest.Config
    left_out: int = 0
    _stubs: tempfile.TemporaryDirectory[str] | None = None
    _path: str = attrs.field(factory=lambda: os.environ.get("PATH", os.defpath))
    _java_home: str | None = attrs.field(factory=lambda: os.environ.get("JAVA_HOME"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in set(_used(item)):
                item.add_marker(marker)
            # The first of them starts machines, and may wait for Maven to fetch a hundred megabytes.
            may = self.config.pluginmanager.hasplugin("timeout")
            if may and item.get_closest_marker("jvm") and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(JVM_SECONDS))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        if self.config.option.markexpr == quick(self.config):
            self.left_out += sum(1 for item in items if any(map(item.get_closest_marker, TIERS)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Before all fixtures, so that those of a session start for the test that has their marker."""
        barred = [marker for marker in PROGRAMS if item.get_closest_marker(marker) is None]
        places = [str(self._place(marker)) for marker in barred]
        os.environ["PATH"] = os.pathsep.join([*(f"{each}/bin" for each in places), self._path])
        # Spark looks for Java there first.
        if self._java_home is not None:
            os.environ["JAVA_HOME"] = places[0] if "jvm" in barred else self._java_home

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Nobody may have read the output of a program in another's place."""
        told = Path(self._stubs.name) / _TOLD if self._stubs is not None else None
        if told is not None and told.exists():
            text = told.read_text()
            told.unlink()
            pytest.fail(f"{item.nodeid}: {text.strip()}", pytrace=False)

    def _place(self, marker: str) -> Path:
        if self._stubs is None:
            self._stubs = tempfile.TemporaryDirectory(prefix="insync-barred-")
            told = Path(self._stubs.name) / _TOLD
            for each, programs in PROGRAMS.items():
                folder = Path(self._stubs.name) / each / "bin"
                folder.mkdir(parents=True)
                for program in programs:
                    (folder / program).write_text(_BARRED.format(marker=each, program=program, told=told))
                    (folder / program).chmod(0o755)
        return Path(self._stubs.name) / marker

    def pytest_sessionfinish(self) -> None:
        os.environ["PATH"] = self._path
        if self._stubs is not None:
            self._stubs.cleanup()
            self._stubs = None
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[_LEFT_OUT] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Of xdist: each worker has left out the same tests."""
        self.left_out = max(self.left_out, getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left_out:
            tests = "1 test" if self.left_out == 1 else f"{self.left_out} tests"
            were = "was" if self.left_out == 1 else "were"
            terminalreporter.write_line(
                f"{tests} of the slower tier ({', '.join(TIERS)}) {were} left out; {ALL} runs all tests,"
                " and runs a test that it is given"
            )


def register(config: pytest.Config) -> None:
    """For `pytest_configure`."""
    config.pluginmanager.register(Tiers(config), "tiers")


def _used(item: pytest.Item) -> Iterator[str]:
    # Which fixtures there are by a name is told by pytest to nobody else.
    information = getattr(item, "_fixtureinfo", None)
    for found in information.name2fixturedefs.values() if information is not None else ():
        for fixture in found:
            marker = getattr(fixture.func, _ATTRIBUTE, None)
            if marker is not None:
                yield marker


def slow_but(values: Iterable[str], *quick: str) -> list[Any]:
    """Cases of one test: those named in `quick` stay in the quick tier, the others are marked `slow`."""
    cases = list(values)
    assert set(quick) <= set(cases), set(quick) - set(cases)
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in cases]

"""Unsteady tests: a test of real processes that fails in a run of all tests is run once more, alone, at the end.

If it passes, it is reported as unsteady, with both outputs, and the run passes. Three such tests are tolerated,
more are not. If it fails again, the run fails. Pure tests are never run again: nothing outside can make them fail.
A run of chosen tests reports each failure at once, as pytest does. The run of a tier is one of all its tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from typing import Any

import attrs
import pytest

MOST = 3
"""Unsteady tests of one run."""
PURE = ("replication/core", "replication/simulation", "replication/wire", "mutants", "house")
"""Folders of tests whose outcome is to be the same on any machine, however busy."""
SECONDS = 900
"""For one test, alone; its own timeout ends it sooner."""
_KEPT = "insync/unsteady"
_LISTED = 20
"""Of earlier runs."""


@attrs.define(eq=False)  # pytest keeps its plugins in sets
class Unsteady:
    """The controller's plugin: collects failures, and judges them when all tests have run."""

    config: pytest.Config
    failed: list[pytest.TestReport] = attrs.Factory(list)
    passed_alone: dict[str, str] = attrs.Factory(dict)
    """By test: what pytest printed when it ran alone."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        ended = yield
        names = list(dict.fromkeys(map(_name, self.failed)))
        if names and len(names) <= MOST and not any(map(_is_pure, names)):
            for name in names:
                self._try_alone(name)
            if len(self.passed_alone) == len(names):
                session.testsfailed -= len(self.failed)
                self._move(self.config.pluginmanager.getplugin("terminalreporter").stats)
        return ended

    def _try_alone(self, name: str) -> None:
        # Whatever its tier: the one of this run may not be that of a run without options.
        tier = ("-m", "")
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tier, name]
        try:
            done = subprocess.run(
                command,
                cwd=self.config.rootpath,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return
        if done.returncode == 0:
            self.passed_alone[name] = done.stdout

    def _move(self, stats: dict[str, list[Any]]) -> None:
        """Take them out of pytest's list of failures, which it prints and counts."""
        for outcome in ("failed", "error"):
            stats[outcome] = [report for report in stats.get(outcome, ()) if report not in self.failed]
        stats["unsteady"] = list(self.failed)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        reports = terminalreporter.stats.get("unsteady", ())
        for report in reports:
            name = _name(report)
            terminalreporter.section(f"unsteady, failed among others: {name}")
            terminalreporter.write_line(report.longreprtext)
            for title, text in report.sections:
                terminalreporter.section(title, "-")
                terminalreporter.write_line(text)
            terminalreporter.section(f"unsteady, passed alone: {name}")
            terminalreporter.write_line(self.passed_alone[name])
        if not reports and self.passed_alone:
            terminalreporter.write_line(f"failed among others, passed alone: {', '.join(self.passed_alone)}")
        cache = getattr(self.config, "cache", None)  # which `-p no:cacheprovider` leaves out
        if cache is None:
            return
        earlier: list[str] = cache.get(_KEPT, [])
        for name in sorted({_name(report) for report in reports} & set(earlier)):
            terminalreporter.write_line(f"unsteady for the second time, to be mended: {name}")
        if earlier:
            terminalreporter.write_line(f"unsteady in earlier runs: {', '.join(earlier)}")
        if reports:
            names = dict.fromkeys([*earlier, *map(_name, reports)])
            cache.set(_KEPT, list(names)[-_LISTED:])


def register(config: pytest.Config) -> None:
    """For `pytest_configure`: watch a run of all tests, in the process that hears of each of them."""
    is_controller = not hasattr(config, "workerinput")
    if is_controller and config.args_source != pytest.Config.ArgsSource.ARGS:
        config.pluginmanager.register(Unsteady(config), "unsteady")


def _name(report: pytest.TestReport) -> str:
    """The test's id, without the group that xdist appends to it."""
    test, at, _ = report.nodeid.rpartition("@")
    return test if at and report.nodeid.rfind("@") > report.nodeid.rfind("]") else report.nodeid


def _is_pure(name: str) -> bool:
    return name.removeprefix("tests/").startswith(tuple(f"{folder}/" for folder in PURE))

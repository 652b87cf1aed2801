"""Tries one change in a process of its own: the unit tests that run the line, then seeds of the simulator."""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

import attrs
import pytest

from . import orphans
from .operators import Site, changed
from .reach import REPLICATION, Reach, room_of, run_tests

PACKAGE = "insync.replication"
LOADING = 2.0
"""Seconds to load pytest and the modules of the tests."""
GRACE = 4
"""How many times its share of processor time a trial may take before it counts as hung."""
SLEEPING = 20
"""How many times as long it may take if it sleeps: meanwhile processes that it waits for use the processors."""
PATIENCE = 60
"""Seconds that each test has, besides `SLEEPING` times what it took: one that never ends ends the trial."""

SURVIVED, BY_TESTS, BY_SIMULATION, AT_IMPORT, UNNOTICED = 10, 11, 12, 13, 14
VERDICTS = {
    SURVIVED: "survived",
    BY_TESTS: "tests",
    BY_SIMULATION: "simulation",
    AT_IMPORT: "import",
    UNNOTICED: "unnoticed",
}
HUNG = "hung"
ALIVE = ("survived", "unnoticed")


@attrs.frozen(kw_only=True)
class Tried:
    """`verdict`: what noticed the change, or `survived`; `unnoticed` if no unit test did and no more was asked."""

    id: str
    source: str
    """The digest of the file that was changed."""
    line: int
    verdict: str
    seconds: float


def attempt(site: Site, seconds: float, reach: Reach, *, simulate: bool = True) -> Tried:
    """Try one change for so many seconds of processor time; one that never ends is noticed by that.

    The processes that it started end with it. So do all other children of this process.

    simulate: whether the simulator is asked, too, when no unit test has noticed.
    """
    started = time.monotonic()
    sys.stdout.flush()
    orphans.adopt()
    run = os.getpid()
    child = os.fork()
    if child == 0:
        code = AT_IMPORT
        try:
            orphans.follow(run)
            code = _in_child(site, seconds, reach, simulate)
        finally:
            os._exit(code)
    code = orphans.wait(child)
    orphans.end()
    verdict = VERDICTS.get(code, HUNG)
    return Tried(
        id=site.id,
        source=digest(site),
        line=site.line,
        verdict=verdict,
        seconds=round(time.monotonic() - started, 1),
    )


def digest(site: Site) -> str:
    """Of the file that a change is made in: what was found out about another text of it counts no more."""
    return hashlib.sha256((REPLICATION / site.file).read_bytes()).hexdigest()[:16]


def _in_child(site: Site, seconds: float, reach: Reach, simulate: bool) -> int:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    started = time.process_time()
    tests = reach.of(site)
    plant(site)
    _allow(GRACE * LOADING + 2 * reach.cost(tests))
    if tests and not run_tests(tests, _Patience(reach)):
        return BY_TESTS
    if not simulate or room_of(site.file) != "core":
        return UNNOTICED
    _allow(time.process_time() + GRACE * seconds)
    from insync.replication.simulation import run

    seed = 0
    while time.process_time() - started < seconds:
        if run(seed).violation is not None:
            return BY_SIMULATION
        seed += 1
    return SURVIVED


class _Patience:
    """A plugin of pytest: ends this process when one test takes far longer than it did without the change."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.alarm(PATIENCE + int(SLEEPING * self._reach.cost([nodeid])))


def _allow(seconds: float) -> None:
    """End this process when it has used so much processor time in all; one that sleeps, after a longer time."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, resource.RLIM_INFINITY))
    signal.alarm(int(SLEEPING * (seconds - time.process_time())) + 1)


def plant(site: Site) -> None:
    """From now on the module of `site` is imported with its change made."""
    loaded = [name for name in sys.modules if name.startswith("insync.replication")]
    assert not loaded, f"{loaded[0]} has been imported already, without the change"
    sys.meta_path.insert(0, _Planter(site))


class _Planter(importlib.abc.MetaPathFinder):
    def __init__(self, site: Site) -> None:
        self._name = f"{PACKAGE}.{site.file.removesuffix('.py').replace('/', '.')}"
        self._site = site

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        file = str(REPLICATION / self._site.file)
        return importlib.machinery.ModuleSpec(fullname, _Changed(fullname, file, self._site), origin=file)


class _Changed(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, site: Site) -> None:
        super().__init__(fullname, path)
        self._site = site

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        return compile(changed(source, self._site.number), self.path, "exec")

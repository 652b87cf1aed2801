"""Which unit test runs which line of a room, so that a change is tried by those alone that can notice it."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import attrs
import hypothesis
import pytest
from coverage import Coverage

from . import orphans
from .operators import Site

ROOT = Path(__file__).parents[3]
REPLICATION = ROOT / "replication"
ROOMS = {room: f"tests/replication/{room}" for room in ("core", "client", "metadata", "node")}
"""The rooms that can be changed, and the unit tests of each. The simulator is asked about the core alone."""
EXAMPLES = 40
_LEFT_OUT = ("cacheprovider", "unraisableexception", "threadexception")
_LOADED_BEFORE = "-Wignore::pytest.PytestAssertRewriteWarning"
_QUICK = (
    *("-x", "-q", "--tb=no", "-otimeout=0", "-m", "", _LOADED_BEFORE),
    *(f"-pno:{name}" for name in _LEFT_OUT),
)
"""As pytest runs in a trial, tests of each tier.

It need not look for what a test left behind, and the trial has its own time limit. Plugins are loaded by `warm_up`.
"""


@attrs.frozen
class Reach:
    """`tests`: by file and line, the tests that run it. `seconds`: processor time that each takes, watched."""

    tests: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def of(self, site: Site) -> list[str]:
        """The tests that run a line of this place, the quickest first. No other can notice a change there."""
        lines = self.tests.get(site.file, {})
        found = {test for line in range(site.line, site.last + 1) for test in lines.get(line, ())}
        return sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test))

    def cost(self, tests: list[str]) -> float:
        """Seconds of processor time that these tests take at most."""
        return sum(self.seconds.get(test, 0.0) for test in tests)


def room_of(file: str) -> str:
    """The room of a file whose path is given below `replication/`."""
    return file.partition("/")[0]


def measure(rooms: Collection[str], tests: Collection[str] = ()) -> Reach:
    """Run unit tests once, watched, in another process: this one must not import the rooms.

    tests: files or folders; by default all tests of these rooms.
    """
    asked = tests or sorted(ROOMS[room] for room in rooms)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reach.json"
        command = [sys.executable, "-m", "tests.mutants.mechanical.reach", str(file), ",".join(rooms), *asked]
        output = Path(folder) / "output"
        with output.open("wb") as stream:
            run = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT)
            run.returncode = orphans.wait(run.pid)
        if run.returncode != 0:
            said = output.read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"the unit tests fail without any change:\n{said[-4000:]}")
        told = json.loads(file.read_text(encoding="utf-8"))
    tests = {
        name: {int(line): found for line, found in lines.items()} for name, lines in told["tests"].items()
    }
    return Reach(tests, told["seconds"])


def run_tests(which: list[str], *plugins: object) -> bool:
    """Whether these tests pass; the examples of the properties are the same every time."""
    hypothesis.settings.register_profile(
        "mechanical",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=EXAMPLES,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),  # nobody reads the shortest example
    )
    hypothesis.settings.load_profile("mechanical")
    os.chdir(ROOT)
    return pytest.main([*_QUICK, *which], plugins=list(plugins)) == pytest.ExitCode.OK


def warm_up() -> None:
    """Load pytest's plugins once, so that no trial has to; trials are forked from this process.

    What the tests' `conftest.py` imports is not loaded: no change could be made to it any more.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*_QUICK, "--noconftest", "--collect-only", str(Path(__file__))])
    gc.freeze()


class _Watch:
    """A plugin of pytest: tells coverage which test is running, and how long each took."""

    def __init__(self, watched: Coverage) -> None:
        self._watched = watched
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._watched.switch_context(item.nodeid)
        started = time.process_time()
        done = yield
        self.seconds[item.nodeid] = round(time.process_time() - started, 4)
        return done


def _main(file: Path, rooms: list[str], asked: list[str]) -> int:
    watched = Coverage(
        data_file=None, config_file=False, include=[f"*/replication/{room}/*" for room in rooms]
    )
    watch = _Watch(watched)
    watched.start()
    passed = run_tests(asked, watch)
    watched.stop()
    data = watched.get_data()
    tests = {
        _below_replication(name): {
            str(line): [test for test in found if test]
            for line, found in data.contexts_by_lineno(name).items()
        }
        for name in data.measured_files()
    }
    file.write_text(json.dumps({"tests": tests, "seconds": watch.seconds}), encoding="utf-8")
    return 0 if passed else 1


def _below_replication(name: str) -> str:
    return name.rpartition("/replication/")[2]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(_main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]))

"""The changes that a machine makes are real ones, and an obvious one is noticed at once."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from .__main__ import tried_before
from .explained import explained
from .operators import Site, changed, sites
from .reach import REPLICATION, ROOMS, ROOT, Reach
from .trial import Tried, digest


@functools.cache
def every_site() -> list[Site]:
    return [site for room in ROOMS for site in sites(REPLICATION, room)]


@pytest.mark.slow
def test_every_change_has_a_name_of_its_own_and_changes_something() -> None:
    found = every_site()
    names = [site.id for site in found]
    assert len(names) > 5000
    assert {site.file.partition("/")[0] for site in found} == set(ROOMS)
    assert len(set(names)) == len(names)
    for site in found[:: len(found) // 60]:
        source = (REPLICATION / site.file).read_text(encoding="utf-8")
        assert ast.dump(changed(source, site.number)) != ast.dump(ast.parse(source)), site.id


@pytest.mark.slow
def test_every_explained_change_is_still_there() -> None:
    reasons = explained()
    missing = reasons.keys() - {site.id for site in every_site()}
    assert not missing, f"explained, and not (or no longer) a change of the code: {sorted(missing)}"
    assert all(len(why) > 20 for why in reasons.values())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_obvious_change_is_noticed() -> None:
    obvious = "core/partition/isr.py::high_watermark: comparison: isr_size < min_isr -> isr_size <= min_isr"
    command = [
        sys.executable,
        "-m",
        "tests.mutants.mechanical",
        "--only",
        f"^{re.escape(obvious)}$",
        "--json",
        *("--rooms", "core", "--tests", "tests/replication/core/partition/test_isr_change.py"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550)
    figures = json.loads(done.stdout)
    assert (figures["sample"], figures["killed_by"], done.returncode) == (1, {"tests": 1}, 0), done.stderr


def test_nothing_that_can_be_changed_is_loaded_before_a_trial() -> None:
    """Otherwise every change would count as noticed when it is loaded."""
    script = (
        "import sys\n"
        "from tests.mutants.mechanical.reach import warm_up\n"
        "warm_up()\n"
        "print([each for each in sys.modules if each.startswith('insync.replication')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=550
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_test_is_asked_about_the_lines_that_it_runs_and_the_quickest_comes_first() -> None:
    site = next(site for site in every_site() if site.id.startswith("core/partition/isr.py::may_join"))
    lines = {site.line: ["slow", "quick"], site.line + 50: ["other"]}
    reach = Reach({site.file: lines}, {"slow": 2.0, "quick": 0.5})
    assert reach.of(site) == ["quick", "slow"]
    assert reach.cost(reach.of(site)) == 2.5
    assert Reach({}, {}).of(site) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    """Nothing is taken over that was found out about another text, or by asking less than now."""
    results = tmp_path / "results.jsonl"
    wanted = [site for site in every_site() if site.id.startswith("core/partition/isr.py::may_join")]
    killed, elsewhere, alive, halfway = wanted[0], wanted[1], *every_site()[:2]

    def line(site: Site, verdict: str, source: str = "") -> str:
        tried = Tried(id=site.id, source=source or digest(site), line=site.line, verdict=verdict, seconds=1.0)
        return json.dumps(attrs.asdict(tried)) + "\n"

    results.write_text(
        line(killed, "tests")
        + line(elsewhere, "tests", source="another text")
        + line(alive, "tests")
        + line(alive, "survived")
        + line(halfway, "unnoticed")
    )
    picked = [killed, elsewhere, alive, halfway]

    def known(*, tests_only: bool, again: bool) -> set[str]:
        chosen = argparse.Namespace(tests_only=tests_only, again=again)
        return set(tried_before(results, picked, chosen))

    assert known(tests_only=False, again=False) == {killed.id, alive.id}
    assert known(tests_only=True, again=False) == {killed.id, alive.id, halfway.id}
    assert known(tests_only=False, again=True) == known(tests_only=True, again=True) == {killed.id}
    assert tried_before(tmp_path / "none", picked, argparse.Namespace()) == {}


LEAVES_A_PROCESS = """
import os, pathlib, signal, subprocess

def test_that_is_killed_while_its_process_runs():
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pathlib.Path({file!r}).write_text(str(sleeper.pid))
    os.kill(os.getpid(), signal.SIGKILL)
"""

ONE_TRIAL = """
import sys
from tests.mutants.mechanical.operators import sites
from tests.mutants.mechanical.reach import REPLICATION, Reach
from tests.mutants.mechanical.trial import attempt

site = sites(REPLICATION, "metadata")[0]
reach = Reach({site.file: {site.line: [sys.argv[1]]}}, {sys.argv[1]: 1.0})
print(attempt(site, 1.0, reach, simulate=False).verdict)
"""


WAITS_WITH_A_PROCESS = """
import os, subprocess

def test_that_waits_for_its_process():
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    os.write({told}, b"%d" % sleeper.pid)
    os.close({told})
    sleeper.wait()
"""

WHOLE_RUN = """
import re, sys
from tests.mutants.mechanical import __main__ as command
from tests.mutants.mechanical.operators import sites
from tests.mutants.mechanical.reach import REPLICATION, Reach

site, test = sites(REPLICATION, "metadata")[0], sys.argv[1]
command.measure = lambda *of: Reach({site.file: {site.line: [test]}}, {test: 60.0})
sys.argv[1:] = ["--rooms", "metadata", "--only", f"^{re.escape(site.id)}$", "--tests-only"]
sys.exit(command.main())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_processes_of_a_trial_end_with_the_run_that_a_signal_ends(
    tmp_path: Path, number: signal.Signals
) -> None:
    test = tmp_path / "test_waiting.py"
    hears, told = os.pipe()
    test.write_text(WAITS_WITH_A_PROCESS.format(told=told))
    # What a shell starts in the background ignores SIGINT, and so would all that it starts.
    asked = signal.signal(number, signal.SIG_DFL)
    try:
        run = subprocess.Popen([sys.executable, "-c", WHOLE_RUN, str(test)], cwd=ROOT, pass_fds=(told,))
    finally:
        signal.signal(number, asked)
    os.close(told)
    sleeper = -1
    try:
        assert select.select([hears], [], [], 60)[0]
        sleeper = int(os.read(hears, 20))
        run.send_signal(number)
        assert run.wait(timeout=60) == (-number if number == signal.SIGINT else 128 + number)
        assert not Path(f"/proc/{sleeper}").exists()
    finally:
        os.close(hears)
        run.kill()
        run.wait()
        if sleeper > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(sleeper, signal.SIGKILL)


WAITS_FOR_AN_ORPHAN = """
import subprocess
import psutil

def test_that_waits_for_the_child_of_a_process_that_has_ended():
    started = subprocess.run(["sh", "-c", "sleep 600 >&- & echo $!"], stdout=subprocess.PIPE, check=True)
    orphan = psutil.Process(int(started.stdout))
    orphan.kill()
    orphan.wait(60)
"""


@pytest.mark.slow
def test_an_adopted_process_is_gone_when_it_has_ended(tmp_path: Path) -> None:
    """Or a test that waits for one fails without any change, and so under all of them."""
    test = tmp_path / "test_waiting.py"
    test.write_text(WAITS_FOR_AN_ORPHAN)
    command = [sys.executable, "-c", ONE_TRIAL, str(test)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550)
    assert done.stdout == "unnoticed\n", done.stderr


HOLDS_A_PIPE = """
import os, time

def test_that_waits_forever():
    os.write({told}, b"%d" % os.getpid())
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trial_ends_with_its_run_even_if_that_is_killed(tmp_path: Path) -> None:
    test = tmp_path / "test_waiting.py"
    hears, told = os.pipe()
    test.write_text(HOLDS_A_PIPE.format(told=told))
    run = subprocess.Popen([sys.executable, "-c", WHOLE_RUN, str(test)], cwd=ROOT, pass_fds=(told,))
    os.close(told)
    trial = -1
    try:
        assert select.select([hears], [], [], 60)[0]
        trial = int(os.read(hears, 20))
        run.kill()
        run.wait()
        (ended, _, _) = select.select([hears], [], [], 30)
        assert ended and os.read(hears, 1) == b""
        trial = -1
    finally:
        os.close(hears)
        run.kill()
        run.wait()
        if trial > 0:
            os.kill(trial, signal.SIGKILL)


NEVER_ENDS = """
import time

def test_that_waits_forever():
    time.sleep(600)

def test_that_takes_long():
    pass
"""

IMPATIENT = """
import sys
from tests.mutants.mechanical import trial
from tests.mutants.mechanical.operators import sites
from tests.mutants.mechanical.reach import REPLICATION, Reach

trial.PATIENCE = 1
site, names = sites(REPLICATION, "metadata")[0], [f"{sys.argv[1]}::test_that_{each}" for each in sys.argv[2:]]
seconds = dict(zip(names, [0.01, 500.0]))
print(trial.attempt(site, 1.0, Reach({site.file: {site.line: names}}, seconds), simulate=False).verdict)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trial_ends_when_one_of_its_tests_never_does_however_long_all_may_take(tmp_path: Path) -> None:
    test = tmp_path / "test_waiting.py"
    test.write_text(NEVER_ENDS)
    command = [sys.executable, "-c", IMPATIENT, str(test), "waits_forever", "takes_long"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "hung", done.stderr


@pytest.mark.slow
def test_the_processes_of_a_trial_end_with_it_if_a_signal_ends_it(tmp_path: Path) -> None:
    told, test = tmp_path / "pid", tmp_path / "test_leaving.py"
    test.write_text(LEAVES_A_PROCESS.format(file=str(told)))
    done = subprocess.run(
        [sys.executable, "-c", ONE_TRIAL, str(test)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "hung", done.stderr
    sleeper = int(told.read_text())
    try:
        assert not Path(f"/proc/{sleeper}").exists()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(sleeper, signal.SIGKILL)

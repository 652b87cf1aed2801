"""The kits do not blame a plugin for a process that was held up, and no standstill excuses a broken one."""

from __future__ import annotations

import ctypes
import time

import pytest

from insync.transport import patience
from insync.transport.patience import ATTEMPTS, HeldUpWarning, StandstillWatch, bear_with


class _Told(StandstillWatch):
    """Measures what the test says."""

    held_up = 0.0

    def __exit__(self, *error):
        super().__exit__(*error)
        self.seconds = self.held_up


class _Scene:
    """A case that fails a few times."""

    def __init__(self, failures):
        self.failures = failures
        self.attempts = self.restored = 0

    async def attempt(self):
        self.attempts += 1
        assert self.attempts > self.failures, f"broken. Seen: failure {self.attempts}"

    async def restore(self):
        self.restored += 1

    async def run(self, seconds=3600.0):
        await bear_with("a_case", seconds, self.attempt, self.restore)


@pytest.fixture
def held_up(monkeypatch):
    """Each attempt is held up for so many seconds."""

    def say(seconds):
        monkeypatch.setattr(patience, "StandstillWatch", _Told)
        monkeypatch.setattr(_Told, "held_up", seconds)

    return say


async def test_failure_of_a_process_that_was_held_up_is_repeated_and_told(held_up):
    held_up(1e6)
    scene = _Scene(failures=2)
    with pytest.warns(HeldUpWarning) as told:
        await scene.run()
    assert (scene.attempts, scene.restored) == (3, 2)
    assert "a_case is repeated" in str(told[0].message) and "failure 1" in str(told[0].message)


async def test_failure_of_a_process_that_could_run_is_told_at_once(held_up):
    held_up(0.0)
    scene = _Scene(failures=1)
    with pytest.raises(AssertionError, match="failure 1") as caught:
        await scene.run()
    assert scene.attempts == 1 and not hasattr(caught.value, "__notes__")


@pytest.mark.filterwarnings("ignore::insync.transport.patience.HeldUpWarning")
async def test_what_fails_every_time_is_broken(held_up):
    held_up(1e6)
    scene = _Scene(failures=1000)
    with pytest.raises(AssertionError, match=f"failure {ATTEMPTS}") as caught:
        await scene.run()
    assert scene.attempts == ATTEMPTS
    assert f"attempt {ATTEMPTS}" in caught.value.__notes__[0]


async def test_a_case_that_hangs_is_not_repeated(held_up):
    held_up(1e6)
    scene = _Scene(failures=1000)
    with pytest.raises(AssertionError, match="failure 1"):
        await scene.run(seconds=0.0)
    assert scene.attempts == 1


async def test_a_store_that_cannot_be_restored_fails_by_what_was_seen(held_up):
    held_up(1e6)
    scene = _Scene(failures=1)

    async def refuse():
        raise OSError("the store is gone")

    scene.restore = refuse
    with pytest.warns(HeldUpWarning), pytest.raises(AssertionError, match="failure 1"):
        await scene.run()


def test_a_standstill_is_measured_also_one_that_just_ended():
    with StandstillWatch() as watch:
        ctypes.PyDLL(None).usleep(300_000)  # with the interpreter's lock: no thread of the process runs
    assert watch.seconds > 0.2


def test_an_event_loop_that_waits_or_hangs_is_no_standstill():
    def measured():
        with StandstillWatch() as watch:
            time.sleep(0.2)
        return watch.seconds

    assert any(measured() < 0.1 for _ in range(100))

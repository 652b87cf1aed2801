"""A kit repeats a case whose process was held up, and never excuses a broken plugin by it."""

from __future__ import annotations

import ctypes
import sys
import time

import pytest

from insync.transport import patience
from insync.transport.patience import ATTEMPTS, HeldUpWarning, StandstillWatch, bear_with


class _Told(StandstillWatch):
    """A watch that reports the seconds which the test gives."""

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
    """The standstill of each attempt, in seconds."""

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


class _Clock:
    """Time that passes when the test says so; in place of the module `time`."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clock that `bear_with` reads."""
    told = _Clock()
    monkeypatch.setattr(patience, "time", told)
    return told


@pytest.mark.filterwarnings("ignore::insync.transport.patience.HeldUpWarning")
async def test_all_attempts_together_have_the_time_of_a_case(held_up, clock):
    held_up(1e6)
    scene = _Scene(failures=1000)
    attempt = scene.attempt

    async def slow():
        clock.now += 10.0
        await attempt()

    scene.attempt = slow
    with pytest.raises(AssertionError, match="failure 2"):
        await scene.run(seconds=15.0)


@pytest.mark.filterwarnings("ignore::insync.transport.patience.HeldUpWarning")
@pytest.mark.parametrize(
    ("takes", "tolerated"), [(0.0, patience._TOLERATED_SECONDS), (1000.0, 1000.0 * patience._TOLERATED_SHARE)]
)
async def test_a_standstill_counts_if_it_is_long_beside_bounds_and_attempt(held_up, clock, takes, tolerated):
    for seconds, attempts in ((0.9 * tolerated, 1), (1.1 * tolerated, 2)):
        held_up(seconds)
        scene = _Scene(failures=1)
        attempt = scene.attempt

        async def slow(attempt=attempt):
            clock.now += takes
            await attempt()

        scene.attempt = slow
        if attempts == 1:
            with pytest.raises(AssertionError, match="failure 1"):
                await scene.run()
        else:
            await scene.run()
        assert scene.attempts == attempts


def _stand_still(seconds):
    # With the interpreter's lock: no thread of the process runs.
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@pytest.fixture
def unhurried():
    """A thread keeps the interpreter until it waits: nothing runs by chance between two lines of a test."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(before)


def test_a_standstill_is_measured_also_one_that_just_ended(unhurried):
    with StandstillWatch() as watch:
        _stand_still(0.3)
    assert watch.seconds > 0.2


def test_standstills_add_up(unhurried):
    with StandstillWatch() as watch:
        _stand_still(0.2)
        time.sleep(0.05)
        _stand_still(0.2)
    assert watch.seconds > 0.35


def test_an_event_loop_that_waits_or_hangs_is_no_standstill():
    def measured():
        with StandstillWatch() as watch:
            time.sleep(0.2)
        return watch.seconds

    assert any(measured() < 0.1 for _ in range(100))

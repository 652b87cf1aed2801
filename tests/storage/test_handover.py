"""A thread that asks another for work, and waits for it."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from insync.storage import Handover

from ..requires import missing

ROOT = Path(__file__).parent.parent.parent
PROCESSORS = os.sched_getaffinity(0)


class Worker:
    """Takes what is in `given`; `hold` keeps it from that."""

    def __init__(self) -> None:
        self.handover = Handover()
        self.given: deque[int | None] = deque()
        self.taken: list[int] = []
        self.processors: list[set[int]] = []
        self.lent: list[set[int]] = []
        """Those that it might use, and that the thread which has made it might, for each that it has taken."""
        self.asker = threading.get_native_id()
        self.hold = threading.Event()
        self.hold.set()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        asked = 0
        while True:
            asked = self.handover.rest(asked)
            assert self.hold.wait(10)
            while self.given:
                each = self.given.popleft()
                if each is None:
                    return
                self.processors.append(os.sched_getaffinity(0))
                self.lent.append(os.sched_getaffinity(self.asker))
                self.taken.append(each)


@contextmanager
def working() -> Iterator[Worker]:
    worker = Worker()
    worker.thread.start()
    assert worker.handover.ask_and_wait(10)  # it has begun
    yield worker
    worker.hold.set()
    worker.given.append(None)
    worker.handover.ask()
    worker.thread.join(10)
    assert not worker.thread.is_alive()


@pytest.mark.parametrize("seed", range(3))
def test_whoever_has_waited_finds_all_done(seed: int) -> None:
    chance = random.Random(seed)
    with working() as worker:
        for number in range(5_000):
            worker.given.append(number)
            if chance.random() < 0.5:
                worker.handover.ask()
            else:
                assert worker.handover.ask_and_wait(10)
                assert worker.taken[-1:] == [number] and not worker.given
            if chance.random() < 0.01:
                time.sleep(0.0002)  # the worker falls asleep in between, or not
    assert worker.taken == [*range(5_000)]


def test_what_takes_too_long_is_not_waited_for_and_is_done_all_the_same() -> None:
    with working() as worker:
        worker.hold.clear()
        worker.given.append(1)
        before = time.monotonic()
        assert not worker.handover.ask_and_wait(0.02)
        assert 0.02 <= time.monotonic() - before < 5
        worker.given.append(2)
        worker.hold.set()
        assert worker.handover.ask_and_wait(10)
        assert worker.taken == [1, 2]


def test_what_was_asked_before_the_worker_began_is_found() -> None:
    worker = Worker()
    worker.given.append(1)
    worker.handover.ask()
    worker.thread.start()
    assert worker.handover.ask_and_wait(10)
    assert worker.taken == [1]
    worker.given.append(None)
    worker.handover.ask()
    worker.thread.join(10)


def test_nobody_holds_the_interpreter_while_waiting() -> None:
    """Else neither the worker nor anybody else could run."""
    ran = threading.Event()
    with working() as worker:
        worker.hold.clear()
        worker.given.append(1)
        threading.Timer(0.01, lambda: (ran.set(), worker.hold.set())).start()
        assert worker.handover.ask_and_wait(10) and ran.is_set()


@pytest.fixture
def processors() -> Iterator[set[int]]:
    """Those that this thread may use, several."""
    if len(PROCESSORS) < 2:
        missing("one processor only")
    assert os.sched_getaffinity(0) == PROCESSORS
    yield PROCESSORS
    os.sched_setaffinity(0, PROCESSORS)


def test_whoever_waits_lends_the_worker_its_processor(processors: set[int]) -> None:
    with working() as worker:
        for number in range(20):
            worker.given.append(number)
            assert worker.handover.ask_and_wait(10)
            assert os.sched_getaffinity(0) == processors
    assert [len(each) for each in worker.processors] == [1] * 20
    assert worker.lent == [processors] * 20
    assert set().union(*worker.processors) <= processors


def test_whoever_sleeps_meanwhile_is_bound_to_nothing(processors: set[int]) -> None:
    """The thread belongs to the program that embeds a node."""
    asker = threading.get_native_id()
    with working() as worker:
        worker.hold.clear()
        worker.given.append(1)

        def look() -> None:
            state = Path(f"/proc/self/task/{asker}/stat")
            while state.read_text().rpartition(")")[2].split()[0] != "S":
                time.sleep(0.001)
            worker.lent.append(os.sched_getaffinity(asker))
            worker.hold.set()

        thread = threading.Thread(target=look)
        thread.start()
        assert worker.handover.ask_and_wait(20)
        thread.join(10)
    assert worker.lent == [processors] * 2


def test_the_worker_follows_whoever_waits_for_it(processors: set[int]) -> None:
    """To another processor, that is."""
    first, second = sorted(processors)[:2]
    with working() as worker:
        worker.given.append(1)
        assert worker.handover.ask_and_wait(10)
        for number in (first, second) * 10:
            os.sched_setaffinity(0, {number})  # moves this thread there
            os.sched_setaffinity(0, processors)
            worker.given.append(number)
            assert worker.handover.ask_and_wait(10)
    assert [len(each) for each in worker.processors] == [1] * 21
    assert worker.lent == [processors] * 21


def test_work_that_nobody_waits_for_is_done_on_any_processor(processors: set[int]) -> None:
    with working() as worker:
        worker.given.append(1)
        assert worker.handover.ask_and_wait(10)
        worker.given.append(2)
        worker.handover.ask()
        while len(worker.taken) < 2:
            time.sleep(0.001)
        assert len(worker.processors[0]) == 1 and worker.processors[1] == processors


def test_a_worker_that_is_late_may_go_on_on_any_processor(processors: set[int]) -> None:
    with working() as worker:
        worker.given.append(1)
        assert worker.handover.ask_and_wait(10)
        worker.hold.clear()
        worker.given.append(2)
        assert not worker.handover.ask_and_wait(0.001)
        assert os.sched_getaffinity(0) == processors
        worker.hold.set()
        while len(worker.taken) < 2:
            time.sleep(0.001)
    assert worker.processors[1] == processors


def test_a_worker_that_is_free_runs_where_whoever_asks_may(processors: set[int]) -> None:
    """An operator may bind the threads of a node at any time."""
    kept = {min(processors)}
    with working() as worker:
        worker.given.append(1)
        assert worker.handover.ask_and_wait(10)
        os.sched_setaffinity(0, kept)
        worker.given.append(2)
        worker.handover.ask()
        while len(worker.taken) < 2:
            time.sleep(0.001)
    assert worker.processors[1] == kept


def _slice_ns() -> int:
    """How long this thread asks to run at a time; 0 where the system does not say so."""
    number = {"x86_64": 315, "aarch64": 275}.get(os.uname().machine)
    if number is None:
        missing(f"the number of sched_getattr on {os.uname().machine}")
    told = (ctypes.c_uint64 * 6)()
    if ctypes.CDLL(None, use_errno=True).syscall(number, 0, told, ctypes.sizeof(told), 0):
        missing(f"sched_getattr is refused: {os.strerror(ctypes.get_errno())}")
    return told[3]


def test_the_worker_asks_for_short_slices_and_what_it_starts_does_not() -> None:
    """So that it begins in the place of whoever asks it (Linux 6.12 and later)."""
    usual = _slice_ns()
    if not usual:
        missing("Linux 6.12: older systems know no slices of single threads")
    slices: list[int] = []

    def started(handover: Handover) -> None:
        slices.append(_slice_ns())
        handover.leave()
        slices.append(_slice_ns())

    def run(handover: Handover) -> None:
        handover.rest(handover.rest(0))
        thread = threading.Thread(target=started, args=(handover,))
        thread.start()
        thread.join(10)

    handover = Handover()
    worker = threading.Thread(target=run, args=(handover,))
    worker.start()
    handover.ask()
    while worker.is_alive():
        handover.ask()
        worker.join(0.001)
    assert slices == [100_000, usual] and _slice_ns() == usual < 100_000_000


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C alone, with ThreadSanitizer."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        missing("no C compiler on the path")
    program = tmp_path_factory.mktemp("stress") / "handover"
    sources = [ROOT / "tests/storage/handover_stress.c", ROOT / "csrc/isr_handover.c"]
    flags = ["-O2", "-g", "-fsanitize=thread", f"-I{ROOT / 'csrc'}", "-pthread"]
    built = subprocess.run([compiler, *flags, *sources, "-o", program], capture_output=True, text=True)
    if built.returncode:
        missing(f"{compiler} has no ThreadSanitizer: {built.stderr[-200:]}")
    return program


@pytest.mark.parametrize("interrupted", [0, 1])
def test_no_wake_up_is_lost_and_nothing_is_seen_too_early(stress: Path, interrupted: int) -> None:
    """The counters wrap on the way."""
    arguments = ["20000", str(2**32 - 5_000), str(interrupted)]
    done = subprocess.run([stress, *arguments], capture_output=True, text=True, timeout=100)
    if "unexpected memory mapping" in done.stderr:
        missing("this kernel lays memory out in a way that this ThreadSanitizer does not know")
    assert done.returncode == 0, done.stdout + done.stderr


RESTING = """
import threading
from insync.storage import Handover

handover = Handover()
threading.Thread(target=lambda: handover.rest(handover.rest(0)), daemon=True).start()
assert handover.ask_and_wait(10)
"""


@pytest.mark.parametrize("then", ["", "del handover", "handover.ask()", "handover.ask_and_wait(0.001)"])
def test_the_interpreter_ends_while_the_worker_rests(then: str) -> None:
    done = subprocess.run([sys.executable, "-c", RESTING + then], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")

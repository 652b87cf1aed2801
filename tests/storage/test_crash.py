"""A few of the kills that `python -m tests.storage.crash` makes by the hundred, and proof that they can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from insync.storage import Chunk, DiskLog, LogSettings
from insync.storage.batch import scan

from .building import open_disk
from .crash.model import Held, Model, ViolationError, check_compacted
from .crash.notes import Note, Plan


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_killed_writers_break_no_promise(policy: str) -> None:
    command = [sys.executable, "-m", "tests.storage.crash", "--kills", "6", "--policy", policy, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["ok"], said["kills"]) == (True, 6)
    assert sum(said["killed_during"].values()) == 6


PLANS = [Plan(0, 2, 0, 5, 100, False), Plan(2, 1, 0, 6, 100, False), Plan(3, 4, 0, 7, 100, False)]


def written(folder: Path, plans: list[Plan]) -> DiskLog:
    log = open_disk(folder, LogSettings())
    for plan in plans:
        data = plan.build()
        log.append([Chunk(data, scan(data), plan.base, plan.epoch)])
    return log


def told(*notes: tuple[bool, str, tuple[int, ...]]) -> Model:
    model = Model()
    for note in notes:
        model.take(Note(*note))
    return model


APPEND = (False, "append", tuple(int(number) for plan in PLANS for number in plan))
DONE = (True, "append", ())


def test_the_check_lets_pass_what_is_right(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0", PLANS)
    for notes in ([APPEND, DONE], [APPEND], [APPEND, DONE, (False, "truncate", (2,))]):
        told(*notes).check(log, {0: log.size_bytes})
    log.truncate(3)
    told(APPEND).check(log, {0: log.size_bytes})
    told(APPEND, DONE, (False, "truncate", (2,))).check(log, {0: log.size_bytes})
    log.close()


@pytest.mark.parametrize(
    ("held", "notes", "said"),
    [
        (PLANS[:2], [APPEND, DONE], "ends at 3"),
        (PLANS, [APPEND, DONE, (False, "truncate", (2,)), (True, "truncate", (2,))], "ends at 7"),
        (
            PLANS,
            [APPEND, DONE, (False, "truncate", (2,)), (True, "truncate", (7,))],
            "the log ends at 7, not",
        ),
        ([PLANS[0], PLANS[1]._replace(serial=9), PLANS[2]], [APPEND, DONE], "offset 2 holds what was never"),
        (PLANS, [APPEND, DONE, (False, "start", (2,)), (True, "start", ())], "starts at 0"),
        ([*PLANS[:2], PLANS[2]._replace(count=5)], [APPEND], "ends at 8"),
    ],
)
def test_the_check_sees_what_is_wrong(tmp_path: Path, held: list[Plan], notes: list, said: str) -> None:
    log = written(tmp_path / "t-0", held)
    with pytest.raises(ViolationError, match=said):
        told(*notes).check(log, {0: log.size_bytes})
    log.close()


@pytest.mark.parametrize(("segment_is_gone", "end"), [(False, 3), (True, 5)])
def test_the_check_of_a_truncation_below_the_log_start(
    tmp_path: Path, segment_is_gone: bool, end: int
) -> None:
    """Within the batch at 3: its segment is there, or retention has deleted it."""
    log = open_disk(tmp_path / "t-0", LogSettings())
    if segment_is_gone:
        log.truncate_fully(7)
    else:
        log.close()
        log = written(tmp_path / "t-0", PLANS)
        log.advance_log_start_offset(7)
    log.truncate(5)
    assert (log.log_start_offset, log.log_end_offset) == (end, end)
    raised = (APPEND, DONE, (False, "start", (7,)), (True, "start", ()))
    told(*raised, (False, "truncate", (5,)), (True, "truncate", (end,))).check(
        log, {log.segment_base_offsets[0]: log.size_bytes}
    )
    told(*raised, (False, "truncate", (5,))).check(log, {})
    log.close()


def test_the_check_sees_a_cut_that_was_not_told(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0", PLANS)
    with pytest.raises(ViolationError, match="told of 0 bytes cut, but 7 are gone"):
        told(APPEND).check(log, {0: log.size_bytes + 7})
    log.close()


HISTORY: Held = {0: (b"a", b"1"), 1: (b"b", b"1"), 2: (b"a", b"2"), 3: (b"b", None), 4: (None, b"n")}


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ({0}, ""),
        ({0, 1}, ""),
        ({1, 3}, ""),
        ({2}, "offset 2 is lost, the latest of its key"),
        ({0, 2}, "offset 2 is lost, the latest of its key"),
        ({3}, "the tombstone at 3 is gone, but what it deletes is there"),
        ({4}, "offset 4 is lost: it has no key"),
    ],
)
def test_the_check_of_a_compacted_log(missing: set[int], said: str) -> None:
    held = {offset: what for offset, what in HISTORY.items() if offset not in missing}
    if said:
        with pytest.raises(ViolationError, match=said):
            check_compacted(HISTORY, held)
    else:
        check_compacted(HISTORY, held)

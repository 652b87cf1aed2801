"""Power fails at every moment of a truncation below the log start, or of all of the log: what opens is a beginning
of what was there or empty, and its epochs and producers are those of the batches in it.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from insync.storage import DiskLog, EpochEntry, LogDirectory, LogSettings
from insync.storage.batch import build_batch, scan

from .building import all_bytes, append
from .recording import DATA, Op, Recorder

SETTINGS = LogSettings(
    segment_bytes=1024, segment_index_bytes=200, index_interval_bytes=100, file_delete_delay_ms=0
)
Change = Callable[[DiskLog], None]


def opened(root: Path) -> LogDirectory:
    return LogDirectory(root, cluster_id="c", node_id=1, settings=SETTINGS)


def grow(log: DiskLog, batches: int, epoch: int) -> None:
    for _ in range(batches):
        base = log.log_end_offset
        data = build_batch(
            [None] * 2,
            [b"%d" % base + bytes(40)] * 2,
            timestamps_ms=1000 + base,
            producer_id=epoch,
            producer_epoch=0,
            base_sequence=base,
        )
        append(log, data, leader_epoch=epoch)


def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@attrs.frozen
class Before:
    """What a log held. Its start lies within the first segment that retention has left."""

    start: int
    end: int
    bases: tuple[int, ...]
    data: bytes


def make(root: Path) -> Before:
    """Segments of several epochs and producers, all flushed but for the last ones."""
    directory = opened(root)
    log = directory.open_log("t", 0, create=True)
    for epoch, batches in ((1, 14), (2, 3), (4, 10)):
        log.assign_epoch(epoch, log.log_end_offset)
        grow(log, batches, epoch)
    log.advance_log_start_offset(log.segment_base_offsets[1] + 4)
    assert log.delete_old_segments(2000, high_watermark=log.log_end_offset) == 1
    log.remove_deleted_files(10**9)
    log.flush()
    grow(log, 7, 4)
    directory.write_checkpoints({})
    assert 0 < log.recovery_point < log.segment_base_offsets[-1]
    before = Before(log.log_start_offset, log.log_end_offset, log.segment_base_offsets, all_bytes(log))
    assert before.bases[0] < before.start < before.bases[1] and len(before.bases) > 3
    directory.close(clean=False)
    return before


def ways(recorder: Recorder, first: int) -> Iterator[tuple[int, Callable[[Op], bool]]]:
    """A kill after each operation; then power loss: of what was not synced all or none of the data, with the names
    up to one of them.
    """
    chance = random.Random(5)
    for at in range(first, len(recorder.ops) + 1):
        yield at, lambda _: True
        open_names = [op for op in recorder.ops[:at] if op.kind != DATA and not recorder.is_synced(op, at)]
        names = {*open_names[: chance.randint(0, len(open_names))]}
        yield at, lambda op, names=names: op in names
        yield at, lambda op, names=names: op.kind == DATA or op in names


def check(log: DiskLog, before: Before, target: int) -> None:
    data = all_bytes(log)
    infos = [each for each in scan(data) if each.next_offset > log.log_start_offset]
    assert log.log_end_offset == (infos[-1].next_offset if infos else log.log_start_offset)
    old = [each for each in infos if each.leader_epoch < 9]
    if old:
        assert log.log_start_offset == before.start
        assert before.data.startswith(data[: sum(each.size_bytes for each in old)])
    elif infos:
        assert log.log_start_offset == infos[0].base_offset
    else:
        assert log.log_start_offset in (before.start, target)
    begun: dict[int, int] = {}
    for info in infos:
        begun.setdefault(info.leader_epoch, max(info.base_offset, log.log_start_offset))
    assert log.epochs == tuple(EpochEntry(*each) for each in begun.items())
    for state in log.producer_states():
        assert all(each.last_offset < log.log_end_offset for each in state.batches)
    known = {state.producer_id: state.batches[-1].last_offset for state in log.producer_states()}
    for info in infos:
        assert known[info.producer_id] >= info.next_offset - 1
    log.append([])
    grow(log, 1, 9)
    assert scan(all_bytes(log))[-1].leader_epoch == 9


def reopens(root: Path, before: Before, target: int, what: object) -> None:
    directory = opened(root)
    try:
        log = directory.open_log("t", 0, create=False)
        check(log, before, target)
    except Exception as error:
        raise AssertionError(f"{what}: {error}") from error
    finally:
        directory.close(clean=False)


TARGETS = {
    "far above": lambda before: before.end + 100,
    "at the end": lambda before: before.end,
    "inside": lambda before: before.bases[2] + 3,
    "below the log start": lambda before: before.bases[0] + 2,
    "below the first segment": lambda before: before.bases[0] - 7,
    "at zero": lambda _: 0,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("fully", [True, False])
def test_a_crash_between_each_two_steps(tmp_path: Path, monkeypatch, name: str, fully: bool) -> None:
    root = tmp_path / "log"
    before = make(root)
    target = TARGETS[name](before)
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(root, patch)
        directory = opened(root)
        log = directory.open_log("t", 0, create=False)
        first = len(recorder.ops)
        log.truncate_fully(target) if fully else log.truncate(target)
        grow(log, 1, 9)
    directory.close(clean=False)
    fast(monkeypatch)
    for at, keep in ways(recorder, first):
        folder = tmp_path / "crash"
        left(recorder, at, keep, folder)
        reopens(folder, before, target, at)


def left(recorder: Recorder, at: int, keep: Callable[[Op], bool], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    recorder.crash(at, keep).put(folder)
    (folder / "t-0").mkdir(parents=True, exist_ok=True)


def test_a_second_crash_while_a_log_is_emptied_because_it_ends_below_its_start(
    tmp_path: Path, monkeypatch
) -> None:
    """Its records were deleted, and then lost those that were not flushed."""
    root = tmp_path / "log"
    with pytest.MonkeyPatch.context() as patch:
        directory = opened(root)
        log = directory.open_log("t", 0, create=True)
        grow(log, 20, 1)
        log.flush()
        directory.write_checkpoints({})
        recorder = Recorder(root, patch)
        grow(log, 2, 1)
        log.advance_log_start_offset(44)
        directory.close(clean=False)
    lost = tmp_path / "lost"
    left(recorder, len(recorder.ops), lambda _: False, lost)
    with pytest.MonkeyPatch.context() as patch:
        again = Recorder(lost, patch)
        directory = opened(lost)
        assert directory.open_log("t", 0, create=False).log_end_offset == 44
        directory.close(clean=False)
    fast(monkeypatch)
    for at, keep in ways(again, 0):
        left(again, at, keep, tmp_path / "crash")
        directory = opened(tmp_path / "crash")
        log = directory.open_log("t", 0, create=False)
        assert (log.log_start_offset, log.log_end_offset, log.epochs) == (44, 44, ()), at
        directory.close(clean=False)

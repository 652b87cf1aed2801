"""Segments that are missing at a log's head: damage, and never taken for what retention has deleted."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from insync.storage import CorruptLogError, DiskLog, LogDirectory, LogSettings, StorageError, verify

from .building import fill
from .recording import DATA, Op, Recorder

SETTINGS = LogSettings(
    segment_bytes=1024, segment_index_bytes=200, index_interval_bytes=100, file_delete_delay_ms=0
)


def opened(root: Path) -> LogDirectory:
    return LogDirectory(root, cluster_id="c", node_id=1, settings=SETTINGS)


def made(root: Path, *, clean: bool) -> tuple[int, ...]:
    directory = opened(root)
    log = directory.open_log("t", 0, create=True)
    fill(log, [3] * 40)
    bases = log.segment_base_offsets
    assert len(bases) > 3
    directory.close(clean)
    return bases


def remove_segments(root: Path, bases: tuple[int, ...]) -> None:
    for base in bases:
        for path in (root / "t-0").glob(f"{base:020d}.*"):
            path.unlink()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_a_missing_head_is_damage(tmp_path: Path, clean: bool, count: int) -> None:
    bases = made(tmp_path, clean=clean)
    remove_segments(tmp_path, bases[:count])
    before = {path: path.read_bytes() for path in (tmp_path / "t-0").glob("*.log")}
    directory = opened(tmp_path)
    with pytest.raises(
        CorruptLogError, match="starts at offset 0, but its first segment starts above"
    ) as info:
        directory.open_log("t", 0, create=False)
    assert info.value.path.endswith(f"{bases[count]:020d}.log")
    assert {path: path.read_bytes() for path in (tmp_path / "t-0").glob("*.log")} == before
    directory.close(clean=False)


def test_a_missing_head_above_what_retention_left_is_damage_too(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    log = directory.open_log("t", 0, create=True)
    fill(log, [3] * 40)
    log.advance_log_start_offset(log.segment_base_offsets[1] + 1)
    log.delete_old_segments(0, high_watermark=log.log_end_offset)
    bases = log.segment_base_offsets
    directory.close(clean=False)
    remove_segments(tmp_path, bases[:1])
    directory = opened(tmp_path)
    with pytest.raises(CorruptLogError, match=f"starts at offset {bases[0] + 1}"):
        directory.open_log("t", 0, create=False)
    directory.close(clean=False)
    (defect,) = [each for each in verify(tmp_path).defects if "first segment" in each.reason]
    assert defect.offset == bases[0] + 1


def test_what_was_written_elsewhere_may_begin_anywhere(tmp_path: Path) -> None:
    """A folder that was brought here, and one of Kafka's: nothing is known of where their logs begin."""
    bases = made(tmp_path / "one", clean=False)
    remove_segments(tmp_path / "one", bases[:1])
    opened(tmp_path / "two").close()
    shutil.move(tmp_path / "one" / "t-0", tmp_path / "two" / "t-0")
    directory = opened(tmp_path / "two")
    assert directory.open_log("t", 0, create=False).log_start_offset == bases[1]
    directory.close()


def sooner_and_later(recorder: Recorder, first: int) -> list[tuple[int, Callable[[Op], bool]]]:
    """A kill after each operation; power failures that keep unsynced data, and unsynced names up to one of them."""
    chance = random.Random(7)
    ways: list[tuple[int, Callable[[Op], bool]]] = []
    for at in range(first, len(recorder.ops) + 1):
        ways.append((at, lambda _: True))
        names = [op for op in recorder.ops[:at] if op.kind != DATA and not recorder.is_synced(op, at)]
        for _ in range(3):
            kept = {*names[: chance.randint(0, len(names))]}
            ways.append((at, lambda op, kept=kept: op.kind == DATA or op in kept))
    return ways


def deletes(log: DiskLog) -> None:
    assert log.delete_old_segments(10**9, retention_bytes=1100, high_watermark=log.log_end_offset) > 1
    log.remove_deleted_files(10**9)


def goes_on_later(log: DiskLog) -> None:
    log.truncate_fully(log.log_end_offset + 50)
    fill(log, [3] * 4)


def goes_on_earlier(log: DiskLog) -> None:
    log.truncate_fully(log.segment_base_offsets[0] + 2)
    fill(log, [3] * 4)


CHANGES = {each.__name__: each for each in (deletes, goes_on_later, goes_on_earlier)}


@pytest.mark.parametrize("name", CHANGES)
def test_no_crash_looks_like_a_missing_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root = tmp_path / "log"
    made(root, clean=True)
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(root, patch)
        directory = opened(root)
        log = directory.open_log("t", 0, create=False)
        first = len(recorder.ops)
        CHANGES[name](log)
        start = log.log_start_offset
    directory.close(clean=False)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for at, keep in sooner_and_later(recorder, first):
        folder = tmp_path / "crash"
        shutil.rmtree(folder, ignore_errors=True)
        recorder.crash(at, keep).put(folder)
        (folder / "t-0").mkdir(parents=True, exist_ok=True)
        directory = opened(folder)
        try:
            log = directory.open_log("t", 0, create=False)
        except StorageError as error:
            raise AssertionError(f"{name}, after {at} operations: {error}") from error
        assert log.log_start_offset in (0, start), at
        directory.close(clean=False)

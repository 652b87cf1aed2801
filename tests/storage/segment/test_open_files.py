"""Descriptors, threads and waits for the device with a thousand partitions in one folder."""

from __future__ import annotations

import errno
import gc
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from insync.storage import (
    LogDirectory,
    LogSettings,
    StorageBrokenError,
    TooManyOpenFilesError,
    directory,
    disk_log,
)
from insync.storage.file_range import RangeFile
from insync.storage.segment import _open_files
from insync.storage.segment._open_files import OPEN_FILES, OpenFiles

from ..building import append, batch, offsets
from ..recording import Recorder

PARTITIONS = 1000


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(OPEN_FILES, "_limit", 50)
    return 50


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def open_directory(folder: Path, settings: LogSettings | None = None) -> LogDirectory:
    return LogDirectory(folder, cluster_id="c", node_id=1, settings=settings)


@pytest.mark.slow
def test_a_thousand_partitions_hold_few_files_open_and_no_threads(tmp_path: Path, limit: int) -> None:
    gc.collect()
    for _ in range(2):
        OPEN_FILES.trim()
    before, threads = descriptors(), threading.active_count()
    held = open_directory(tmp_path, LogSettings(index_interval_bytes=0))
    logs = [held.open_log("t", number, create=True) for number in range(PARTITIONS)]
    assert descriptors() - before <= limit + 5
    for log in logs:
        append(log, batch(2), batch(3))
    assert descriptors() - before > PARTITIONS - limit, "what was written and not flushed must stay open"
    for look in range(2):
        held.flush_due(float(look))
    assert descriptors() - before <= limit + 5
    assert PARTITIONS - [log.recovery_point for log in logs].count(5) <= limit, "the others are closed"
    assert all(offsets(log) == [0, 1, 2, 3, 4] for log in logs)
    append(logs[7], batch(1))
    assert offsets(logs[7])[-1] == 5
    assert descriptors() - before <= limit + 5
    assert threading.active_count() <= threads
    held.close()
    del logs, log, held
    gc.collect()
    assert descriptors() <= before + 1
    again = open_directory(tmp_path)
    ends = [again.open_log("t", number, create=False).log_end_offset for number in range(PARTITIONS)]
    assert ends == [6 if number == 7 else 5 for number in range(PARTITIONS)]
    assert descriptors() - before <= limit + 5
    again.close()


def test_a_range_outlives_the_closing_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPEN_FILES, "_limit", 1)
    held = open_directory(tmp_path)
    logs = [held.open_log("t", number, create=True) for number in range(5)]
    for log in logs:
        append(log, batch(1, mark=log.name))
        log.flush()
    ranges = [log.read(0, max_bytes=1000).range for log in logs]
    OPEN_FILES.trim()
    OPEN_FILES.trim()
    assert [
        log.name.encode() in each.read_bytes() for log, each in zip(logs, ranges, strict=True) if each
    ] == [True] * 5
    held.close()


def test_a_file_with_unsynced_bytes_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPEN_FILES, "_limit", 0)
    held = open_directory(tmp_path)
    log = held.open_log("t", 0, create=True)
    append(log, batch(1))
    segment = log._segments[-1]
    for _ in range(3):
        OPEN_FILES.trim()
        assert segment._file is not None
    log.flush()
    OPEN_FILES.trim()
    OPEN_FILES.trim()
    assert segment._file is None
    held.close()


@pytest.mark.parametrize("gone", ["deleted", "set aside"])
def test_a_file_that_lost_its_name_is_read_on_though_another_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    monkeypatch.setattr(OPEN_FILES, "_limit", 0)
    held = open_directory(tmp_path)
    log = held.open_log("t", 0, create=True)
    append(log, batch(1, mark="old"))
    log.flush()
    segment, path = log._segments[-1], log._segments[-1].path
    for _ in range(2):
        OPEN_FILES.trim()
    assert segment._file is None
    if gone == "deleted":
        segment.delete()
    else:
        segment.set_aside()
    path.write_bytes(b"another segment of that name")
    for _ in range(3):
        OPEN_FILES.trim()
        assert b"old" in os.pread(segment.file.fileno(), 200, 0)
    held.close(clean=False)


def test_few_are_flushed_where_few_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush waits for the device several times; one file too many was a reason to flush all that were idle."""
    # What earlier tests have left open may be collected at any time, and would make room.
    monkeypatch.setattr(OPEN_FILES, "_holders", {})
    monkeypatch.setattr(OPEN_FILES, "_limit", 295)
    held = open_directory(tmp_path)
    logs = [held.open_log("t", number, create=True) for number in range(300)]
    for log in logs:
        append(log, batch(1))
    for look in range(4):
        held.flush_due(float(look))
    assert not OPEN_FILES.is_over
    assert 5 <= [log.recovery_point for log in logs].count(1) <= 2 * directory._LOOK_AGAIN
    held.close()


def test_a_flush_that_finds_no_descriptor_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = open_directory(tmp_path, LogSettings(flush_interval_ms=1, segment_bytes=1024))
    log = held.open_log("t", 0, create=True)
    append(log, batch(1, mark="x" * 1000))
    append(log, batch(1))
    assert len(log.segment_base_offsets) == 2

    def none_left(folder: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as short:
        short.setattr(disk_log, "fsync_folder", none_left)
        failures = held.flush_due(1e9)
        assert isinstance(failures["t", 0], TooManyOpenFilesError)
        assert "ulimit -n" in str(failures["t", 0])
    assert log.recovery_point == 0
    append(log, batch(1))
    synced: list[Path] = []
    monkeypatch.setattr(disk_log, "fsync_folder", synced.append)
    assert held.flush_due(2e9) == {}
    assert log.recovery_point == 3 and synced == [tmp_path / "t-0"]
    held.close()


@pytest.mark.parametrize("half_done", ["a truncation", "an append that cannot be undone"])
def test_a_log_that_a_want_of_descriptors_leaves_half_done_blames_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_done: str
) -> None:
    held = open_directory(tmp_path, LogSettings(segment_bytes=1024))
    log = held.open_log("t", 0, create=True)
    append(log, batch(1, mark="x" * 1000))

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as short:
        short.setattr(disk_log.DiskLog, "_cut_files", none_left)
        short.setattr(disk_log.DiskLog, "_begin_segment", none_left)
        with pytest.raises(TooManyOpenFilesError, match="Too many open files"):
            if half_done == "a truncation":
                log.truncate(0)
            append(log, batch(1, mark="y" * 1000))
    with pytest.raises(TooManyOpenFilesError, match="restart the node"):
        append(log, batch(1))
    with pytest.raises(TooManyOpenFilesError, match="restart the node"):
        log.flush()
    held.close(clean=False)


def test_a_read_that_finds_no_descriptor_is_refused_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OPEN_FILES, "_limit", 0)
    held = open_directory(tmp_path)
    log = held.open_log("t", 0, create=True)
    append(log, batch(1))
    log.flush()
    for _ in range(2):
        OPEN_FILES.trim()

    def none_left(path: Path, *, create: bool = False) -> RangeFile:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as short:
        short.setattr(RangeFile, "open", none_left)
        with pytest.raises(TooManyOpenFilesError, match=r"cannot read .*ulimit -n"):
            log.read(0, max_bytes=1000)
    assert offsets(log) == [0]
    held.close()


def test_who_was_used_gets_a_second_chance() -> None:
    class File:
        def __init__(self) -> None:
            self.used = True

        def let_go(self) -> bool:
            was, self.used = self.used, False
            return not was

    files = OpenFiles(limit=2)
    one, two, three = File(), File(), File()
    for each in (one, two):
        files.add(each)
    one.used = two.used = False
    one.used = True
    files.add(three)
    assert [reference() for reference in files._holders.values()] == [three, one]
    del one
    gc.collect()
    files.add(two)
    assert len(files) == 2


def test_the_limit_leaves_most_descriptors_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, expected in ((1024, 256), (20000, 10000), (65536, 20000), (100, 64), (-1, 20000)):
        monkeypatch.setattr(_open_files.resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert _open_files.default_limit() == expected


def test_a_clean_stop_of_many_logs_waits_for_the_device_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = open_directory(tmp_path)
    for number in range(200):
        append(held.open_log("t", number, create=True), batch(2, producer_id=3, base_sequence=0))
    waits: Counter[str] = Counter()
    fsync, sync_filesystem = os.fsync, directory.sync_filesystem

    def count_fsync(fd: int) -> None:
        waits["files"] += 1
        fsync(fd)

    def count_all(fd: int) -> None:
        waits["all"] += 1
        sync_filesystem(fd)

    monkeypatch.setattr(os, "fsync", count_fsync)
    monkeypatch.setattr(directory, "sync_filesystem", count_all)
    held.close()
    assert waits["all"] == 1
    assert waits["files"] <= 10, "the checkpoints and the marker"
    again = open_directory(tmp_path)
    logs = [again.open_log("t", number, create=False) for number in range(200)]
    assert all(log.recovery.clean and log.recovery_point == 2 for log in logs)
    assert all(log.producer_states() for log in logs)
    waits.clear()
    again.close()
    assert waits["all"] == 0, "nothing was written"


def test_power_lost_after_a_clean_stop_of_many_logs_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with monkeypatch.context() as patch:
        recorder = Recorder(data, patch)
        patch.setattr(directory, "sync_filesystem", lambda fd: recorder.sync_all())
        held = open_directory(data)
        for number in range(directory.MANY_LOGS):
            append(held.open_log("t", number, create=True), batch(2))
        held.close()
    left = tmp_path / "left"
    left.mkdir()
    recorder.crash(len(recorder.ops), lambda op: False).put(left)
    again = open_directory(left)
    assert again.was_clean
    for number in range(directory.MANY_LOGS):
        log = again.open_log("t", number, create=False)
        assert log.recovery.clean
        assert offsets(log) == [0, 1]
    again.close()


@pytest.mark.parametrize("error", [5, 38])
def test_a_device_that_fails_at_the_last_wait_leaves_no_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def fail(fd: int) -> None:
        raise OSError(error, os.strerror(error))

    held = open_directory(tmp_path)
    for number in range(directory.MANY_LOGS):
        append(held.open_log("t", number, create=True), batch(2))
    monkeypatch.setattr(directory, "sync_filesystem", fail)
    if error == 38:
        held.close()
        assert open_directory(tmp_path).was_clean, "without such a call every log waits for itself"
        return
    with pytest.raises(StorageBrokenError, match=r"cannot flush .* to the device: Input/output error"):
        held.close()
    assert not open_directory(tmp_path).was_clean

"""Rolling by time, retention as settings have it, the log start, and places in files that are not used twice."""

from __future__ import annotations

import os
import time
from pathlib import Path

import attrs
import pytest

from insync.storage import (
    Chunk,
    DiskLog,
    EpochEntry,
    Log,
    LogClosedError,
    LogDirectory,
    LogSettings,
    StorageError,
)
from insync.storage import _files as files
from insync.storage.batch import build_batch, scan

from .building import all_bytes, append, batch, fill, offsets, open_disk, table_text
from .memory_log import MemoryLog

SETTINGS = LogSettings(segment_bytes=1024, file_delete_delay_ms=1000)


def put(log: Log, at: int, *, size: int = 20) -> None:
    append(log, build_batch([None] * 2, [b"x" * size] * 2, timestamps_ms=at))


def opened(kind: str, folder: Path, settings: LogSettings) -> Log:
    return open_disk(folder / "t-0", settings) if kind == "disk" else MemoryLog("t", 0, settings=settings)


@pytest.fixture(params=["disk", "memory"])
def kind(request) -> str:
    return request.param


def bases(log: Log) -> tuple[int, ...]:
    assert isinstance(log, (DiskLog, MemoryLog))
    return log.segment_base_offsets


# Rolling


def test_a_batch_much_younger_than_the_segments_first_begins_the_next(kind: str, tmp_path: Path) -> None:
    log = opened(kind, tmp_path, LogSettings(segment_ms=100))
    for at in (1000, 1100, 1050, 1101, 900, 1201, 1202):
        put(log, at)
    assert bases(log) == (0, 6, 12)
    log.configure(LogSettings(segment_ms=10))
    put(log, 1213)
    assert bases(log) == (0, 6, 12, 14)
    log.close()


def test_the_age_is_known_again_after_a_restart(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LogSettings(segment_ms=100))
    put(log, 1000)
    put(log, 1090)
    log.close()
    log = open_disk(tmp_path / "t-0", LogSettings(segment_ms=100))
    put(log, 1100)
    put(log, 1101)
    assert bases(log) == (0, 6)
    log.close()


def test_without_timestamps_the_clock_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr("insync.storage.segment._segment.time.monotonic", lambda: now[0])
    log = open_disk(tmp_path / "t-0", LogSettings(segment_ms=1000))
    put(log, -1)
    now[0] += 1.0
    put(log, -1)
    assert bases(log) == (0,)
    now[0] += 0.001
    put(log, -1)
    assert bases(log) == (0, 4)
    log.close()


def test_an_empty_segment_has_no_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes all that one append brings, however long it has waited for it."""
    now = [time.monotonic()]
    monkeypatch.setattr("insync.storage.segment._segment.time.monotonic", lambda: now[0])
    log = open_disk(tmp_path / "t-0", LogSettings(segment_ms=1000))
    now[0] += 5
    undated = build_batch([None], [b"x"], timestamps_ms=-1)
    log.append([Chunk(undated, scan(undated), at, 0) for at in range(3)])
    assert bases(log) == (0,) and offsets(log) == [0, 1, 2]
    log.close()


def test_jitter_closes_segments_earlier(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LogSettings(segment_ms=1000, segment_jitter_ms=1000))
    for at in range(0, 200_000, 100):
        put(log, at)
    ages = {(after - before) * 50 for before, after in zip(bases(log), bases(log)[1:], strict=False)}
    assert len(ages) > 4
    assert max(ages) <= 1100
    log.close()


def test_a_compacted_log_is_rolled_within_the_greatest_lag() -> None:
    settings = LogSettings(cleanup_policy="compact", max_compaction_lag_ms=50)
    log = MemoryLog("t", 0, settings=settings)
    put(log, 1000)
    put(log, 1051)
    assert bases(log) == (0, 2)


# Retention


def test_the_settings_say_what_goes(kind: str, tmp_path: Path) -> None:
    log = opened(kind, tmp_path, attrs.evolve(SETTINGS, retention_ms=200))
    for at in range(1000, 1600, 10):
        put(log, at)
    before = bases(log)
    done = log.maintain(1600, high_watermark=before[1])
    assert (done.segments_deleted, done.log_start_offset) == (1, before[1])
    done = log.maintain(1600, high_watermark=120)
    assert done.log_start_offset == log.log_start_offset == bases(log)[0] == offsets(log)[0]
    assert 1600 - 200 - 140 < 1000 + 5 * done.log_start_offset <= 1600 - 200
    log.configure(attrs.evolve(SETTINGS, retention_ms=-1, retention_bytes=1000))
    assert log.maintain(1600, high_watermark=120).segments_deleted > 0
    assert 1000 <= log.size_bytes < 2000
    log.configure(attrs.evolve(SETTINGS, cleanup_policy="compact", retention_ms=0, retention_bytes=0))
    assert log.maintain(9999, high_watermark=0).segments_deleted == 0
    log.close()


def test_an_idle_segment_goes_too(kind: str, tmp_path: Path) -> None:
    log = opened(kind, tmp_path, attrs.evolve(SETTINGS, retention_ms=500))
    put(log, 1000)
    assert log.maintain(1500, high_watermark=2).segments_deleted == 0
    assert log.maintain(1501, high_watermark=1).segments_deleted == 0
    assert log.maintain(1501, high_watermark=2).segments_deleted == 1
    assert (log.log_start_offset, log.log_end_offset, all_bytes(log)) == (2, 2, b"")
    put(log, 1600)
    assert offsets(log) == [2, 3]
    log.close()


def test_what_lies_below_the_log_start_goes_under_any_policy(kind: str, tmp_path: Path) -> None:
    log = opened(
        kind, tmp_path, attrs.evolve(SETTINGS, cleanup_policy="compact", min_cleanable_dirty_ratio=1.0)
    )
    for at in range(1000, 1300, 10):
        put(log, at)
    start = bases(log)[2] + 1
    log.advance_log_start_offset(start)
    assert log.maintain(1300, high_watermark=60).segments_deleted == 2
    assert (log.log_start_offset, bases(log)[0]) == (start, start - 1)
    assert offsets(log) == list(range(start, 60)), "the first batch begins below"
    log.close()


def test_a_closed_log_is_not_maintained(kind: str, tmp_path: Path) -> None:
    log = opened(kind, tmp_path, SETTINGS)
    log.close()
    with pytest.raises(LogClosedError):
        log.maintain(1, high_watermark=0)


# The log start


def test_the_log_start_survives_a_kill(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, settings=SETTINGS)
    log = directory.open_log("t", 0, create=True)
    fill(log, [2, 5, 3], leader_epoch=1)
    log.advance_log_start_offset(4)
    assert table_text(tmp_path / "log-start-offset-checkpoint") == "0\n1\nt 0 4\n"
    directory.close(clean=False)
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, settings=SETTINGS)
    log = directory.open_log("t", 0, create=False)
    assert (log.log_start_offset, offsets(log), log.epochs) == (4, list(range(4, 10)), (EpochEntry(1, 4),))
    directory.close()


def test_a_log_start_that_cannot_be_written_down_is_not_taken(tmp_path: Path, monkeypatch) -> None:
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, settings=SETTINGS)
    log = directory.open_log("t", 0, create=True)
    fill(log, [2, 5, 3])

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", refuse)
        with pytest.raises(StorageError, match="cannot write the checkpoints"):
            log.advance_log_start_offset(4)
    assert (log.log_start_offset, offsets(log)) == (0, list(range(10)))
    directory.close()


# Ranges over truncation


@pytest.mark.parametrize("keep", [0, 1, 4, 9])
def test_behind_a_cut_a_held_range_shows_nothing_new(kind: str, tmp_path: Path, keep: int) -> None:
    log = opened(kind, tmp_path, LogSettings())
    ends = [*fill(log, [3] * 10), 30]
    held = log.read(0, max_bytes=10**6).range
    assert held is not None
    before = held.read_bytes()
    size = len(before) // 10 * keep
    log.truncate(ends[keep])
    for at in range(20):
        append(log, batch(3, mark=f"new{at}:"))
        assert held.read_bytes() in (before, before[:size]), "the same, or no more"
    assert offsets(log) == list(range(ends[keep] + 60))
    assert all_bytes(log)[:size] == before[:size]
    log.close(clean=False)
    if kind == "disk":
        log = open_disk(tmp_path / "t-0", LogSettings())
        assert offsets(log) == list(range(ends[keep] + 60))
        log.close()


def test_nor_after_a_truncation_of_everything(kind: str, tmp_path: Path) -> None:
    log = opened(kind, tmp_path, LogSettings())
    fill(log, [3] * 10)
    held = log.read(0, max_bytes=10**6).range
    assert held is not None
    before = held.read_bytes()
    log.truncate_fully(0)
    fill(log, [4] * 10)
    assert held.read_bytes() == before
    log.close()


def test_queued_bytes_are_never_replaced_by_others(tmp_path: Path) -> None:
    """A small batch in the last, half-filled page is where a file that is written again would show."""
    log = open_disk(tmp_path / "t-0", LogSettings())
    fill(log, [1, 1])
    fd = os.dup(log.read(1, max_bytes=10**6).range.fileno())  # type: ignore[union-attr]
    place = log.read(1, max_bytes=10**6).range
    assert place is not None
    log.truncate(1)
    append(log, batch(1, mark="other"))
    assert os.pread(fd, place.length, place.offset) == b""
    os.close(fd)
    log.close()

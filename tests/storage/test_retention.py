"""Deleting old segments: which, in what order, and what readers and restarts see of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from insync.storage import (
    DiskLog,
    EpochEntry,
    LogDirectory,
    LogSettings,
    OffsetOutOfRangeError,
    StorageError,
)
from insync.storage import _files as files
from insync.storage.batch import build_batch

from .building import append, offsets, open_disk, table_text

SETTINGS = LogSettings(segment_bytes=1024, file_delete_delay_ms=1000)


def filled(log: DiskLog, batches: int = 60) -> DiskLog:
    """Batches of two records, 10 ms apart from 1000 on; every twenty a leader epoch begins."""
    for at in range(batches):
        data = build_batch([None] * 2, [b"x" * 20] * 2, timestamps_ms=1000 + 10 * at)
        append(log, data, leader_epoch=at // 20)
    return log


def opened(folder: Path) -> DiskLog:
    return filled(open_disk(folder / "t-0", SETTINGS))


def names(folder: Path, pattern: str) -> list[int]:
    return sorted(int(path.name.partition(".")[0]) for path in folder.glob(pattern))


def test_nothing_goes_without_a_limit(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert len(log.segment_base_offsets) > 5
    assert log.delete_old_segments(10**9, high_watermark=120) == 0
    assert log.delete_old_segments(1000, retention_ms=1000, retention_bytes=10**6, high_watermark=120) == 0
    log.close()


def test_by_time_whole_segments_go_whose_last_batch_is_too_old(tmp_path: Path) -> None:
    log = opened(tmp_path)
    bases = log.segment_base_offsets
    newest_of_second = 1000 + 10 * (bases[2] // 2 - 1)
    assert log.delete_old_segments(newest_of_second + 500, retention_ms=500, high_watermark=120) == 1
    assert log.segment_base_offsets == bases[1:]
    assert log.delete_old_segments(newest_of_second + 501, retention_ms=500, high_watermark=120) == 1
    assert (log.log_start_offset, log.segment_base_offsets) == (bases[2], bases[2:])
    assert offsets(log) == list(range(bases[2], 120))
    with pytest.raises(OffsetOutOfRangeError):
        log.read(bases[2] - 1, max_bytes=100)
    assert log.delete_old_segments(10**9, retention_ms=0, high_watermark=120) == len(bases) - 3
    assert log.segment_base_offsets == bases[-1:], "the last one stays"
    log.close()


def test_by_size_at_least_the_limit_is_left(tmp_path: Path) -> None:
    log = opened(tmp_path)
    bases, size = log.segment_base_offsets, log.size_bytes
    first = log.read(0, max_bytes=1 << 20).size
    assert log.delete_old_segments(0, retention_bytes=size - first + 1, high_watermark=120) == 0
    assert log.delete_old_segments(0, retention_bytes=size - first, high_watermark=120) == 1
    assert (log.size_bytes, log.log_start_offset) == (size - first, bases[1])
    log.close()


def test_nothing_above_the_high_watermark_goes(tmp_path: Path) -> None:
    log = opened(tmp_path)
    bases = log.segment_base_offsets
    assert log.delete_old_segments(10**9, retention_ms=0, high_watermark=bases[2] - 1) == 1
    assert log.delete_old_segments(10**9, retention_ms=0, high_watermark=bases[2]) == 1
    log.close()


def test_what_lies_below_the_log_start_goes(tmp_path: Path) -> None:
    log = opened(tmp_path)
    bases = log.segment_base_offsets
    log.advance_log_start_offset(bases[2] + 1)
    assert log.delete_old_segments(0, high_watermark=120) == 2
    assert (log.log_start_offset, log.segment_base_offsets) == (bases[2] + 1, bases[2:])
    log.close()


def test_files_and_ranges_outlive_the_deletion(tmp_path: Path) -> None:
    log = opened(tmp_path)
    range_ = log.read(0, max_bytes=300).range
    assert range_ is not None
    content = range_.read_bytes()
    count = log.delete_old_segments(10_000, retention_ms=0, high_watermark=120)
    assert len(list((tmp_path / "t-0").glob("*.deleted"))) == 3 * count > 3
    assert log.remove_deleted_files(10_999) == 0
    assert range_.read_bytes() == content
    assert log.remove_deleted_files(11_000) == 3 * count
    assert log.remove_deleted_files(99_000) == 0
    assert not list((tmp_path / "t-0").glob("*.deleted"))
    assert range_.read_bytes() == content
    log.close()


def test_epochs_and_snapshots_follow(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.delete_old_segments(1900, retention_ms=100, high_watermark=120)
    start = log.log_start_offset
    assert 80 < start < 120
    assert log.epochs == (EpochEntry(2, start),)
    assert names(tmp_path / "t-0", "*.snapshot")[0] == start
    log.close()


def test_files_without_timestamps_age_by_their_own(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", SETTINGS)
    for _ in range(20):
        append(log, build_batch([None], [b"x" * 100], timestamps_ms=-1))
    for path in (tmp_path / "t-0").glob("*.log"):
        os.utime(path, (5, 5))
    assert log.delete_old_segments(5999, retention_ms=1000, high_watermark=20) == 0
    assert log.delete_old_segments(6001, retention_ms=1000, high_watermark=20) > 0
    log.close()


def test_the_log_start_is_written_down_before_any_file_goes(tmp_path: Path, monkeypatch) -> None:
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, settings=SETTINGS)
    log = filled(directory.open_log("t", 0, create=True))
    bases = log.segment_base_offsets
    checkpoint = tmp_path / "log-start-offset-checkpoint"
    seen: list[str] = []
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        seen.append(table_text(checkpoint))
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        assert log.delete_old_segments(0, retention_bytes=0, high_watermark=bases[3]) == 3
    assert seen == [f"0\n1\nt 0 {bases[3]}\n"] * 9

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", refuse)
        with pytest.raises(StorageError, match="cannot write the checkpoints"):
            log.delete_old_segments(0, retention_bytes=0, high_watermark=120)
    assert (log.log_start_offset, log.segment_base_offsets) == (bases[3], bases[3:])
    assert offsets(log) == list(range(bases[3], 120))
    directory.close()


@pytest.mark.parametrize("gone", [(), (0,), (1,), (2,), (0, 2)])
def test_an_interrupted_deletion_is_finished_at_the_next_start(tmp_path: Path, gone: tuple[int, ...]) -> None:
    log = opened(tmp_path)
    bases = log.segment_base_offsets
    log.close()
    for at in gone:
        (tmp_path / "t-0" / f"{bases[at]:020d}.log").unlink()
    log = open_disk(tmp_path / "t-0", SETTINGS, log_start_offset=bases[3])
    assert log.segment_base_offsets == bases[3:]
    assert offsets(log) == list(range(bases[3], 120))
    assert names(tmp_path / "t-0", "*.index")[0] == bases[3]
    log.close()


def test_a_log_that_starts_lower_than_before_is_remembered_so(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, settings=SETTINGS)
    log = filled(directory.open_log("t", 0, create=True))
    log.advance_log_start_offset(100)
    directory.write_checkpoints({})
    log.truncate_fully(40)
    filled(log, 40)
    directory.close(clean=False)
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, settings=SETTINGS)
    assert offsets(directory.open_log("t", 0, create=False)) == list(range(40, 120))
    directory.close()

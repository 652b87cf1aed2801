"""Devices that fill up, fail or write less than asked: the log stays as it was, and says what happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from insync.storage import (
    Chunk,
    LogSettings,
    StorageBrokenError,
    StorageFullError,
)
from insync.storage import _files as files
from insync.storage.batch import scan

from .building import all_bytes, append, batch, fill, offsets, open_disk


def test_a_full_device_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [2] * 5)
    before, files_before = all_bytes(log), _log_bytes(tmp_path / "t-0")
    real, written = os.pwritev, 0

    def full(fd: int, buffers, position: int) -> int:
        nonlocal written
        if written:
            raise OSError(28, "No space left on device")
        written = real(fd, [bytes(buffers[0])[:30]], position)
        return written

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "pwritev", full)
        with pytest.raises(StorageFullError, match="No space left on device; free some space"):
            append(log, batch(3))
    assert written == 30
    assert (log.log_end_offset, all_bytes(log)) == (10, before)
    assert _log_bytes(tmp_path / "t-0") == files_before
    fill(log, [2] * 5)
    assert offsets(log) == list(range(20))
    log.close()


def test_a_device_filling_up_after_a_roll_takes_the_new_segment_back(tmp_path: Path, monkeypatch) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [2] * 10)
    before, bases = all_bytes(log), log.segment_base_offsets
    real, calls = os.pwritev, 0

    def full(fd: int, buffers, position: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(28, "No space left on device")
        return real(fd, buffers, position)

    data = batch(2, size=200)
    chunks = [Chunk(data, scan(data), 20 + 2 * at, 0) for at in range(12)]
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "pwritev", full)
        with pytest.raises(StorageFullError):
            log.append(chunks)
    assert (log.log_end_offset, all_bytes(log), log.segment_base_offsets) == (20, before, bases)
    log.append(chunks)
    assert offsets(log) == list(range(44))
    log.close()


def _log_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def test_short_writes_are_continued(tmp_path: Path, monkeypatch) -> None:
    real = os.pwritev

    def short(fd: int, buffers, position: int) -> int:
        joined = b"".join(bytes(each) for each in buffers)
        return real(fd, [joined[:7]], position)

    log = open_disk(tmp_path / "t-0")
    data = batch(3) + batch(2)
    monkeypatch.setattr(files.os, "pwritev", short)
    append(log, data, batch(1))
    assert offsets(log) == list(range(6))
    log.close()


def test_more_chunks_than_one_gathered_write_takes(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LogSettings())
    data = batch(1)
    infos = scan(data)
    log.append([Chunk(data, infos, at, 0) for at in range(2500)])
    assert offsets(log) == list(range(2500))
    log.close()


def test_a_broken_device_stops_all_writing(tmp_path: Path, monkeypatch) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [2])

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "pwritev", broken)
        with pytest.raises(StorageBrokenError, match="Input/output error; check the device"):
            append(log, batch())
    for use in (lambda: append(log, batch()), lambda: log.truncate(0), log.flush):
        with pytest.raises(StorageBrokenError, match="Input/output error"):
            use()
    assert offsets(log) == [0, 1], "reading goes on"
    log.close()


def test_a_failed_fsync_moves_no_recovery_point(tmp_path: Path, monkeypatch) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [2])

    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", broken)
        with pytest.raises(StorageBrokenError):
            log.flush()
    assert log.recovery_point == 0
    with pytest.raises(StorageBrokenError):
        log.flush()
    log.close()


def test_a_real_file_size_limit(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from tests.storage.building import *
from insync.storage import StorageFullError
log = open_disk(Path(sys.argv[1]), LogSettings(segment_index_bytes=800))
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    fill(log, [2] * 100)
except StorageFullError as error:
    print(log.log_end_offset, log.size_bytes)
    log.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "t-0")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    end, size = map(int, done.stdout.split())
    assert size <= 5000
    log = open_disk(tmp_path / "t-0", clean=True, recovery_point=end)
    assert log.recovery.clean
    assert offsets(log) == list(range(end))
    log.close()

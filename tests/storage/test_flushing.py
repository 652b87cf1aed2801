"""When logs are brought to the device, by whom, and that nobody waits for it who must not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from insync.storage import DiskLog, LogDirectory, LogSettings, StorageBrokenError
from insync.storage import _files as files

from .building import SMALL, append, batch, fill, offsets, open_disk, table_text


@pytest.fixture
def fsynced(monkeypatch) -> list[str]:
    """Names of what was fsynced, in order."""
    names: list[str] = []
    real = os.fsync

    def noting(fd: int) -> None:
        real(fd)
        names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)

    monkeypatch.setattr(files.os, "fsync", noting)
    return names


class SlowDevice:
    """Holds up `fsync` until it is let go."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._real = os.fsync

    def fsync(self, fd: int) -> None:
        self.reached.set()
        assert self.go_on.wait(20)
        self._real(fd)


@pytest.fixture
def slow(monkeypatch) -> Iterator[SlowDevice]:
    device = SlowDevice()
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", device.fsync)
        yield device
        device.go_on.set()


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_a_roll_makes_the_closed_segment_due(tmp_path: Path, fsynced: list[str]) -> None:
    told: list[int] = []
    log = open_disk(tmp_path / "t-0", on_flush_due=lambda: told.append(log.log_end_offset))
    log.assign_epoch(0, 0)
    while len(log.segment_base_offsets) < 3:
        assert bool(told) == (len(log.segment_base_offsets) > 1)
        at = log.log_end_offset
        append(log, batch(2, producer_id=1, producer_epoch=0, base_sequence=at))
    assert told[0] == log.segment_base_offsets[1] + 2
    assert log.flush_due(time.monotonic()) == log.segment_base_offsets[-1]
    del fsynced[:]
    log.flush(log.segment_base_offsets[-1])
    assert log.recovery_point == log.segment_base_offsets[-1] < log.log_end_offset
    assert log.flush_due(time.monotonic()) is None
    expected = []
    for base, following in zip(log.segment_base_offsets, log.segment_base_offsets[1:], strict=False):
        expected += [f"{base:020d}.log", f"{base:020d}.index", f"{base:020d}.timeindex"]
        expected += [f"{following:020d}.snapshot"]
    # The leader epochs are saved with the first recovery point above them, once.
    assert fsynced == [*expected, "t-0", "leader-epoch-checkpoint.tmp", "t-0"]
    del fsynced[:]
    log.flush()
    # The segment before it ends where all was flushed, and may have been cut there. The folder has their names.
    assert fsynced == [f"{base:020d}.log" for base in log.segment_base_offsets[-2:]]
    append(log, batch(1))
    del fsynced[:]
    log.flush()
    assert fsynced == [f"{log.segment_base_offsets[-1]:020d}.log"]
    assert log.recovery_point == log.log_end_offset
    log.close(clean=False)


def test_the_folder_is_fsynced_once_for_each_new_name(tmp_path: Path, fsynced: list[str]) -> None:
    log = open_disk(tmp_path / "t-0")
    log.assign_epoch(0, 0)
    fill(log, [1])
    log.flush()
    del fsynced[:]
    fill(log, [1])
    log.flush()
    assert fsynced == [f"{0:020d}.log"]
    while len(log.segment_base_offsets) < 2:
        fill(log, [1])
    log.flush()
    assert fsynced[-1] == "t-0" and fsynced.count("t-0") == 1
    log.truncate(log.segment_base_offsets[-1] - 1)
    fill(log, [1])
    log.flush()
    assert fsynced[-1] == "t-0"
    log.close(clean=False)
    log = open_disk(tmp_path / "t-0", recovery_point=log.recovery_point)
    fill(log, [1])
    del fsynced[:]
    log.flush()
    assert fsynced[-1] == "t-0", "another process may have made what this one has found"
    log.close(clean=False)


def test_what_a_flushed_log_finds_when_it_is_opened_is_flushed(tmp_path: Path, fsynced: list[str]) -> None:
    """The process that wrote it may have been killed before its flush."""
    log = open_disk(tmp_path / "t-0")
    fill(log, [2])
    log.close(clean=False)
    del fsynced[:]
    log = open_disk(tmp_path / "t-0")
    assert (log.recovery_point, log.log_end_offset) == (0, 2) and f"{0:020d}.log" not in fsynced
    log.close(clean=False)
    log = open_disk(tmp_path / "t-0", LogSettings(durability="flushed"))
    assert (log.recovery_point, log.log_end_offset) == (2, 2) and f"{0:020d}.log" in fsynced
    log.close(clean=False)


def test_appends_do_not_wait_for_the_device(tmp_path: Path, slow: SlowDevice) -> None:
    slow.go_on.set()
    log = open_disk(tmp_path / "t-0")
    fill(log, [2] * 5)
    slow.go_on.clear()
    slow.reached.clear()
    flusher = in_thread(log.flush)
    assert slow.reached.wait(20)
    fill(log, [2] * 60)
    assert len(log.segment_base_offsets) > 3
    assert log.recovery_point == 0, "only once the device has answered"
    slow.go_on.set()
    flusher.join()
    assert log.recovery_point == 10
    log.flush()
    assert log.recovery_point == 130
    log.close()


def test_a_flush_that_is_overtaken_by_a_truncation_claims_nothing(tmp_path: Path, slow: SlowDevice) -> None:
    slow.go_on.set()
    log = open_disk(tmp_path / "t-0")
    fill(log, [2] * 30)
    slow.go_on.clear()
    slow.reached.clear()
    flusher = in_thread(log.flush)
    assert slow.reached.wait(20)
    cutter = in_thread(lambda: (log.truncate(8), fill(log, [2] * 30)))
    slow.go_on.set()
    flusher.join()
    cutter.join()
    assert log.recovery_point == 8
    assert offsets(log) == list(range(68))
    log.close()


def test_the_recovery_point_stays_if_the_device_refuses(tmp_path: Path, monkeypatch) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [2] * 30)

    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", refuse)
        with pytest.raises(StorageBrokenError):
            log.flush(log.segment_base_offsets[-1])
    assert log.recovery_point == 0
    with pytest.raises(StorageBrokenError, match="Input/output error"):
        append(log, batch())
    log.close()


def test_settings_make_a_flush_due(tmp_path: Path) -> None:
    told: list[None] = []
    log = open_disk(
        tmp_path / "a-0", LogSettings(flush_interval_messages=5), on_flush_due=lambda: told.append(None)
    )
    now = time.monotonic()
    fill(log, [4])
    assert (log.flush_due(now), told) == (None, [])
    fill(log, [1])
    assert (log.flush_due(now), told) == (5, [None])
    log.flush()
    assert log.flush_due(now + 1e9) is None
    log.close()
    log = open_disk(tmp_path / "b-0", LogSettings(flush_interval_ms=2000))
    now = time.monotonic()
    assert log.flush_due(now + 3) is None, "nothing to flush"
    fill(log, [4])
    assert log.flush_due(now + 1) is None
    assert log.flush_due(now + 3) == 4
    log.close()


def test_indexes_are_on_the_device_before_they_are_believed(tmp_path: Path, fsynced: list[str]) -> None:
    """A segment that was flushed whole while it was the last, and is then closed by a roll."""
    log = open_disk(tmp_path / "t-0")
    fill(log, [2] * 3)
    log.flush()
    del fsynced[:]
    append(log, batch(1, size=2000))
    assert log.segment_base_offsets == (0, 6)
    assert fsynced[:2] == [f"{0:020d}.index", f"{0:020d}.timeindex"]
    log.close()
    assert fsynced.index(f"{6:020d}.index") < len(fsynced)


def test_a_directory_flushes_what_is_due_and_writes_it_down(tmp_path: Path, monkeypatch) -> None:
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1, settings=SMALL)
    told: list[None] = []
    directory.on_flush_due = lambda: told.append(None)
    rolled, small, broken = (directory.open_log("t", at, create=True) for at in range(3))
    fill(small, [2])
    assert not told
    fill(rolled, [2] * 30)
    assert told
    assert directory.flush_due(time.monotonic()) == {}
    point = rolled.segment_base_offsets[-1]
    text = table_text(tmp_path / "recovery-point-offset-checkpoint")
    assert text == f"0\n3\nt 0 {point}\nt 1 0\nt 2 0\n"
    fill(broken, [2] * 30)
    real = os.fsync

    def refuse(fd: int) -> None:
        if "t-2" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(5, "Input/output error")
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", refuse)
        failures = directory.flush_due(time.monotonic())
    assert list(failures) == [("t", 2)]
    assert "cannot flush t-2: Input/output error" in str(failures["t", 2])
    directory.close(clean=False)
    assert directory.flush_due(time.monotonic()) == {}, "closed logs are nobody's failure"


def test_flushing_beside_a_writer_that_appends_and_truncates(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    done = threading.Event()
    flushes: list[int] = []

    def flush() -> None:
        while not done.is_set():
            log.flush()
            flushes.append(log.recovery_point)

    flusher = in_thread(flush)
    try:
        for at in range(30):
            fill(log, [2] * 8)
            if at % 5 == 4:
                log.truncate(log.log_end_offset - 11)
                assert log.recovery_point <= log.log_end_offset
    finally:
        done.set()
        flusher.join()
    assert flushes
    expected = offsets(log)
    point = log.recovery_point
    log.close(clean=False)
    log = open_disk(tmp_path / "t-0", recovery_point=point)
    assert isinstance(log, DiskLog)
    assert offsets(log) == expected == list(range(log.log_end_offset))
    log.close()

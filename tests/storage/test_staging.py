"""Batches that are written before they are shown: staging, publishing, discarding, and crashes in between."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from insync.storage import (
    AppendError,
    CorruptBatchError,
    CorruptLogError,
    DiskLog,
    EpochEntry,
    Log,
    LogSettings,
    MemoryLog,
    ProducedBatch,
    StorageFullError,
)
from insync.storage.batch import scan

from .building import SMALL, BytesSource, all_bytes, append, batch, fill, offsets, open_disk, stamped


@pytest.fixture(params=["disk", "memory"])
def log(request, tmp_path: Path):
    opened: Log = (
        open_disk(tmp_path / "t-0") if request.param == "disk" else MemoryLog("t", 0, settings=SMALL)
    )
    fill(opened, [3, 2], leader_epoch=1)
    yield opened
    opened.close(clean=False)


def following(count: int = 2, *, at: int = 5, epoch: int = 1, **options: int) -> bytes:
    return stamped(batch(count, **options), at, epoch)


def test_staged_batches_are_seen_only_once_published(log: Log) -> None:
    before, epochs = all_bytes(log), log.epochs
    data = following(epoch=2) + following(1, at=7, epoch=3, producer_id=4, producer_epoch=0, base_sequence=0)
    staged = log.stage(BytesSource(data))
    assert (log.log_end_offset, all_bytes(log), log.epochs) == (5, before, epochs)
    assert log.producer_states() == ()
    assert staged.range.read_bytes() == data
    assert [each.base_offset for each in staged.batches] == [5, 7]
    log.publish(staged)
    assert (log.log_end_offset, all_bytes(log)) == (8, before + data)
    assert log.epochs == (*epochs, EpochEntry(2, 5), EpochEntry(3, 7))
    assert log.producer_states()[0].batches == (ProducedBatch(0, 0, 7, 7),)
    append(log, batch(1), leader_epoch=3)
    assert offsets(log) == list(range(9))


def test_discarded_batches_leave_no_trace(log: Log) -> None:
    before, size = all_bytes(log), log.size_bytes
    log.discard(log.stage(BytesSource(following(30, epoch=9))))
    assert (all_bytes(log), log.size_bytes, log.epochs) == (before, size, (EpochEntry(1, 0),))
    append(log, batch(1, mark="x"), leader_epoch=1)
    assert offsets(log) == list(range(6))
    if isinstance(log, DiskLog):
        assert (log.folder / f"{0:020d}.log").stat().st_size == log.size_bytes


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (following(at=6), AppendError, "batch at offset 6 of t-0 should be at 5"),
        (following(at=4), AppendError, "batch at offset 4 of t-0 should be at 5"),
        (following(epoch=0), AppendError, "epoch 0, but 1 has begun"),
        (following()[:-1], CorruptBatchError, "ends before the batch does"),
        (following()[:-1] + b"~", CorruptBatchError, "CRC-32C"),
        (following() + bytes(70), CorruptBatchError, "format v2"),
    ],
    ids=["gap", "overlap", "epoch", "torn", "flipped", "zeros"],
)
def test_what_does_not_run_on_is_not_staged(log: Log, data: bytes, error: type, words: str) -> None:
    before = all_bytes(log)
    with pytest.raises(error, match=words):
        log.stage(BytesSource(data))
    assert all_bytes(log) == before
    log.publish(log.stage(BytesSource(following())))
    assert offsets(log) == list(range(7))


def test_offsets_may_be_missing_only_when_told(log: Log) -> None:
    staged = log.stage(BytesSource(following(at=8)), may_skip=True)
    log.publish(staged)
    assert log.log_end_offset == 10
    assert offsets(log) == [0, 1, 2, 3, 4, 8, 9]
    if isinstance(log, DiskLog):
        assert log.cleaned_offset == 0


def test_one_thing_at_a_time(log: Log) -> None:
    first = log.stage(BytesSource(following()))
    for wrong in (
        lambda: log.stage(BytesSource(following())),
        lambda: append(log, batch(1), leader_epoch=1),
        lambda: log.assign_epoch(5, 5),
    ):
        with pytest.raises(AppendError, match="publish or discard them first"):
            wrong()
    log.publish(first)
    for again in (log.publish, log.discard):
        with pytest.raises(AppendError, match="not what is staged"):
            again(first)
    second = log.stage(BytesSource(following(at=7)))
    log.truncate(6)
    with pytest.raises(AppendError, match="not what is staged"):
        log.publish(second)
    assert log.log_end_offset == 5
    third = log.stage(BytesSource(following()))
    log.truncate_fully(20)
    with pytest.raises(AppendError, match="not what is staged"):
        log.publish(third)


def test_what_does_not_fit_the_segment_goes_to_the_next(log: Log) -> None:
    before = log.segment_base_offsets
    data = following(90)
    staged = log.stage(BytesSource(data))
    log.publish(staged)
    assert log.segment_base_offsets == (*before, 5)
    assert all_bytes(log).endswith(data)


def test_an_old_segment_is_not_added_to(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LogSettings(segment_ms=100))
    append(log, batch(2))
    data = stamped(batch_at(1101), 2, 0)
    log.publish(log.stage(BytesSource(data)))
    assert log.segment_base_offsets == (0, 2)
    log.close()
    log = open_disk(tmp_path / "t-0", clean=True, recovery_point=3)
    assert log.recovery.clean
    assert offsets(log) == [0, 1, 2]
    log.close()


def batch_at(timestamp_ms: int) -> bytes:
    from insync.storage.batch import build_batch

    return build_batch([None], [b"x"], timestamps_ms=timestamp_ms)


def test_a_source_that_fails_leaves_nothing(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [3])

    class Full:
        size = 300

        def copy_to(self, fd: int, offset: int) -> None:
            os.pwrite(fd, bytes(100), offset)
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(StorageFullError):
        log.stage(Full())
    assert (log.folder / f"{0:020d}.log").stat().st_size == log.size_bytes
    append(log, batch(1))
    assert offsets(log) == [0, 1, 2, 3]
    log.close()


def crashed(folder: Path, data: bytes) -> DiskLog:
    """A process that was killed when `data` had been staged, but not looked at."""
    log = open_disk(folder)
    fill(log, [3, 2], leader_epoch=1)
    log.flush()
    point = log.recovery_point
    log.close(clean=False)
    with (folder / f"{0:020d}.log").open("ab") as file:
        file.write(data)
    return open_disk(folder, recovery_point=point)


def test_after_a_crash_they_count_if_they_run_on(tmp_path: Path) -> None:
    log = crashed(tmp_path / "t-0", following(epoch=2))
    assert (log.log_end_offset, log.epochs) == (7, (EpochEntry(1, 0), EpochEntry(2, 5)))
    log.close()


def test_after_a_crash_batches_of_an_earlier_epoch_are_cut(tmp_path: Path) -> None:
    data = following(epoch=0) + following(1, at=7, epoch=0)
    log = crashed(tmp_path / "t-0", data)
    assert (log.log_end_offset, log.recovery.bytes_cut) == (5, len(data))
    assert "epoch 0 is below the 1" in log.recovery.cut_reason
    log.close()


def test_after_a_crash_a_torn_one_is_cut(tmp_path: Path) -> None:
    log = crashed(tmp_path / "t-0", following()[:-3])
    assert log.log_end_offset == 5
    log.close()


def test_other_offsets_are_damage_for_all_that_recovery_can_know(tmp_path: Path) -> None:
    with pytest.raises(CorruptLogError, match="base offset is 6 instead of 5"):
        crashed(tmp_path / "t-0", following(at=6))


def test_closing_drops_what_is_staged(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [3])
    log.stage(BytesSource(stamped(batch(2), 3, 0)))
    log.close()
    log = open_disk(tmp_path / "t-0", recovery_point=3, clean=True)
    assert log.recovery.clean
    assert scan(all_bytes(log))[-1].next_offset == 3
    log.close()

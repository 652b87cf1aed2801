"""Appending and reading, on disk and in memory."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from insync.storage import (
    AppendError,
    Chunk,
    DiskLog,
    EpochEntry,
    Log,
    LogClosedError,
    LogSettings,
    OffsetOutOfRangeError,
    ProducedBatch,
)
from insync.storage.batch import records, scan

from .building import SMALL, all_bytes, append, batch, chunk, fill, offsets, open_disk, table_text
from .memory_log import MemoryLog


@pytest.fixture(params=["disk", "memory"])
def log(request, tmp_path: Path):
    opened: Log = open_disk(tmp_path / "t-0") if request.param == "disk" else MemoryLog("t", 0)
    yield opened
    opened.close(clean=False)


def test_starts_empty(log: Log) -> None:
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes, log.epochs) == (0, 0, 0, ())
    assert log.read(0, max_bytes=100).range is None


def test_leader_stamps_offsets_and_epoch_and_leaves_the_data(log: Log) -> None:
    data = memoryview(batch(2) + batch(3)).toreadonly()
    log.append([Chunk(data, scan(data), 0, 7), Chunk(data, scan(data), 5, 7)])
    infos = scan(all_bytes(log))
    assert [(each.base_offset, each.leader_epoch) for each in infos] == [(0, 7), (2, 7), (5, 7), (7, 7)]
    assert [each.base_offset for each in scan(data)] == [0, 0]
    assert log.log_end_offset == 10
    assert log.epochs == (EpochEntry(7, 0),)
    assert log.size_bytes == 2 * len(data)


def test_follower_keeps_the_bytes(log: Log, tmp_path: Path) -> None:
    with_leader = open_disk(tmp_path / "leader")
    fill(with_leader, [3, 1, 4], leader_epoch=1)
    fill(with_leader, [1, 5, 9], leader_epoch=4)
    data = all_bytes(with_leader)
    log.append([Chunk(data, scan(data), 0, None)])
    assert all_bytes(log) == data
    assert log.epochs == with_leader.epochs == (EpochEntry(1, 0), EpochEntry(4, 8))
    with_leader.close()


@pytest.mark.parametrize(
    ("base_offset", "leader_epoch", "message"),
    [
        (0, 5, "are not contiguous"),
        (4, 5, "are not contiguous"),
        (3, 1, "epoch 1, but 2 has begun"),
        (3, None, "should be at 3"),
    ],
)
def test_what_does_not_run_on_is_refused(log: Log, base_offset: int, leader_epoch, message: str) -> None:
    fill(log, [3], leader_epoch=2)
    before = all_bytes(log)
    data = batch(2)
    with pytest.raises(AppendError, match=message):
        log.append([Chunk(data, scan(data), base_offset, leader_epoch)])
    assert (log.log_end_offset, all_bytes(log)) == (3, before)


def test_bytes_must_be_the_batches_named(log: Log) -> None:
    data = batch(2)
    with pytest.raises(AppendError, match="not the 1 announced batches"):
        log.append([Chunk(data + b"x", scan(data), 0, 0)])
    with pytest.raises(AppendError, match="not the announced batches"):
        log.append([Chunk(bytes(len(data)), scan(data), 0, 0)])
    with pytest.raises(AppendError):
        log.append([Chunk(b"", [], 0, 0)])
    assert log.log_end_offset == 0


def test_reads_whole_batches_within_the_limits(log: Log) -> None:
    bases = fill(log, [3] * 50)
    sizes = {info.base_offset: info.size_bytes for info in scan(all_bytes(log))}
    size = sizes[60]
    for offset in (60, 61, 62):
        result = log.read(offset, max_bytes=size)
        assert (result.first_base_offset, result.next_offset, result.size) == (60, 63, size)
        assert result.range is not None
        assert next(records(result.range.read_bytes(), start_offset=offset)).offset == offset
    assert log.read(60, max_bytes=size - 1).next_offset == 63
    assert log.read(60, max_bytes=size - 1, min_one=False).range is None
    assert log.read(60, max_bytes=1 << 20, limit_offset=62).range is None
    assert log.read(60, max_bytes=1 << 20, limit_offset=63).next_offset == 63
    assert log.read(60, max_bytes=1 << 20, limit_offset=60).range is None
    assert log.read(150, max_bytes=1 << 20).range is None
    assert bases[-1] == 147


@pytest.mark.parametrize("offset", [-1, 4, 31])
def test_out_of_range(log: Log, offset: int) -> None:
    fill(log, [10] * 3)
    log.advance_log_start_offset(5)
    with pytest.raises(
        OffsetOutOfRangeError, match=f"offset {offset} of t-0 is out of range: it holds 5 to 30"
    ):
        log.read(offset, max_bytes=100)
    assert log.read(5, max_bytes=100).first_base_offset == 0


def test_log_start_never_goes_back_nor_past_the_end(log: Log) -> None:
    fill(log, [10], leader_epoch=1)
    fill(log, [10], leader_epoch=2)
    log.advance_log_start_offset(13)
    log.advance_log_start_offset(2)
    assert log.log_start_offset == 13
    assert log.epochs == (EpochEntry(2, 13),)
    log.advance_log_start_offset(99)
    assert log.log_start_offset == 20


def test_epochs_are_assigned_before_any_batch(log: Log) -> None:
    log.assign_epoch(3, 0)
    assert log.epochs == (EpochEntry(3, 0),)
    log.assign_epoch(5, 0)
    assert log.epochs == (EpochEntry(5, 0),)
    fill(log, [2], leader_epoch=5)
    log.assign_epoch(6, 2)
    log.assign_epoch(6, 2)
    assert log.epochs == (EpochEntry(5, 0), EpochEntry(6, 2))
    with pytest.raises(AppendError, match="later than 4"):
        log.assign_epoch(4, 2)
    log.truncate(2)
    assert log.epochs == (EpochEntry(5, 0),), "an entry at the log end goes even if no batch does"


def test_a_later_epoch_takes_the_place_of_one_without_batches(log: Log) -> None:
    fill(log, [2], leader_epoch=1)
    log.assign_epoch(2, 2)
    fill(log, [2], leader_epoch=3)
    assert log.epochs == (EpochEntry(1, 0), EpochEntry(3, 2))


def test_truncation_takes_the_recovery_point_down(log: Log) -> None:
    fill(log, [3] * 5)
    log.flush()
    log.truncate(7)
    assert log.recovery_point == log.log_end_offset == 6


def test_producers_keep_five_batches(log: Log) -> None:
    for at in range(7):
        append(log, batch(2, producer_id=9, producer_epoch=1, base_sequence=2 * at))
    append(log, batch(1, producer_id=4, producer_epoch=0, base_sequence=0), batch(1))
    nine, four = log.producer_states()
    assert (nine.producer_id, nine.producer_epoch, nine.timestamp_ms) == (9, 1, 1000)
    assert nine.batches == tuple(ProducedBatch(2 * at, 2 * at + 1, 2 * at, 2 * at + 1) for at in range(2, 7))
    assert four.batches == (ProducedBatch(0, 0, 14, 14),)
    log.truncate(10)
    (nine,) = log.producer_states()
    assert nine.batches[-1] == ProducedBatch(8, 9, 8, 9)
    append(log, batch(1, producer_id=9, producer_epoch=2, base_sequence=0))
    (nine,) = log.producer_states()
    assert (nine.producer_epoch, nine.batches) == (2, (ProducedBatch(0, 0, 10, 10),))
    log.truncate(10)
    (nine,) = log.producer_states()
    assert (nine.producer_epoch, nine.batches[-1].last_offset) == (1, 9)


def test_truncate_fully_starts_anew(log: Log) -> None:
    fill(log, [3] * 20, leader_epoch=2)
    log.truncate_fully(1000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes, log.epochs) == (1000, 1000, 0, ())
    assert log.producer_states() == ()
    fill(log, [3], leader_epoch=3)
    assert offsets(log) == [1000, 1001, 1002]


def test_ranges_outlive_truncation_and_close(log: Log) -> None:
    fill(log, [3] * 30)
    result = log.read(0, max_bytes=300)
    assert result.range is not None
    content = result.range.read_bytes()
    log.truncate(60)
    assert result.range.read_bytes() == content
    log.close()
    assert result.range.read_bytes() == content
    assert os.pread(result.range.fileno(), 10, result.range.offset) == content[:10]


def test_closed_logs_refuse(log: Log) -> None:
    log.close()
    log.close()
    for use in (
        lambda: append(log, batch()),
        lambda: log.truncate(0),
        log.flush,
        lambda: log.assign_epoch(1, 0),
    ):
        with pytest.raises(LogClosedError, match="t-0 is closed"):
            use()


def test_memory_log_loses_what_was_not_flushed() -> None:
    log = MemoryLog("t", 0)
    fill(log, [2, 2])
    log.flush()
    fill(log, [2, 2])
    log.crash(keep=6)
    assert log.log_end_offset == 6
    log.crash()
    assert (log.log_end_offset, offsets(log)) == (4, [0, 1, 2, 3])


# On disk


def test_rolls_by_size_and_keeps_a_range_in_one_segment(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [2] * 100)
    bases = log.segment_base_offsets
    assert len(bases) > 5
    names = sorted(path.name for path in (tmp_path / "t-0").glob("*.log"))
    assert names == [f"{base:020d}.log" for base in bases]
    assert all(path.stat().st_size <= SMALL.segment_bytes for path in (tmp_path / "t-0").glob("*.log"))
    assert log.read(0, max_bytes=1 << 20).next_offset == bases[1]
    assert offsets(log) == list(range(200))
    log.close()


def test_one_call_may_fill_several_segments(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    chunks, at = [], 0
    for count in [3] * 60:
        data = batch(count)
        chunks.append(Chunk(data, scan(data), at, 1))
        at += count
    log.append(chunks)
    assert len(log.segment_base_offsets) > 5
    assert offsets(log) == list(range(180))
    log.close()


def test_a_batch_greater_than_a_segment_gets_its_own(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    append(log, batch(1), batch(1, size=5000), batch(1))
    assert log.segment_base_offsets == (0, 1, 2)
    log.close()


def test_rolls_when_the_index_is_full_or_offsets_run_out(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LogSettings(segment_index_bytes=64, index_interval_bytes=0))
    fill(log, [1] * 20)
    assert log.segment_base_offsets == (0, 9, 18)
    wide = bytearray(batch())
    wide[23:27] = ((1 << 31) - 1).to_bytes(4)
    infos = scan(wide, verify_crc=False)
    for _ in range(2):
        log.append([Chunk(bytes(wide), infos, log.log_end_offset, 0)])
    assert log.segment_base_offsets == (0, 9, 18, 20, 20 + (1 << 31))
    log.close()


@pytest.mark.parametrize("reopened", [False, True])
def test_every_offset_is_found_like_a_linear_scan_finds_it(tmp_path: Path, reopened: bool) -> None:
    settings = LogSettings(segment_bytes=20_000, index_interval_bytes=500)
    log = open_disk(tmp_path / "t-0", settings)
    fill(log, [at % 7 + 1 for at in range(600)])
    if reopened:
        log.close()
        log = open_disk(tmp_path / "t-0", settings, clean=True, recovery_point=log.log_end_offset)
        assert log.recovery.clean
    everything = all_bytes(log)
    holding = {at: info for info in scan(everything) for at in range(info.base_offset, info.next_offset)}
    assert len(holding) == log.log_end_offset
    for offset, info in holding.items():
        result = log.read(offset, max_bytes=1)
        assert (result.first_base_offset, result.next_offset, result.size) == (
            info.base_offset,
            info.next_offset,
            info.size_bytes,
        )
        assert result.range is not None
        found = scan(result.range.read_bytes())
        assert found[0].base_offset == info.base_offset
        longer = log.read(offset, max_bytes=1500, limit_offset=offset + 9)
        assert longer.next_offset <= offset + 9
        following = holding.get(longer.next_offset)
        if following is not None and following.base_offset not in log.segment_base_offsets:
            assert longer.size + following.size_bytes > 1500 or following.next_offset > offset + 9
    log.close()


def test_the_index_forgets_what_was_truncated(tmp_path: Path) -> None:
    settings = LogSettings(index_interval_bytes=200)
    log = open_disk(tmp_path / "t-0", settings)
    fill(log, [1] * 60)
    log.truncate(10)
    for _ in range(30):
        append(log, batch(1, size=300))
    log.close()
    log = open_disk(tmp_path / "t-0", settings, clean=True, recovery_point=40)
    assert log.recovery.clean
    for offset in range(40):
        assert log.read(offset, max_bytes=1).first_base_offset == offset
    log.close()


def test_truncation_removes_later_producer_snapshots(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    for at in range(40):
        append(log, batch(2, producer_id=1, producer_epoch=0, base_sequence=2 * at))
    assert max(int(path.stem) for path in (tmp_path / "t-0").glob("*.snapshot")) > 45
    log.truncate(45)
    assert max(int(path.stem) for path in (tmp_path / "t-0").glob("*.snapshot")) <= 44
    log.close()


def test_index_entries_are_kafkas(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LogSettings(index_interval_bytes=300))
    fill(log, [2] * 20)
    infos = scan(all_bytes(log))
    log.close()
    raw = (tmp_path / "t-0" / f"{0:020d}.index").read_bytes()
    assert len(raw) % 8 == 0
    by_position = {info.position: info for info in infos}
    entries = [
        (int.from_bytes(raw[at : at + 4]), int.from_bytes(raw[at + 4 : at + 8]))
        for at in range(0, len(raw), 8)
    ]
    assert len(entries) > 3
    assert all(by_position[position].next_offset - 1 == last for last, position in entries)
    gaps = [after[1] - before[1] for before, after in zip([(0, 0), *entries], entries, strict=False)]
    assert all(300 < gap <= 300 + infos[0].size_bytes for gap in gaps)


def test_a_removed_segment_can_still_be_read(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [2] * 100)
    result = log.read(log.segment_base_offsets[-1], max_bytes=200)
    assert result.range is not None
    content = result.range.read_bytes()
    log.truncate(0)
    assert len(list((tmp_path / "t-0").glob("*.log"))) == 1
    assert result.range.read_bytes() == content
    fd = int(result.range.fileno())
    del result
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    log.close()


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(3):
        log = open_disk(tmp_path / "t-0")
        fill(log, [2] * 50)
        log.truncate(30)
        log.truncate_fully(0)
        log.close()
        del log
    assert descriptors() == before


def test_epochs_survive_on_disk(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [2], leader_epoch=3)
    log.flush()
    assert table_text(tmp_path / "t-0" / "leader-epoch-checkpoint") == "0\n1\n3 0\n"
    log.assign_epoch(5, 2)
    fill(log, [1], leader_epoch=5)
    log.flush()
    assert table_text(tmp_path / "t-0" / "leader-epoch-checkpoint") == "0\n2\n3 0\n5 2\n"
    log.truncate(2)
    assert table_text(tmp_path / "t-0" / "leader-epoch-checkpoint") == "0\n1\n3 0\n"
    log.close()


@pytest.mark.parametrize("make", [lambda path: open_disk(path / "t-0"), lambda path: MemoryLog("t", 0)])
def test_one_thread_reads_while_another_writes(tmp_path: Path, make) -> None:
    log = make(tmp_path)
    done = threading.Event()

    def write() -> None:
        try:
            for at in range(1500):
                append(log, batch(at % 3 + 1, size=20))
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    offset = reads = 0
    try:
        while not done.is_set() or offset < log.log_end_offset:
            result = log.read(offset, max_bytes=2000)
            if result.range is None:
                assert result.next_offset == offset
                continue
            infos = scan(result.range.read_bytes())
            assert infos[0].base_offset == offset == result.first_base_offset
            assert infos[-1].next_offset == result.next_offset
            offset, reads = result.next_offset, reads + 1
            log.read(offset // 2, max_bytes=500)
    finally:
        writer.join()
    assert offset == log.log_end_offset == 3000
    assert reads > 10
    log.close()


def test_disk_log_is_named_by_its_partition(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    append(log, batch(2))
    assert isinstance(log, DiskLog)
    assert repr(log) == "<DiskLog t-0 0..2>"
    assert chunk(log, batch()).base_offset == 2
    log.close()


def test_what_was_appended_last_is_in_memory_as_it_is_in_the_file(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LogSettings())

    def found(offset: int) -> bytes | None:
        result = log.read(offset, max_bytes=1 << 20)
        assert result.range is not None
        assert result.range.data in (None, result.range.read_bytes())
        return result.range.data

    fill(log, [1, 2])
    assert found(0)
    assert found(1)
    fill(log, [1] * 100)  # more than is kept
    assert found(0) is None
    assert found(102 - 1)
    log.truncate(101)
    assert found(100) is None
    fill(log, [3], leader_epoch=9)
    assert found(100) is None
    assert found(101)
    fill(log, [5000], leader_epoch=9)
    assert found(104) is None
    fill(log, [1], leader_epoch=9)
    assert found(5104)
    log.close()

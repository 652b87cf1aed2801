"""Lookup by timestamp and the time index, against a linear scan."""

from __future__ import annotations

import random
import struct
from contextlib import closing
from pathlib import Path

import pytest

from insync.storage import Chunk, Log, LogSettings, LookUpStoppedError
from insync.storage.batch import build_batch, records, scan

from ..building import all_bytes, append, batch, open_disk
from ..memory_log import MemoryLog

SETTINGS = LogSettings(segment_bytes=5000, index_interval_bytes=300)


def at(*timestamps: int) -> bytes:
    return build_batch([None] * len(timestamps), [b"value"] * len(timestamps), timestamps_ms=timestamps)


@pytest.fixture(params=["disk", "memory"])
def log(request, tmp_path: Path):
    opened: Log = open_disk(tmp_path / "t-0", SETTINGS) if request.param == "disk" else MemoryLog("t", 0)
    yield opened
    opened.close(clean=False)


def fill_by_clock(log: Log, batches: int, seed: int) -> None:
    """Producers' clocks differ, so timestamps mostly rise and sometimes fall."""
    noise = random.Random(seed)
    for each in range(batches):
        append(
            log, at(*(1000 + 10 * each + noise.randrange(-200, 200) for _ in range(noise.randrange(1, 4))))
        )


def agrees(log: Log) -> None:
    everything = [(each.offset, each.timestamp_ms) for each in records(all_bytes(log))]
    shown = [each for each in everything if each[0] >= log.log_start_offset]
    stamps = {stamp + step for _, stamp in everything for step in (-1, 0, 1)}
    for timestamp in sorted(stamps)[::3]:
        expected = next((each for each in shown if each[1] >= timestamp), None)
        assert log.offset_for_timestamp(timestamp) == expected, timestamp
    latest = max((each[1] for each in shown), default=-1)
    assert log.latest_timestamp() == next((each for each in shown if each[1] == latest), None)


def test_finds_what_a_linear_scan_finds(log: Log) -> None:
    fill_by_clock(log, 400, seed=1)
    agrees(log)
    log.advance_log_start_offset(301)
    agrees(log)
    log.truncate(555)
    agrees(log)
    fill_by_clock(log, 100, seed=2)
    agrees(log)


def test_finds_nothing_in_an_empty_log_or_behind_the_last(log: Log) -> None:
    assert log.offset_for_timestamp(0) is None
    append(log, at(5, 9, 7), at(8))
    assert log.offset_for_timestamp(10) is None
    assert log.offset_for_timestamp(6) == (1, 9)
    assert log.offset_for_timestamp(-5) == (0, 5)
    log.advance_log_start_offset(2)
    assert log.offset_for_timestamp(8) == (3, 8)


@pytest.mark.parametrize("clean", [True, False])
def test_a_reopened_log_finds_the_same(tmp_path: Path, clean: bool) -> None:
    log = open_disk(tmp_path / "t-0", SETTINGS)
    fill_by_clock(log, 400, seed=3)
    end = log.log_end_offset
    log.close(clean)
    log = open_disk(tmp_path / "t-0", SETTINGS, clean=clean, recovery_point=end if clean else 0)
    assert log.recovery.clean == clean
    agrees(log)
    fill_by_clock(log, 50, seed=4)
    agrees(log)
    log.close()


@pytest.mark.parametrize("end", [20, 150, 299])
def test_truncation_leaves_a_time_index_as_if_there_had_never_been_more(tmp_path: Path, end: int) -> None:
    settings = LogSettings(index_interval_bytes=300)
    found = []
    for name, count in (("long-0", 300), ("short-0", end)):
        log = open_disk(tmp_path / name, settings)
        for each in range(count):
            append(log, at(1000 + each))
        log.truncate(end)
        agrees(log)
        assert log.offset_for_timestamp(1000 + end) is None
        append(log, at(1500))
        agrees(log)
        log.close()
        last = log.segment_base_offsets[-1]
        behind = [(stamp, last + relative) for stamp, relative in entries(tmp_path / name, last)]
        found.append([*entries(tmp_path / name, 0), *behind] if last else behind)
    long, short = found
    assert all(offset < end and stamp == 1000 + offset for stamp, offset in long[:-1])
    assert len(short) - 1 <= len(long) <= len(short) + 1, "where the log was cut a segment was closed"
    assert long[-1] == short[-1] == (1500, end)


def entries(folder: Path, base: int) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(">qi", (folder / f"{base:020d}.timeindex").read_bytes()))


@pytest.mark.parametrize("rebuilt", [True, False])
def test_time_index_entries_are_kafkas(tmp_path: Path, rebuilt: bool) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder, SETTINGS)
    fill_by_clock(log, 400, seed=5)
    log.close()
    bases = log.segment_base_offsets
    assert len(bases) > 3
    if rebuilt:
        for path in folder.glob("*.timeindex"):
            path.write_bytes(b"\xff" * 24)
        log = open_disk(folder, SETTINGS)
        log.close()
    for base in bases:
        infos = scan((folder / f"{base:020d}.log").read_bytes())
        greatest = max(infos, key=lambda info: info.max_timestamp)
        found = entries(folder, base)
        assert len(found) > 3
        assert found == sorted(set(found), key=lambda entry: entry[0])
        assert found[-1] == (greatest.max_timestamp, greatest.next_offset - 1 - base)
        by_last = {info.next_offset - 1 - base: info.max_timestamp for info in infos}
        for timestamp, relative in found:
            assert by_last[relative] == timestamp
            earlier = [stamp for last, stamp in by_last.items() if last < relative]
            assert all(stamp < timestamp for stamp in earlier)


@pytest.mark.parametrize("content", [None, b"123", b"\xff" * 24, struct.pack(">qi", 1000, 1 << 20)])
def test_a_bad_time_index_after_a_clean_stop_is_rebuilt(tmp_path: Path, content: bytes | None) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder, SETTINGS)
    fill_by_clock(log, 200, seed=6)
    end = log.log_end_offset
    log.close()
    good = entries(folder, 0)
    path = folder / f"{0:020d}.timeindex"
    path.unlink() if content is None else path.write_bytes(content)
    log = open_disk(folder, SETTINGS, clean=True, recovery_point=end)
    assert not log.recovery.clean
    assert log.recovery.segments_rebuilt == 2, "the bad one and the last"
    agrees(log)
    log.close()
    assert entries(folder, 0) == good


def test_a_full_time_index_closes_the_segment(tmp_path: Path) -> None:
    settings = LogSettings(segment_index_bytes=120, index_interval_bytes=0)
    log = open_disk(tmp_path / "t-0", settings)
    for each in range(25):
        append(log, at(each))
    assert log.segment_base_offsets == (0, 10, 20), "nine entries and the one made on closing"
    agrees(log)
    log.close()
    assert entries(tmp_path / "t-0", 0) == [(each, each) for each in range(1, 10)]


def test_batches_without_a_time_have_no_entries(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", SETTINGS)
    for _ in range(20):
        append(log, at(-1, -1))
    assert log.offset_for_timestamp(0) is None
    log.close()
    assert entries(tmp_path / "t-0", 0) == []


def test_control_batches_are_passed_over(log: Log) -> None:
    control = bytearray(batch(1))
    control[22] |= 0x20
    log.append([Chunk(bytes(control), scan(control, verify_crc=False), 0, 0)])
    append(log, at(2000))
    assert log.offset_for_timestamp(500) == (1, 2000)


def test_a_look_up_that_nobody_waits_for_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timestamps that fall keep the time index from helping: all of the segment would be looked at."""
    monkeypatch.setattr("insync.storage.segment._segment.LOOK_UP_PORTION", 1000)
    settings = LogSettings(index_interval_bytes=300)
    with closing(open_disk(tmp_path / "t-0", settings)) as log:
        append(log, at(1000))
        for _ in range(200):
            append(log, at(5))
        append(log, at(2000))
        asked: list[bool] = []

        def stop() -> bool:
            asked.append(len(asked) >= 3)
            return asked[-1]

        with pytest.raises(LookUpStoppedError):
            log.offset_for_timestamp(1500, stop=stop)
        assert asked == [False, False, False, True]
        assert log.offset_for_timestamp(1500) == (201, 2000)

"""Index files that somebody removes, cuts or replaces under a log that is in use: they are built anew from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from insync.storage import DiskLog, LogSettings, MisplacedError
from insync.storage.batch import build_batch, build_marker, scan
from insync.storage.segment._segment import segment_path
from insync.storage.verification import verify

from ..building import all_bytes, append, batch, chunk, open_disk

SETTINGS = LogSettings(segment_bytes=1 << 20, index_interval_bytes=64, file_delete_delay_ms=0)
SUFFIXES = (".index", ".timeindex", ".txnindex")


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, 0)


def cut_inside(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "theirs").write_text("kept")


def by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def by_other(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"x" * 24)


HARMS = [remove, cut, cut_inside, by_folder, by_link, by_fifo, by_other]


class Bench:
    """A log with an aborted transaction, and what it tells."""

    def __init__(self, folder: Path, settings: LogSettings = SETTINGS) -> None:
        self.folder, self.settings = folder, settings
        self.told: list[tuple[Path, str]] = []
        self.log = self.open()
        self.abort()
        self.write(60)

    def open(self, **options: object) -> DiskLog:
        return open_disk(
            self.folder, self.settings, on_mended=lambda path, why: self.told.append((path, why)), **options
        )

    def write(self, count: int) -> None:
        for number in range(count):
            append(self.log, batch(3, size=30, mark=f"{number}:"))

    def abort(self) -> None:
        append(self.log, batch(2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
        append(self.log, build_marker(7, 0, committed=False, coordinator_epoch=1, timestamp_ms=1000))

    def path(self, suffix: str) -> Path:
        return segment_path(self.folder, self.log.segment_base_offsets[0], suffix)

    def check(self, suffix: str) -> None:
        """Everything is there, on the device as well; and what stands in the file is right."""
        found = scan(all_bytes(self.log))
        assert found[-1].next_offset == self.log.log_end_offset
        assert [each.first_offset for each in self.log.aborted_transactions(0, 10)] == [0]
        self.log.close()
        assert verify(self.folder).defects == []
        end = self.log.log_end_offset
        self.log = self.open(clean=True, recovery_point=end)
        assert self.log.recovery.clean, "nothing is left to be built anew"
        assert [each.first_offset for each in self.log.aborted_transactions(0, 10)] == [0]
        assert self.log.offset_for_timestamp(1000) is not None
        self.log.close()
        for theirs in self.folder.glob(f"*{suffix}.moved-aside"):
            assert theirs.is_symlink() or not theirs.is_dir() or (theirs / "theirs").read_text() == "kept"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("harm", HARMS)
def test_a_log_that_is_written_to_and_read_goes_on(
    tmp_path: Path, suffix: str, harm: Callable[[Path], None]
) -> None:
    bench = Bench(tmp_path / "t-0")
    harm(bench.path(suffix))
    for offset in range(0, bench.log.log_end_offset, 7):
        result = bench.log.read(offset, max_bytes=1)
        assert result.range is not None and scan(result.range.read_bytes())
    bench.write(400)  # more entries than there was room for
    if suffix == ".txnindex":
        append(bench.log, batch(2, producer_id=7, producer_epoch=0, base_sequence=2, transactional=True))
        append(bench.log, build_marker(7, 0, committed=False, coordinator_epoch=1, timestamp_ms=1000))
    assert {path for path, _ in bench.told} == {bench.path(suffix)}
    bench.check(suffix)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("harm", HARMS)
def test_a_segment_that_ends_gets_its_indexes(
    tmp_path: Path, suffix: str, harm: Callable[[Path], None]
) -> None:
    """At a roll, and when a closed segment is brought to the device."""
    small = LogSettings(segment_bytes=8 << 10, index_interval_bytes=64)
    bench = Bench(tmp_path / "t-0", small)
    harm(bench.path(suffix))
    while len(bench.log.segment_base_offsets) < 2:
        bench.write(1)
    bench.log.flush()
    assert {path for path, _ in bench.told} == {bench.path(suffix)}
    bench.check(suffix)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("harm", [*HARMS, "log"])
def test_retention_deletes_what_is_there(
    tmp_path: Path, suffix: str, harm: Callable[[Path], None] | str
) -> None:
    small = LogSettings(segment_bytes=8 << 10, index_interval_bytes=64, file_delete_delay_ms=0)
    bench = Bench(tmp_path / "t-0", small)
    bench.write(100)
    bench.log.flush()
    first, bases = bench.path(suffix), bench.log.segment_base_offsets
    if callable(harm):
        harm(first)
    else:
        bench.path(".log").unlink()
    end = bench.log.log_end_offset
    deleted = bench.log.delete_old_segments(1 << 50, retention_ms=1, high_watermark=end)
    assert deleted == len(bases) - 1
    bench.log.remove_deleted_files(1 << 60)
    bench.write(3)
    bench.log.close()
    names = {each.name for each in bench.folder.iterdir() if not each.name.endswith(".moved-aside")}
    gone = tuple(f"{base:020d}{suffix}" for base in bases[:-1] for suffix in (".log", *SUFFIXES))
    assert not any(name.startswith(gone) for name in names)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("harm", HARMS)
def test_compaction_goes_on(tmp_path: Path, suffix: str, harm: Callable[[Path], None]) -> None:
    small = LogSettings(
        segment_bytes=8 << 10,
        index_interval_bytes=64,
        file_delete_delay_ms=0,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.0,
    )
    bench = Bench(tmp_path / "t-0", small)
    bench.write(100)
    bench.log.flush()
    harm(bench.path(suffix))
    done = bench.log.maintain(1 << 50, high_watermark=bench.log.log_end_offset)
    assert done.compaction is not None and done.compaction.segments_after
    bench.log.maintain(1 << 51, high_watermark=bench.log.log_end_offset)
    bench.write(3)
    bench.log.close()
    assert verify(bench.folder, compacted=True).defects == []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_log_that_was_closed_opens(tmp_path: Path, suffix: str, harm: Callable[[Path], None]) -> None:
    bench = Bench(tmp_path / "t-0")
    bench.log.close()
    before = bench.path(".log").read_bytes()
    harm(bench.path(suffix))
    bench.log = bench.open(clean=True, recovery_point=bench.log.log_end_offset)
    if harm not in (cut, cut_inside, by_other):
        assert {path for path, _ in bench.told} == {bench.path(suffix)}
    assert bench.path(".log").read_bytes() == before
    found = bench.log.offset_for_timestamp(1000)
    assert found is not None and found.offset == 0
    assert scan(all_bytes(bench.log))[-1].next_offset == bench.log.log_end_offset
    bench.log.close()


def test_the_greatest_timestamp_is_found_though_the_index_lost_its_end(tmp_path: Path) -> None:
    """A cut at an entry's border looks like an index: time-based retention must not go by it."""
    settings = LogSettings(segment_bytes=8 << 10, index_interval_bytes=64)
    log = open_disk(tmp_path / "t-0", settings)
    number = 0
    while len(log.segment_base_offsets) < 2:
        number += 1
        append(log, _at(number))
    end, index = log.log_end_offset, segment_path(log.folder, 0, ".timeindex")
    log.close()
    os.truncate(index, 12)
    log = open_disk(tmp_path / "t-0", settings, clean=True, recovery_point=end)
    for wanted in range(1, number + 1):
        found = log.offset_for_timestamp(wanted)
        assert found is not None and found.offset == wanted - 1
    log.close()


def _at(timestamp_ms: int) -> bytes:
    return build_batch(None, [b"x" * 40], timestamps_ms=timestamp_ms)


def test_others_faults_end_the_process_as_before(tmp_path: Path) -> None:
    """The maps of whoever else is in the process are not ours to fill."""
    script = f"""
import mmap, os, pathlib
from insync.storage import DiskLog
folder = pathlib.Path({str(tmp_path)!r}, "t-0"); folder.mkdir()
log = DiskLog(folder, "t", 0)
(folder / "00000000000000000000.index").write_bytes(bytes(8))
log.close(); log = DiskLog(folder, "t", 0)
path = pathlib.Path({str(tmp_path)!r}, "theirs"); path.write_bytes(bytes(8192))
with path.open("r+b") as file:
    theirs = mmap.mmap(file.fileno(), 8192)
os.truncate(path, 0)
print("reached", flush=True)
theirs[5000]
print("passed", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "reached\n" and done.returncode == -7


def test_a_log_whose_file_is_gone_is_refused_by_its_name(tmp_path: Path) -> None:
    """What only that partition lacks is not the device's doing."""
    bench = Bench(tmp_path / "t-0")
    end = bench.log.log_end_offset
    shutil.rmtree(bench.folder)
    with pytest.raises(MisplacedError, match=r"t-0.* is gone; put it back"):
        bench.log.flush()
        bench.log.append([chunk(bench.log, batch(4000, size=30))])
    assert bench.log.log_end_offset == end
    bench.log.close(clean=False)


def test_entries_that_are_gone_from_a_map_end_no_process(tmp_path: Path) -> None:
    """In a process of its own: a page that is gone is a SIGBUS."""
    script = f"""
import os, pathlib
from array import array
from insync.storage.segment._index import OffsetIndex
index = OffsetIndex(pathlib.Path({str(tmp_path)!r}, "x.index"), 0)
index.grow(1 << 20)
index.add_all(array("i", [1, 10, 2, 20]))
os.truncate(index.path, 0)
print(index.position_for(5), index.has_lost, index.wrong())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "0 True it was cut to 0 bytes\n")


def test_a_negative_position_keeps_no_log_from_being_opened(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LogSettings(index_interval_bytes=0))
    for _ in range(3):
        append(log, batch(2))
    log.close()
    (index,) = (tmp_path / "t-0").glob("*.index")
    content = bytearray(index.read_bytes())
    content[4] ^= 0x80
    index.write_bytes(content)
    log = open_disk(
        tmp_path / "t-0",
        LogSettings(index_interval_bytes=0),
        clean=True,
        recovery_point=6,
        verify_bytes=1 << 20,
    )
    assert log.log_end_offset == 6
    log.close()


def test_an_entry_that_leads_behind_its_offset_hides_no_record(tmp_path: Path) -> None:
    """Readers would begin at the batch of that entry, and never see those before."""
    settings, told = LogSettings(index_interval_bytes=0), list[Path]()
    log = open_disk(tmp_path / "t-0", settings)
    for _ in range(8):
        append(log, batch(2))
    log.close()
    (index,) = (tmp_path / "t-0").glob("*.index")
    content = index.read_bytes()
    index.write_bytes(bytes([content[0] ^ 0x80]) + content[1:])
    log = open_disk(
        tmp_path / "t-0",
        settings,
        clean=True,
        recovery_point=16,
        on_mended=lambda path, why: told.append(path),
    )
    for offset in range(16):
        found = log.read(offset, max_bytes=1, min_one=True)
        assert found.range is not None and found.next_offset == offset - offset % 2 + 2, offset
        below = log.read(0, max_bytes=1 << 20, limit_offset=offset + 1)
        assert below.next_offset <= offset + 2, offset
    assert told == [index]
    log.close()

"""Opening after crashes and damage: a torn tail is cut, anything else is refused with every file left alone."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from insync.storage import (
    Chunk,
    CorruptLogError,
    DiskLog,
    EpochEntry,
    LogDirectory,
    LogSettings,
    verify,
)
from insync.storage._epochs import EpochCache
from insync.storage.batch import build_batch, records, scan

from .building import SMALL, all_bytes, append, batch, fill, offsets, open_disk


def log_file(folder: Path, base: int = 0) -> Path:
    return folder / f"{base:020d}.log"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def crashed(folder: Path, counts: list[int], settings: LogSettings = SMALL, **options: int) -> bytes:
    """Write batches and stop without a word; returns all of them."""
    log = open_disk(folder, settings)
    fill(log, counts, **options)
    data = all_bytes(log)
    log.close(clean=False)
    return data


def test_a_tail_cut_anywhere_is_cut_back_to_whole_batches(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    data = crashed(folder, [2, 1, 3], LogSettings())
    ends = [0, *(info.position + info.size_bytes for info in scan(data))]
    bases = [0, 2, 3, 6]
    for cut in range(len(data) + 1):
        log_file(folder).write_bytes(data[:cut])
        log = open_disk(folder, LogSettings())
        whole = max(at for at in range(4) if ends[at] <= cut)
        assert log.log_end_offset == bases[whole]
        assert log_file(folder).read_bytes() == data[: ends[whole]]
        assert log.recovery.bytes_cut == cut - ends[whole]
        assert log.recovery.batches_scanned == whole
        assert log.recovery.cut_position == (ends[whole] if cut > ends[whole] else -1)
        log.close(clean=False)


def test_appending_goes_on_after_a_cut(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    crashed(folder, [2] * 30)
    last = max(folder.glob("*.log"))
    os.truncate(last, last.stat().st_size - 1)
    log = open_disk(folder)
    end = log.log_end_offset
    fill(log, [2] * 30, leader_epoch=1)
    assert offsets(log) == list(range(end + 60))
    assert log.epochs == (EpochEntry(0, 0), EpochEntry(1, end))
    log.close()


@pytest.mark.parametrize("garbage", [b"\0" * 500, b"\xff" * 500, b"\x02" * 7, bytes(range(256))])
def test_garbage_at_the_tail_is_cut(tmp_path: Path, garbage: bytes) -> None:
    folder = tmp_path / "t-0"
    data = crashed(folder, [2, 2], LogSettings())
    log_file(folder).write_bytes(data + garbage)
    log = open_disk(folder, LogSettings())
    assert (log.log_end_offset, log.recovery.bytes_cut) == (4, len(garbage))
    assert log.recovery.cut_reason
    log.close()


def test_every_flipped_bit_in_the_middle_refuses_and_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    data = crashed(folder, [1, 1, 1], LogSettings(), leader_epoch=1)
    first, second = scan(data)[1].position, scan(data)[2].position
    for at in range(first, second):
        for bit in (0, 3, 7):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            log_file(folder).write_bytes(flipped)
            before = contents(folder)
            with pytest.raises(CorruptLogError) as caught:
                open_disk(folder, LogSettings())
            after = contents(folder)
            assert after == before
            position, offset = (first, 1) if caught.value.position == first else (second, 2)
            assert (caught.value.position, caught.value.offset) == (position, offset)


def test_refusal_names_file_place_and_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    data = bytearray(crashed(folder, [5, 5, 5], LogSettings()))
    second = scan(data)[1].position
    data[second + 70] ^= 1
    log_file(folder).write_bytes(data)
    with pytest.raises(CorruptLogError) as caught:
        open_disk(folder, LogSettings())
    message = str(caught.value)
    assert "\n" not in message
    place = f"{log_file(folder)} is damaged at byte {second} (offset 5): CRC-32C"
    assert message.startswith(place)
    assert "Move the partition's folder aside" in message


def test_a_bad_batch_before_a_later_segment_refuses(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    crashed(folder, [2] * 30)
    first = log_file(folder)
    first.write_bytes(first.read_bytes()[:-1])
    before = contents(folder)
    with pytest.raises(CorruptLogError, match="a later segment holds data"):
        open_disk(folder)
    assert contents(folder) == before


def test_a_missing_segment_refuses(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    crashed(folder, [2] * 60)
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    log_file(folder, bases[1]).unlink()
    with pytest.raises(CorruptLogError, match=f"the segment before it ends at offset {bases[1]}"):
        open_disk(folder)


def test_damage_below_the_recovery_point_refuses_even_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    data = crashed(folder, [2, 2, 2], LogSettings())
    log_file(folder).write_bytes(data[:-1])
    with pytest.raises(CorruptLogError, match="everything below offset 6 had reached the device"):
        open_disk(folder, LogSettings(), recovery_point=6)
    log_file(folder).write_bytes(data[: scan(data)[2].position])
    with pytest.raises(CorruptLogError, match="must reach offset 6"):
        open_disk(folder, LogSettings(), recovery_point=6)
    open_disk(folder, LogSettings(), recovery_point=4).close()


def test_a_log_inside_a_record_is_not_taken_for_what_follows(tmp_path: Path) -> None:
    """A value that holds batches of another log must not keep a torn tail from being cut."""
    folder = tmp_path / "t-0"
    log = open_disk(folder, LogSettings())
    fill(log, [2, 2])
    inner = all_bytes(log)
    append(log, batch(1), _with_value(inner * 3))
    log.close(clean=False)
    path = log_file(folder)
    path.write_bytes(path.read_bytes()[:-1])
    log = open_disk(folder, LogSettings())
    assert log.log_end_offset == 5
    log.close()


def _with_value(value: bytes) -> bytes:
    return build_batch([None], [value], timestamps_ms=0)


def test_indexes_are_rebuilt_and_used(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    data = crashed(folder, [2] * 60)
    for path in folder.glob("*.index"):
        path.write_bytes(os.urandom(24))
    log = open_disk(folder)
    assert log.recovery.segments_rebuilt == len(log.segment_base_offsets)
    assert all_bytes(log) == data
    for offset in range(120):
        assert log.read(offset, max_bytes=1).first_base_offset == offset // 2 * 2
    log.close()


@pytest.mark.parametrize("content", [None, b"", b"123", b"\0" * 64, b"\xff" * 16])
def test_a_bad_index_after_a_clean_stop_is_seen(tmp_path: Path, content: bytes | None) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    fill(log, [2] * 60)
    end, data = log.log_end_offset, all_bytes(log)
    log.close()
    index = folder / f"{0:020d}.index"
    if content is None:
        index.unlink()
    else:
        index.write_bytes(content)
    log = open_disk(folder, clean=True, recovery_point=end)
    assert all_bytes(log) == data
    assert log.recovery.clean == (content == b""), "an empty index is slow, not wrong"
    log.close()


def test_a_clean_stop_is_believed_only_if_the_sizes_fit(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    fill(log, [2] * 60)
    end = log.log_end_offset
    log.close()
    log = open_disk(folder, clean=True, recovery_point=end)
    assert log.recovery.clean
    log.close()
    last = max(folder.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(CorruptLogError, match="had reached the device"):
        open_disk(folder, clean=True, recovery_point=end)


def test_a_clean_stop_is_believed_only_as_far_as_crcs_were_checked(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    fill(log, [2] * 60)
    end, bases = log.log_end_offset, log.segment_base_offsets
    newest = log.read(bases[-1], max_bytes=1 << 20).size
    log.close()
    path = log_file(folder, bases[1])
    data = bytearray(path.read_bytes())
    position = scan(data)[2].position
    data[position + 70] ^= 1
    path.write_bytes(data)
    before = contents(folder)
    for clean in (True, False):
        with pytest.raises(
            CorruptLogError, match="CRC-32C does not match, although it had reached"
        ) as caught:
            open_disk(folder, clean=clean, recovery_point=end, verify_bytes=1 << 20)
        assert (caught.value.path, caught.value.position) == (str(path), position)
        assert caught.value.offset == bases[1] + 4
        assert "\n" not in str(caught.value)
        assert contents(folder) == before
    log = open_disk(folder, clean=True, recovery_point=end, verify_bytes=newest)
    assert log.recovery.clean
    assert log.recovery.bytes_verified == newest, "the newest segment, and no more"
    log.close()


def test_verifying_may_begin_in_the_middle_of_a_segment(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    settings = LogSettings(index_interval_bytes=300)
    log = open_disk(folder, settings)
    fill(log, [2] * 60)
    data = bytearray(all_bytes(log))
    log.close()
    for at, refused in ((scan(data)[5].position, False), (scan(data)[50].position, True)):
        flipped = bytearray(data)
        flipped[at + 65] ^= 1
        log_file(folder).write_bytes(flipped)
        try:
            log = open_disk(folder, settings, clean=True, recovery_point=120, verify_bytes=len(data) // 2)
        except CorruptLogError as error:
            assert refused
            assert error.position == at
        else:
            assert not refused
            assert len(data) // 2 <= log.recovery.bytes_verified < len(data) * 3 // 4
            log.close(clean=False)


@pytest.mark.parametrize("left", [0, 1])
def test_a_segment_that_was_only_begun_is_dropped(tmp_path: Path, left: int) -> None:
    """The end of a segment may never have reached the device although the file of the next one has."""
    folder = tmp_path / "t-0"
    crashed(folder, [2] * 60)
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    for base in bases[3:]:
        log_file(folder, base).write_bytes(b"")
    data = log_file(folder, bases[2]).read_bytes()
    third = scan(data)[2]
    log_file(folder, bases[2]).write_bytes(data[: third.position + left])
    log = open_disk(folder, recovery_point=bases[2])
    assert log.segment_base_offsets == tuple(bases[:3])
    assert (log.log_end_offset, log.recovery.bytes_cut) == (third.base_offset, left)
    fill(log, [2] * 20)
    assert offsets(log) == list(range(third.base_offset + 40))
    log.close()
    with pytest.raises(CorruptLogError):
        open_disk(folder, recovery_point=log.log_end_offset + 1)


def test_segments_below_the_recovery_point_are_not_scanned(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    fill(log, [2] * 40)
    log.flush()
    point = log.recovery_point
    assert point == 80
    fill(log, [2] * 40)
    log.close(clean=False)
    log = open_disk(folder, recovery_point=point)
    scanned = [base for base in log.segment_base_offsets if base >= point]
    assert log.recovery.segments_rebuilt == len(scanned) < len(log.segment_base_offsets)
    assert offsets(log) == list(range(160))
    log.close()


@pytest.mark.parametrize("content", [None, b"", b"0\n9\n1 1\n", b"\xff\xfe", b"0\n2\n5 9\n1 3\n"])
def test_epochs_are_found_again_in_the_log(tmp_path: Path, content: bytes | None) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    for epoch in (0, 3, 4):
        fill(log, [2] * 10, leader_epoch=epoch)
    expected = log.epochs
    log.close(clean=False)
    path = folder / "leader-epoch-checkpoint"
    path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
    log = open_disk(folder)
    assert log.epochs == expected == (EpochEntry(0, 0), EpochEntry(3, 20), EpochEntry(4, 40))
    log.close()


def test_epochs_of_a_compacted_log_stay_when_it_starts_inside_a_batch(tmp_path: Path) -> None:
    """The batch that holds the log start begins before it, and so before what is known of its epoch."""
    folder = tmp_path / "t-0"
    log = open_disk(folder, cleaned_offset=0)
    for epoch in (1, 2, 3):
        fill(log, [3] * 10, leader_epoch=epoch)
    log.advance_log_start_offset(31)
    expected = (EpochEntry(2, 31), EpochEntry(3, 60))
    assert log.epochs == expected
    log.close(clean=False)
    log = open_disk(folder, cleaned_offset=0, log_start_offset=31)
    assert log.epochs == expected
    log.close()


IN_THE_LOG = [EpochEntry(3, 314), EpochEntry(4, 340), EpochEntry(5, 377)]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([(4, 336), (5, 377)], [(4, 336), (5, 377)]),
        ([(4, 336), (5, 350)], [(4, 336), (5, 350)]),
        ([(5, 377)], [(3, 336), (4, 340), (5, 377)]),
        ([], [(3, 336), (4, 340), (5, 377)]),
        ([(4, 336)], [(4, 336), (5, 377)]),
        ([(2, 336), (5, 377)], [(2, 336), (4, 340), (5, 377)]),
        ([(4, 336), (6, 370)], [(4, 336), (5, 377)]),
    ],
)
def test_epochs_of_a_compacted_log_are_merged(known: list, expected: list) -> None:
    """Offsets are missing from 316 to 340, and the log starts among them."""
    cache = EpochCache(None, [EpochEntry(*each) for each in known])
    cache.merge(IN_THE_LOG, 336)
    assert list(cache.entries) == expected


def test_a_log_start_among_missing_offsets_is_no_defect(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1)
    log = directory.open_log("t", 0, create=True)
    fill(log, [3], leader_epoch=1)
    later = bytearray(batch(2))
    later[:8], later[12:16] = (40).to_bytes(8), (2).to_bytes(4)
    log.assign_epoch(2, 3)
    log.append([Chunk(bytes(later), scan(later), 40, None, may_skip=True)])
    log.advance_log_start_offset(20)
    directory.close()
    assert verify(tmp_path).defects == []
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1)
    assert directory.open_log("t", 0, create=False).epochs == (EpochEntry(2, 20),)
    directory.close(clean=False)


def test_a_log_that_ends_below_its_start_begins_there_anew(tmp_path: Path) -> None:
    crashed(tmp_path / "t-0", [2] * 30)
    log = open_disk(tmp_path / "t-0", log_start_offset=500)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (500, 500, 0)
    fill(log, [2])
    assert offsets(log) == [500, 501]
    log.close()


def test_an_epoch_without_batches_is_dropped_at_opening(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    fill(log, [2], leader_epoch=1)
    log.assign_epoch(2, 2)
    log.close()
    log = open_disk(tmp_path / "t-0")
    assert log.epochs == (EpochEntry(1, 0),)
    log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_producers_are_found_again(tmp_path: Path, clean: bool) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    for at in range(40):
        append(log, batch(2, producer_id=at % 3, producer_epoch=0, base_sequence=at // 3 * 2))
    expected = log.producer_states()
    assert [len(each.batches) for each in expected] == [5] * 3
    log.close(clean)
    log = open_disk(folder, clean=clean, recovery_point=80 if clean else 0)
    # All five of each: a leader that knew fewer would call out of order what a producer sends again.
    assert log.producer_states() == expected
    log.truncate(77)
    found = log.producer_states()
    assert [[each for each in before.batches if each.last_offset < 77] for before in expected] == [
        list(each.batches) for each in found
    ]
    log.close()


def test_a_producer_of_another_epoch_begins_anew_in_a_snapshot(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    for at in range(4):
        append(log, batch(2, producer_id=7, producer_epoch=0, base_sequence=2 * at))
    append(log, batch(2, producer_id=7, producer_epoch=1, base_sequence=0))
    expected = log.producer_states()
    assert [(each.producer_epoch, len(each.batches)) for each in expected] == [(1, 1)]
    log.close()
    log = open_disk(folder, clean=True, recovery_point=10)
    assert log.producer_states() == expected
    log.close()


def test_a_damaged_producer_snapshot_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_disk(folder)
    for at in range(40):
        append(log, batch(2, producer_id=7, producer_epoch=0, base_sequence=2 * at))
    expected = log.producer_states()
    log.close()
    snapshots = sorted(folder.glob("*.snapshot"))
    assert len(snapshots) > 3
    for path in snapshots:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    told: list[Path] = []
    log = open_disk(folder, clean=True, recovery_point=80, on_mended=lambda path, why: told.append(path))
    assert log.producer_states() == expected
    assert told == snapshots[::-1]
    log.close()


def test_producer_snapshots_are_kafkas(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0")
    append(log, batch(4, producer_id=7, producer_epoch=2, base_sequence=10))
    log.close()
    data = (tmp_path / "t-0" / f"{4:020d}.snapshot").read_bytes()
    assert data[:2] == b"\0\1"
    assert data[6:10] == b"\0\0\0\1"
    entry = struct.unpack(">qhiqiqiq", data[10:])
    assert entry == (7, 2, 13, 3, 3, 1000, -1, -1)


def test_leftovers_of_interrupted_work_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    crashed(folder, [2])
    for name in (
        "1.log.deleted",
        "2.log.cleaned",
        "3.log.swap",
        "leader-epoch-checkpoint.tmp",
        f"{9:020d}.index",
    ):
        (folder / name).write_bytes(b"x")
    open_disk(folder).close(clean=False)
    assert {path.suffix for path in folder.iterdir()} <= {".log", ".index", ".timeindex", ""}
    assert not (folder / f"{9:020d}.index").exists()


# Killed processes

WRITER = """
import sys
from insync.storage import LogDirectory, LogSettings
from tests.storage.building import append, batch
directory = LogDirectory(sys.argv[1], cluster_id="c", node_id=1, settings=LogSettings(segment_bytes=20000))
log = directory.open_log("t", 0, create=True)
print(log.log_end_offset, log.recovery.bytes_cut, flush=True)
epoch = log.epochs[-1].epoch + 1 if log.epochs else 0
log.assign_epoch(epoch, log.log_end_offset)
while True:
    for at in range(17):
        end = log.log_end_offset
        values = batch(at % 5 + 1, size=100 * at + 10, mark=f"{end}:")
        append(log, values, leader_epoch=epoch)
        print(log.log_end_offset, flush=True)
    log.flush() if epoch % 2 else log.truncate(log.log_end_offset - 3)
    directory.write_checkpoints({("t", 0): log.log_end_offset})
    print("checkpoint", log.log_end_offset, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_was_told_of(tmp_path: Path) -> None:
    """SIGKILL at many moments: every append that returned is there, whole, unless it was truncated after."""
    acknowledged = 0
    for life in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert writer.stdout is not None
            opened_at = int(writer.stdout.readline().split()[0])
            assert opened_at >= acknowledged - 8, "at most the truncation under way was not reported"
            lines = [writer.stdout.readline() for _ in range(5 + 23 * life)]
        finally:
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read() if writer.stdout else ""
            writer.wait()
            if writer.stdout:
                writer.stdout.close()
        said = [line.split()[-1] for line in [*lines, *rest.splitlines(keepends=True)] if line.endswith("\n")]
        acknowledged = int(said[-1])
    log = DiskLog(tmp_path / "t-0", "t", 0, settings=LogSettings(segment_bytes=20000))
    assert log.log_end_offset >= acknowledged - 8
    found = list(records(all_bytes(log)))
    assert [record.offset for record in found] == list(range(log.log_end_offset))
    for info in scan(all_bytes(log)):
        record = found[info.base_offset]
        assert record.value is not None
        assert record.value.startswith(f"{info.base_offset}:0-".encode())
    assert len(log.epochs) >= 7
    log.close()


def test_a_search_that_has_begun_may_end_when_the_index_was_cut_and_trimmed(tmp_path: Path) -> None:
    """Another process finds out, as it would be killed: what a search has mapped must keep its file."""
    program = """
import sys
from array import array
from pathlib import Path
from insync.storage.segment._index import OffsetIndex
from insync.storage._native import ffi
index = OffsetIndex(Path(sys.argv[1]), 0)
index.grow(1 << 20)
for at in range(1, 20_000):
    index.add_all(array("i", (at, at)))
view, count = index.in_c()
index.truncate(100)
index.trim()
assert index.in_c()[1] == len(index) == 99
assert ffi.buffer(view)[8 * count - 8 : 8 * count] == b"\\0\\0N\\x1f" * 2
"""
    path = tmp_path / f"{0:020d}.index"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert path.stat().st_size == 99 * 8


FOREIGN = (
    f"{'9' * 60}.log",
    f"{1 << 63}.log",
    f"{1 << 63:020}.snapshot",
    f"{'9' * 20}.log.swap",
    "0.log",
    "5.log",
    "\N{ARABIC-INDIC DIGIT THREE}" * 20 + ".log",
    "copy.snapshot",
    "notes.index",
    f"{'9' * 40}.timeindex",
)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_somebody_else_are_no_segments(tmp_path: Path, name: str, clean: bool) -> None:
    """Offsets have 20 digits in names, and 63 bits: a log neither reads other files nor deletes them."""
    log = open_disk(tmp_path)
    fill(log, [2, 3, 1])
    log.close(clean=clean)
    (tmp_path / name).write_bytes(b"not ours")
    log = open_disk(tmp_path)
    assert log.log_end_offset == 6 and offsets(log) == list(range(6))
    fill(log, [1])
    log.close(clean=clean)
    assert name.endswith(".swap") or (tmp_path / name).read_bytes() == b"not ours"

"""Transactions in a log: compaction goes by what became of them, `.txnindex` by its segment."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest

from insync.storage import DiskLog, Log, LogSettings
from insync.storage._transactions import AbortedTransaction, encode_index, read_index
from insync.storage.batch import build_batch, records, scan

from .building import all_bytes, append, marker, open_disk
from .memory_log import MemoryLog
from .recording import Recorder

SETTINGS = LogSettings(
    segment_bytes=2048,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0,
    delete_retention_ms=1000,
    file_delete_delay_ms=0,
)
NOW = 10_000


@pytest.fixture(params=["disk", "memory"])
def log(request, tmp_path: Path):
    opened: Log = (
        open_disk(tmp_path / "t-0", SETTINGS)
        if request.param == "disk"
        else MemoryLog("t", 0, settings=SETTINGS)
    )
    yield opened
    opened.close(clean=False)


def put(log: Log, key: bytes, value: bytes, *, by: int | None = None) -> None:
    options = {} if by is None else {"producer_id": by, "producer_epoch": 0, "base_sequence": 0}
    data = build_batch([key], [value], timestamps_ms=1000, transactional=by is not None, **options)  # type: ignore[arg-type]
    append(log, data)


def close_segment(log: Log) -> None:
    assert isinstance(log, (DiskLog, MemoryLog))
    before = log.segment_base_offsets[-1]
    while log.segment_base_offsets[-1] == before:
        put(log, b"filler", bytes(700))


def held(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(each.offset, each.key, each.value) for each in records(all_bytes(log)) if each.key != b"filler"]


def markers(log: Log) -> list[int]:
    return [info.base_offset for info in scan(all_bytes(log)) if info.is_control and info.record_count]


def compact(log: Log, now: int = NOW):
    return log.maintain(now, high_watermark=log.log_end_offset).compaction


def test_what_was_aborted_replaces_nothing_and_goes(log: Log) -> None:
    put(log, b"a", b"1")
    put(log, b"b", b"1")
    put(log, b"a", b"aborted", by=5)
    put(log, b"b", b"committed", by=6)
    append(log, marker(commit=False, producer_id=5))
    append(log, marker(commit=True, producer_id=6))
    put(log, b"c", b"again", by=5)
    append(log, marker(commit=True, producer_id=5))
    close_segment(log)
    compact(log)
    assert held(log) == [(0, b"a", b"1"), (3, b"b", b"committed"), (6, b"c", b"again")]


def test_every_batch_of_an_aborted_transaction_goes(log: Log) -> None:
    put(log, b"a", b"1")
    put(log, b"b", b"1")
    put(log, b"a", b"aborted", by=5)
    put(log, b"b", b"aborted, too", by=5)
    append(log, marker(commit=False, producer_id=5))
    close_segment(log)
    compact(log)
    assert held(log) == [(0, b"a", b"1"), (1, b"b", b"1")]


def test_no_batch_of_an_open_transaction_counts_from_its_first_on(log: Log) -> None:
    put(log, b"a", b"1")
    put(log, b"a", b"perhaps", by=5)
    put(log, b"x", b"open", by=5)
    close_segment(log)
    done = compact(log)
    assert done is None or done.cleaned_offset <= 1
    append(log, marker(commit=False, producer_id=5))
    close_segment(log)
    compact(log)
    assert held(log) == [(0, b"a", b"1")]


def test_a_marker_stays_as_long_as_what_it_ends_and_then_as_tombstones_do(log: Log) -> None:
    put(log, b"a", b"1", by=5)
    append(log, marker(commit=True, producer_id=5))
    close_segment(log)
    compact(log, NOW)
    assert (held(log), markers(log)) == ([(0, b"a", b"1")], [1])
    put(log, b"a", b"2")
    close_segment(log)
    compact(log, NOW + 5000)
    assert markers(log) == [1], "nothing of its transaction is left, but readers may be on their way"
    info = next(info for info in scan(all_bytes(log)) if info.base_offset == 1)
    assert (info.attributes & 0x40, info.base_timestamp) == (0x40, NOW + 6000)
    close_segment(log)
    compact(log, NOW + 6000)
    assert markers(log) == []


@pytest.mark.parametrize("is_last", [False, True], ids=["in a segment", "at its end"])
def test_readers_are_not_told_of_an_aborted_transaction_whose_marker_is_gone(log: Log, is_last: bool) -> None:
    """To them its producer is aborting up to the next marker: they would pass over what it has committed since."""
    put(log, b"a", b"aborted", by=5)
    if is_last:
        # A marker that ends a segment stays as an empty batch, which ends nothing.
        put(log, b"filler", bytes(SETTINGS.segment_bytes - len(all_bytes(log)) - 180))
    append(log, marker(commit=False, producer_id=5))
    ended = log.log_end_offset - 1
    close_segment(log)
    assert isinstance(log, (DiskLog, MemoryLog))
    assert (ended + 1 in log.segment_base_offsets) == is_last
    put(log, b"a", b"committed", by=5)
    append(log, marker(commit=True, producer_id=5))
    end = log.log_end_offset
    close_segment(log)
    for now in (NOW, NOW + 1000, NOW + 2000):
        told = [each[:3] for each in log.aborted_transactions(0, end)]
        assert told == ([(5, 0, ended)] if ended in markers(log) else [])
        compact(log, now)
        close_segment(log)
    assert ended not in markers(log) and log.aborted_transactions(0, end) == []
    assert [each[1:] for each in held(log)] == [(b"a", b"committed")]


def test_an_index_that_names_a_marker_that_is_gone_is_mended(tmp_path: Path) -> None:
    """Earlier versions left it so."""
    log = open_disk(tmp_path / "t-0", SETTINGS)
    put(log, b"a", b"1")
    close_segment(log)
    compact(log)
    entry = AbortedTransaction(5, 0, 0, 1)
    log._segments[0].set_aborted([entry])
    assert log.aborted_transactions(0, 1) == [entry]
    close_segment(log)
    compact(log)
    assert log.aborted_transactions(0, 1) == []
    assert indexes(log.folder) == {"00000.txnindex": [], "00000.txnindex.deleted": [entry]}
    log.close(clean=False)


@pytest.mark.parametrize("kept", [True, False])
def test_a_crash_brings_no_index_back_whose_markers_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """At each moment of the compaction that takes the marker away, with all that was unsynced, or none of it."""
    log = open_disk(tmp_path / "t-0", SETTINGS)
    put(log, b"a", b"aborted", by=5)
    append(log, marker(commit=False, producer_id=5))
    entry = AbortedTransaction(5, 0, 1, 2)
    put(log, b"a", b"committed", by=5)
    append(log, marker(commit=True, producer_id=5))
    close_segment(log)
    compact(log)
    close_segment(log)
    assert log.aborted_transactions(0, log.log_end_offset) == [entry] and 1 in markers(log)
    found = set()
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(tmp_path, patch)
        compact(log, NOW + 2000)
        log.close(clean=False)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for at in range(len(recorder.ops) + 1):
        folder = tmp_path / f"crash-{at}"
        folder.mkdir()
        recorder.crash(at, lambda _: kept).put(folder)
        left = open_disk(folder / "t-0", SETTINGS, cleaned_offset=0, recovery_point=log.recovery_point)
        told = left.aborted_transactions(0, left.log_end_offset)
        assert told == ([entry] if 1 in markers(left) else []), at
        found.add(len(told))
        left.close(clean=False)
    assert found == {0, 1}


def test_nothing_counts_from_an_open_transaction_on(log: Log) -> None:
    put(log, b"a", b"1")
    put(log, b"a", b"2")
    put(log, b"x", b"open", by=5)
    put(log, b"a", b"3")
    close_segment(log)
    done = compact(log)
    assert done is not None
    assert done.cleaned_offset == 2
    assert held(log) == [(1, b"a", b"2"), (2, b"x", b"open"), (3, b"a", b"3")]
    before = all_bytes(log)
    close_segment(log)
    again = compact(log)
    assert again is not None
    assert again.segments_before == 0
    assert all_bytes(log).startswith(before)
    append(log, marker(commit=True, producer_id=5))
    close_segment(log)
    compact(log)
    assert held(log) == [(2, b"x", b"open"), (3, b"a", b"3")]


ENTRIES = [AbortedTransaction(5, 0, 3, 4), AbortedTransaction(6, 2, 8, 9)]


def test_the_index_is_kafkas_layout(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(encode_index(ENTRIES))
    assert path.read_bytes()[:34].hex() == "0000" + "".join(f"{each:016x}" for each in (5, 0, 3, 4))
    assert read_index(path) == ENTRIES
    path.write_bytes(path.read_bytes()[:-1])
    assert read_index(path) == ENTRIES[:1]
    assert read_index(tmp_path / "none") == []


def indexes(folder: Path) -> dict[str, list[AbortedTransaction]]:
    return {path.name[15:]: read_index(path) for path in sorted(folder.glob("*.txnindex*"))}


def test_the_index_goes_where_its_segment_goes(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", SETTINGS)
    ends, entries = [], []
    for at in range(2):
        put(log, b"a", b"%d" % at)
        first = log.log_end_offset
        put(log, b"x", b"aborted", by=5 + at)
        append(log, marker(commit=False, producer_id=5 + at))
        entries.append(AbortedTransaction(5 + at, first, first + 1, first + 2))
        close_segment(log)
        ends.append(log.segment_base_offsets[-1])
    log.configure(attrs.evolve(SETTINGS, segment_bytes=1 << 20))
    assert compact(log) is not None
    assert log.segment_base_offsets == (0, ends[-1])
    assert indexes(log.folder) == {
        "00000.txnindex": entries,
        "00000.txnindex.deleted": entries[:1],
        f"{ends[0]:05d}.txnindex.deleted": entries[1:],
    }
    log.maintain(NOW + 1, high_watermark=0)
    assert indexes(log.folder) == {"00000.txnindex": entries}
    log.truncate(entries[1].last_offset)
    assert indexes(log.folder) == {"00000.txnindex": entries[:1]}
    log.close()
    log = open_disk(log.folder, SETTINGS, cleaned_offset=0, clean=True, recovery_point=log.log_end_offset)
    assert indexes(log.folder) == {"00000.txnindex": entries[:1]}
    log.truncate_fully(0)
    assert indexes(log.folder) == {}
    (log.folder / f"{77:020d}.txnindex").write_bytes(encode_index(ENTRIES))
    log.close()
    open_disk(log.folder, SETTINGS).close()
    assert indexes(log.folder) == {}, "one without a log is removed"

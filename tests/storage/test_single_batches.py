"""Small batches that are appended one at a time take a short way, which leaves all as the general one does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from insync.storage import AppendError, Chunk, LogSettings, _prepare
from insync.storage.batch import BATCH_OVERHEAD_BYTES, crc32c, scan
from insync.storage.segment import _index, _segment
from insync.storage.segment._segment import Segment

from .building import all_bytes, append, batch, marker, open_disk, stamped

LARGE = LogSettings(segment_bytes=1 << 30, index_interval_bytes=1 << 20)
"""One segment, and no index entry that would have a batch take the general way."""


def test_the_latest_batches_are_found_where_they_lie(tmp_path: Path) -> None:
    """In whichever of the two lists of their places."""
    log = open_disk(tmp_path / "t-0", LARGE)
    append(log, *[batch(mark=f"{number}:") for number in range(_segment._RECENT + 5)])
    for offset in range(_segment._RECENT - 5, log.log_end_offset):
        assert log.is_at_hand(offset)
        result = log.read(offset, max_bytes=1)
        assert log.read_at_hand(offset, max_bytes=1, limit_offset=offset + 100) == result
        found = result.range
        assert found is not None
        (info,) = scan(found.read_bytes())
        assert (info.base_offset, info.size_bytes) == (offset, found.length)
    log.close()


def test_only_what_is_found_without_a_look_at_the_files_is_at_hand(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LARGE)
    append(log, batch(), batch())
    assert log.read_at_hand(1, max_bytes=1, limit_offset=2) == log.read(1, max_bytes=1)
    assert log.read_at_hand(1, max_bytes=1, limit_offset=1) == log.read(1, max_bytes=1, limit_offset=1)
    assert log.read_at_hand(2, max_bytes=1, limit_offset=2) is None
    log._log_end_offset = 1
    found = log.read_at_hand(0, max_bytes=1 << 20, limit_offset=2)
    assert found is not None and found.next_offset == 1, "the second one is still being written"
    log._log_end_offset = 2
    log.flush()
    (segment,) = log._segments
    while not segment.let_go():
        pass
    assert log.read_at_hand(1, max_bytes=1, limit_offset=2) is None, "its file is closed"
    log.read(1, max_bytes=1)
    assert not segment.let_go()
    assert log.read_at_hand(1, max_bytes=1, limit_offset=2) is not None
    assert not segment.let_go(), "it was used again"
    log.advance_log_start_offset(1)
    assert log.read_at_hand(0, max_bytes=1, limit_offset=2) is None, "it was deleted"
    append(log, batch(3), batch())
    assert log.read_at_hand(3, max_bytes=1, limit_offset=6) == log.read(3, max_bytes=1), "inside of a batch"
    log._begin_segment(6)
    assert log.read_at_hand(5, max_bytes=1, limit_offset=6) is None, "it is in the segment before"
    log.close()
    log = open_disk(tmp_path / "t-0", LARGE, clean=True, recovery_point=6)
    assert log.read_at_hand(5, max_bytes=1, limit_offset=6) is None, "nothing is known yet"
    log.close()


def test_a_file_stays_open_until_what_was_appended_to_it_is_on_the_device(tmp_path: Path) -> None:
    """Else nobody would be told that it was not."""
    log = open_disk(tmp_path / "t-0", LARGE)
    append(log, batch(), batch())
    log.flush()
    (segment,) = log._segments
    append(log, batch())
    assert not segment.let_go() and not segment.let_go()
    log.flush()
    assert not segment.let_go() and segment.let_go()
    log.close()


@pytest.mark.parametrize("interval", [1 << 20, 1], ids=["the short way", "the general way"])
def test_a_flush_just_before_the_bytes_are_written_does_not_count_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: int
) -> None:
    """The flusher is another thread."""
    log = open_disk(tmp_path / "t-0", attrs.evolve(LARGE, index_interval_bytes=interval))
    append(log, batch(), batch())
    log.flush()
    (segment,) = log._segments
    write = os.pwritev

    def flush_first(*arguments: Any) -> int:
        monkeypatch.setattr(os, "pwritev", write)
        segment.flush()
        return write(*arguments)

    monkeypatch.setattr(os, "pwritev", flush_first)
    append(log, batch())
    assert os.pwritev is write
    assert not segment.let_go() and not segment.let_go()
    log.close()


def test_the_indexes_of_a_log_that_was_appended_to_are_brought_to_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_disk(tmp_path / "t-0", LARGE)
    append(log, batch(), batch())
    log.close()
    log = open_disk(tmp_path / "t-0", LARGE, clean=True, recovery_point=2)
    assert log._segments[-1].indexes_synced
    append(log, batch())
    synced: list[str] = []
    monkeypatch.setattr(_index, "fsync_file", lambda path: synced.append(path.suffix))
    log.close()
    assert synced == [".index", ".timeindex"]


@pytest.mark.parametrize("leader_epoch", [None, 0])
def test_bytes_that_are_not_the_announced_batch_are_refused(tmp_path: Path, leader_epoch: int | None) -> None:
    log = open_disk(tmp_path / "t-0", LARGE)
    append(log, batch(), batch())
    data = stamped(batch(), 2, 0)
    with pytest.raises(AppendError, match="are not"):
        log.append([Chunk(data + b"x", scan(data), 2, leader_epoch)])
    assert (log.log_end_offset, log.size_bytes) == (2, 2 * len(data))
    log.append([Chunk(data, scan(data), 2, leader_epoch)])
    assert log.log_end_offset == 3
    log.close()


@pytest.mark.parametrize("leader_epoch", [None, 0])
@pytest.mark.parametrize(("at", "said"), [(3, 3), (1, 1), (3, 2)])
def test_a_batch_that_does_not_go_on_where_the_log_ends_is_refused(
    tmp_path: Path, leader_epoch: int | None, at: int, said: int
) -> None:
    log = open_disk(tmp_path / "t-0", LARGE)
    append(log, batch(), batch())
    before, data = log.size_bytes, stamped(batch(), at, 0)
    if said == 2 and leader_epoch == 0:
        log.append([Chunk(data, scan(data), said, leader_epoch)])  # a leader sets the offset
        assert all_bytes(log)[-len(data) :] == stamped(data, 2, 0)
    else:
        with pytest.raises(AppendError, match=r"not contiguous|should be at 2"):
            log.append([Chunk(data, scan(data), said, leader_epoch)])
        assert (log.log_end_offset, log.size_bytes) == (2, before)
    log.close()


@pytest.mark.parametrize("size", [10, _prepare.GATHERED_BYTES], ids=["copied", "from where it lies"])
def test_a_batch_that_ends_elsewhere_than_announced_is_refused(tmp_path: Path, size: int) -> None:
    log = open_disk(tmp_path / "t-0", LARGE)
    append(log, batch(), batch())
    before, data = all_bytes(log), batch(size=size)
    (info,) = scan(data)
    with pytest.raises(AppendError, match="are not the announced"):
        log.append([Chunk(data, [info._replace(last_offset_delta=5)], 2, 0)])
    assert (log.log_end_offset, all_bytes(log)) == (2, before)
    log.close()


def test_what_is_found_by_time_is_records(tmp_path: Path) -> None:
    """Compaction leaves batches without."""
    log = open_disk(tmp_path / "t-0", LARGE)
    append(log, batch(), batch())
    empty = bytearray(stamped(batch(), 2, 0)[:BATCH_OVERHEAD_BYTES])
    empty[8:12] = (BATCH_OVERHEAD_BYTES - 12).to_bytes(4)
    empty[35:43] = (5000).to_bytes(8)  # the greatest timestamp
    empty[57:61] = bytes(4)  # the number of records
    empty[17:21] = crc32c(memoryview(empty)[21:]).to_bytes(4)
    log.append([Chunk(bytes(empty), scan(bytes(empty)), 2, None)])
    assert log.log_end_offset == 3
    assert log._segments[-1].largest == (1000, 0)
    log.close()


def test_a_marker_that_comes_alone_ends_its_transaction(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LARGE)
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    append(log, batch(), batch(**producer), marker(commit=False, producer_id=7))
    assert [tuple(each)[:3] for each in log.aborted_transactions(0, 3)] == [(7, 1, 2)]
    log.close()


def _full_file(segment: Segment, _: pytest.MonkeyPatch) -> None:
    segment.configure(attrs.evolve(LARGE, segment_bytes=1 << 10))


def _far_offset(_: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_segment, "MAX_RELATIVE", 1)


def _full_index(segment: Segment, _: pytest.MonkeyPatch) -> None:
    segment.index._limit = segment.index._count


def _full_time_index(segment: Segment, _: pytest.MonkeyPatch) -> None:
    segment.time_index._limit = segment.time_index._count + 1


def _old(segment: Segment, _: pytest.MonkeyPatch) -> None:
    segment._roll_ms = -1


@pytest.mark.parametrize("size", [10, _segment._TAIL_BYTES + 1], ids=["the short way", "the general way"])
@pytest.mark.parametrize("limit", [_full_file, _far_offset, _full_index, _full_time_index, _old])
def test_a_batch_for_which_a_segment_has_no_room_begins_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[..., None], size: int
) -> None:
    log = open_disk(tmp_path / "t-0", LARGE)
    append(log, batch(size=500), batch(size=500))
    (segment,) = log._segments
    limit(segment, monkeypatch)
    append(log, batch(size=size))
    assert (log.segment_base_offsets, log.log_end_offset) == ((0, 2), 3)
    log.close()


def test_the_age_of_a_segment_that_was_there_is_that_of_its_first_batch(tmp_path: Path) -> None:
    log = open_disk(tmp_path / "t-0", LARGE)
    assert 0 <= log._segments[0].age_ms(5000) < 4000, "it has none yet"
    append(log, batch(), batch())
    assert log._segments[0].age_ms(5000) == 4000
    log.close()
    log = open_disk(tmp_path / "t-0", LARGE, clean=True, recovery_point=2)
    assert log._segments[0].age_ms(5000) == 4000
    log.close()

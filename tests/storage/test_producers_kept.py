"""What is known of a producer outlives a crash, even if all segments that it wrote to are below the log start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from insync.storage import Chunk, DiskLog, LogSettings
from insync.storage.batch import build_batch, scan

from .building import append, open_disk

SETTINGS = LogSettings(segment_bytes=1024)
LAST = 1
"""The sequence number of the producer's last batch."""


def made(sequence: int, size: int) -> bytes:
    return build_batch(
        [b"k"], [bytes(size)], timestamps_ms=1, producer_id=7, producer_epoch=0, base_sequence=sequence
    )


def truncated(log: DiskLog) -> None:
    """A truncation begins the last segment."""
    append(log, *(made(sequence, 60) for sequence in range(LAST + 2)))
    log.truncate(LAST + 1)


def rolled(log: DiskLog) -> None:
    """An append begins the last segment when it has written the first of its chunks."""
    nobody = build_batch([b"k"], [bytes(400)], timestamps_ms=1)
    data = b"".join(made(sequence, 400) for sequence in range(LAST + 1))
    log.append([Chunk(data, scan(data), 0, 0), Chunk(nobody, scan(nobody), LAST + 1, 0)])


def last_sequence(log: DiskLog) -> int:
    (producer,) = log.producer_states()
    return producer.batches[-1].last_sequence


def crashed(log: DiskLog) -> DiskLog:
    log.close(clean=False)
    return open_disk(log.folder, SETTINGS, log_start_offset=log.log_start_offset)


@pytest.fixture(params=[truncated, rolled])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> DiskLog:
    begin: Callable[[DiskLog], None] = request.param
    log = open_disk(tmp_path / "t-0", SETTINGS)
    begin(log)
    assert log.segment_base_offsets == (0, LAST + 1)
    assert last_sequence(log) == LAST
    return log


def test_records_were_deleted(log: DiskLog) -> None:
    log.advance_log_start_offset(LAST + 1)
    for _ in range(2):
        log = crashed(log)
        assert last_sequence(log) == LAST
        assert log.log_start_offset == LAST + 1
    log.close()


def test_the_segment_that_went_on_in_retention(log: DiskLog) -> None:
    log.advance_log_start_offset(LAST + 1)
    assert log.delete_old_segments(1, high_watermark=log.log_end_offset) == 1
    for _ in range(2):
        log = crashed(log)
        assert last_sequence(log) == LAST
        assert log.segment_base_offsets == (LAST + 1,)
    log.close()


def test_a_crash_and_then_retention(log: DiskLog) -> None:
    """The segment that opening kept is the retention's: it goes, and leaves a snapshot."""
    log.advance_log_start_offset(LAST + 1)
    log = crashed(log)
    assert log.delete_old_segments(1, high_watermark=log.log_end_offset) == 1
    log = crashed(log)
    assert last_sequence(log) == LAST
    assert [path.name for path in log.folder.glob("*.log")] == [f"{LAST + 1:020}.log"]
    log.close()


def test_damage_below_the_log_start_stops_neither_opening_nor_retention(log: DiskLog) -> None:
    log.advance_log_start_offset(LAST + 1)
    file = log.folder / f"{0:020}.log"
    file.write_bytes(bytes(file.stat().st_size))
    assert log.delete_old_segments(1, high_watermark=log.log_end_offset) == 1
    assert last_sequence(log) == LAST
    log.close()


def test_a_damaged_segment_below_the_log_start_is_not_opened(log: DiskLog) -> None:
    log.advance_log_start_offset(LAST + 1)
    end = log.log_end_offset
    file = log.folder / f"{0:020}.log"
    log.close(clean=False)
    file.write_bytes(bytes(file.stat().st_size))
    log = open_disk(log.folder, SETTINGS, log_start_offset=LAST + 1)
    assert (log.segment_base_offsets, log.log_end_offset) == ((LAST + 1,), end)
    log.close()

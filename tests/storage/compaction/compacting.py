"""What tests of compaction share: logs that are compacted early, and what is read back from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from insync.storage import DiskLog, Log, LogSettings
from insync.storage.batch import Compression, build_batch, records

from ..building import all_bytes, append, open_disk
from ..memory_log import MemoryLog

Pair = tuple[bytes | None, bytes | None]

SETTINGS = LogSettings(
    segment_bytes=2048,
    index_interval_bytes=200,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=1000,
    file_delete_delay_ms=0,
)
NOW = 1_000_000
CODECS: tuple[Compression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")


def either_log(kind: str, folder: Path) -> Iterator[Log]:
    """For a fixture: a log on `disk`, or the model of one in `memory`."""
    opened: Log = (
        open_disk(folder / "t-0", SETTINGS) if kind == "disk" else MemoryLog("t", 0, settings=SETTINGS)
    )
    yield opened
    opened.close(clean=False)


def put(log: Log, pairs: Sequence[Pair], *, at: int = 5000, epoch: int = 0, **options: object) -> None:
    data = build_batch([key for key, _ in pairs], [value for _, value in pairs], timestamps_ms=at, **options)  # type: ignore[arg-type]
    append(log, data, leader_epoch=epoch)


def close_segment(log: Log, *, at: int = 5000, epoch: int = 0) -> None:
    """Fill the segment that is written, and begin the next."""
    before = log.segment_base_offsets[-1]
    while log.segment_base_offsets[-1] == before:
        put(log, [(b"filler", bytes(700))], at=at, epoch=epoch)


def compact(log: Log, now: int = NOW, **options: object):
    return log.maintain(now, high_watermark=log.log_end_offset, **options).compaction  # type: ignore[arg-type]


def held(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """All records, without the filler."""
    found = records(all_bytes(log), start_offset=log.log_start_offset)
    return [(each.offset, each.key, each.value) for each in found if each.key != b"filler"]


def reopen(log: Log, **options: object) -> DiskLog:
    assert isinstance(log, DiskLog)
    cleaned = log.cleaned_offset
    folder = log.folder
    log.close(clean=False)
    return open_disk(folder, SETTINGS, cleaned_offset=cleaned, **options)


def latest(pairs: Iterable[tuple[int, Pair]]) -> list[tuple[int, bytes | None, bytes | None]]:
    """The slow second opinion."""
    last = {key: offset for offset, (key, _) in pairs}
    return [(offset, key, value) for offset, (key, value) in pairs if last[key] == offset]

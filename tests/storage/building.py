"""Batches and logs for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from insync.storage import Chunk, DiskLog, Log, LogSettings
from insync.storage.batch import build_batch, crc32c, records, scan
from insync.storage.folder._sealed import unsealed_table

SMALL = LogSettings(segment_bytes=1024, segment_index_bytes=64, index_interval_bytes=100)
"""A few batches fill a segment."""


def batch(count: int = 1, *, size: int = 10, mark: str = "", **producer: int) -> bytes:
    """A batch whose values all differ."""
    values = [f"{mark}{at}-".encode().ljust(size, b".") for at in range(count)]
    return build_batch([None] * count, values, timestamps_ms=1000, **producer)  # type: ignore[arg-type]


def chunk(log: Log, data: bytes, leader_epoch: int = 0) -> Chunk:
    """For a leader's append at the log end."""
    return Chunk(data, scan(data), log.log_end_offset, leader_epoch)


def append(log: Log, *batches: bytes, leader_epoch: int = 0) -> None:
    for data in batches:
        log.append([chunk(log, data, leader_epoch)])


def fill(log: Log, counts: Iterable[int], leader_epoch: int = 0) -> list[int]:
    """Append a batch of each count; returns their base offsets."""
    bases = []
    for count in counts:
        bases.append(log.log_end_offset)
        append(log, batch(count, mark=f"{log.log_end_offset}:"), leader_epoch=leader_epoch)
    return bases


def open_disk(folder: Path, settings: LogSettings = SMALL, **options: object) -> DiskLog:
    folder.mkdir(exist_ok=True)
    return DiskLog(folder, "t", 0, settings=settings, **options)  # type: ignore[arg-type]


def all_bytes(log: Log) -> bytes:
    """Everything that can be read, batch after batch."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=700)
        assert result.range is not None
        found.append(result.range.read_bytes())
        assert result.next_offset > offset
        offset = result.next_offset
    return b"".join(found)


def offsets(log: Log) -> list[int]:
    return [record.offset for record in records(all_bytes(log), start_offset=log.log_start_offset)]


def stamped(data: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """One batch as a leader would have sent it."""
    return base_offset.to_bytes(8) + data[8:12] + leader_epoch.to_bytes(4) + data[16:]


def marker(*, commit: bool, producer_id: int, timestamp_ms: int = 1000) -> bytes:
    """The control batch that ends a transaction (KIP-98)."""
    key = (0).to_bytes(2) + int(commit).to_bytes(2)
    data = bytearray(
        build_batch(
            [key],
            [bytes(6)],
            timestamps_ms=timestamp_ms,
            producer_id=producer_id,
            producer_epoch=0,
            transactional=True,
        )
    )
    data[22] |= 0x20
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4)
    return bytes(data)


def table_text(path: Path) -> str:
    """The rows of a checkpoint file, whose checksum must be right."""
    content = path.read_bytes()
    text = unsealed_table(content)
    assert text is not None and (text.count("\n") <= 2 or text.encode() != content), content
    return text

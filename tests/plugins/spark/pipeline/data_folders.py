"""Replicas as stopped nodes leave them: real batches, indexes and checkpoints, written by the log itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from insync.storage import Chunk, DiskLog, LogDirectory, LogSettings
from insync.storage.batch import BatchInfo, build_batch, crc32c, scan

TOPIC = "orders"
CLUSTER = "a-cluster-of-tests-0000"
TIME_MS = 1_700_000_000_000
SMALL = LogSettings(segment_bytes=40_000, segment_index_bytes=4000, index_interval_bytes=1000)

Batches = Iterable[tuple[int, bytes]]
"""Leader epoch and batch, in order."""


def batch(
    count: int, mark: str, size: int = 50, *, keys: Sequence[bytes] | None = None, **producer: int
) -> bytes:
    values = [f"{mark}/{at}/".encode().ljust(size, b".") for at in range(count)]
    names = keys or [b"key-%d" % (at % 7) for at in range(count)]
    return build_batch(list(names), list(values), timestamps_ms=TIME_MS, **producer)  # type: ignore[arg-type]


def batches(
    number: int = 200, records: int = 10, *, epochs: Iterable[int] = (0, 2, 5), mark: str = ""
) -> list:
    """So many batches, the epochs taking equal shares of them."""
    shares = list(epochs)
    return [(shares[at * len(shares) // number], batch(records, f"{mark}{at}")) for at in range(number)]


def append(log: DiskLog, content: Batches) -> None:
    for epoch, data in content:
        if not log.epochs or log.epochs[-1].epoch < epoch:
            log.assign_epoch(epoch, log.log_end_offset)
        log.append([Chunk(data, scan(data), log.log_end_offset, epoch)])


def write_folder(
    path: Path,
    node_id: int,
    partitions: Mapping[int, Batches],
    *,
    settings: LogSettings = SMALL,
    high_watermark: int | None = None,
    then: Callable[[DiskLog], None] = lambda log: None,
) -> Path:
    """The data folder of a node that has stopped cleanly. `then` may do more to each log."""
    directory = LogDirectory(path, cluster_id=CLUSTER, node_id=node_id, settings=settings)
    marks = {}
    for partition, content in partitions.items():
        log = directory.open_log(TOPIC, partition, create=True)
        append(log, content)
        then(log)
        marks[TOPIC, partition] = log.log_end_offset if high_watermark is None else high_watermark
    directory.write_checkpoints(marks)
    directory.close(True)
    return path


def three(root: Path, partitions: Mapping[int, Batches], **options: object) -> list[Path]:
    return [write_folder(root / f"node-{node}", node, partitions, **options) for node in (1, 2, 3)]  # type: ignore[arg-type]


def find(folder: Path, offset: int, partition: int = 0) -> tuple[Path, BatchInfo]:
    """The segment file and the batch that hold an offset."""
    for path in sorted((folder / f"{TOPIC}-{partition}").glob("*.log"), reverse=True):
        if int(path.stem) <= offset:
            return path, next(info for info in scan(path.read_bytes()) if info.next_offset > offset)
    raise LookupError(offset)


# Damage


def flip_bit(folder: Path, offset: int) -> None:
    """In the last byte of the batch that holds the offset."""
    path, info = find(folder, offset)
    data = bytearray(path.read_bytes())
    data[info.position + info.size_bytes - 1] ^= 0x10
    path.write_bytes(data)


def remove_batch(folder: Path, offset: int) -> None:
    path, info = find(folder, offset)
    data = bytearray(path.read_bytes())
    del data[info.position : info.position + info.size_bytes]
    path.write_bytes(data)


def change_epoch(folder: Path, offset: int, epoch: int) -> None:
    path, info = find(folder, offset)
    data = bytearray(path.read_bytes())
    data[info.position + 12 : info.position + 16] = epoch.to_bytes(4)
    path.write_bytes(data)


def change_record(folder: Path, offset: int) -> None:
    """One byte of the record at the offset, with a CRC that fits, as software that goes wrong would write it."""
    path, info = find(folder, offset)
    data = bytearray(path.read_bytes())
    _alter(data, info, offset)
    path.write_bytes(data)


def diverge(folder: Path, offset: int) -> list[Path]:
    """Other records from the offset on, every batch sound in itself: a replica that went on by itself.

    Gives the segment files that are others now.
    """
    paths = sorted((folder / f"{TOPIC}-0").glob("*.log"))
    changed = [each for each in paths if each >= find(folder, offset)[0]]
    for path in changed:
        data = bytearray(path.read_bytes())
        for info in scan(bytes(data)):
            if info.next_offset > offset:
                _alter(data, info, max(offset, info.base_offset))
        path.write_bytes(data)
    return changed


def _alter(data: bytearray, info: BatchInfo, offset: int) -> None:
    """One byte of the value of that record, which `batch` has made, and the CRC of its batch."""
    part = data[info.position : info.position + info.size_bytes]
    mark = b"/%d/" % (offset - info.base_offset)
    part[part.index(mark) + len(mark)] ^= 1
    part[17:21] = crc32c(bytes(part[21:])).to_bytes(4)
    data[info.position : info.position + info.size_bytes] = part

"""Writing records to Parquet within a task: one file for each folder that they fall into."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COMPRESSION = "zstd"


_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))


@attrs.frozen
class ByDate:
    """`date=2026-01-31`, by the record's timestamp in UTC.

    A day that no date can name, as of a producer that counts in microseconds, is 9999-12-31 (or 0001-01-01).
    """

    def folders(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        days = batch.column("timestamp").view(pa.int64()).to_numpy() // _DAY_US
        dates = pa.array(np.clip(days, _FIRST_DAY, _LAST_DAY).astype(np.int32)).view(pa.date32())
        return [
            (f"date={date}", batch.filter(pc.equal(dates, date))) for date in pc.unique(dates).to_pylist()
        ]


@attrs.frozen
class ByKeyRange:
    """`keys=00` and on: keys from one bound (inclusive) to the next; `keys=null` for those without a key."""

    bounds: tuple[bytes, ...]
    """Rising; one fewer than there are ranges."""

    def folders(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        keys = batch.column("key")
        number = np.zeros(len(keys), np.int64)
        for bound in self.bounds:
            number += pc.fill_null(pc.greater_equal(keys, pa.scalar(bound, pa.binary())), False).to_numpy(
                zero_copy_only=False
            )
        number[pc.is_null(keys).to_numpy(zero_copy_only=False)] = -1
        return [
            ("keys=null" if each < 0 else f"keys={each:02d}", batch.filter(pa.array(number == each)))
            for each in np.unique(number).tolist()
        ]


Layout = ByDate | ByKeyRange


@attrs.frozen
class WrittenFile:
    """One file of Parquet; `path` is relative to where it was to be written."""

    path: str
    rows: int
    bytes: int
    """Of keys and values."""
    partition: int
    first_offset: int
    last_offset: int


class FolderWriter:
    """Files of one range of a partition, `part-<partition>-<first offset>.parquet` in each folder.

    They get their names when they are closed, whole and synced: an attempt that dies leaves none.
    """

    def __init__(self, root: Path, layout: Layout, partition: int, start_offset: int) -> None:
        self._root = root
        self._layout = layout
        self._partition = partition
        self._name = f"part-{partition:05d}-{start_offset:020d}.parquet"
        self._open: dict[str, _OpenFile] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        for folder, rows in self._layout.folders(batch):
            if folder not in self._open:
                self._open[folder] = _OpenFile(self._root / folder / self._name, rows.schema)
            self._open[folder].write(rows)

    def close(self) -> list[WrittenFile]:
        return [
            each.close(f"{folder}/{self._name}", self._partition)
            for folder, each in sorted(self._open.items())
        ]

    def abandon(self) -> None:
        for each in self._open.values():
            each.abandon()


class _OpenFile:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        self._writer = pq.ParquetWriter(self._temporary, schema, compression=COMPRESSION)
        self._rows = self._bytes = 0
        self._first = self._last = -1

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows)
        offsets = rows.column("offset")
        if self._rows == 0:
            self._first = offsets[0].as_py()
        self._last = offsets[-1].as_py()
        self._rows += len(rows)
        self._bytes += bytes_of(rows)

    def close(self, name: str, partition: int) -> WrittenFile:
        self._writer.close()
        sync(self._temporary)
        os.replace(self._temporary, self._path)
        return WrittenFile(name, self._rows, self._bytes, partition, self._first, self._last)

    def abandon(self) -> None:
        self._writer.close()
        self._temporary.unlink(missing_ok=True)


def bytes_of(rows: pa.RecordBatch) -> int:
    """Of keys and values, as far as they are among the columns."""
    there = [name for name in ("key", "value") if name in rows.schema.names]
    return sum(pc.sum(pc.binary_length(rows.column(name))).as_py() or 0 for name in there)


def write_all(
    batches: Iterable[pa.RecordBatch], root: Path, layout: Layout, partition: int, start_offset: int
) -> list[WrittenFile]:
    """Write one range; all of it, or, when something is raised, nothing that stays."""
    writer = FolderWriter(root, layout, partition, start_offset)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def sync(path: Path) -> None:
    """A file's or a folder's bytes onto the device."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def key_bounds(sample: Sequence[bytes], ranges: int) -> tuple[bytes, ...]:
    """Bounds between which about equal shares of the sample lie; fewer where keys repeat."""
    ordered = sorted(sample)
    if not ordered:
        return ()
    found = {ordered[len(ordered) * at // ranges] for at in range(1, ranges)}
    return tuple(sorted(found - {ordered[0]}))

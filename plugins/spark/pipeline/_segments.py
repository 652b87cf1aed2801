"""Segment files as a table: the columns of the source, and whose sequence each record has.

Decoded in C, a few MiB of batches at a time; no node has to run, and none is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....storage.batch import (
    SEQUENCE_MODULUS,
    BatchInfo,
    PackedColumn,
    PackedHeaders,
    PackedRecords,
    StorageError,
    pack_in_parts,
)
from .._columns import micros
from ._folders import ReplicaFiles
from ._plan import RANGE_BYTES, grouped, log_start, splits
from ._scan import Window, next_offsets, windows
from .errors import DamagedSegmentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 10_000
"""Of a record batch at most; larger ones slow Spark down."""
_LOG_APPEND_TIME = 8
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

TYPES: dict[str, tuple[pa.DataType, str]] = {
    "key": (pa.binary(), "BINARY"),
    "value": (pa.binary(), "BINARY"),
    "topic": (pa.string(), "STRING"),
    "partition": (pa.int32(), "INT"),
    "offset": (pa.int64(), "LONG"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "TIMESTAMP"),
    "timestampType": (pa.int32(), "INT"),
    "headers": (pa.list_(pa.field("element", _HEADER)), "ARRAY<STRUCT<key: STRING, value: BINARY>>"),
    "producer_id": (pa.int64(), "LONG"),
    "producer_epoch": (pa.int32(), "INT"),
    "sequence": (pa.int64(), "LONG"),
    "replica": (pa.string(), "STRING"),
}
"""Each column's type in Arrow and in Spark. Producer id, epoch and sequence are -1 of records that have none."""

SOURCE_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@attrs.frozen
class ReadTask:
    """Records of offsets [start_offset, end_offset) in a segment file's batches that begin in [start, stop)."""

    replica: str
    topic: str
    partition: int
    path: str
    start: int
    stop: int
    start_offset: int
    end_offset: int
    skips_damage: bool = False


def read_tasks(
    replica: ReplicaFiles,
    start_offset: int,
    end_offset: int,
    *,
    range_bytes: int = RANGE_BYTES,
    skips_damage: bool = False,
) -> list[ReadTask]:
    """The ranges of a replica's segments that may hold these offsets, in order; below its log start nothing is.

    skips_damage: read on behind what is no whole and valid batch, instead of failing there.
    """
    start_offset = max(start_offset, log_start(replica))
    tasks = []
    ends = [each.base_offset for each in replica.segments[1:]] + [end_offset]
    for segment, end in zip(replica.segments, ends, strict=True):
        if end <= start_offset or segment.base_offset >= end_offset or not segment.size_bytes:
            continue
        bounds = [0, *splits(segment, range_bytes), segment.size_bytes]
        tasks += [
            ReadTask(
                replica.replica,
                replica.topic,
                replica.partition,
                segment.path,
                start,
                stop,
                start_offset,
                end_offset,
                skips_damage,
            )
            for start, stop in pairwise(bounds)
        ]
    return tasks


def frame(
    spark: SparkSession, tasks: Sequence[ReadTask], columns: Sequence[str], range_bytes: int = RANGE_BYTES
) -> DataFrame:
    """The records of all tasks; a partition of Spark for each, or for some small ones in a row."""
    given = grouped(tasks, range_bytes)
    names = list(columns)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for task in given[number]:
                    yield from read_range(task, names)

    schema = ", ".join(f"`{name}` {TYPES[name][1]}" for name in names)
    if not given:
        return spark.createDataFrame([], schema)
    return spark.range(0, len(given), 1, len(given)).mapInArrow(read, schema)


def read_range(task: ReadTask, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Record batches of at most `ROWS` rows, in order of offsets.

    Raises DamagedSegmentError where the file holds no whole and valid batch, OSError.
    """
    last = task.start_offset

    def expected() -> int:
        return last

    for window in windows(task.path, task.start, task.stop, expected):
        if window.damage:
            if window.is_torn:
                return
            if task.skips_damage:
                continue
            raise DamagedSegmentError(
                f"{task.path} at {window.position}, offset {last}: {window.damage}; insync pipeline audit says "
                "what else is damaged, another replica has the records"
            )
        ends = next_offsets(window.rows)
        last = int(ends[-1])
        wanted = (ends > task.start_offset) & (window.rows["base_offset"] < task.end_offset)
        if wanted.any():
            yield from _record_batches(task, window, window.rows[wanted], columns)
        if last >= task.end_offset:
            return


def _record_batches(
    task: ReadTask, window: Window, rows: npt.NDArray[Any], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    infos = [BatchInfo(*row) for row in rows.tolist()]
    fields = [name for name in ("key", "value", "headers") if name in columns]
    try:
        for packed in pack_in_parts(
            bytes(window.data),
            infos,
            start_offset=task.start_offset,
            fields=fields,  # type: ignore[arg-type]
        ):
            yield from _of_packed(task, packed, rows, columns)
    except StorageError as error:
        raise DamagedSegmentError(f"{task.path}, offsets from {infos[0].base_offset}: {error}") from error


def _of_packed(
    task: ReadTask, packed: PackedRecords, rows: npt.NDArray[Any], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    offsets = np.frombuffer(packed.offsets, np.int64)
    count = int(np.searchsorted(offsets, task.end_offset))
    if not count:
        return
    made = _Columns(task, rows, offsets)
    arrays = [
        _strings(getattr(packed, name), packed.count)
        if name in ("key", "value")
        else _headers(packed.headers, packed.count)
        if name == "headers"
        else made.make(name, np.frombuffer(packed.timestamps_ms, np.int64))
        for name in columns
    ]
    schema = pa.schema([(name, TYPES[name][0]) for name in columns])
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema).slice(0, count)
    for at in range(0, count, ROWS):
        yield whole.slice(at, ROWS)


class _Columns:
    """The columns that no record has for itself."""

    def __init__(self, task: ReadTask, rows: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> None:
        self._task = task
        self._offsets = offsets
        self._batches = rows[np.searchsorted(rows["base_offset"], offsets, side="right") - 1]

    def make(self, name: str, times_ms: npt.NDArray[np.int64]) -> pa.Array:
        count = len(self._offsets)
        if name in ("topic", "replica"):
            value = getattr(self._task, name)
            return pa.repeat(pa.scalar(value, pa.string()), count)
        if name == "partition":
            return pa.array(np.full(count, self._task.partition, np.int32))
        if name == "offset":
            return pa.array(self._offsets)
        if name == "timestamp":
            return pa.array(micros(times_ms)).cast(TYPES[name][0])
        if name == "timestampType":
            return pa.array((self._batches["attributes"] & _LOG_APPEND_TIME != 0).astype(np.int32))
        if name == "sequence":
            return pa.array(self._sequences())
        return pa.array(self._batches[name]).cast(TYPES[name][0])

    def _sequences(self) -> npt.NDArray[np.int64]:
        base = self._batches["base_sequence"].astype(np.int64)
        sequences = (base + self._offsets - self._batches["base_offset"]) % SEQUENCE_MODULUS
        return np.where(base < 0, -1, sequences)


def _strings(column: PackedColumn, count: int, kind: pa.DataType | None = None) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind or pa.binary(), count, buffers, null_count=column.null_count)


def _headers(headers: PackedHeaders | None, count: int) -> pa.Array:
    assert headers is not None
    kind = TYPES["headers"][0]
    parts = [_strings(headers.keys, headers.count, pa.string()), _strings(headers.values, headers.count)]
    structs = pa.StructArray.from_arrays(parts, fields=list(_HEADER))
    buffers = [None, pa.py_buffer(headers.list_offsets)]
    return pa.Array.from_buffers(kind, count, buffers, null_count=0, children=[structs])

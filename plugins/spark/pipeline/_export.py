"""`export`: a topic to Parquet, from where the last run ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import pyarrow as pa

from ._inputs import FolderInput, Input, Span, TopicInput
from ._jobs import Progress, quiet, run_tasks, watching
from ._manifest import ExportState, Manifest
from ._parquet import ByDate, ByKeyRange, FolderWriter, Layout, WrittenFile, key_bounds, write_all
from ._plan import RANGE_BYTES
from ._segments import SOURCE_COLUMNS, ReadTask, read_range
from .errors import ExportStateError, LostRecordsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (*SOURCE_COLUMNS, "headers")
_SAMPLE = 20_000


@attrs.define
class ExportReport:
    """The output of one run. `offsets`: partition -> the first offset that is not exported."""

    rows: int
    bytes: int
    """Of keys and values."""
    files: int
    lost: int
    """Offsets that had been deleted before they could be exported."""
    offsets: dict[int, int]
    elapsed_s: float

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            **attrs.asdict(self),
            "offsets": {str(partition): offset for partition, offset in self.offsets.items()},
            "elapsed_s": round(self.elapsed_s, 3),
        }


def export(
    spark: SparkSession,
    source: Input,
    target: str | os.PathLike[str],
    *,
    by: Literal["date", "keys"] = "date",
    key_ranges: int = 16,
    fail_on_data_loss: bool = True,
    range_bytes: int = RANGE_BYTES,
    progress: Progress = quiet,
) -> ExportReport:
    """Write what is committed and not exported yet to Parquet files under `target`.

    Each record is in exactly one file, whenever and however often a run is killed: a run takes effect as a whole,
    by one rename. `target/_insync` remembers up to which offset of each partition records have been exported. A
    reader that looks while a run is taking effect may see some of its files and not the others.

    Args:
      spark: A session whose executors see `target` (and a data folder) under the same path.
      source: A topic, or a topic in a data folder; the same topic in each run.
      target: A folder on a file system that has atomic renames.
      by: `date` by the record's timestamp (UTC), or `keys`, ranges of keys.
      key_ranges: How many; the first run sees to it that they have about equal shares.
      fail_on_data_loss: Whether to refuse when records were deleted before they were exported.
      range_bytes: Of a segment file, for one task.

    Raises:
      ExportStateError: `target` belongs to an export of something else, or another run is at work.
      LostRecordsError: Offsets that come next have been deleted.
    """
    began = time.monotonic()
    with Manifest.locked(Path(target).absolute()) as manifest:
        state = _state(manifest, source, by)
        spans, lost = _due(source.spans(), state.offsets, source.name, fail_on_data_loss)
        layout: Layout = ByDate()
        if by == "keys":
            if not state.runs:
                state.bounds = _bounds(spark, source, spans, key_ranges, progress)
            layout = ByKeyRange(state.bounds)
        files: list[WrittenFile] = []
        if any(start < end for start, end in spans.values()):
            staging = manifest.staging()
            files = _write(spark, source, spans, staging, layout, range_bytes, progress)
            state.runs += 1
            state.rows += sum(each.rows for each in files)
            state.offsets |= {partition: end for partition, (_, end) in spans.items()}
            manifest.commit(staging, files, state)
        return ExportReport(
            rows=sum(each.rows for each in files),
            bytes=sum(each.bytes for each in files),
            files=len(files),
            lost=lost,
            offsets=dict(sorted(state.offsets.items())),
            elapsed_s=time.monotonic() - began,
        )


def check_target(source: Input, target: str | os.PathLike[str], by: str) -> None:
    """The check that needs no Spark: raises ExportStateError as `export` does."""
    with Manifest.locked(Path(target).absolute()) as manifest:
        _state(manifest, source, by)


def _state(manifest: Manifest, source: Input, by: str) -> ExportState:
    state = manifest.state() or ExportState(source.topic, by)
    if (state.topic, state.layout) != (source.topic, by):
        raise ExportStateError(
            f"{manifest.root} holds an export of topic {state.topic} by {state.layout}, not of {source.topic} by "
            f"{by}: export into another folder"
        )
    return state


def _due(
    held: Mapping[int, Span], exported: Mapping[int, int], name: str, fail_on_data_loss: bool
) -> tuple[dict[int, Span], int]:
    """The offsets to export of each partition, and how many offsets are gone."""
    due, lost = {}, 0
    for partition, (first, end) in held.items():
        start = exported.get(partition, first)
        if start > end:
            raise ExportStateError(
                f"partition {partition} of {name} ends at offset {end}, but {start} offsets of it have been "
                "exported: it is not the same log; export into another folder"
            )
        if start < first:
            if fail_on_data_loss:
                raise LostRecordsError(
                    f"offsets {start} to {first - 1} of partition {partition} of {name} were deleted before "
                    "they were exported; fail_on_data_loss=False (--allow-data-loss) goes on without them"
                )
            lost += first - start
        due[partition] = (max(start, first), end)
    return due, lost


def _bounds(
    spark: SparkSession, source: Input, spans: Mapping[int, Span], ranges: int, progress: Progress
) -> tuple[bytes, ...]:
    total = sum(end - start for start, end in spans.values())
    keys = source.frame(spark, spans, ("key",)).where("key IS NOT NULL")
    if total > _SAMPLE:
        keys = keys.sample(fraction=min(1.0, 2 * _SAMPLE / total), seed=1)
    with watching(spark, "sampling keys", progress):
        rows = keys.limit(_SAMPLE).collect()
    return key_bounds([bytes(row[0]) for row in rows], ranges)


def _write(
    spark: SparkSession,
    source: Input,
    spans: Mapping[int, Span],
    staging: Path,
    layout: Layout,
    range_bytes: int,
    progress: Progress,
) -> list[WrittenFile]:
    if isinstance(source, FolderInput):
        writing = _RangeWriting(str(staging), layout)
        tasks = [[task] for task in source.tasks(spans, range_bytes=range_bytes)]
        return run_tasks(spark, writing.write, tasks, "exporting segments", progress)
    return _write_topic(spark, source, spans, staging, layout, progress)


@attrs.frozen
class _RangeWriting:
    """Read and written in the same task; records never pass through the JVM."""

    staging: str
    layout: Layout

    def write(self, tasks: Sequence[ReadTask]) -> list[WrittenFile]:
        files = []
        for task in tasks:
            batches = _with_first(read_range(task, COLUMNS))
            if batches is not None:
                first, rest = batches
                files += write_all(rest, Path(self.staging), self.layout, task.partition, first)
        return files


def _with_first(
    batches: Iterator[pa.RecordBatch],
) -> tuple[int, Iterator[pa.RecordBatch]] | None:
    """The first offset, and all the batches; None if there is none."""
    for first in batches:

        def all_of(first: pa.RecordBatch = first) -> Iterator[pa.RecordBatch]:
            yield first
            yield from batches

        return first.column("offset")[0].as_py(), all_of()
    return None


def _write_topic(
    spark: SparkSession,
    source: TopicInput,
    spans: Mapping[int, Span],
    staging: Path,
    layout: Layout,
    progress: Progress,
) -> list[WrittenFile]:
    root = str(staging)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = write_partitions(batches, Path(root), layout)
        rows = [attrs.asdict(each) for each in found]
        yield pa.RecordBatch.from_pylist(rows, schema=_FILE_SCHEMA)

    records = source.frame(spark, {at: span for at, span in spans.items() if span[0] < span[1]}, COLUMNS)
    with watching(spark, "exporting the topic", progress, one_stage=True):
        rows = records.mapInArrow(write, _FILE_DDL).collect()
    return [WrittenFile(**row.asDict()) for row in rows]


_FILE_DDL = "path STRING, rows LONG, bytes LONG, partition INT, first_offset LONG, last_offset LONG"
_FILE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
    ]
)


def write_partitions(batches: Iterable[pa.RecordBatch], root: Path, layout: Layout) -> list[WrittenFile]:
    """Write what one task is given: ranges of partitions, one behind the other."""
    files: list[WrittenFile] = []
    writer: FolderWriter | None = None
    current = -1
    try:
        for batch in batches:
            if not len(batch):
                continue
            partition = batch.column("partition")[0].as_py()
            if writer is None or partition != current:
                if writer is not None:
                    files += writer.close()
                current = partition
                writer = FolderWriter(root, layout, partition, batch.column("offset")[0].as_py())
            writer.write(batch)
        if writer is not None:
            files += writer.close()
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise
    return files

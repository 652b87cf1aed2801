"""`stats`: how much there is of each key and each minute, and how late records are."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ._inputs import Input, Span
from ._jobs import Progress, quiet, watching

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = ("key", "value", "partition", "offset", "timestamp")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = (
    (day.replace(tzinfo=UTC) - _EPOCH) // timedelta(minutes=1) for day in (datetime.min, datetime.max)
)
"""Minutes that a datetime can name."""


@attrs.frozen
class KeyCount:
    """`key` None is the records without a key."""

    key: bytes | None
    records: int
    bytes: int

    @property
    def text(self) -> str:
        return "(no key)" if self.key is None else self.key.decode(errors="backslashreplace")


@attrs.frozen
class Minute:
    """Records whose timestamp lies in a minute, and how many of them were out of order."""

    at: datetime
    records: int
    bytes: int
    late: int


@attrs.frozen
class PartitionStats:
    """`late`: records with a timestamp below that of one before them in the log."""

    partition: int
    records: int
    bytes: int
    first_offset: int
    end_offset: int
    late: int
    max_late_ms: int


@attrs.define
class StatsReport:
    """Bytes are those of keys and values."""

    name: str
    records: int
    bytes: int
    keys: int
    """Distinct ones; null counts as one."""
    late: int
    """Records that come after one with a later timestamp in their partition."""
    max_late_ms: int
    late_quantiles_ms: dict[str, int]
    """Of the late ones: by how much they are, at most, for so many of them; Spark's approximation."""
    partitions: list[PartitionStats]
    top_keys: list[KeyCount]
    minutes: list[Minute]
    elapsed_s: float

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        found = attrs.asdict(self, recurse=True)
        found["top_keys"] = [
            {"key": each.text if each.key is not None else None, "records": each.records, "bytes": each.bytes}
            for each in self.top_keys
        ]
        for minute in found["minutes"]:
            minute["at"] = minute["at"].isoformat()
        found["elapsed_s"] = round(self.elapsed_s, 3)
        return found


def stats(
    spark: SparkSession,
    source: Input,
    *,
    top: int = 20,
    plot: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    progress: Progress = quiet,
) -> StatsReport:
    """Count what is committed of a topic: by key, by minute and by partition, and records that are out of order.

    Args:
      top: So many of the keys with the most bytes are listed.
      plot: Write a plot to this PNG file.
      html: Write a page with the plot and the figures to this file; it needs no other.

    Raises:
      PipelineError: There is no matplotlib to draw with, or no such file can be written; before anything is read.
    """
    began = time.monotonic()
    drawn = [Path(each) for each in (plot, html) if each is not None]
    if drawn:
        from ._plot import check_drawing

        check_drawing(drawn)
    spans = source.spans()
    records = _measured(source.frame(spark, spans, _COLUMNS)).persist()
    try:
        with watching(spark, "counting", progress):
            partitions = _by_partition(records, spans)
            minutes = _by_minute(records)
            keys, top_keys = _by_key(records, top)
            quantiles = _late_quantiles(records)
    finally:
        records.unpersist()
    report = StatsReport(
        name=source.name,
        records=sum(each.records for each in partitions),
        bytes=sum(each.bytes for each in partitions),
        keys=keys,
        late=sum(each.late for each in partitions),
        max_late_ms=max((each.max_late_ms for each in partitions), default=0),
        late_quantiles_ms=quantiles,
        partitions=partitions,
        top_keys=top_keys,
        minutes=minutes,
        elapsed_s=time.monotonic() - began,
    )
    if plot is not None or html is not None:
        from ._plot import write_html, write_png

        if plot is not None:
            write_png(report, Path(plot))
        if html is not None:
            write_html(report, Path(html))
    return report


def _measured(records: DataFrame) -> DataFrame:
    """No values, but their size, and by how many milliseconds a record comes late."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    size = f.coalesce(f.octet_length("key"), f.lit(0)) + f.coalesce(f.octet_length("value"), f.lit(0))
    sized = records.select(
        "partition",
        "key",
        "offset",
        size.cast("long").alias("size"),
        f.unix_millis("timestamp").alias("ms"),
    )
    late = f.greatest(f.max("ms").over(before) - f.col("ms"), f.lit(0))
    return sized.withColumn("late_ms", f.coalesce(late, f.lit(0)))


def _by_partition(records: DataFrame, spans: Mapping[int, Span]) -> list[PartitionStats]:
    from pyspark.sql import functions as f

    rows = (
        records.groupBy("partition")
        .agg(
            f.count("*").alias("records"),
            f.sum("size").alias("bytes"),
            f.count_if(f.col("late_ms") > 0).alias("late"),
            f.max("late_ms").alias("max_late_ms"),
        )
        .collect()
    )
    found = {row["partition"]: row for row in rows}
    return [
        PartitionStats(at, row["records"], row["bytes"], first, end, row["late"], row["max_late_ms"])
        if (row := found.get(at)) is not None
        else PartitionStats(at, 0, 0, first, end, 0, 0)
        for at, (first, end) in sorted(spans.items())
    ]


def _by_minute(records: DataFrame) -> list[Minute]:
    from pyspark.sql import functions as f

    # Times that datetime cannot name, as of a producer that counts in microseconds, count as the last minute.
    minute = f.least(f.greatest(f.floor(f.col("ms") / 60_000), f.lit(_FIRST)), f.lit(_LAST)).alias("minute")
    rows = records.groupBy(minute).agg(
        f.count("*").alias("records"),
        f.sum("size").alias("bytes"),
        f.count_if(f.col("late_ms") > 0).alias("late"),
    )
    return [
        Minute(_EPOCH + timedelta(minutes=row["minute"]), row["records"], row["bytes"], row["late"])
        for row in rows.orderBy("minute").collect()
    ]


def _by_key(records: DataFrame, top: int) -> tuple[int, list[KeyCount]]:
    from pyspark.sql import functions as f

    keys = records.groupBy("key").agg(f.count("*").alias("records"), f.sum("size").alias("bytes")).persist()
    try:
        rows = keys.orderBy(f.desc("bytes"), f.desc("records"), "key").limit(top).collect()
        return keys.count(), [_key_count(row) for row in rows]
    finally:
        keys.unpersist()


def _key_count(row: Any) -> KeyCount:
    key = row["key"]
    return KeyCount(None if key is None else bytes(key), row["records"], row["bytes"])


def _late_quantiles(records: DataFrame) -> dict[str, int]:
    from pyspark.sql import functions as f

    shares = (0.5, 0.9, 0.99)
    late = records.where("late_ms > 0")
    [row] = late.agg(f.percentile_approx("late_ms", list(shares)).alias("found")).collect()
    return {} if row["found"] is None else dict(zip(("p50", "p90", "p99"), row["found"], strict=True))

"""`load`: files into a topic."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import attrs

from ._jobs import Progress, quiet, watching
from ._lines import RFC_4180, check_lines
from ._writing import described, job_name, write_topic
from .errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

Format = Literal["lines", "csv", "json", "parquet"]
_LINE = "value"
_KEPT: tuple[Format, ...] = ("lines", "json")
"""Formats whose lines are written as they are."""
SPLIT_BYTES = 64 << 20
"""Of a file, for one task."""


@attrs.define
class LoadReport:
    """The records that were written and acknowledged."""

    topic: str
    records: int
    bytes: int
    """Of keys and values."""
    elapsed_s: float

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**attrs.asdict(self), "elapsed_s": round(self.elapsed_s, 3)}


def load(
    spark: SparkSession,
    paths: Sequence[str | os.PathLike[str]],
    servers: str,
    topic: str,
    *,
    format: Format = "lines",
    key: str | None = None,
    value: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    progress: Progress = quiet,
) -> LoadReport:
    """Write each line or row of files to an existing topic as one record.

    Rows of one file with the same key stay in order as long as Spark does not split the file, as it does from 64
    MiB on; between files there is no order. A load that failed and is run again, over the same files (by their
    paths, sizes and times of change) into the same topic, goes on where it stopped: each row is written once. One
    that was done and is run again writes all rows again.

    Args:
      paths: Files or folders, which executors must see under the same path.
      format: `lines` of text; `csv` with a header line, as RFC 4180 has it; `json`, an object in each line;
        `parquet`.
      key: The column whose value is the record's key, as text; without it records have none. Of `lines` and `json`
        (which are kept as they are): a field of the JSON object that each line is.
      value: The columns that make up the value: one is taken as it is, several become a JSON object; by default
        all. Not for lines.
      options: Further options of Spark's reader, such as `sep` of csv.

    Raises:
      InputError: A file or a column does not exist, or a file is not of the format; nothing has been written.
      ClientError: The cluster refuses, or a topic does not exist.
    """
    began = time.monotonic()
    files, partitions = ready(paths, servers, topic, format=format, value=value)
    rows = _rows(spark, files, format, options or {})
    if format == "csv" or format == "json":
        check_lines(rows.inputFiles(), format, options or {})
    if format in _KEPT:
        table = _of_lines(rows, key, objects=format == "json")
    else:
        table = _of_columns(rows, key, value)
    with _even_splits(spark), watching(spark, "loading", progress, one_stage=True):
        how = (format, key, tuple(value), sorted((options or {}).items()), topic, partitions)
        job = job_name("load", how, _splits(rows))
        records, size = write_topic(table, servers, topic, job)
    return LoadReport(topic, records, size, time.monotonic() - began)


def ready(
    paths: Sequence[str | os.PathLike[str]], servers: str, topic: str, *, format: Format, value: Sequence[str]
) -> tuple[list[str], int]:
    """Known without Spark: the files as Spark finds them, and how many partitions the topic has.

    Raises InputError, ClientError.
    """
    if value and format in _KEPT:
        raise InputError(f"{format} are written as they are: --value is for csv and parquet")
    files = [_found(os.fspath(path)) for path in paths]
    return files, len(described(servers, topic).partitions)


@contextmanager
def _even_splits(spark: SparkSession) -> Iterator[None]:
    """Files are cut in the same way however many cores there are, so that tasks have the same rows in every run."""
    wanted = {"spark.sql.files.minPartitionNum": "1", "spark.sql.files.maxPartitionBytes": str(SPLIT_BYTES)}
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def _splits(rows: DataFrame) -> list[list[tuple[str, int, int, int, int]]]:
    """Each task's input: path, start, length, and the file's size and time of change, in its order."""
    parts = rows._jdf.queryExecution().toRdd().partitions()
    return [
        [
            (file.urlEncodedPath(), file.start(), file.length(), file.fileSize(), file.modificationTime())
            for file in part.files()
        ]
        for part in parts
    ]


def _found(path: str) -> str:
    """As the JVM finds it, whose working folder may be another. A path with a scheme is for Spark to find."""
    if "://" in path:
        return path
    if not os.path.exists(path):
        raise InputError(f"{path} does not exist")
    return os.path.abspath(path)


def _rows(spark: SparkSession, paths: list[str], format: Format, options: Mapping[str, str]) -> DataFrame:
    reader = spark.read.options(**{"header": "true", **RFC_4180} if format == "csv" else {}).options(
        **options
    )
    if format == "csv":
        return reader.csv(paths)
    if format == "parquet":
        return reader.parquet(*paths)
    rows = reader.text(paths)
    # A blank line holds no object.
    return rows.where(rows[_LINE].rlike(r"\S")) if format == "json" else rows


def _of_lines(rows: DataFrame, key: str | None, *, objects: bool) -> DataFrame:
    """objects: fail at a line that is no JSON object, as there may be in files that only Spark can open."""
    from pyspark.sql import functions as f

    line = f.col(_LINE)
    if objects:
        is_object = f.ltrim(line).startswith("{") & f.get_json_object(line, "$").isNotNull()
        said = f.concat(f.lit("a line is no JSON object, and lines before it may have been written: "), line)
        line = f.when(is_object, line).otherwise(f.raise_error(said))
    columns = [line.cast("binary").alias("value")]
    if key is not None:
        columns.append(f.get_json_object(_LINE, f"$.{key}").cast("binary").alias("key"))
    return rows.select(*columns)


def _of_columns(rows: DataFrame, key: str | None, value: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    chosen = list(value) or rows.columns
    for name in (*chosen, *([] if key is None else [key])):
        if name not in rows.columns:
            raise InputError(f"there is no column {name!r}; there are {', '.join(rows.columns)}")
    if len(chosen) == 1:
        found = _binary(rows, chosen[0])
    else:
        found = f.to_json(f.struct(*(f.col(f"`{name}`") for name in chosen))).cast("binary")
    columns = [found.alias("value")]
    if key is not None:
        columns.append(_binary(rows, key).alias("key"))
    return rows.select(*columns)


def _binary(rows: DataFrame, name: str) -> Column:
    """Bytes as they are, everything else as text; JSON of what has fields."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    kind: DataType = rows.schema[name].dataType
    column = f.col(f"`{name}`")
    if isinstance(kind, BinaryType):
        return column
    if isinstance(kind, StructType | ArrayType | MapType):
        return f.to_json(column).cast("binary")
    return column.cast("string").cast("binary")

"""`dedupe`: records that are in a topic more than once, and the topic without them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from ._inputs import SEQUENCE_COLUMNS, FolderInput, Input, Span
from ._jobs import Progress, quiet, watching
from ._segments import SOURCE_COLUMNS
from ._writing import described, job_name, was_written, write_topic
from .errors import InputError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ....replication.client.admin import TopicInfo

_EXAMPLES = 20
_ALL = (*SOURCE_COLUMNS, "headers")
_PLACE = ("partition", "offset")


@attrs.frozen
class Duplicate:
    """A record that is there already: the first of its identity is at the place that is named first."""

    first_partition: int
    first_offset: int
    partition: int
    offset: int
    identity: str


@attrs.define
class DedupeReport:
    """`records` = `kept` + `duplicates`; records without an identity are kept."""

    name: str
    by: str
    records: int
    identities: int
    unidentified: int
    """Records that have none."""
    duplicates: int
    kept: int
    examples: list[Duplicate]
    """The first 20."""
    written_to: str | None
    written_before: bool
    """By an earlier run over the same records, so not again."""
    elapsed_s: float

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**attrs.asdict(self), "elapsed_s": round(self.elapsed_s, 3)}


def dedupe(
    spark: SparkSession,
    source: Input,
    *,
    by: str = "sequence",
    to_topic: str | None = None,
    to_servers: str | None = None,
    to_parquet: str | os.PathLike[str] | None = None,
    progress: Progress = quiet,
) -> DedupeReport:
    """Find records that are there more than once, and write all but those to another topic or to Parquet.

    Of equal identities the record with the lowest partition and, in it, the lowest offset is kept.

    Args:
      by: What tells records apart. `sequence`: the idempotent producer's id, epoch and sequence, within a partition
        (of a data folder only). Or a user's: `key`, `value`, `header:NAME`, or `json:FIELD`, a field (`a.b` of a
        field) of the JSON object that the value is.
      to_topic: An existing topic. If it has as many partitions records stay in theirs, in order; otherwise their
        keys say where to. If writing fails, a second run over the same records goes on where the first one stopped,
        and one after the writing is done writes nothing; if the source has grown meanwhile, it begins anew: then
        take another topic.
      to_servers: Nodes that serve it; by default those of the source.
      to_parquet: A folder that does not exist yet.

    Raises:
      InputError: `by` is none of these; or the sequence is asked for of a topic that is not in a data folder.
      PipelineError: The target cannot be.
    """
    began = time.monotonic()
    needed, target = ready(source, by, to_topic, to_servers, to_parquet)
    spans = source.spans()
    identified = source.frame(spark, spans, (*_PLACE, *needed)).select(
        *_PLACE, _identity(by).alias("identity")
    )
    with watching(spark, "looking for duplicates", progress):
        identified.persist()
        try:
            report, digest = _counted(identified, source.name, by)
            extra = _extra(identified).persist()
            report.duplicates = extra.count()
            report.kept = report.records - report.duplicates
            report.examples = _examples(extra)
        finally:
            identified.unpersist()
    try:
        if target is not None:
            with watching(spark, "writing what is kept", progress):
                every = source.frame(spark, spans, _ALL)
                kept = every.join(extra.select(*_PLACE), list(_PLACE), "left_anti")
                report.written_to = target.name
                report.written_before = not target.write(kept, source, spans, digest)
    finally:
        extra.unpersist()
    report.elapsed_s = time.monotonic() - began
    return report


def ready(
    source: Input,
    by: str,
    to_topic: str | None,
    to_servers: str | None,
    to_parquet: str | os.PathLike[str] | None,
) -> tuple[tuple[str, ...], _ToTopic | _ToParquet | None]:
    """Known without Spark: the columns that make the identity, and where to write what is kept.

    Raises PipelineError, ClientError.
    """
    needed = _needed(by)
    if by == "sequence" and not isinstance(source, FolderInput):
        raise InputError(
            "sequence (the default of --by) tells records apart by what only files have: name a data folder, or "
            "give key, value, header:NAME or json:FIELD"
        )
    return needed, _target(source, by, to_topic, to_servers, to_parquet)


def _needed(by: str) -> tuple[str, ...]:
    if by == "sequence":
        return SEQUENCE_COLUMNS
    if by in ("key", "value"):
        return (by,)
    kind, _, name = by.partition(":")
    if name and kind in ("header", "json"):
        return ("headers",) if kind == "header" else ("value",)
    raise InputError(
        f"{by!r} does not distinguish records: give sequence, key, value, header:NAME or json:FIELD"
    )


def _identity(by: str) -> Column:
    """Null of a record that has none."""
    from pyspark.sql import functions as f

    if by == "sequence":
        parts = f.struct("partition", "producer_id", "producer_epoch", "sequence")
        return f.when((f.col("producer_id") >= 0) & (f.col("sequence") >= 0), f.to_json(parts))
    if by in ("key", "value"):
        return f.hex(by)
    kind, _, name = by.partition(":")
    if kind == "json":
        return f.get_json_object(f.col("value").cast("string"), f"$.{name}")
    of_name = f.filter("headers", lambda each: each["key"] == name)
    return f.hex(f.get(of_name, f.lit(0))["value"])


def _counted(identified: DataFrame, name: str, by: str) -> tuple[DedupeReport, int]:
    """The numbers of records and identities, and a digest of which record has which identity."""
    from pyspark.sql import functions as f

    [row] = identified.agg(
        f.count("*").alias("records"),
        f.count_distinct("identity").alias("identities"),
        f.count_if(f.col("identity").isNull()).alias("unidentified"),
        f.bit_xor(f.xxhash64(*_PLACE, "identity")).alias("digest"),
    ).collect()
    report = DedupeReport(
        name=name,
        by=by,
        records=row["records"],
        identities=row["identities"],
        unidentified=row["unidentified"],
        duplicates=0,
        kept=row["records"],
        examples=[],
        written_to=None,
        written_before=False,
        elapsed_s=0.0,
    )
    return report, row["digest"] or 0


def _extra(identified: DataFrame) -> DataFrame:
    """All but the first of each identity, with the place of the first."""
    from pyspark.sql import functions as f

    there = identified.where("identity IS NOT NULL")
    first = (
        there.groupBy("identity")
        .agg(f.min(f.struct(*_PLACE)).alias("first"), f.count("*").alias("times"))
        .where("times > 1")
    )
    return there.join(first, "identity").where(f.struct(*_PLACE) != f.col("first"))


def _examples(extra: DataFrame) -> list[Duplicate]:
    rows = extra.orderBy(*_PLACE).limit(_EXAMPLES).collect()
    return [
        Duplicate(
            row["first"]["partition"],
            row["first"]["offset"],
            row["partition"],
            row["offset"],
            row["identity"],
        )
        for row in rows
    ]


@attrs.frozen
class _ToTopic:
    servers: str
    topic: TopicInfo
    by: str

    @property
    def name(self) -> str:
        return f"topic {self.topic.name}"

    def write(self, kept: DataFrame, source: Input, spans: Mapping[int, Span], digest: int) -> bool:
        """In the order of offsets within each partition, so that a task that is run again has the same rows.

        False: these records have been written there before.
        """
        partitions, own = len(spans), len(self.topic.partitions)
        what = (source.name, self.by, sorted(spans.items()), digest)
        job = job_name("dedupe", what, self.topic.topic_id, own)
        if was_written(self.servers, job):
            return False
        columns = ["key", "value", *(["partition"] if partitions == own else [])]
        ordered = kept.repartition(partitions, "partition").sortWithinPartitions(*_PLACE)
        ends = {(source.topic, partition): end for partition, (_, end) in spans.items()}
        write_topic(ordered.select(*columns), self.servers, self.topic.name, job, done=ends)
        return True


@attrs.frozen
class _ToParquet:
    path: str

    @property
    def name(self) -> str:
        return self.path

    def write(self, kept: DataFrame, source: Input, spans: Mapping[int, Span], digest: int) -> bool:
        kept.repartition(len(spans), "partition").sortWithinPartitions(*_PLACE).write.parquet(self.path)
        return True


def _target(
    source: Input,
    by: str,
    topic: str | None,
    servers: str | None,
    parquet: str | os.PathLike[str] | None,
) -> _ToTopic | _ToParquet | None:
    if topic is not None and parquet is not None:
        raise PipelineError("give a topic or a folder of Parquet to write to, not both")
    if parquet is not None:
        path = os.path.abspath(parquet)
        if os.path.exists(os.path.join(path, "_temporary")):
            raise PipelineError(
                f"{path} is left over from an unfinished run, or is being written: remove it if no run is active"
            )
        if os.path.exists(path):
            raise PipelineError(f"{path} exists already: name a new folder")
        return _ToParquet(path)
    if topic is None:
        return None
    where = servers or getattr(source, "servers", "")
    if not where:
        raise PipelineError("the nodes that serve the topic to write to are not known: give their servers")
    if topic == source.topic and where == getattr(source, "servers", where):
        raise PipelineError(f"topic {topic} cannot be written to while it is read: name another")
    return _ToTopic(where, described(where, topic), by)

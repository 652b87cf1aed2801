"""Comparing replicas where compaction has been at work: each may have got to another place.

The records that are left then depend on how far each replica's cleaner is; but two replicas that have a record must
have the same, and one that lacks it must have had a reason: it compacted past it, and the record has no key, is a
tombstone, or has a later one of its key. Keys and records are compared by hashes, in a shuffle of Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ._findings import ReplicaFindings
from ._folders import PartitionKey
from ._jobs import Progress, quiet, watching
from ._locate import Difference
from ._plan import RANGE_BYTES, log_start
from ._segments import ReadTask, frame, read_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE = ("topic", "partition")
_COLUMNS = ("topic", "partition", "replica", "offset", "key", "value", "timestamp", "headers")


@attrs.frozen
class _Part:
    """The part of a replica where at least one replica has been compacted."""

    replica: str
    start: int
    end: int
    cleaned_up_to: int


def compare_compacted(
    spark: SparkSession,
    findings: Sequence[ReplicaFindings],
    *,
    range_bytes: int = RANGE_BYTES,
    progress: Progress = quiet,
) -> tuple[list[Difference], int]:
    """The first difference of each partition below the furthest cleaner, and how many offsets were compared."""
    parts: dict[PartitionKey, list[_Part]] = {}
    tasks: list[ReadTask] = []
    for key, members in _compacted_partitions(findings).items():
        furthest = max(each.files.cleaned_up_to for each in members)
        parts[key] = [_part(each, furthest) for each in members]
        for each, part in zip(members, parts[key], strict=True):
            tasks += read_tasks(each.files, part.start, part.end, range_bytes=range_bytes, skips_damage=True)
    if not tasks:
        return [], 0
    with watching(spark, "comparing compacted records", progress):
        hashed = _hashed(frame(spark, tasks, _COLUMNS, range_bytes)).persist()
        try:
            rows = _first_differences(spark, hashed, parts).collect()
        finally:
            hashed.unpersist()
    return [_difference(row) for row in rows], sum(_covered_twice(each) for each in parts.values())


def _compacted_partitions(
    findings: Sequence[ReplicaFindings],
) -> dict[PartitionKey, list[ReplicaFindings]]:
    found: dict[PartitionKey, list[ReplicaFindings]] = defaultdict(list)
    for each in findings:
        found[each.files.key].append(each)
    return {
        key: members
        for key, members in found.items()
        if len(members) > 1 and any(each.files.cleaned_up_to for each in members)
    }


def _part(found: ReplicaFindings, furthest: int) -> _Part:
    files = found.files
    end = max(min(furthest, files.high_watermark or 0), log_start(files))
    return _Part(files.replica, log_start(files), end, files.cleaned_up_to)


def _covered_twice(parts: Sequence[_Part]) -> int:
    """Offsets that at least two replicas serve."""
    edges = sorted([(each.start, 1) for each in parts] + [(each.end, -1) for each in parts])
    total = depth = last = 0
    for offset, step in edges:
        total += offset - last if depth > 1 else 0
        depth, last = depth + step, offset
    return total


def _hashed(records: DataFrame) -> DataFrame:
    """Some 40 bytes a record, whatever it holds."""
    from pyspark.sql import functions as f

    return records.select(
        *_PLACE,
        "offset",
        "replica",
        f.xxhash64("key").alias("key_hash"),
        f.xxhash64("key", "value", "timestamp", "headers").alias("hash"),
        (f.col("key").isNull() | f.col("value").isNull()).alias("may_go"),
    )


def _first_differences(
    spark: SparkSession, hashed: DataFrame, parts: dict[PartitionKey, list[_Part]]
) -> DataFrame:
    """One row for each partition that differs: topic, partition, offset, what each replica has, why, how many."""
    from pyspark.sql import functions as f

    latest = hashed.groupBy(*_PLACE, "key_hash").agg(f.max("offset").alias("latest"))
    by_offset = hashed.groupBy(*_PLACE, "offset").agg(
        f.map_from_entries(f.collect_list(f.struct("replica", "hash"))).alias("have"),
        f.min("hash").alias("least"),
        f.max("hash").alias("greatest"),
        f.first("key_hash").alias("key_hash"),
        f.bool_and("may_go").alias("may_go"),
    )
    members = spark.createDataFrame(
        [(*key, [attrs.astuple(each) for each in members]) for key, members in parts.items()],
        "topic STRING, partition INT, "
        "members ARRAY<STRUCT<replica: STRING, first: LONG, end: LONG, cleaned: LONG>>",
    )
    told = by_offset.join(latest, [*_PLACE, "key_hash"]).join(f.broadcast(members), list(_PLACE))
    wrongly_gone = f.expr(
        "exists(members, m -> not map_contains_key(have, m.replica) and m.first <= offset and offset < m.end "
        "and (offset >= m.cleaned or not (may_go or latest > offset)))"
    )
    bad = told.withColumn("gone", wrongly_gone).where("gone or least != greatest")
    return bad.groupBy(*_PLACE).agg(
        f.min("offset").alias("offset"),
        f.min_by("have", "offset").alias("have"),
        f.min_by("gone", "offset").alias("gone"),
        f.min_by(f.expr("transform(members, m -> m.replica)"), "offset").alias("replicas"),
        f.count("*").alias("differing"),
    )


def _difference(row: Any) -> Difference:
    have = row["have"]
    states = {
        name: f"a record of hash {have[name] & (1 << 64) - 1:016x}" if name in have else "no record"
        for name in row["replicas"]
    }
    reason = "a record is missing that compaction must keep" if row["gone"] else "the content of the record"
    place = row["topic"], row["partition"], row["offset"], row["offset"]
    return Difference(*place, reason, states, row["differing"])

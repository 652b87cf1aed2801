"""`audit`: every replica's segment files read and checked in parallel, and the replicas compared."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from ._compacted import compare_compacted
from ._findings import (
    Defect,
    ReplicaFindings,
    Suspect,
    as_defects,
    findings_of,
    first_suspects,
    misread_segments,
)
from ._folders import ReplicaFiles, list_replicas
from ._jobs import Progress, quiet, run_tasks
from ._locate import Difference, LocateTask, Stretch, locate
from ._plan import RANGE_BYTES, grouped, scan_tasks
from ._scan import ScanReport, ScanTask, scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UpTo = Literal["high-watermark", "end"]


@attrs.define
class AuditReport:
    """The amount of data that was read, and what is wrong with it. `ok` only if nothing is."""

    partitions: int
    replicas: int
    segments: int
    batches: int
    records: int
    bytes: int
    offsets_compared: int
    """In which at least two replicas were compared."""
    scan_s: float
    """Seconds of the first job, which reads everything."""
    elapsed_s: float
    defects: list[Defect] = attrs.Factory(list)
    """At most 20 of a replica; `defect_count` has all."""
    defect_count: int = 0
    differences: list[Difference] = attrs.Factory(list)
    """The first of each partition, or of each of its parts: that which compaction has gone over, and the rest."""
    notes: list[str] = attrs.Factory(list)
    """Findings that are unusual and yet no defects."""

    @property
    def ok(self) -> bool:
        return not self.defect_count and not self.differences

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) of segment files a second of the first job."""
        return self.bytes / 1e6 / max(self.scan_s, 1e-9)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "ok": self.ok,
            **attrs.asdict(self),
            "scan_s": round(self.scan_s, 3),
            "elapsed_s": round(self.elapsed_s, 3),
            "mb_per_s": round(self.mb_per_s, 1),
        }


def audit(
    spark: SparkSession,
    folders: Iterable[str | os.PathLike[str]],
    *,
    topics: Sequence[str] = (),
    up_to: UpTo = "high-watermark",
    compacted: bool = False,
    range_bytes: int = RANGE_BYTES,
    progress: Progress = quiet,
) -> AuditReport:
    """Check the segment files of data folders, and compare replicas, without changing anything.

    Each replica by itself: the CRC-32C of every batch, offsets without a gap, leader epochs as
    `leader-epoch-checkpoint` has them, the log's end against the recovery point and the high watermark.
    Replicas with each other: the first offset of each partition at which two of them differ, from where both
    begin up to the lower of their high watermarks. Tasks read ranges of segments and give back digests, no
    records; only where compaction has been at work records are compared, and by their hashes.

    Args:
      spark: A session whose executors see the folders under the same paths.
      folders: Data folders of the nodes of one cluster, of stopped nodes or (what is being written may look torn)
        of running ones.
      topics: Only these; all by default.
      up_to: `end` also compares what is not committed.
      compacted: Allow the gaps in offsets that Kafka's compaction leaves also where no checkpoint tells of it.
      range_bytes: Of a segment, for one task.

    Raises:
      DataFolderError: A folder is no data folder, or the folders do not belong together.
      OSError: A file cannot be read.
    """
    began = time.monotonic()
    replicas, broken = list_replicas(folders, topics)
    reports, scan_s = _scan_all(spark, replicas, compacted, range_bytes, progress)
    findings = findings_of(replicas, reports, compacted=compacted)
    suspects, compared = first_suspects(findings, to_the_end=up_to == "end")
    tasks = [_locating(suspect, findings) for suspect in suspects]
    found = run_tasks(spark, _locate_all, [[task] for task in tasks], "locating differences", progress)
    more, records_compared = compare_compacted(spark, findings, range_bytes=range_bytes, progress=progress)
    differences = more + [each for each in found if each is not None]
    defects = as_defects(replicas, broken) + [each for one in findings for each in one.defects]
    return AuditReport(
        partitions=len({each.key for each in replicas}),
        replicas=len(replicas),
        segments=sum(len(each.segments) for each in replicas),
        batches=sum(each.batches for each in reports),
        records=sum(each.records for each in reports),
        bytes=sum(each.bytes for each in reports),
        offsets_compared=sum(compared.values()) + records_compared,
        scan_s=scan_s,
        elapsed_s=time.monotonic() - began,
        defects=defects,
        defect_count=len(broken) + sum(each.defect_count for each in findings),
        differences=sorted(differences, key=lambda each: (each.topic, each.partition, each.offset)),
        notes=[note for each in findings for note in each.notes],
    )


def _scan_all(
    spark: SparkSession,
    replicas: Sequence[ReplicaFiles],
    compacted: bool,
    range_bytes: int,
    progress: Progress,
) -> tuple[list[ScanReport], float]:
    began = time.monotonic()
    tasks = scan_tasks(replicas, compacted=compacted, range_bytes=range_bytes)
    reports = run_tasks(spark, _scan_some, grouped(tasks, range_bytes), "checking segments", progress)
    misread = misread_segments(reports)
    if misread:
        whole = scan_tasks(replicas, compacted=compacted, range_bytes=1 << 62)
        again = [[task] for task in whole if task.path in misread]
        reports = [each for each in reports if each.task.path not in misread]
        reports += run_tasks(spark, _scan_some, again, "checking segments with wrong indexes", progress)
    return reports, time.monotonic() - began


def _scan_some(tasks: Sequence[ScanTask]) -> list[ScanReport]:
    return [scan(task) for task in tasks]


def _locate_all(tasks: Sequence[LocateTask]) -> list[Difference | None]:
    return [locate(task) for task in tasks]


def _locating(suspect: Suspect, findings: Sequence[ReplicaFindings]) -> LocateTask:
    where: dict[str, list[Stretch]] = defaultdict(list)
    for number in suspect.replicas:
        found = findings[number]
        where[found.files.replica] = [
            Stretch(report.task.path, report.task.start, report.task.stop)
            for report in found.reports
            if report.first_offset < suspect.end
            and (report.end_offset < 0 or report.end_offset > suspect.start)
        ]
    topic, partition = suspect.key
    return LocateTask(topic, partition, suspect.start, suspect.end, dict(where), suspect.blocks)

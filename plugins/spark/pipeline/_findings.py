"""The findings of an audit's tasks, put together: the order within each log, and the differences of replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import attrs

from ._folders import PartitionKey, ReplicaFiles
from ._plan import cuts_of, log_start
from ._scan import BLOCK_BITS, CUT_BITS, DEFECTS_MAX, Place, ScanReport

ENDLESS = 1 << 62


@attrs.frozen
class Defect:
    """Something wrong within one replica."""

    replica: str
    topic: str
    partition: int
    path: str
    position: int
    """Of the batch in the file; -1 if it is about no batch."""
    offset: int
    reason: str

    def __str__(self) -> str:
        where = f" at {self.position}" if self.position >= 0 else ""
        return (
            f"{self.replica}, {self.topic}-{self.partition}, offset {self.offset}: {self.reason} "
            f"({self.path}{where})"
        )


@attrs.define
class ReplicaFindings:
    """The content of one replica's files, and its defects."""

    files: ReplicaFiles
    reports: list[ScanReport]
    """In order of their place in the log."""
    end_offset: int = 0
    defects: list[Defect] = attrs.Factory(list)
    defect_count: int = 0
    notes: list[str] = attrs.Factory(list)

    @property
    def name(self) -> str:
        return f"{self.files.replica}, {self.files.topic}-{self.files.partition}"

    def digests(self) -> dict[int, tuple[int, int]]:
        merged: dict[int, tuple[int, int]] = {}
        for report in self.reports:
            for key, (total, count) in report.digests.items():
                known, number = merged.get(key, (0, 0))
                merged[key] = (known + total) % (1 << 64), number + count
        return merged


def misread_segments(reports: Iterable[ScanReport]) -> set[str]:
    """Segments with a range that ended within a batch: their index was wrong, so the findings are wrong, too."""
    ends: dict[tuple[str, int], int] = {}
    for report in reports:
        ends[report.task.path, report.task.stop] = report.end_position
    return {path for (path, stop), end in ends.items() if end > stop}


def findings_of(
    replicas: Sequence[ReplicaFiles], reports: Iterable[ScanReport], *, compacted: bool
) -> list[ReplicaFindings]:
    """The ranges of each replica in order, with its defects."""
    by_replica: dict[int, list[ScanReport]] = defaultdict(list)
    for report in reports:
        by_replica[report.task.replica].append(report)
    found = []
    for number, files in enumerate(replicas):
        own = sorted(by_replica[number], key=lambda each: (each.task.path, each.task.start))
        findings = ReplicaFindings(files, own)
        _Order(findings, compacted).check()
        found.append(findings)
    return found


class _Order:
    """Compares the ranges and segments of one replica with each other and with its checkpoints."""

    def __init__(self, findings: ReplicaFindings, compacted: bool) -> None:
        self._found = findings
        self._files = findings.files
        self._compacted = compacted
        self._expected = -1
        self._gap_is_known = False
        self._epoch = -1

    def check(self) -> None:
        by_path: dict[str, list[ScanReport]] = defaultdict(list)
        for report in self._found.reports:
            by_path[report.task.path].append(report)
        for segment in self._files.segments:
            self._segment(segment.path, segment.base_offset)
            for report in by_path[segment.path]:
                self._range(report)
        self._found.end_offset = max(self._expected, 0)
        self._checkpoints()

    def _add(self, path: str, position: int, offset: int, reason: str) -> None:
        self._found.defect_count += 1
        if len(self._found.defects) < DEFECTS_MAX:
            files = self._files
            self._found.defects.append(
                Defect(files.replica, files.topic, files.partition, path, position, offset, reason)
            )

    def _segment(self, path: str, base: int) -> None:
        gap = base - self._expected
        if self._expected >= 0 and not self._gap_is_known and (gap < 0 or (gap > 0 and not self._compacted)):
            reason = f"the segment begins at offset {base}, but the one before it ends at {self._expected}"
            self._add(path, 0, self._expected, reason)
        self._expected = base
        self._gap_is_known = False

    def _range(self, report: ScanReport) -> None:
        for place in report.defects:
            offset = place.offset if place.offset >= 0 else self._expected
            self._add(place.path, place.position, offset, place.reason)
        self._found.defect_count += report.defect_count - len(report.defects)
        if report.first_offset >= 0:
            self._first_batch(report)
            self._expected = report.end_offset
            self._epoch = max(self._epoch, report.highest_epoch)
        elif report.end_offset >= 0:
            self._expected = report.end_offset
        if report.first_position >= 0:
            self._gap_is_known = report.ends_after_damage
        if report.ends_torn:
            self._torn(report)

    def _first_batch(self, report: ScanReport) -> None:
        gap = report.first_offset - self._expected
        known = self._gap_is_known or report.starts_after_damage
        if gap < 0 or (gap > 0 and not (report.task.gaps or known)):
            reason = (
                f"a batch of base offset {report.first_offset} stands where {self._expected} should follow"
            )
            self._add(report.task.path, report.first_position, self._expected, reason)
        if report.task.epochs is None and report.first_epoch < self._epoch:
            reason = f"leader epoch {report.first_epoch} is below the {self._epoch} before it"
            self._add(report.task.path, report.first_position, report.first_offset, reason)

    def _torn(self, report: ScanReport) -> None:
        """A crash may cut the last batch short, but none below what is committed or flushed."""
        files = self._files
        settled = max(files.recovery_point, files.high_watermark or 0)
        last = report.task.path == files.segments[-1].path
        position = report.end_position
        reason = f"the file ends within a batch ({report.torn_reason})"
        if last and self._expected >= settled:
            self._found.notes.append(
                f"{self._found.name}: {reason}, at offset {self._expected}, behind what is committed and flushed: "
                "the node cuts it off at its next start"
            )
        else:
            self._add(report.task.path, position, self._expected, reason)

    def _checkpoints(self) -> None:
        files, end = self._files, self._found.end_offset
        if files.high_watermark is None and end:
            self._found.notes.append(
                f"{self._found.name}: no high watermark is known, so nothing of it counts as committed"
            )
        if end < (files.high_watermark or 0):
            reason = f"the log ends at {end}, below its high watermark {files.high_watermark}"
            self._add(files.folder, -1, end, reason)
        elif end < files.recovery_point:
            reason = (
                f"the log ends at {end}, but everything below {files.recovery_point} had reached the device"
            )
            self._add(files.folder, -1, end, reason)
        # A node first writes the file with a recovery point, so without one the file may be missing. A file that
        # exists and cannot be read is reported with the folder's other unreadable checkpoints.
        if (
            files.epochs is None
            and files.recovery_point
            and any(report.batches for report in self._found.reports)
        ):
            self._add(files.folder, -1, log_start(files), "leader-epoch-checkpoint is missing or unreadable")


# Between replicas


@attrs.frozen
class Suspect:
    """Offsets [start, end) of a partition in which the digests of the named replicas differ."""

    key: PartitionKey
    start: int
    end: int
    replicas: tuple[int, ...]
    """Indexes of the replicas that were compared."""
    blocks: int
    """The number of stretches that differ in this partition; this is the first of them."""


def first_suspects(
    findings: Sequence[ReplicaFindings], *, to_the_end: bool
) -> tuple[list[Suspect], dict[PartitionKey, int]]:
    """The first stretch of each partition whose digests differ, and the number of offsets that could be compared.

    Two replicas are compared from the offset at which both have begun to the lower of their high watermarks
    (`to_the_end`: up to the end of both, and further if one ends before the other). In compacted parts
    `_compacted` compares the records instead.
    """
    partitions: dict[PartitionKey, list[int]] = defaultdict(list)
    for number, each in enumerate(findings):
        partitions[each.files.key].append(number)
    cuts = cuts_of([each.files for each in findings])
    suspects, compared = [], {}
    for key, numbers in partitions.items():
        members = {number: findings[number] for number in numbers}
        found = _suspects(key, members, cuts[key], to_the_end)
        compared[key] = _comparable(members, cuts[key], to_the_end)
        if found:
            suspects.append(attrs.evolve(found[0], blocks=len(found)))
    return suspects, compared


def _suspects(
    key: PartitionKey, members: Mapping[int, ReplicaFindings], cuts: tuple[int, ...], to_the_end: bool
) -> list[Suspect]:
    digests = {number: each.digests() for number, each in members.items()}
    found = []
    for digest_key in sorted(set().union(*digests.values())):
        block, cut = digest_key >> CUT_BITS, digest_key & ((1 << CUT_BITS) - 1)
        low, high = _interval(cuts, cut)
        who = _comparable_in(members, low, high, to_the_end)
        if len(who) > 1 and len({digests[number].get(digest_key) for number in who}) > 1:
            start = max(block << BLOCK_BITS, low)
            end = min((block + 1) << BLOCK_BITS, high)
            found.append(Suspect(key, start, end, who, 1))
    return sorted(found, key=lambda each: each.start)


def _interval(cuts: tuple[int, ...], cut: int) -> tuple[int, int]:
    return cuts[cut - 1] if cut else 0, cuts[cut] if cut < len(cuts) else ENDLESS


def _comparable_in(
    members: Mapping[int, ReplicaFindings], low: int, high: int, to_the_end: bool
) -> tuple[int, ...]:
    if max(each.files.cleaned_up_to for each in members.values()) >= high:
        return ()
    return tuple(
        number
        for number, each in members.items()
        if log_start(each.files) <= low and (to_the_end or (each.files.high_watermark or 0) >= high)
    )


def _comparable(members: Mapping[int, ReplicaFindings], cuts: tuple[int, ...], to_the_end: bool) -> int:
    """The number of offsets at which at least two replicas were compared."""
    total = 0
    for cut in range(len(cuts) + 1):
        low, high = _interval(cuts, cut)
        who = _comparable_in(members, low, high, to_the_end)
        if len(who) > 1:
            total += max(min(high, max(members[number].end_offset for number in who)) - low, 0)
    return total


def as_defects(replicas: Sequence[ReplicaFiles], broken: Iterable[tuple[str, str]]) -> list[Defect]:
    """Defects for the checkpoints that cannot be read."""
    found = []
    for path, reason in broken:
        owner = next((each for each in replicas if path.startswith(each.folder + "/")), None)
        name = owner.replica if owner else path.rsplit("/", 1)[0]
        topic, partition = (owner.topic, owner.partition) if owner else ("", -1)
        found.append(Defect(name, topic, partition, path, -1, -1, reason))
    return found


__all__ = [
    "Defect",
    "Place",
    "ReplicaFindings",
    "Suspect",
    "as_defects",
    "findings_of",
    "first_suspects",
    "misread_segments",
]

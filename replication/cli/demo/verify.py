"""The check: what the replicas' files hold against what was acknowledged.

A pure function of folders and an `Expectation`; it asks no node, and its reader (`segments`) shares nothing
with the log or the consumer. Each defect is named by partition, offset and key.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path

import attrs

from .difference import differences
from .expectation import Expectation, Expected, fingerprints
from .replicas import first_divergence
from .segments import SegmentError, read_blocks, segment_files


class Kind(StrEnum):
    """What can be wrong with a replica; the values are the words of the verdict."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    OUT_OF_ORDER = "out of order"
    FOREIGN = "foreign"
    MISPLACED = "not at its acknowledged offset"
    UNREADABLE = "unreadable"
    REPLICAS_DIFFER = "replicas differ"


DEFECTS_KEPT = 5
"""Of each kind in each partition; all are counted."""


@attrs.frozen
class Defect:
    """One thing that is wrong. `key` is None where no record can be told."""

    kind: Kind
    partition: int
    offset: int
    key: bytes | None
    detail: str = ""

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {self.key.decode('utf-8', 'backslashreplace')}"
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.kind}: partition {self.partition}, offset {self.offset}{key}{detail}"


@attrs.define(eq=False)
class Verification:
    """Counts of all defects, the first few of them by name, and how much was looked at."""

    counts: Counter[Kind] = attrs.Factory(Counter)
    defects: list[Defect] = attrs.Factory(list)
    records: int = 0
    size_bytes: int = 0

    @property
    def replicas_identical(self) -> bool:
        return not self.counts[Kind.REPLICAS_DIFFER]

    @property
    def ok(self) -> bool:
        return not self.counts.total()


@attrs.frozen
class _Found:
    """A replica's content: hash of each record, in the order of its offsets 0, 1, 2, ..."""

    fingerprints: array[int]
    unreadable: SegmentError | None


def verify(
    replicas: Mapping[int, Mapping[int, Path]],
    expectation: Expectation,
    *,
    on_progress: Callable[[int, int], None] = lambda records, size_bytes: None,
) -> Verification:
    """Check every partition: `replicas` maps partition -> node id -> folder, the leader's replica first.

    The first replica is compared with the input, record by record; the others with the first, byte by byte.
    `on_progress` is called with the records and the bytes of segments checked so far.
    """
    result = Verification()
    for partition, folders in sorted(replicas.items()):
        expected = expectation.partitions.get(partition, Expected())
        _check_content(partition, folders, expected, expectation, result)
        _check_identical(partition, folders, result)
        on_progress(result.records, result.size_bytes)
    return result


def _check_content(
    partition: int,
    folders: Mapping[int, Path],
    expected: Expected,
    expectation: Expectation,
    result: Verification,
) -> None:
    folder = next(iter(folders.values()))
    found = _read(folder)
    result.records += len(found.fingerprints)
    result.size_bytes += sum(path.stat().st_size for each in folders.values() for path in segment_files(each))
    report = _Reporter(partition, result)
    if found.unreadable is not None:
        report(Kind.UNREADABLE, found.unreadable.offset, _no_key, str(found.unreadable))
    _Comparison(folder, expected, found.fingerprints, expectation, report).run()


def _read(folder: Path) -> _Found:
    found = array("q")
    try:
        for block in read_blocks(folder):
            found.extend(fingerprints((each.key, each.value) for each in block.records()))
    except SegmentError as error:
        return _Found(found, error)
    return _Found(found, None)


@attrs.define(eq=False)
class _Reporter:
    """Counts every defect of one partition, keeps the first few of each kind by name."""

    partition: int
    result: Verification
    _kept: Counter[Kind] = attrs.Factory(Counter)

    def __call__(self, kind: Kind, offset: int, key: Callable[[], bytes | None], detail: str = "") -> None:
        """`key` is called only for a defect that is kept: finding it may mean to read a file again."""
        self.result.counts[kind] += 1
        if self._kept[kind] < DEFECTS_KEPT:
            self._kept[kind] += 1
            self.result.defects.append(Defect(kind, self.partition, offset, key(), detail))


@attrs.define(eq=False)
class _Comparison:
    """One replica's records against those that were acknowledged, told apart by what happened to them."""

    folder: Path
    expected: Expected
    actual: array[int]
    expectation: Expectation
    report: _Reporter

    def run(self) -> None:
        """A record that is missing here and too many there has moved; else it is lost, or doubled, or foreign."""
        missing, extra = self._missing_and_extra()
        moved = Counter(self.expected.fingerprints[at] for at in missing)
        moved &= Counter(self.actual[at] for at in extra)
        self._report_extra(extra, Counter(moved))
        self._report_lost(missing, moved)
        if not missing and not extra:
            self._check_offsets()

    def _missing_and_extra(self) -> tuple[list[int], list[int]]:
        missing: list[int] = []
        extra: list[int] = []
        for edit in differences(self.expected.fingerprints, self.actual):
            missing.extend(range(edit.expected_start, edit.expected_stop))
            extra.extend(range(edit.actual_start, edit.actual_stop))
        return missing, extra

    def _report_extra(self, extra: list[int], moved: Counter[int]) -> None:
        known = set(self.expected.fingerprints) if extra else set()
        for offset in extra:
            print_ = self.actual[offset]
            key = partial(key_at, self.folder, offset)
            if moved[print_] > 0:
                moved[print_] -= 1
                self.report(Kind.OUT_OF_ORDER, offset, key)
            elif print_ in known:
                self.report(Kind.DUPLICATED, offset, key)
            elif print_ not in self.expectation.unacknowledged:
                self.report(Kind.FOREIGN, offset, key, "no such record was produced to this partition")

    def _report_lost(self, missing: list[int], moved: Counter[int]) -> None:
        for position in missing:
            if moved[self.expected.fingerprints[position]] > 0:
                moved[self.expected.fingerprints[position]] -= 1
            else:
                key = partial(self.expectation.key_of, self.report.partition, position)
                self.report(Kind.LOST, self.expected.offsets[position], key, "it was acknowledged")

    def _check_offsets(self) -> None:
        """The content is right; so each record must stand at the very offset of its acknowledgement."""
        if self.expected.offsets == array("q", range(len(self.expected))):
            return
        for offset, acknowledged in enumerate(self.expected.offsets):
            if offset != acknowledged:
                key = partial(key_at, self.folder, offset)
                self.report(Kind.MISPLACED, offset, key, f"acknowledged at {acknowledged}")


def _check_identical(partition: int, folders: Mapping[int, Path], result: Verification) -> None:
    (first, first_folder), *others = folders.items()
    report = _Reporter(partition, result)
    for node, folder in others:
        divergence = first_divergence(first_folder, folder)
        if divergence is not None:
            detail = f"nodes {first} and {node}, from byte {divergence.position} of their segments on"
            report(Kind.REPLICAS_DIFFER, divergence.offset, divergence.record_key, detail)


def _no_key() -> None:
    """For a defect that belongs to no readable record."""


def key_at(folder: Path, offset: int) -> bytes | None:
    """The key of the record at `offset`, None if the replica has no such record."""
    for block in read_blocks(folder):
        if block.batches[-1].next_offset > offset:
            return next((record.key for record in block.records() if record.offset == offset), None)
    return None

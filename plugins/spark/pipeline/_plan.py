"""Cutting an audit into tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from ._folders import PartitionKey, ReplicaFiles, SegmentFile
from ._scan import CUT_BITS, ScanTask

RANGE_BYTES = 64 << 20
_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
CUTS_MAX = (1 << CUT_BITS) - 1


def cuts_of(replicas: Sequence[ReplicaFiles]) -> dict[PartitionKey, tuple[int, ...]]:
    """The cuts of each partition: its replicas can be compared as wholes between two of them.

    A cut is the start of a replica's log, the end of what compaction has cleaned, or a high watermark.
    """
    found: dict[PartitionKey, set[int]] = {}
    for each in replicas:
        cuts = found.setdefault(each.key, set())
        cuts |= {log_start(each), each.high_watermark or 0, each.cleaned_up_to}
    return {key: tuple(sorted(cuts - {0}))[:CUTS_MAX] for key, cuts in found.items()}


def log_start(replica: ReplicaFiles) -> int:
    """The first offset that the replica serves."""
    first = replica.segments[0].base_offset if replica.segments else 0
    return max(replica.log_start_offset, first)


def scan_tasks(
    replicas: Sequence[ReplicaFiles], *, compacted: bool = False, range_bytes: int = RANGE_BYTES
) -> list[ScanTask]:
    """Tasks for ranges of about `range_bytes` at most, which begin where an index says that a batch begins."""
    cuts = cuts_of(replicas)
    tasks = []
    for number, replica in enumerate(replicas):
        for segment in replica.segments:
            bounds = [0, *splits(segment, range_bytes), segment.size_bytes]
            for start, stop in pairwise(bounds):
                tasks.append(
                    ScanTask(
                        replica=number,
                        path=segment.path,
                        start=start,
                        stop=stop,
                        gaps=compacted or replica.cleaned_up_to > 0,
                        cuts=cuts[replica.key],
                        epochs=replica.epochs,
                        log_start_offset=log_start(replica),
                        recovery_point=replica.recovery_point,
                    )
                )
    return tasks


class _Sized(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


T = TypeVar("T", bound=_Sized)


def grouped(tasks: Iterable[T], range_bytes: int = RANGE_BYTES) -> list[list[T]]:
    """One group for each task of Spark: the ranges in order, small ranges together in a group."""
    groups: list[list[T]] = []
    room = 0
    for task in tasks:
        size = task.stop - task.start
        if not groups or size > room:
            groups.append([])
            room = range_bytes
        groups[-1].append(task)
        room -= size
    return groups


def splits(segment: SegmentFile, range_bytes: int) -> list[int]:
    """Positions within the segment at which batches begin, if its index is right; the scan notices if it is not."""
    if segment.size_bytes <= range_bytes + range_bytes // 4:
        return []
    try:
        entries = np.fromfile(Path(segment.path).with_suffix(".index"), _ENTRY)
    except OSError:
        return []
    positions = entries["position"].astype(np.int64)
    positions = positions[(positions > 0) & (positions < segment.size_bytes)]
    if np.any(np.diff(positions) <= 0):
        return []
    wanted = np.arange(range_bytes, segment.size_bytes - range_bytes // 4, range_bytes)
    places = np.searchsorted(positions, wanted)
    return np.unique(positions[places[places < len(positions)]]).tolist()

"""The exact first offset at which replicas of a partition differ, once their digests said about where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from ....storage.batch import BatchInfo, Record, StorageError, records
from ._scan import Window, windows


@attrs.frozen
class Stretch:
    """A range of a replica's segment file that may hold batches of the offsets in question."""

    path: str
    start: int
    stop: int


@attrs.frozen
class LocateTask:
    """`replicas`: name -> where to look, in order of offsets."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    replicas: Mapping[str, Sequence[Stretch]]
    blocks: int


@attrs.frozen
class Difference:
    """The first place in a partition where replicas are not the same."""

    topic: str
    partition: int
    offset: int
    """Of the first record that differs; of its batch where records cannot tell."""
    batch_offset: int
    reason: str
    replicas: dict[str, str]
    """The state of each replica there."""
    extent: int
    """How much differs in all: stretches of 65,536 offsets at most, or records where compaction has been."""

    @property
    def outvoted(self) -> tuple[str, ...]:
        """The replicas that differ from a majority; none if there is no majority."""
        counts = Counter(self.replicas.values())
        state, count = counts.most_common(1)[0]
        if 2 * count <= len(self.replicas):
            return ()
        return tuple(name for name, each in self.replicas.items() if each != state)

    def __str__(self) -> str:
        has = "; ".join(f"{name}: {state}" for name, state in self.replicas.items())
        return f"{self.topic}-{self.partition}, offset {self.offset}: replicas differ: {self.reason} ({has})"


@attrs.frozen
class _Spot:
    """One batch of one replica: what must be the same, and where to read it."""

    info: BatchInfo
    fingerprint: int
    crc: int
    path: str
    position: int


def locate(task: LocateTask) -> Difference | None:
    """Where the replicas first differ within the offsets; None if they do not after all. Raises OSError."""
    spots = {name: _spots(task, stretches) for name, stretches in task.replicas.items()}
    for at in zip_longest(*spots.values()):
        if len({each and each.fingerprint for each in at}) > 1:
            return _difference(task, dict(zip(spots, at, strict=True)))
    return None


def _spots(task: LocateTask, stretches: Sequence[Stretch]) -> list[_Spot]:
    found: list[_Spot] = []
    for stretch in stretches:
        for window in windows(stretch.path, stretch.start, stretch.stop, lambda: _end(found)):
            if window.damage:
                continue
            bases = window.rows["base_offset"]
            wanted = np.flatnonzero((bases >= task.start_offset) & (bases < task.end_offset))
            prints = window.fingerprints[wanted]
            for row, fingerprint in zip(window.rows[wanted], prints, strict=True):
                found.append(_spot(stretch.path, window, row, fingerprint))
    return found


def _end(found: Sequence[_Spot]) -> int:
    return found[-1].info.next_offset if found else -1


def _spot(path: str, window: Window, row: npt.NDArray[Any], fingerprint: np.uint64) -> _Spot:
    info = BatchInfo(*row.tolist())
    crc = int.from_bytes(window.data[info.position + 17 : info.position + 21])
    return _Spot(info, int(fingerprint), crc, path, window.position + info.position)


def _difference(task: LocateTask, at: Mapping[str, _Spot | None]) -> Difference:
    there = [each for each in at.values() if each is not None]
    base = min(each.info.base_offset for each in there)
    here = {name: _at_base(each, base) for name, each in at.items()}
    offset, reason = base, "a batch is missing or unreadable"
    if all(here.values()):
        present = [each for each in here.values() if each is not None]
        offset, reason = _same_place(base, present)
    return Difference(
        topic=task.topic,
        partition=task.partition,
        offset=offset,
        batch_offset=base,
        reason=reason,
        replicas={name: _state(each) for name, each in here.items()},
        extent=task.blocks,
    )


def _at_base(spot: _Spot | None, base: int) -> _Spot | None:
    return spot if spot is not None and spot.info.base_offset == base else None


def _state(spot: _Spot | None) -> str:
    if spot is None:
        return "no batch"
    info = spot.info
    return (
        f"offsets {info.base_offset} to {info.next_offset - 1} of leader epoch {info.leader_epoch}, "
        f"{info.size_bytes} bytes, CRC {spot.crc:08x}"
    )


def _same_place(base: int, spots: Sequence[_Spot]) -> tuple[int, str]:
    if len({(each.crc, each.info.size_bytes) for each in spots}) == 1:
        return base, "the leader epoch of the batch"
    contents = [_records(each) for each in spots]
    for rows in zip_longest(*contents):
        if any(row != rows[0] for row in rows):
            return next(row.offset for row in rows if row is not None), "the content of the record"
    return base, "how records are packed into a batch"


def _records(spot: _Spot) -> list[Record]:
    with open(spot.path, "rb") as file:
        file.seek(spot.position)
        data = file.read(spot.info.size_bytes)
    try:
        return list(records(data))
    except StorageError:
        return []

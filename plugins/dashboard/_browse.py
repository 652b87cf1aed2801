"""Looking at records, with bounds: how many, how large, how long."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from ...replication.client import ConsumerRecord, SkippedRecords
from ...replication.core.types import PartitionId
from ...replication.core.wording import counted
from ...replication.errors import ReplicationError

MOST_SHOWN = 100
MOST_SCANNED = 20_000
MOST_SECONDS = 5.0
"""A search stops after that many records or seconds, says how far it came, and can go on from there."""
CLIENT: dict[str, Any] = {
    "client_id": "insync-dashboard",
    "fetch_max_bytes": 4 << 20,
    "max_partition_fetch_bytes": 1 << 20,
    "on_corrupt": "skip",
}
"""Settings of the consumer: a page never has more than some MiB under way, and damage is stepped over and told."""


class BadSearchError(ReplicationError):
    """A search that cannot be carried out."""


@attrs.frozen(kw_only=True)
class Search:
    """Where to start and what to show. start: earliest, newest, offset or time; `value` for the last two.

    key, text: only records whose key, or whose key, value or headers, hold these bytes.
    """

    topic: str
    partition: int | None = None
    start: str = "newest"
    value: int = 0
    key: bytes = b""
    text: bytes = b""
    count: int = 50


@attrs.frozen(kw_only=True)
class Found:
    """records: in the order of their partitions and offsets. next: by partition, where to go on.

    stopped: why the search ended before the end of the log, empty if it did not. skipped: what could not be read.
    """

    records: list[ConsumerRecord]
    next: dict[int, int]
    scanned: int
    stopped: str = ""
    skipped: list[str] = attrs.Factory(list)


class Reader(Protocol):
    """The methods of `insync.replication.asyncio.Consumer` that are used here."""

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None: ...

    async def seek(self, partition: tuple[str, int], offset: int) -> None: ...

    async def position(self, partition: tuple[str, int]) -> int | None: ...

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]: ...

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[PartitionId, int]: ...

    async def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[PartitionId, int | None]: ...

    async def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]: ...

    async def skipped(self) -> list[SkippedRecords]: ...


async def search(
    reader: Reader, wanted: Search, partitions: Sequence[int], after: Mapping[int, int] | None = None
) -> Found:
    """Read from `wanted.start` on until enough are found, the end is reached or a bound is met.

    With "newest", what was written last is looked through as far back as the bounds allow; the newest are shown.

    Args:
      reader: A fresh consumer, with the settings `CLIENT`.
      partitions: Those of the topic.
      after: The `next` of the same search before, to go on from there.

    Raises:
      BadSearchError: There is no such partition or start.
      ClientError: Nodes do not answer, or refuse.
    """
    if wanted.partition is not None and wanted.partition not in partitions:
        raise BadSearchError(
            f"{wanted.topic} has no partition {wanted.partition}: give a number from 0 to {len(partitions) - 1}"
        )
    named = partitions if wanted.partition is None else [wanted.partition]
    at = [PartitionId(wanted.topic, number) for number in named]
    end = await reader.end_offsets(at)
    position = await _positions(reader, wanted, at, end)
    for each in at:
        position[each] = min(end[each], max(position[each], (after or {}).get(each.partition, 0)))
    await reader.assign(at)
    for each in at:
        await reader.seek(each, position[each])
    scan = _Scan(wanted, end, position)
    deadline = time.monotonic() + MOST_SECONDS
    while not scan.stopped and any(scan.position[each] < end[each] for each in at):
        scan.take(await reader.poll(200))
        for each in at:
            scan.moved(each, await reader.position(each))
        if time.monotonic() >= deadline:
            scan.stopped = scan.stopped or f"it took longer than {MOST_SECONDS:g} s"
    return Found(
        records=sorted(scan.found, key=lambda each: (each.partition, each.offset)),
        next={each.partition: scan.position[each] for each in at},
        scanned=scan.scanned,
        stopped=scan.stopped,
        skipped=[_told(each) for each in await reader.skipped()],
    )


@attrs.define
class _Scan:
    """How far a search is."""

    wanted: Search
    end: Mapping[PartitionId, int]
    position: dict[PartitionId, int]
    found: deque[ConsumerRecord] = attrs.Factory(deque)
    scanned: int = 0
    stopped: str = ""
    _left: dict[PartitionId, int] = attrs.Factory(dict)
    """Where to go on in partitions of which more was polled than is shown."""

    @property
    def _count(self) -> int:
        return min(max(1, self.wanted.count), MOST_SHOWN)

    def take(self, records: Iterable[ConsumerRecord]) -> None:
        newest = self.wanted.start == "newest"
        for record in records:
            each = PartitionId(record.topic, record.partition)
            if self.stopped or each in self._left or record.offset >= self.end[each]:
                self._left.setdefault(each, record.offset)
                continue
            self.scanned += 1
            if _matches(record, self.wanted):
                self.found.append(record)
            if newest and len(self.found) > self._count:
                self.found.remove(min(self.found, key=lambda known: (known.timestamp_ms, known.offset)))
            if not newest and len(self.found) == self._count:
                self.stopped = f"{counted(self._count, 'record is', 'records are')} shown"
            elif self.scanned >= MOST_SCANNED:
                self.stopped = f"{MOST_SCANNED:,} records were looked through"

    def moved(self, each: PartitionId, position: int | None) -> None:
        """The position passes records that were deleted, aborted or compacted away."""
        if each in self._left:
            self.position[each] = self._left[each]
        elif position is not None:
            self.position[each] = max(self.position[each], position)


async def _positions(
    reader: Reader, wanted: Search, at: Sequence[PartitionId], end: Mapping[PartitionId, int]
) -> dict[PartitionId, int]:
    first = await reader.beginning_offsets(at)
    match wanted.start:
        case "earliest":
            return dict(first)
        case "newest":
            back = MOST_SCANNED // len(at) if wanted.key or wanted.text else min(wanted.count, MOST_SHOWN)
            return {each: max(first[each], end[each] - back) for each in at}
        case "offset":
            if wanted.value < 0:
                raise BadSearchError(f"{wanted.value} is not an offset: give a number, 0 or more")
            return {each: min(max(first[each], wanted.value), end[each]) for each in at}
        case "time":
            found = await reader.offsets_for_times(dict.fromkeys(at, wanted.value))
            return {each: end[each] if (offset := found[each]) is None else offset for each in at}
    raise BadSearchError(f"{wanted.start!r} is not a start: use earliest, newest, offset or time")


def _matches(record: ConsumerRecord, wanted: Search) -> bool:
    key, value = record.key or b"", record.value or b""
    if wanted.key and wanted.key not in key:
        return False
    if not wanted.text:
        return True
    return (
        wanted.text in value
        or wanted.text in key
        or any(wanted.text in name.encode() or wanted.text in (data or b"") for name, data in record.headers)
    )


def _told(skipped: SkippedRecords) -> str:
    last = skipped.next_offset - 1
    return f"{skipped.topic}-{skipped.partition}, offsets {skipped.offset} to {last}: {skipped.reason}"

"""The readers: which ranges of which partitions a query reads, planned on the driver and read by tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ...replication import ReplicationError
from ...replication.client import UnknownTopicError
from ._clients import ClusterReader, Found
from ._columns import check_schema
from ._filters import Bounds, PushFilters
from ._offsets import (
    EARLIEST,
    LATEST,
    Bound,
    Ids,
    Json,
    Offsets,
    Partition,
    Range,
    Subscription,
    check_inside,
    check_order,
    ending,
    from_json,
    limited,
    split,
    starting,
    to_json,
)
from ._options import Options
from ._reading import ReadOptions, made_again, read_range, tell_loss
from ._tracebacks import plainly
from ._workers import Sent, settle
from .errors import OffsetError, OptionError, TopicRecreatedError

if TYPE_CHECKING:
    import pyarrow as pa

_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_COMMON = (
    "subscribe",
    "subscribePattern",
    "assign",
    *_STARTS,
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "pollTimeoutMs",
    "isolationLevel",
)
BATCH_OPTIONS = (*_COMMON, *_ENDS)
STREAM_OPTIONS = (*_COMMON, "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "streamId")
_MOST_DELAY_MS = 15 * 60_000


class RangePartition(InputPartition):
    """One task's part."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)


@attrs.frozen
class _Plan:
    """The settings that readers of both kinds take from their options."""

    read: ReadOptions
    subscription: Subscription
    start: Bound
    latest_if_none: bool
    min_partitions: int | None
    max_records: int | None
    """In a task."""

    @classmethod
    def of(cls, options: Options, schema: StructType, default_start: str) -> _Plan:
        strategy = options.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
        return cls(
            ReadOptions(
                connection=options.connection(),
                names=tuple(check_schema(schema)),
                fail_on_data_loss=options.flag("failOnDataLoss", True),
                poll_timeout_ms=options.number("pollTimeoutMs", 30_000),
            ),
            Subscription.of(options),
            starting(options, default_start),
            strategy == "latest",
            options.number("minPartitions", None),
            options.number("maxRecordsPerPartition", None),
        )

    def tasks(self, ranges: Sequence[Range]) -> list[InputPartition]:
        parts = split(ranges, self.min_partitions, self.max_records)
        # An empty list would be taken for one partition of nothing.
        return [RangePartition(each) for each in parts] or [RangePartition(Range("", 0, 0, 0))]

    def resolve(
        self,
        cluster: ClusterReader,
        bound: Bound,
        partitions: Sequence[Partition],
        first: Offsets,
        last: Offsets,
        *,
        to_end: bool,
    ) -> Offsets:
        """The offsets that a bound stands for, where the logs begin at `first` and end at `last`."""
        if bound.by_time:
            return self._at_times(cluster.at_times(bound.times(partitions)), last, bound, to_end=to_end)
        if bound.group is not None:
            committed = cluster.committed(bound.group)
            marks = {at: committed.get(at, EARLIEST) for at in partitions}
        else:
            marks = bound.marks(partitions)
        check_inside(bound.name, {at: offset for at, offset in marks.items() if offset >= 0}, first, last)
        named = {EARLIEST: first, LATEST: last}
        return {at: named[mark][at] if mark < 0 else mark for at, mark in marks.items()}

    def _at_times(
        self, times: dict[Partition, int | None], last: Offsets, bound: Bound, *, to_end: bool
    ) -> Offsets:
        for (topic, partition), offset in times.items():
            if offset is None and not to_end and not self.latest_if_none:
                raise OffsetError(
                    f"{bound.name}: {topic}-{partition} has no record of that time or later; set "
                    "startingOffsetsByTimestampStrategy to latest to begin at its end"
                )
        return {at: last[at] if offset is None else offset for at, offset in times.items()}


def check_options(options: Options, schema: StructType) -> None:
    """Raise OptionError for what no reader would take: told on `load()`, before a query is started."""
    check_order(_Plan.of(options, schema, "earliest").start, ending(options))


def deleted(start: Offsets, end: Offsets, first: Offsets) -> list[str]:
    """The parts of the ranges that lie before the log's start, in words."""
    return [
        f"{topic}-{partition}: offsets [{offset}, {min(first[topic, partition], end[topic, partition])}) have been "
        f"deleted; the log begins at {first[topic, partition]}"
        for (topic, partition), offset in sorted(start.items())
        if offset < min(first.get((topic, partition), 0), end[topic, partition])
    ]


class InsyncReader(Sent, DataSourceReader):
    """A batch query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._plan = _Plan.of(options, schema, "earliest")
        self._end = ending(options)
        if self._plan.start.is_latest_somewhere():
            raise OptionError(
                "startingOffsets cannot be latest (-1) in a batch query: there is nothing behind it"
            )
        check_order(self._plan.start, self._end)
        self._bounds = Bounds()
        self.pushFilters = PushFilters(self._bounds)  # type: ignore[method-assign]

    @plainly
    def partitions(self) -> list[InputPartition]:
        plan, cluster = self._plan, ClusterReader(self._plan.read.connection)
        found = cluster.find(plan.subscription)
        partitions = found.partitions
        first, last = cluster.first(partitions), cluster.last(partitions)
        start = plan.resolve(cluster, plan.start, partitions, first, last, to_end=False)
        end = plan.resolve(cluster, self._end, partitions, first, last, to_end=True)
        tell_loss(deleted(start, end, first), plan.read.fail_on_data_loss)
        ranges = [
            Range(*at, max(offset, first[at]), end[at], found.ids[at[0]])
            for at, offset in sorted(start.items())
        ]
        tasks = plan.tasks(self._from_time(cluster, self._bounds.narrow(ranges)))
        settle()
        return tasks

    def _from_time(self, cluster: ClusterReader, ranges: list[Range]) -> list[Range]:
        since = self._bounds.from_ms
        if since is None or not ranges:
            return ranges
        found = cluster.at_times({(each.topic, each.partition): since for each in ranges})
        moved = [
            # What was found may have been written after the ends were asked for.
            attrs.evolve(each, start=min(each.end, max(each.start, offset)))
            for each in ranges
            if (offset := found[each.topic, each.partition]) is not None
        ]
        return [each for each in moved if len(each) > 0]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._plan.read, partition.value)


class InsyncStreamReader(Sent, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. One instance lives on the driver for the whole run; tasks have copies of another."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._plan = _Plan.of(options, schema, "latest")
        self._most = options.number("maxOffsetsPerTrigger", None)
        self._least = options.number("minOffsetsPerTrigger", None)
        self._most_delay = options.duration_ms("maxTriggerDelay", _MOST_DELAY_MS) / 1000
        self._went_on = -math.inf
        """When the last batch was begun."""
        self._stream_id = options.text("streamId")
        self._initial: Json | None = None
        self._until: tuple[Offsets, Ids] | None = None
        self._seen: tuple[Offsets, Ids] | None = None
        self._recreated: set[tuple[str, str]] = set()
        """Topics that were made again, by name and former id, which have been told."""
        if self._stream_id is None and self._begins_where_it_moves():
            start = "latest" if self._plan.start.group is None else f"group:{self._plan.start.group}"
            raise OptionError(
                f"{self._plan.start.name}={start} needs the option streamId, a name of this stream that no other "
                "has: the offsets at which it began are kept under it, so that nothing is left out if it is "
                "started again before its first batch is done; or set startingOffsets to earliest"
            )

    def _begins_where_it_moves(self) -> bool:
        return self._plan.start.moves() or self._plan.latest_if_none

    @property
    def _cluster(self) -> ClusterReader:
        return ClusterReader(self._plan.read.connection)

    # Offsets

    @plainly
    def initialOffset(self) -> Json:
        """Spark asks twice, and again after a restart before the first batch was done: always the same answer."""
        if self._initial is None:
            self._initial = to_json(*self._find_initial())
        return self._initial

    def _find_initial(self) -> tuple[Offsets, Ids]:
        cluster = self._cluster
        if self._stream_id is not None:
            kept = cluster.kept_start(self._stream_id)
            if kept[0]:
                return kept
        there = cluster.find(self._plan.subscription)
        partitions = there.partitions
        first, last = cluster.first(partitions), cluster.last(partitions)
        found = self._plan.resolve(cluster, self._plan.start, partitions, first, last, to_end=False)
        tell_loss(deleted(found, last, first), self._plan.read.fail_on_data_loss)
        found = {at: max(offset, first[at]) for at, offset in found.items()}
        if self._stream_id is None:
            return found, there.ids
        return cluster.keep_start(self._stream_id, found, there.ids)

    @plainly
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        begin, former = from_json(start)
        last, present = self._until if self._until is not None else self._available(begin)
        begin = self._of_same_topics(begin, former, present)
        self._tell_losses(begin, last)
        # A partition that is new begins at its first record, and one that is gone stays where it was.
        begin |= self._starts({at for at in last if at not in begin})
        end = {at: max(offset, last.get(at, offset)) for at, offset in begin.items()}
        if not isinstance(limit, ReadAllAvailable) and self._waits_for_more(begin, end):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        return to_json(end, former | present)

    def _of_same_topics(self, begin: Offsets, former: Ids, present: Ids) -> Offsets:
        """Without topics that were made again: their partitions are new, and begin at their first record.

        Where one of the ids is not known nothing shows that the topic is another one.
        """
        again = {topic for topic, one in former.items() if present.get(topic, one) != one}
        told = {(topic, former[topic]) for topic in again}
        new = told - self._recreated
        losses = [f"{topic}: {made_again(one, present[topic])}" for topic, one in sorted(new)]
        if losses and not self._plan.read.fail_on_data_loss:
            self._recreated |= new
            losses[-1] += f"; topics made again so far: {len(self._recreated)}"
        tell_loss(losses, self._plan.read.fail_on_data_loss, TopicRecreatedError)
        return {at: offset for at, offset in begin.items() if at[0] not in again}

    def _waits_for_more(self, begin: Offsets, end: Offsets) -> bool:
        """Whether there are too few records for a batch, and the last one is not long enough ago."""
        if self._least is None or self._until is not None:
            return False
        now = time.monotonic()
        few = sum(end[at] - begin[at] for at in end) < self._least
        if few and now - self._went_on < self._most_delay:
            return True
        self._went_on = now
        return False

    def _available(self, known: Offsets) -> tuple[Offsets, Ids]:
        self._seen = self._ends({topic for topic, _ in known})
        return self._seen

    def _ends(self, known: Collection[str] = ()) -> tuple[Offsets, Ids]:
        """Where the logs end, and whose logs these are."""
        there = self._there(known)
        return self._cluster.last(there.partitions), there.ids

    def _tell_losses(self, known: Offsets, last: Offsets) -> None:
        """Partitions that were read and are not there any more, or are shorter than that."""
        gone = [
            f"{topic}-{number} is gone; it was read up to offset {offset}"
            for (topic, number), offset in known.items()
            if (topic, number) not in last
        ]
        tell_loss(sorted(gone), self._plan.read.fail_on_data_loss)
        shrunk = [
            f"{at[0]}-{at[1]}: was read up to offset {offset}, and the log ends at {last[at]}"
            for at, offset in sorted(known.items())
            if offset > last.get(at, offset)
        ]
        tell_loss(shrunk, self._plan.read.fail_on_data_loss)

    def _there(self, known: Collection[str]) -> Found:
        """The partitions to be read; topics that are gone are the caller's to tell, or may be missing at all."""
        plan, cluster = self._plan, self._cluster
        try:
            return cluster.find(plan.subscription)
        except UnknownTopicError:
            found = cluster.find(plan.subscription, if_there=True)
            if plan.read.fail_on_data_loss and not set(known) - found.ids.keys():
                raise
            return found

    def _starts(self, partitions: set[Partition]) -> Offsets:
        return self._cluster.first(sorted(partitions)) if partitions else {}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._most is not None:
            return ReadMaxRows(self._most)
        return ReadAllAvailable() if self._least is None else ReadMinRows(self._least)

    def reportLatestOffset(self) -> Json | None:
        """For the lag in the query's progress."""
        return to_json(*self._seen) if self._seen is not None else None

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._seen = self._ends()

    # Batches

    @plainly
    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """The same for the same offsets, also after a restart: only what was deleted meanwhile is missing."""
        (begin, former), (until, ids) = from_json(start), from_json(end)
        begin = self._of_same_topics(begin, former, ids)
        full = {at: offset for at, offset in until.items() if offset > begin.get(at, -1)}
        there = self._cluster.still_there({topic for topic, _ in full})
        full = self._not_gone(self._of_same_topics(full, ids, there.ids), there)
        first = self._starts(set(full))
        begin = {at: begin.get(at, first[at]) for at in full}
        tell_loss(deleted(begin, full, first), self._plan.read.fail_on_data_loss)
        # Retention may have passed the end of a batch, too.
        ranges = [
            Range(*at, min(full[at], max(begin[at], first[at])), full[at], there.ids[at[0]])
            for at in sorted(full)
        ]
        return self._plan.tasks(ranges)

    def _not_gone(self, ends: Offsets, there: Found) -> Offsets:
        """Without what was deleted after a batch was planned."""
        gone = sorted(ends.keys() - set(there.partitions))
        tell_loss(
            [f"{topic}-{number} is gone, unread" for topic, number in gone], self._plan.read.fail_on_data_loss
        )
        return {at: end for at, end in ends.items() if at not in gone}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._plan.read, partition.value)

    def commit(self, end: Json) -> None:
        """Nothing to do: the checkpoint has the offsets."""


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands in for a reader that cannot be, and says why when it is first asked.

    Spark (4.3) answers an error of `streamReader` with a second one, of its own, that hides it.
    """

    def __init__(self, error: ReplicationError) -> None:
        self._error = error

    @plainly
    def initialOffset(self) -> Json:
        raise self._error

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    @plainly
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        raise self._error

    @plainly
    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error

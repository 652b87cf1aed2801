"""The work of a task of the sink: Arrow batches into record batches, in C, and those to their leaders.

With `exactly_once` the task has a producer of its own, by a name that it has whenever it is run again. A later
run asks the leaders what is there, leaves out as many rows of each partition, and fences the earlier run with its
first batch. That needs rows that come again in the same order; how they are cut into batches may differ. The last
row that is left out is compared with the one in the log, so that rows which came otherwise are not left out unseen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import trio

from ...replication.client import BatchProducer, NamedProducer, RecordTooLargeError
from ...storage.batch import (
    SEQUENCE_MODULUS,
    ArrowColumn,
    ArrowHeaders,
    BatchBuilder,
    BatchTooLargeError,
    Compression,
    partition_keys,
)
from ._options import Connection, settled
from ._repeated import LastRow, last_rows
from ._workers import settle
from .errors import NotRepeatableError, SchemaError

_GATHERED_BYTES = 8 << 20
"""Of rows that are cut into batches at once, at most, so that many partitions get batches worth sending."""
LARGEST_BATCH_BYTES = 64 << 20
"""Of a batch, also of one record that alone is larger than `batchBytes`: below this the topic's nodes say what is
too large.
"""
_RUN = 4096
"""Rows without a key or partition go to one partition in runs of so many."""


@attrs.frozen(kw_only=True)
class WriteOptions:
    """The options that tasks need; they travel with the writer."""

    connection: Connection
    topic: str | None
    exactly_once: bool
    transactional: bool = False
    transaction_timeout_ms: int = 300_000
    compression: Compression
    batch_bytes: int
    delivery_timeout_ms: int


def write_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch], identity: str, part: int) -> int:
    """Write all rows and wait until they are committed; their number.

    Raises:
      ClientError: They could not be written; as many as were stay in the log.
      NotRepeatableError: The task was run before, and had other rows.
      SchemaError: A row has no topic, or no such partition.
    """
    try:
        return trio.run(_write, options, batches, identity, part)
    finally:
        settle()


async def _write(options: WriteOptions, batches: Iterator[pa.RecordBatch], identity: str, part: int) -> int:
    task: Rows | None = None
    failure: BaseException | None = None
    try:
        producer = settled(
            lambda: BatchProducer(
                options.connection.servers,
                delivery_timeout_ms=options.delivery_timeout_ms,
                **options.connection.settings(),
            )
        )
        async with producer:
            who = await producer.identify(identity if options.exactly_once else "")
            task = Rows(options, producer, who, part)
            await task.take_all(batches)
            task.check_all_came_again()
    except BaseExceptionGroup as group:
        failure = first_of(group)
    if failure is not None:
        raise failure
    return task.rows if task is not None else 0


def first_of(failure: BaseException) -> BaseException:
    """Trio groups what its tasks raise; the first of it is what the user is told."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


async def _gather(batches: Iterator[pa.RecordBatch], enough: int) -> Any:
    """Arrow batches, several joined; what waits to be sent is sent while Spark makes the next one."""
    held: list[pa.RecordBatch] = []
    size = 0
    while True:
        batch = await trio.to_thread.run_sync(next, batches, None)
        if batch is not None and batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if held and (batch is None or size >= enough):
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, size = [], 0
        if batch is None:
            return


@attrs.define
class _PartitionProgress:
    """One partition as this task writes to it."""

    sequence: int = 0
    """Of the next row to be written."""
    skip: int = 0
    """Rows that an earlier run has written, still to come."""
    last: LastRow | None = None
    """The last of them, unless nobody can say any more what it was."""


class Rows:
    """The rows of a task, on their way to their partitions."""

    def __init__(self, options: WriteOptions, producer: BatchProducer, who: NamedProducer, part: int) -> None:
        self.rows = 0
        self._options = options
        self._producer = producer
        self._who = who
        self._part = part
        self._progress: dict[str, list[_PartitionProgress]] = {}

    async def take_all(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send all rows, and wait until they are acknowledged."""
        async with aclosing(_gather(batches, min(_GATHERED_BYTES, 8 * self._options.batch_bytes))) as joined:
            async for rows in joined:
                await self._take(rows)
        await self._producer.flush()

    async def _take(self, rows: pa.RecordBatch) -> None:
        if self._options.topic is not None:
            await self._take_topic(self._options.topic, rows)
        else:
            column = _column(rows, "topic")
            if column is None or column.null_count:
                raise SchemaError("a row has no topic: its column 'topic' is null")
            topics = column.dictionary_encode()
            codes = topics.indices.to_numpy()
            for code, topic in enumerate(topics.dictionary.to_pylist()):
                chosen = np.flatnonzero(codes == code)
                await self._take_topic(
                    topic, rows if len(chosen) == len(codes) else rows.take(pa.array(chosen))
                )
        self.rows += rows.num_rows

    async def _take_topic(self, topic: str, rows: pa.RecordBatch) -> None:
        progress = self._progress.get(topic) or await self._open(topic)
        key = _binary(_column(rows, "key"), rows.num_rows)
        values = (key, _binary(_column(rows, "value"), rows.num_rows), _headers(_column(rows, "headers")))
        cutter = _Cutter(self._options, *values)
        parts = self._partitions(topic, rows, key, len(progress))
        order = np.argsort(parts, kind="stable").astype(np.int32)
        edges = np.searchsorted(parts[order], np.arange(len(progress) + 1))
        for number in np.flatnonzero(np.diff(edges)):
            mine = order[edges[number] : edges[number + 1]]
            mine = self._behind(topic, int(number), progress[number], rows, mine)
            await self._send(topic, int(number), progress[number], cutter, mine)

    async def _open(self, topic: str) -> list[_PartitionProgress]:
        count = await self._producer.partitions(topic)
        # A named producer begins at 1: at 0 a new epoch would be let in whatever the run before has written.
        progress = self._progress[topic] = [
            _PartitionProgress(int(self._options.exactly_once)) for _ in range(count)
        ]
        if self._options.exactly_once and self._who.producer_epoch > 0:
            found = await self._producer.written(self._who.producer_id, [(topic, n) for n in range(count)])
            ends = {at: written.last_offset for at, written in found.items() if written.last_sequence > 0}
            last = await last_rows(self._options.connection, ends, LARGEST_BATCH_BYTES)
            for at, written in found.items():
                # From 1 on, the last sequence is how many: a task writes less than wraps it.
                done = max(0, written.last_sequence)
                progress[at.partition] = _PartitionProgress(done + 1, done, last.get(at))
        return progress

    def _partitions(
        self, topic: str, rows: pa.RecordBatch, key: ArrowColumn, count: int
    ) -> np.ndarray[Any, Any]:
        """The partition of each row: its own, that of its key, or by its place in the task."""
        parts = np.frombuffer(partition_keys(key, count), np.int32).copy()
        given = _column(rows, "partition")
        if given is not None and given.null_count < len(given):
            own = given.fill_null(-1).to_numpy()
            worst = int(own.max() if own.max() >= count else own.min())
            if worst >= count or worst < -1:
                raise SchemaError(f"a row names partition {worst} of topic {topic!r}, which has {count}")
            parts = np.where(own >= 0, own, parts)
        unkeyed = parts < 0
        if unkeyed.any():
            places = self.rows + np.arange(len(parts), dtype=np.int64)
            parts = np.where(unkeyed, (self._part + places // _RUN) % count, parts)
        return parts

    def _behind(
        self,
        topic: str,
        partition: int,
        state: _PartitionProgress,
        rows: pa.RecordBatch,
        mine: np.ndarray[Any, Any],
    ) -> np.ndarray[Any, Any]:
        """Those of a partition's rows that no earlier run has written.

        Raises NotRepeatableError if the last row that one has written is not the one that comes in its place.
        """
        passed = min(state.skip, len(mine))
        state.skip -= passed
        if passed and not state.skip and state.last is not None:
            state.last.check(f"{topic}-{partition}", rows, int(mine[passed - 1]))
        return mine[passed:]

    async def _send(
        self,
        topic: str,
        partition: int,
        state: _PartitionProgress,
        cutter: _Cutter,
        rows: np.ndarray[Any, Any],
    ) -> None:
        while len(rows):
            batch, taken = cutter.cut(rows, self._who, state.sequence)
            state.sequence = (state.sequence + taken) % SEQUENCE_MODULUS
            rows = rows[taken:]
            await self._producer.send(topic, partition, batch)

    def check_all_came_again(self) -> None:
        """Raise NotRepeatableError if an earlier run wrote rows that did not come this time."""
        for topic, progress in self._progress.items():
            for number, state in enumerate(progress):
                if state.skip:
                    raise NotRepeatableError(
                        f"{topic}-{number}: an earlier run of this task has written {state.skip} rows more than "
                        "came this time: the plan does not repeat its rows; write without exactlyOnce"
                    )


class _Cutter:
    """Cuts rows into batches."""

    def __init__(
        self, options: WriteOptions, key: ArrowColumn, value: ArrowColumn, headers: ArrowHeaders | None
    ) -> None:
        self._columns = (key, value, headers)
        self._compression = options.compression
        self._transactional = options.transactional
        self._builder = self._of(options.batch_bytes)

    def _of(self, size: int) -> BatchBuilder:
        return BatchBuilder(*self._columns, max_bytes=size, compression=self._compression)

    def cut(self, rows: np.ndarray[Any, Any], who: NamedProducer, sequence: int) -> tuple[bytes, int]:
        now = time.time_ns() // 1_000_000
        stamp: dict[str, Any] = {
            "producer_id": who.producer_id,
            "producer_epoch": who.producer_epoch,
            "base_sequence": sequence,
            "transactional": self._transactional,
        }
        try:
            return self._builder.build(rows, now, **stamp)
        except BatchTooLargeError:
            pass
        try:
            return self._of(LARGEST_BATCH_BYTES).build(rows[:1], now, **stamp)
        except BatchTooLargeError as error:
            raise RecordTooLargeError(
                f"a row is too large: it does not fit a batch of {LARGEST_BATCH_BYTES} bytes, the largest that "
                "this sink writes; leave it out, or cut its value into several rows"
            ) from error


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    at = rows.schema.get_field_index(name)
    return rows.column(at) if at >= 0 else None


def _binary(column: pa.Array | None, count: int) -> ArrowColumn:
    """A column of bytes or of text, which is UTF-8 already."""
    if column is None or column.null_count == count:
        return ArrowColumn(count)
    if column.type not in (pa.binary(), pa.string()):
        column = column.cast(pa.binary())
    validity, offsets, data = column.buffers()
    return ArrowColumn(len(column), offsets, data, validity if column.null_count else None, column.offset)


def _headers(column: pa.Array | None) -> ArrowHeaders | None:
    if column is None or column.null_count == len(column):
        return None
    pairs = column.values
    if pairs.null_count:
        raise SchemaError("a row has a header that is null; leave it out of the array instead")
    validity, offsets = column.buffers()[:2]
    keys, values = pairs.field(0), pairs.field(1)
    if keys.null_count:
        raise SchemaError("a row has a header without a key")
    count = len(pairs)
    return ArrowHeaders(
        len(column),
        offsets,
        _binary(keys, count) if count else ArrowColumn(0),
        _binary(values, count),
        validity if column.null_count else None,
        column.offset,
    )

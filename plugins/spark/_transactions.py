"""A batch of rows in one transaction: a task writes it, and the driver commits it.

Rows may come otherwise whenever a batch is run again, so nothing of an earlier run may count. A transaction gives
that: it is one task's, and whoever begins the next one under its id aborts what was left open. Whether a batch of a
stream was committed before is told by an offset of a consumer group, which is committed with it: the number of the
next batch. So a batch that Spark runs again, because it has not noted that it was done, is left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import attrs
import pyarrow as pa
import trio

from ...replication.client import ClientError, NamedProducer, TransactionalBatchProducer
from ...replication.core.types import PartitionId
from ._options import settled
from ._workers import settle
from ._writing import Rows, WriteOptions, first_of
from .errors import BatchHistoryError, OptionError

_END_PATIENCE = 10.0
"""Seconds for which a task that has failed tries to abort; else whoever comes next does, or the timeout."""

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Written:
    """A task's writes, and the transaction that has them: None if there is nothing to commit."""

    rows: int
    transactional_id: str
    ids: tuple[int, int] | None


def check_alone(part: int) -> None:
    """Raise OptionError in all tasks but the first: a transaction is one producer's."""
    if part:
        raise OptionError(
            "transactional=true needs all rows in one task, as a transaction is one producer's: write by "
            "insync.plugins.spark.exactly_once(df, transactional=True), or repartition(1) before"
        )


def write_transaction(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], name: str, batch: int | None
) -> Written:
    """Write all rows in a transaction that is left open, for the driver to commit.

    Args:
      name: The transactional id; of a stream also the name of the group that keeps which batch is next.
      batch: The number of the batch in its stream; None outside of streams.

    Raises:
      BatchHistoryError: The cluster does not know whether this batch was written before, or later ones were.
      ClientError: They could not be written: the transaction is aborted.
      SchemaError: A row has no topic, or no such partition.
    """

    async def write(producer: TransactionalBatchProducer) -> Written:
        who = await producer.begin()
        if batch is not None and await _is_done(producer, options, name, batch):
            await trio.to_thread.run_sync(_pass_over, batches)
            return Written(rows=0, transactional_id=name, ids=None)
        try:
            rows = Rows(options, producer, who, 0)
            await rows.take_all(batches)
            if batch is not None:
                await producer.send_offsets(name, {_place(options): batch + 1})
        except Exception:
            with trio.move_on_after(_END_PATIENCE, shield=True):
                await _abort(producer, who)
            raise
        is_used = rows.rows > 0 or batch is not None
        return Written(rows=rows.rows, transactional_id=name, ids=(who[0], who[1]) if is_used else None)

    return _with_producer(options, name, write)


def end_transaction(options: WriteOptions, written: Written, *, committed: bool) -> None:
    """On the driver: what a task has written counts, or does not. Raises what `end` of a producer raises."""
    ids = written.ids
    if ids is None:
        return

    async def end(producer: TransactionalBatchProducer) -> None:
        who = NamedProducer(*ids)
        if committed:
            await producer.end(who, committed=True)
        else:
            await _abort(producer, who)

    _with_producer(options, written.transactional_id, end)


def abort_open(options: WriteOptions, name: str) -> None:
    """On the driver: whatever tasks have left open under a transactional id that nobody uses any more."""

    async def take_over(producer: TransactionalBatchProducer) -> None:
        await producer.begin()

    _with_producer(options, name, take_over)


def _with_producer(
    options: WriteOptions, name: str, work: Callable[[TransactionalBatchProducer], Awaitable[T]]
) -> T:
    async def run() -> Any:
        producer = settled(
            lambda: TransactionalBatchProducer(
                options.connection.servers,
                transactional_id=name,
                transaction_timeout_ms=options.transaction_timeout_ms,
                delivery_timeout_ms=options.delivery_timeout_ms,
                **options.connection.settings(),
            )
        )
        try:
            async with producer:
                return await work(producer)
        except BaseExceptionGroup as group:
            failure = first_of(group)
        raise failure

    try:
        found: T = trio.run(run)
        return found
    finally:
        settle()


async def _abort(producer: TransactionalBatchProducer, who: NamedProducer) -> None:
    """One that cannot be aborted now is aborted later, by whoever comes next or by its timeout."""
    try:
        await producer.end(who, committed=False)
    except ClientError:
        return


def _place(options: WriteOptions) -> PartitionId:
    assert options.topic is not None, "the writer has asked for one"
    return PartitionId(options.topic, 0)


async def _is_done(
    producer: TransactionalBatchProducer, options: WriteOptions, name: str, batch: int
) -> bool:
    """Whether a batch of a stream was committed before. An open transaction of this id has ended by now."""
    following = (await producer.committed_offsets(name)).get(_place(options))
    if following is None and batch > 0:
        raise BatchHistoryError(
            f"batch {batch}: group {name!r} keeps which batch of this query is next, and has nothing of it, so "
            "this one may have been written before. The group was forgotten (offsets_retention_minutes), the topic "
            "is another one, or the query wrote without transactions. Say which is next by "
            f"Admin.set_group_offsets({name!r}, {{({options.topic!r}, 0): {batch}}}), with {batch + 1} if this one "
            "was written, or begin a new checkpoint"
        )
    if following is not None and following > batch + 1:
        raise BatchHistoryError(
            f"batch {batch} comes after batch {following - 1} of the same query was written (group {name!r}): "
            "the query runs twice, or its checkpoint was restored from a copy"
        )
    return following == batch + 1


def _pass_over(batches: Iterator[pa.RecordBatch]) -> None:
    for _ in batches:
        pass

"""The writers: rows into topics. The driver checks; tasks write."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, get_args

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from ...replication import ReplicationError
from ...storage.batch import Compression
from ._clients import admin
from ._options import Options
from ._tracebacks import plainly
from ._transactions import Written, abort_open, check_alone, end_transaction, write_transaction
from ._workers import Sent, settle
from ._writing import LARGEST_BATCH_BYTES, WriteOptions, write_rows
from .errors import OptionError, SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

WRITE_OPTIONS = (
    "topic",
    "exactlyOnce",
    "repeatablePlan",
    "transactional",
    "transactionTimeoutMs",
    "compressionType",
    "batchBytes",
    "deliveryTimeoutMs",
)
_TEXT = (BinaryType, StringType)
_log = logging.getLogger("insync.spark")


def write_options(options: Options, schema: StructType) -> WriteOptions:
    """The options that tasks need.

    Raises:
      OptionError: An option cannot be.
      SchemaError: The columns are not those of records.
      UnknownTopicError: The topic that `topic` names does not exist.
    """
    topic = options.text("topic")
    _check_columns(schema, topic)
    exactly_once = options.flag("exactlyOnce", False)
    if exactly_once and not options.flag("repeatablePlan", False):
        raise OptionError(
            "exactlyOnce=true needs a plan that gives the same rows in the same order whenever a task is run "
            "again, and Spark does not show its plan to a sink: write by insync.plugins.spark.exactly_once(df), "
            "which looks at it (or set repeatablePlan=true if you know that it does)"
        )
    transactional = options.flag("transactional", False)
    if transactional and exactly_once:
        raise OptionError("exactlyOnce=true and transactional=true exclude each other: keep one")
    if transactional and topic is None:
        raise OptionError(
            "transactional=true needs the option topic: with it stands which batch of a stream is next"
        )
    found = WriteOptions(
        connection=options.connection(),
        topic=topic,
        exactly_once=exactly_once,
        transactional=transactional,
        transaction_timeout_ms=options.number("transactionTimeoutMs", 300_000),
        compression=options.choice("compressionType", "none", get_args(Compression)),  # type: ignore[arg-type]
        batch_bytes=options.number("batchBytes", 1_000_000, least=1024, most=LARGEST_BATCH_BYTES),
        delivery_timeout_ms=options.number("deliveryTimeoutMs", 120_000),
    )
    with admin(found.connection) as client:
        # Also where rows name their topics: that the cluster is there is to be known before tasks are started.
        client.describe_topics([] if topic is None else [topic])
    settle()
    return found


def _check_columns(schema: StructType, topic: str | None) -> None:
    kinds = {field.name: field.dataType for field in schema.fields}
    if "value" not in kinds:
        raise SchemaError(f"there is no column 'value' to be written, only {', '.join(kinds) or 'none'}")
    if topic is None and "topic" not in kinds:
        raise SchemaError("neither an option nor a column says which topic to write to")
    allowed = {"key": _TEXT, "value": _TEXT, "topic": (StringType,), "partition": (IntegerType,)}
    for name, types in allowed.items():
        if name in kinds and not isinstance(kinds[name], types):
            wanted = " or ".join(kind.typeName() for kind in types)
            raise SchemaError(
                f"column {name!r} is {kinds[name].simpleString()}; it must be {wanted}: cast it"
            )
    headers = kinds.get("headers")
    if headers is not None:
        expected = "array<struct<key:string,value:binary>>"
        if not isinstance(headers, ArrayType) or headers.simpleString() != expected:
            raise SchemaError(f"column 'headers' is {headers.simpleString()}; it must be {expected}")


@attrs.frozen
class Done(WriterCommitMessage):
    """A task's report of its writes; `identities` is before the names of its job's producers."""

    rows: int
    identities: str
    written: Written | None = None
    """In a transaction, which is for the driver to end."""


def _write_in_transaction(
    options: WriteOptions, iterator: Iterator[pa.RecordBatch], name: str, part: int, batch: int | None
) -> Done:
    check_alone(part)
    written = write_transaction(options, iterator, name, batch)
    return Done(written.rows, name, written)


def _end(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], *, committed: bool) -> None:
    """There is one task, so there is one transaction; none of tasks that have failed."""
    for message in messages:
        if isinstance(message, Done) and message.written is not None:
            end_transaction(options, message.written, committed=committed)


@contextmanager
def _not_hiding(what: str) -> Iterator[None]:
    """Spark shows an error of `abort` in place of the one for which it aborts, so it is only logged.

    A transaction that could not be aborted is aborted by the next writer under its id, or by its timeout.
    """
    try:
        yield
    except ReplicationError as error:
        _log.warning("%s failed and could not be aborted: %s", what, error)


class InsyncWriter(Sent, DataSourceArrowWriter):
    """A batch query's rows into topics."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._job = f"spark/{uuid.uuid4().hex}/"
        self._transactional_id = self._job.rstrip("/")

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        if self._options.transactional:
            return _write_in_transaction(self._options, iterator, self._transactional_id, part, None)
        return Done(write_rows(self._options, iterator, f"{self._job}{part}", part), self._job)

    @plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """No task of this job will be run again."""
        _end(self._options, messages, committed=True)
        self._forget()

    @plainly
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Written rows stay, except those in a transaction: a log takes nothing else back."""
        with _not_hiding("a job"):
            if self._options.transactional:
                # Tasks that were killed have told of nothing, and may have written.
                abort_open(self._options, self._transactional_id)
            self._forget()

    def _forget(self) -> None:
        if self._options.exactly_once:
            with admin(self._options.connection) as client:
                client.forget_producers(self._job)
        settle()


class InsyncStreamWriter(Sent, DataSourceStreamArrowWriter):
    """A streaming query's rows into topics; the names of producers are the same when a batch is replayed."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert batch is not None
        part = context.partitionId()
        if self._options.transactional:
            return _write_in_transaction(self._options, iterator, f"spark/{query}", part, int(batch))
        rows = write_rows(self._options, iterator, f"spark/{query}/{batch}/{part}", part)
        return Done(rows, f"spark/{query}/")

    @plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The batch before this one cannot come again; this one can, until Spark has noted that it is done."""
        _end(self._options, messages, committed=True)
        if self._options.exactly_once:
            prefixes = {message.identities for message in messages if isinstance(message, Done)}
            with admin(self._options.connection) as client:
                for prefix in prefixes:
                    client.forget_producers(f"{prefix}{batchId - 1}/")
        settle()

    @plainly
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The batch comes again, and goes on where this one stopped; in a transaction it starts over."""
        with _not_hiding(f"batch {batchId}"):
            _end(self._options, messages, committed=False)

"""Writing the rows of a table to a topic, from within tasks: once each, also if the job is run again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from ....replication.client import BlockingAdmin
from .._options import Connection
from .._writing import WriteOptions, write_rows
from ._parquet import bytes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ....replication.client.admin import TopicInfo

BATCH_BYTES = 256 << 10
_DELIVERY_TIMEOUT_MS = 120_000
_PREFIX = "pipeline/"
"""Before the names of producers, and of what is kept of jobs that are done."""
_SCHEMA = pa.schema([("records", pa.int64()), ("bytes", pa.int64())])


def described(servers: str, topic: str) -> TopicInfo:
    """Raises ClientError, such as UnknownTopicError."""
    with BlockingAdmin(servers) as admin:
        return admin.describe_topics([topic])[0]


def job_name(kind: str, *about: object) -> str:
    """A name for what is written: the same as long as all that it is made from is."""
    return f"{kind}/{hashlib.sha256(repr(about).encode()).hexdigest()[:32]}"


def was_written(servers: str, job: str) -> bool:
    """Whether a job of this name has written all, and kept that."""
    with BlockingAdmin(servers) as admin:
        return bool(admin.committed_offsets(_group(job)))


def _group(job: str) -> str:
    return f"{_PREFIX}{job}"


def write_topic(
    rows: DataFrame,
    servers: str,
    topic: str,
    job: str,
    *,
    done: Mapping[tuple[str, int], int] | None = None,
) -> tuple[int, int]:
    """Write columns `value` and, if there are such, `key` (binary) and `partition`; gives records and bytes.

    Ends when all records are acknowledged by all in-sync replicas. Each task has a producer with a name, of `job`
    and its number. If a task is repeated, or the job failed and is run again under this name, it leaves out what is
    there; so each task must have the same rows in the same order. The names go when all is written.

    Args:
      done: Offsets up to which the job has read, to be kept for `was_written`.
    """
    prefix = f"{_PREFIX}{job}/"
    connection = Connection(servers=servers, client_id="insync-pipeline")
    batch_bytes = BATCH_BYTES

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Here, as it takes libraries that only executors need have.
        from pyspark import TaskContext

        size = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal size
            for batch in batches:
                size += bytes_of(batch)
                yield batch

        context = TaskContext.get()
        assert context is not None
        part = context.partitionId()
        options = WriteOptions(
            connection=connection,
            topic=topic,
            exactly_once=True,
            compression="none",
            batch_bytes=batch_bytes,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
        )
        records = write_rows(options, counted(), f"{prefix}{part}", part)
        yield pa.RecordBatch.from_pylist([{"records": records, "bytes": size}], schema=_SCHEMA)

    found = rows.mapInArrow(write, "records LONG, bytes LONG").collect()
    with BlockingAdmin(servers) as admin:
        if done is not None:
            # First, as without names the job would write all again.
            admin.commit_offsets(_group(job), done)
        admin.forget_producers(prefix)
    return sum(row["records"] for row in found), sum(row["bytes"] for row in found)

"""Writing the rows of a table to a topic, from within tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from ....replication.client import BlockingAdmin, BlockingProducer
from ....replication.client.blocking import BlockingDeliveries
from ._parquet import bytes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_BYTES = 256 << 10
_OUTSTANDING = 8
"""Arrow batches whose outcome is not known yet; more would only wait in the producer's buffer."""


def partitions_of(servers: str, topic: str) -> int:
    """How many partitions the topic has. Raises ClientError, such as UnknownTopicError."""
    with BlockingAdmin(servers) as admin:
        return len(admin.describe_topics([topic])[0].partitions)


def write_topic(rows: DataFrame, servers: str, topic: str) -> tuple[int, int]:
    """Write columns `value` and, if there are such, `key` (binary) and `partition`; gives records and bytes.

    Each task has an idempotent producer of its own and ends when all its records are acknowledged by all in-sync
    replicas. A task that Spark repeats writes its records again.
    """
    names = rows.columns

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records = size = 0
        with BlockingProducer(servers, batch_size=BATCH_BYTES, client_id="insync-pipeline") as producer:
            unsettled: deque[BlockingDeliveries] = deque()
            for batch in batches:
                unsettled.extend(_send(producer, topic, batch, names))
                records += len(batch)
                size += bytes_of(batch)
                while len(unsettled) > _OUTSTANDING:
                    unsettled.popleft().result()
            while unsettled:
                unsettled.popleft().result()
        yield pa.RecordBatch.from_pylist([{"records": records, "bytes": size}], schema=_SCHEMA)

    found = rows.mapInArrow(write, "records LONG, bytes LONG").collect()
    return sum(row["records"] for row in found), sum(row["bytes"] for row in found)


_SCHEMA = pa.schema([("records", pa.int64()), ("bytes", pa.int64())])


def _send(
    producer: BlockingProducer, topic: str, batch: pa.RecordBatch, names: list[str]
) -> Iterator[BlockingDeliveries]:
    if not len(batch):
        return
    columns = dict(zip(names, batch.columns, strict=True))
    keys = columns["key"].to_pylist() if "key" in columns else None
    values = columns["value"].to_pylist()
    if "partition" not in columns:
        yield producer.send_many(topic, values, keys)
        return
    numbers = columns["partition"].to_numpy(zero_copy_only=False)
    starts = [0, *((numbers[1:] != numbers[:-1]).nonzero()[0] + 1).tolist(), len(numbers)]
    for start, end in pairwise(starts):
        some_keys = keys[start:end] if keys is not None else None
        partition = int(numbers[start])
        yield producer.send_many(topic, values[start:end], some_keys, partition=partition)

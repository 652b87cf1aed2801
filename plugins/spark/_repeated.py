"""The last row that an earlier run of a task has written: the one that has to come in its place in a later run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import attrs
import pyarrow as pa
import trio

from ...replication.client import AuthorizationError, Consumer, OffsetOutOfRangeError
from ...replication.core.types import PartitionId
from ._options import Connection, settled
from .errors import NotRepeatableError

_POLL_MS = 500
_PATIENCE = 30.0
"""Seconds for which the record is looked for; what comes later is not compared."""


@attrs.frozen
class LastRow:
    """The last row as the log has it."""

    offset: int
    key: bytes | None
    value: bytes | None

    def check(self, name: str, rows: pa.RecordBatch, number: int) -> None:
        """Raise NotRepeatableError unless row `number` of `rows` is this one."""
        if (_bytes(rows, "key", number), _bytes(rows, "value", number)) != (self.key, self.value):
            raise NotRepeatableError(
                f"{name}: an earlier run of this task has written other rows than came this time: offset "
                f"{self.offset} has another key or value than the row in its place. The plan does not repeat its "
                "rows, it was changed since (also by minPartitions or maxRecordsPerPartition), or its source has "
                "lost some (retention, compaction): run it as it was, or compare the topics and begin a new "
                "checkpoint"
            )


async def last_rows(
    connection: Connection, ends: Mapping[PartitionId, int], largest_batch: int
) -> dict[PartitionId, LastRow]:
    """The committed records at these offsets, but for those that were deleted or compacted away.

    largest_batch: bytes that the records of a batch may have before compression.

    None at all if this client has no right to read.
    """
    found: dict[PartitionId, LastRow] = {}
    if not ends:
        return found
    consumer = settled(
        lambda: Consumer(
            connection.servers,
            auto_offset_reset="none",
            max_poll_records=1,
            fetch_max_bytes=largest_batch,
            **connection.settings(),
        )
    )
    async with consumer:
        with trio.move_on_after(_PATIENCE), suppress(AuthorizationError):
            for at, offset in ends.items():
                with suppress(OffsetOutOfRangeError):
                    row = await _read(consumer, at, offset)
                    if row is not None:
                        found[at] = row
    return found


async def _read(consumer: Consumer, at: PartitionId, offset: int) -> LastRow | None:
    consumer.assign([at])
    consumer.seek(at, offset)
    while consumer.position(at) == offset:
        for record in await consumer.poll(_POLL_MS):
            if record.offset == offset:
                return LastRow(offset, record.key, record.value)
    return None


def _bytes(rows: pa.RecordBatch, name: str, number: int) -> bytes | None:
    """A row's key or value as it is written: text as UTF-8."""
    at = rows.schema.get_field_index(name)
    value = rows.column(at)[number].as_py() if at >= 0 else None
    return value.encode() if isinstance(value, str) else value

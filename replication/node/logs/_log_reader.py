"""The broker's port to the logs of this node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....storage import CorruptBatchError, Log, OffsetOutOfRangeError, StorageError
from ...core.broker.ports import COLD, Cold, LogRange, LogReadError
from ...core.errors import ErrorCode
from ...core.types import PartitionId

if TYPE_CHECKING:
    from ..ports import Logs
    from ._cold_reads import ColdReads


_Wanted = tuple[PartitionId, int, int, int]
"""Partition, offset, most bytes, limit."""


def _read(opened: Log, offset: int, max_bytes: int, limit_offset: int) -> LogRange:
    try:
        return opened.read(offset, max_bytes=max_bytes, limit_offset=limit_offset)
    except OffsetOutOfRangeError as error:
        raise LogReadError(ErrorCode.OFFSET_OUT_OF_RANGE, str(error)) from error
    except StorageError as error:
        damaged = isinstance(error, CorruptBatchError)
        raise LogReadError(ErrorCode.KAFKA_STORAGE_ERROR, str(error), damaged=damaged) from error


class LogReader:
    """See `core.broker.ports.LogPort`. A read that might wait for the device is `COLD` until it was warmed."""

    def __init__(self, logs: Logs, cold_reads: ColdReads) -> None:
        self._logs = logs
        self._cold_reads = cold_reads
        self.shared: dict[_Wanted, LogRange] | None = None
        """The ranges read since the event loop began to look at parked fetches, while it does: followers that have
        everything wait for the same bytes.
        """

    def queued(self, partition: PartitionId) -> int:
        """See `LogPort`."""
        home = self._logs[partition].home
        return home.writer.queued if home is not None else 0

    def range_at(
        self, partition: PartitionId, offset: int, max_bytes: int, limit_offset: int
    ) -> LogRange | Cold:
        shared, wanted = self.shared, (partition, offset, max_bytes, limit_offset)
        if shared is not None and wanted in shared:
            return shared[wanted]
        opened = self._logs[partition].log
        assert opened is not None, f"the log of {partition} is not open"
        found: LogRange | None = opened.read_at_hand(offset, max_bytes=max_bytes, limit_offset=limit_offset)
        if found is None:
            if not self._cold_reads.is_at_hand(partition, opened, offset):
                return COLD
            found = _read(opened, offset, max_bytes, limit_offset)
        if shared is not None:
            shared[wanted] = found
        return found

    def aborted_transactions(
        self, partition: PartitionId, start_offset: int, end_offset: int
    ) -> Sequence[tuple[int, int]]:
        """See `LogPort`."""
        opened = self._logs[partition].log
        assert opened is not None, f"the log of {partition} is not open"
        found = opened.aborted_transactions(start_offset, end_offset)
        return [(each.producer_id, each.first_offset) for each in found]

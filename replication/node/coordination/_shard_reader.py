"""Records of internal topics: read and decoded in a thread for a shard that begins, and made into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....storage import Log, StorageError
from ....storage.batch import (
    BatchInfo,
    BatchTooLargeError,
    build_batch,
    build_marker,
    control_type,
    records,
    scan,
)
from ...core.broker.ports import BatchTooLarge
from ...core.coordination.shard_events import Entry, Marker, ProducerId
from ..requests._payloads import Batches

READ_BYTES = 256 << 10
"""Of one read: what it holds is applied in one step of the event loop."""

Decode = Callable[[bytes | None, bytes | None], tuple[Any, Any | None]]


def read_shard(log: Log, start: int, end: int, decode: Decode) -> tuple[tuple[Entry | Marker, ...], int]:
    """Some entries of [start, end), in order, and where to read on.

    Raises:
      StorageError: The log cannot be read there.
    """
    start = max(start, log.log_start_offset)
    found = log.read(start, max_bytes=READ_BYTES, limit_offset=end)
    if found.range is None:
        if log.log_end_offset < end:
            raise StorageError(
                f"the log of {log.topic}-{log.partition} ends at {log.log_end_offset}, below {end}"
            )
        # Compaction may have left nothing up to the end: that is not a failure (KAFKA-9065).
        return (), end
    data = found.range.read_bytes()
    entries: list[Entry | Marker] = []
    position = 0
    for info in scan(data):
        size = info.size_bytes
        batch = data[position : position + size]
        position += size
        producer = None
        if info.is_control:
            outcome = control_type(batch)
            if outcome in (0, 1):
                writer = ProducerId(info.producer_id, info.producer_epoch)
                entries.append(Marker(info.base_offset, writer, outcome == 1))
            continue
        if info.is_transactional:
            producer = ProducerId(info.producer_id, info.producer_epoch)
        entries += [
            Entry(each.offset, *decode(each.key, each.value), producer)
            for each in records(batch, start_offset=start)
        ]
    return tuple(entries), max(found.next_offset, start + 1)


class BatchMaker:
    """See `core.broker.ports.BatchPort`."""

    def __init__(self) -> None:
        self._last_marker: tuple[object, bytes, Sequence[BatchInfo]] = None, b"", ()
        """Its content, and its bytes: the same is written to all partitions of a transaction."""

    def build(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        producer: ProducerId | None,
        max_bytes: int,
    ) -> Batches:
        try:
            data = build_batch(
                [key for key, _ in records],
                [value for _, value in records],
                timestamps_ms=timestamp_ms,
                producer_id=producer.producer_id if producer is not None else -1,
                producer_epoch=producer.producer_epoch if producer is not None else -1,
                transactional=producer is not None,
            )
        except BatchTooLargeError as error:
            raise BatchTooLarge(str(error)) from error
        if len(data) > max_bytes:
            raise BatchTooLarge(f"{len(data)} bytes, above {max_bytes}")
        return Batches(memoryview(data), scan(data, verify_crc=False), _nothing)

    def marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        timestamp_ms: int,
    ) -> Batches:
        said = producer_id, producer_epoch, committed, coordinator_epoch, timestamp_ms
        if self._last_marker[0] != said:
            data = build_marker(
                producer_id,
                producer_epoch,
                committed=committed,
                coordinator_epoch=coordinator_epoch,
                timestamp_ms=timestamp_ms,
            )
            self._last_marker = said, data, scan(data, verify_crc=False)
        _, data, infos = self._last_marker
        return Batches(memoryview(data), infos, _nothing)


def _nothing() -> None:
    """The memory goes with the last reference to it."""

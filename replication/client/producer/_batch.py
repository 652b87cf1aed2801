"""Record batches on their way from `send` to their outcome."""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from time import time_ns
from typing import NamedTuple

import trio

from ....storage.batch import (
    BATCH_OVERHEAD_BYTES,
    Compression,
    Headers,
    build_batch,
    build_batch_into,
    build_record,
    restamp_producer,
)
from ...core.types import named
from ...core.wording import counted
from ...errors import again
from ..errors import ClientError, OutcomePendingError
from ._buffers import LARGE, Buffers
from .delivery import Delivery, OnDelivery, RecordMetadata

_log = logging.getLogger("insync.client")
_UNDATED = array("q")
"""The `timestamps` of a batch whose records all have one: always empty."""


def log_unseen(what: str, error: Exception) -> None:
    """Log a failure that no code has checked, as asyncio does with a task's exception."""
    _log.error("%s failed, and no code has checked the deliveries: %s", what, error)


class ProducerIdentity(NamedTuple):
    """A producer's id and epoch, by which nodes tell a repeated batch from a new one (KIP-98)."""

    producer_id: int
    epoch: int


class Batch:
    """Records of one partition that are sent, acknowledged and failed together."""

    __slots__ = (
        "attempts",
        "base_offset",
        "callbacks",
        "created",
        "data",
        "deadline",
        "done",
        "error",
        "event",
        "headers",
        "keys",
        "last_error",
        "looked_at",
        "maybe_in_whole",
        "maybe_written",
        "number",
        "parent",
        "partition",
        "parts",
        "sealed",
        "sequence",
        "since",
        "size",
        "starts",
        "timestamp_ms",
        "timestamps",
        "topic",
        "undone",
        "until",
        "values",
    )

    def __init__(self, topic: str, partition: int, created: float, deadline: float) -> None:
        self.topic = topic
        self.partition = partition
        self.number = -1
        self.created = created
        self.deadline = deadline
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers] | None = None
        self.timestamps = _UNDATED
        """Milliseconds since 1970, of the first records; those behind them have `timestamp_ms`."""
        self.timestamp_ms = -1
        self.since = self.until = 0.0
        """From when to when, in seconds since 1970, `timestamp_ms` is now."""
        self.sealed = 0
        """How many records its bytes have."""
        self.callbacks: list[tuple[int, OnDelivery]] | None = None
        self.size = BATCH_OVERHEAD_BYTES
        self.data: bytes | memoryview | None = None
        self.sequence = -1
        self.attempts = 0
        self.maybe_written = False
        self.maybe_in_whole = False
        self.last_error: BaseException | None = None
        self.done = False
        self.looked_at = False
        """Whether a caller has asked for the outcome, or has received it."""
        self.base_offset = -1
        self.error: ClientError | None = None
        self.event: trio.Event | None = None
        self.parts: Sequence[Batch] | None = None
        """The parts of a batch that was too large. They have the outcomes; it is `done` when all are."""
        self.starts: Sequence[int] = ()
        """Of each part, the index here of its first record."""
        self.undone = 0
        """How many parts have no outcome yet."""
        self.parent: Batch | None = None
        """Of which it is such a part, until its outcome is known."""

    @property
    def count(self) -> int:
        return self.sealed or len(self.values)

    def date(self, timestamp_ms: int | None = None) -> None:
        """Records that are added from now on have this timestamp, by default the time of now."""
        if timestamp_ms is None:
            timestamp_ms = time_ns() // 1_000_000
            self.since, self.until = timestamp_ms / 1000, (timestamp_ms + 1) / 1000
        else:
            self.since = self.until = 0.0
        if timestamp_ms != self.timestamp_ms:
            if self.values:
                self._write_timestamps()
            self.timestamp_ms = timestamp_ms

    def _write_timestamps(self) -> None:
        if self.timestamps is _UNDATED:
            self.timestamps = array("q")
        missing = len(self.values) - len(self.timestamps)
        self.timestamps.extend(array("q", [self.timestamp_ms]) * missing)

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, size: int) -> int:
        """Take a record, of the time that `date` was told; gives its index."""
        index = len(self.values)
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        elif key is not None:
            self.keys = [None] * index
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers)
        elif headers:
            self.headers = [()] * index
            self.headers.append(headers)
        self.size += size
        return index

    def seal(
        self,
        identity: ProducerIdentity | None,
        sequence: int,
        compression: Compression,
        buffers: Buffers,
        transactional: bool = False,
    ) -> None:
        """Make the bytes, once; they stay the same however often they are sent."""
        producer_id, epoch = identity or (-1, -1)
        keys, values = self.keys, self.values
        large = compression == "none" and self.size >= LARGE
        if len(values) == 1 and self.headers is None and not self.timestamps and not large:
            self.data = build_record(
                None if keys is None else keys[0],
                values[0],
                timestamp_ms=self.timestamp_ms,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
                compression=compression,
            )
        else:
            if self.timestamps:
                self._write_timestamps()
            build: Callable[..., bytes | memoryview]
            if large:
                build = partial(build_batch_into, buffers.take)
            else:
                build = partial(build_batch, compression=compression)
            self.data = build(
                keys,
                values,
                timestamps_ms=self.timestamps or self.timestamp_ms,
                headers=self.headers,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
            )
        self.sealed = len(values)
        self.keys, self.values, self.headers = None, [], None

    def let_go(self, buffers: Buffers) -> None:
        """Nothing of it is sent any more, though something of it may be on its way."""
        data, self.data = self.data, None
        if isinstance(data, memoryview):
            buffers.give_back(data)

    def restamp(self, identity: ProducerIdentity, sequence: int) -> None:
        """Give a sealed batch, which is certainly in no log, another place among the producer's."""
        assert self.data is not None
        self.data = restamp_producer(self.data, identity.producer_id, identity.epoch, sequence)

    def settle(self, base_offset: int, error: ClientError | None) -> None:
        """The outcome is known; told once."""
        self.base_offset, self.error = base_offset, error
        self._end()
        if self.callbacks is not None:
            callbacks, self.callbacks = self.callbacks, None
            for index, callback in callbacks:
                self.tell(index, callback)

    def _end(self) -> None:
        self.done = True
        if self.event is not None:
            self.event.set()
        if self.parent is not None:
            parent, self.parent = self.parent, None
            parent.undone -= 1
            if not parent.undone:
                parent._end()

    def divide(self, parts: Sequence[Batch], starts: Sequence[int]) -> None:
        """Its records are those of `parts` from now on, and so are their callbacks."""
        for part in parts:
            part.parent, part.looked_at = self, self.looked_at
        # Other threads look at deliveries, too: `parts` comes last.
        self.undone, self.starts = len(parts), starts
        self.parts = parts
        callbacks, self.callbacks = self.callbacks, None
        for index, callback in callbacks or ():
            part, index = self.place(index)
            part.callbacks = part.callbacks or []
            part.callbacks.append((index, callback))
        event, self.event = self.event, None
        if event is not None:
            event.set()

    def place(self, index: int) -> tuple[Batch, int]:
        """The batch that a record is in by now, and its index there."""
        batch = self
        while batch.parts is not None:
            at = bisect_right(batch.starts, index) - 1
            batch, index = batch.parts[at], index - batch.starts[at]
        return batch, index

    def tell(self, index: int, callback: OnDelivery) -> None:
        """Call when the outcome is known, which may be now."""
        if self.parts is not None:
            part, index = self.place(index)
            part.tell(index, callback)
            return
        if not self.done:
            self.callbacks = self.callbacks or []
            self.callbacks.append((index, callback))
            return
        self.looked_at = True
        try:
            callback(Delivery(self, index))
        except Exception:  # noqa: BLE001 - the caller's own code; it is logged
            _log.exception("on_delivery of %s-%d raised", self.topic, self.partition)

    async def wait(self) -> None:
        """Until the outcome of each record is known."""
        while not self.done:
            await self.changed()

    async def changed(self) -> None:
        """Wait until it is `done` or divided."""
        if self.event is None:
            self.event = trio.Event()
        await self.event.wait()

    def __del__(self) -> None:
        if self.error is not None and not self.looked_at:
            log_unseen(f"{counted(self.count, 'record')} for {self.topic}-{self.partition}", self.error)

    def metadata(self, index: int) -> RecordMetadata:
        if self.parts is not None:
            part, index = self.place(index)
            return part.metadata(index)
        self.looked_at = True
        if self.error is not None:
            raise again(self.error)
        if not self.done:
            raise OutcomePendingError(
                f"the outcome of {self.topic}-{self.partition} is not known yet; use wait()"
            )
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        timestamp_ms = self.timestamps[index] if index < len(self.timestamps) else self.timestamp_ms
        return named(RecordMetadata, (self.topic, self.partition, offset, timestamp_ms))

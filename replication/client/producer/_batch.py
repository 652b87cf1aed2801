"""Record batches on their way from `send` to their outcome."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import trio

from ....storage.batch import Compression, compressed, restamp_producer
from ...core.types import named
from ...core.wording import counted
from ...errors import again
from ..errors import ClientError, OutcomePendingError
from . import _joining
from .delivery import Delivery, OnDelivery, RecordMetadata

_log = logging.getLogger("insync.client")


def log_unseen(what: str, error: Exception) -> None:
    """Log a failure that no code has checked, as asyncio does with a task's exception."""
    _log.error("%s failed, and no code has checked the deliveries: %s", what, error)


class ProducerIdentity(NamedTuple):
    """A producer's id and epoch, by which nodes tell a repeated batch from a new one (KIP-98)."""

    producer_id: int
    epoch: int


class Batch(_joining.GrowingBatch):
    """Records of one partition that are sent, acknowledged and failed together.

    Its bytes grow with each record. Once it is sealed it is a buffer of them.
    """

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
        "last_error",
        "looked_at",
        "maybe_in_whole",
        "maybe_written",
        "number",
        "parent",
        "partition",
        "parts",
        "sequence",
        "starts",
        "topic",
        "undone",
    )

    def __init__(self, topic: str, partition: int, created: float, deadline: float) -> None:
        self.topic = topic
        self.partition = partition
        self.number = -1
        self.created = created
        self.deadline = deadline
        self.callbacks: list[tuple[int, OnDelivery]] | None = None
        self.data: bytes | memoryview | None = None
        """The bytes to be sent: from `seal` on, and until it is settled."""
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

    def seal(
        self,
        identity: ProducerIdentity | None,
        sequence: int,
        compression: Compression,
        transactional: bool = False,
    ) -> None:
        """Make `data`, once; it stays the same however often it is sent."""
        producer_id, epoch = identity or (-1, -1)
        self.finish(producer_id, epoch, sequence, transactional)
        self.data = memoryview(self)
        if compression != "none":
            self.data = compressed(self.data, compression)
            self.release()

    def let_go(self) -> None:
        """Nothing of it is sent any more, though something of it may be on its way."""
        self.data = None
        self.release()

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
        return named(RecordMetadata, (self.topic, self.partition, offset, self.timestamp(index)))

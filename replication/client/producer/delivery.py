"""The result of `send`: a slot in a batch, whose outcome all records share that are sent with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import attrs
import trio

from ..errors import ClientError
from . import _joining

if TYPE_CHECKING:
    from ._batch import Batch


class RecordMetadata(NamedTuple):
    """The place of an acknowledged record. `offset` is -1 with acks=0, because it stays unknown."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Delivery(_joining.Place):
    """The outcome of one record, now or later.

    Its failure is logged when the delivery is collected, unless somebody has looked: `error`, `result`, `wait`, or
    a callback.
    """

    __slots__ = ()

    @property
    def topic(self) -> str:
        return self._batch.topic

    @property
    def partition(self) -> int:
        return self._batch.partition

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._place()[0].done

    @property
    def error(self) -> ClientError | None:
        """Why it failed; None if it did not, or not yet."""
        batch, _ = self._place()
        batch.looked_at = True
        return batch.error

    def result(self) -> RecordMetadata:
        """The outcome, which must be known (`done`).

        Raises:
          ClientError: The record failed; its `outcome` tells whether it may still be in the log.
          OutcomePendingError: The outcome is not known.
        """
        return self._batch.metadata(self._index)

    def _tell(self, callback: OnDelivery) -> None:
        """Call when the outcome is known, which may be now."""
        self._batch.tell(self._index, callback)

    async def wait(self) -> RecordMetadata:
        """Wait for the outcome; raises as `result` does. Cancelling it does not take the record back."""
        await self._settled()
        return self._batch.metadata(self._index)

    async def _settled(self) -> None:
        """Wait until the outcome is known."""
        batch, index = self._batch, self._index
        while not batch.done:
            if batch.parts is not None:
                batch, index = batch.place(index)
                continue
            await batch.changed()

    def _place(self) -> tuple[Batch, int]:
        """Where its record is by now: a batch that is too large is divided."""
        batch = self._batch
        return (batch, self._index) if batch.parts is None else batch.place(self._index)

    def __repr__(self) -> str:
        error = self._place()[0].error
        state = "pending" if not self.done else repr(error) if error else str(self.result())
        return f"<Delivery to {self.topic}-{self.partition}: {state}>"


@attrs.define(eq=False, slots=True)
class Deliveries(Sequence[Delivery]):
    """The outcomes of `send_many`, in the order of its values."""

    _runs: list[tuple[Batch, int, int]] = attrs.Factory(list)
    _length: int = 0

    def _add(self, batch: Batch, start: int, count: int) -> None:
        self._length += count
        if self._runs:
            last, first, length = self._runs[-1]
            if last is batch and first + length == start:
                self._runs[-1] = (batch, first, length + count)
                return
        self._runs.append((batch, start, count))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> list[Delivery]: ...
    def __getitem__(self, index: int | slice) -> Delivery | list[Delivery]:
        if isinstance(index, slice):
            return list(self)[index]
        at = index + self._length if index < 0 else index
        for batch, start, count in self._runs:
            if 0 <= at < count:
                return Delivery(batch, start + at)
            at -= count
        raise IndexError(f"delivery {index} of {self._length}")

    def __iter__(self) -> Iterator[Delivery]:
        for batch, start, count in self._runs:
            for index in range(start, start + count):
                yield Delivery(batch, index)

    @property
    def done(self) -> bool:
        return all(batch.done for batch, _, _ in self._runs)

    async def wait(self) -> list[RecordMetadata]:
        """Wait for all outcomes; raises the first failure in order, once every outcome is known."""
        for batch in {id(batch): batch for batch, _, _ in self._runs}.values():
            await batch.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        return [delivery.result() for delivery in self]


OnDelivery = Callable[[Delivery], None]
"""Called in the event loop when the outcome of a record is known; must be quick and must not raise."""

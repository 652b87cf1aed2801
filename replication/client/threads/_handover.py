"""Records on their way from other threads to a producer: queued here, taken over by its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import trio

from ..._portal import Portal
from ...errors import again
from .._settings import ProducerSettings
from ..errors import BufferFullError, ClosedError, DeliveryTimeoutError, OutcomePendingError
from ..producer import Producer, _joining
from ..producer._accumulator import as_bytes
from ..producer._batch import log_unseen
from ..producer.delivery import Deliveries, Delivery, RecordMetadata

_HANDOVER_BYTES = 4 << 20
_RECORD_COST = 200


class _Lost:
    """Why a record never came into a batch; the log has it if nobody has looked."""

    __slots__ = ("error", "looked_at")

    def __init__(self, error: Exception, looked_at: bool) -> None:
        self.error = error
        self.looked_at = looked_at

    def __del__(self) -> None:
        if not self.looked_at:
            log_unseen("a record", self.error)


class HandedOver(_joining.Handed):
    """One record and its outcome, now or later."""

    __slots__ = ()

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._lost is not None or (self._delivery is not None and self._delivery.done)

    def _look(self) -> None:
        self._looked_at = True
        if self._lost is not None:
            self._lost.looked_at = True

    def _outcome(self) -> RecordMetadata:
        self._look()
        if self._lost is not None:
            raise again(self._lost.error)
        if self._delivery is None:
            raise OutcomePendingError("the outcome of the record is not known yet; wait for it first")
        return self._delivery.result()

    def _failure(self) -> Exception | None:
        """Why it failed, or None if it did not; it is `done`."""
        self._look()
        if self._lost is not None:
            return self._lost.error
        return self._delivery.error if self._delivery is not None else None

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._lost is not None:
            return f"<{name}: {self._lost.error!r}>"
        return f"<{name}: waiting>" if self._delivery is None else f"<{name} of {self._delivery!r}>"

    # In the trio thread

    def _lose(self, error: Exception) -> None:
        """It will never come into a batch."""
        self._lost = _Lost(error, self._looked_at)

    def _tell(self, callback: Callable[[HandedOver], None]) -> None:
        """Call when the outcome is known, which may be now."""
        if self._lost is not None:
            self._look()
            callback(self)
        elif self._delivery is not None:
            self._delivery._tell(lambda _: callback(self))
        else:
            self._callbacks = self._callbacks or []
            self._callbacks.append(callback)

    def _moved(self) -> None:
        """It is a batch's now, or has failed."""
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            self._tell(callback)


Queued = tuple[HandedOver, int, float, tuple[Any, ...]]
"""A record with its cost, the time by which its outcome must be known, and what `try_append` takes."""


class Handover:
    """The way from any number of threads to one producer; what waits on it is bounded.

    Args:
      kind: The class of records that `Entrance` makes.
    """

    entrance: _joining.Entrance | None = None
    """The way of records with a topic, a value and perhaps a key, called with their owner before these.

    Gives None for a record about which there is more to decide. It is here once a record was offered.
    """

    def __init__(
        self,
        portal: Portal[Producer],
        producer: Callable[[], Producer],
        delivery_timeout_ms: int,
        kind: type[HandedOver],
    ) -> None:
        self._delivery_timeout = delivery_timeout_ms / 1000
        self._portal = portal
        self._producer = producer
        self._kind = kind
        self._queue = _joining.RecordQueue(_HANDOVER_BYTES)
        self._is_open = False
        """Whether there is an `entrance`, if there can be one."""
        self._space = threading.Condition()
        self._moved = trio.Event()
        self._waits = False
        """Whether a task waits for room for the first of the queue; there is one at most, as it is sent once."""
        self._waiters: list[Callable[[], None]] = []
        self._promised: set[Future[RecordMetadata]] = set()
        portal.finish = self.flush
        portal.ended.add_done_callback(lambda _: self._end())

    def offer(self, record: HandedOver, topic: str, value: bytes | None, *arguments: Any) -> bool:
        """Queue a record, the other arguments being those of `Accumulator.try_append`; False if there is no room.

        Raises:
          ClosedError: Nobody will take it.
        """
        try:
            cost = _RECORD_COST + (len(value) if value else 0)
        except TypeError:
            as_bytes("value", value)
            raise
        if self._portal.closed:
            raise ClosedError("the producer is closed")
        deadline = time.monotonic() + self._delivery_timeout
        said = self._queue.offer(record, cost, deadline, (topic, value, *arguments))
        if said == _joining.CLOSED:
            self._begin()
            raise ClosedError("the producer is closed")
        if said == _joining.FIRST:
            try:
                self._begin()
            except ClosedError:
                # The thread takes nothing more: the next call must fail, too.
                self._queue.moving = False
                raise
        if not self._is_open:
            self._open_entrance()
        return said != _joining.FULL

    def _begin(self) -> None:
        self._portal.post(self._begin_moving)

    def _open_entrance(self) -> None:
        self._is_open = True
        intake = self._producer().intake
        if intake.is_plain:
            self.entrance = _joining.Entrance(
                self._queue,
                intake.accumulator,
                self._portal,
                self._begin,
                self._kind,
                self._delivery_timeout,
                _RECORD_COST,
            )

    def no_space(self, settings: ProducerSettings, *, waited: bool) -> BufferFullError:
        """The error to raise for a record that found no room."""
        within = (
            f"no buffer space within max_block_ms={settings.max_block_ms}" if waited else "no buffer space"
        )
        return BufferFullError(
            f"{within}: {self._queue.queued} bytes wait to be handed over, besides buffer_memory="
            f"{settings.buffer_memory}; send more slowly, raise buffer_memory, or see why the leaders do not answer"
        )

    def wait_for_space(self, seconds: float) -> bool:
        """Block until there is room, or the receiver has stopped; False after the timeout in seconds."""
        with self._space:
            return self._space.wait_for(
                lambda: self._queue.queued <= _HANDOVER_BYTES or self._portal.closed, seconds
            )

    def tell_of_space(self, callback: Callable[[], None]) -> None:
        """Call once when that is so; in the trio thread, or now."""
        with self._space:
            if self._queue.queued > _HANDOVER_BYTES and not self._portal.closed:
                self._waiters.append(callback)
                return
        callback()

    def promise(self, record: HandedOver) -> Future[RecordMetadata]:
        """A future of the outcome, which fails with `ClosedError` if the producer ends before it is known."""
        future: Future[RecordMetadata] = Future()
        self._promised.add(future)
        future.add_done_callback(self._promised.discard)
        try:
            self._portal.post(lambda: record._tell(lambda record: _keep(future, record)))
        except ClosedError as error:
            if record.done():
                _keep(future, record)
            else:
                _fail(future, error)
        return future

    def _end(self) -> None:
        """The thread has ended: what is still here goes nowhere."""
        error = ClosedError("the producer was closed before the record was sent")
        # Threads that found it open have queued by now; later ones find it closed.
        left = self._queue.close()
        with self._space:
            self._space.notify_all()
        for record in left:
            record._lose(error)
            record._moved()
        self._wake_waiters()
        for future in list(self._promised):
            _fail(future, ClosedError("the producer was closed before the outcome was known"))

    # In the trio thread

    def _begin_moving(self) -> None:
        """Take over what has been queued without waiting, as long as there is room."""
        assert self._portal.nursery is not None
        # What is queued just when the task that waits has emptied the queue is that task's, too.
        if not self._waits and self._move():
            self._waits = True
            self._portal.nursery.start_soon(self._move_on)

    def _move(self) -> bool:
        """Whether something is left that must wait."""
        intake = self._producer().intake
        append, accumulator = intake.try_take, intake.accumulator
        moved = 0
        while self._queue:
            moved += self._queue.move(accumulator)
            queued = self._queue.first()
            if queued is None:
                break
            record, cost, _, arguments = queued
            try:
                record._delivery = append(*arguments)
            except Exception as error:  # noqa: BLE001 - it is the outcome, and must not end the thread
                record._lose(error)
            if record._delivery is None and record._lost is None:
                break
            self._queue.popleft()
            moved += cost
            record._moved()
        return self._account(moved)

    def _account(self, moved: int) -> bool:
        moving = self._queue.settle(moved)
        # A thread that found no room waits by now, or looks again.
        with self._space:
            self._space.notify_all()
        self._wake_waiters()
        event, self._moved = self._moved, trio.Event()
        event.set()
        return moving

    def _wake_waiters(self) -> None:
        if self._waiters and (self._queue.queued <= _HANDOVER_BYTES or self._portal.closed):
            with self._space:
                waiters, self._waiters = self._waiters, []
            for callback in waiters:
                callback()

    async def _move_on(self) -> None:
        while (queued := self._queue.first()) is not None:
            record, cost, deadline, arguments = queued
            try:
                record._delivery = await self._take(deadline, arguments)
            except Exception as error:  # noqa: BLE001 - it is the outcome, and must not end the thread
                record._lose(error)
            self._queue.popleft()
            record._moved()
            self._account(cost)
            self._move()
        self._waits = False

    async def _take(self, deadline: float, arguments: tuple[Any, ...]) -> Delivery:
        """Wait for space: the record was accepted, so `max_block_ms` does not count any more."""
        with trio.move_on_after(max(0, deadline - time.monotonic())):
            while True:
                with suppress(BufferFullError):
                    return await self._producer().intake.take(*arguments)
        raise DeliveryTimeoutError(
            f"topic {arguments[0]!r}: no space in buffer_memory for a record within "
            f"delivery_timeout_ms={self._delivery_timeout * 1000:.0f}"
        )

    async def all_moved(self) -> None:
        while self._queue:
            await self._moved.wait()

    async def settled(self, record: HandedOver) -> None:
        """Wait for the outcome."""
        while record._delivery is None and record._lost is None:
            await self._moved.wait()
        if record._delivery is not None:
            await record._delivery._settled()

    async def flush(self) -> None:
        await self.all_moved()
        await self._producer().intake.flush()

    async def end_transaction(self, end: Callable[[], Awaitable[None]]) -> None:
        """Await the end of a transaction, which takes nothing more: what is queued must not get into the next."""
        queued = self._queue.waiting()
        try:
            await end()
            for record in queued:
                # Whoever gives a transaction up knows that its records are not delivered.
                record._look()
        finally:
            await self.all_moved()

    async def take_many(self, *arguments: Any) -> Deliveries:
        """Behind what is queued; the arguments are those of `Intake.take_many`."""
        await self.all_moved()
        return await self._producer().intake.take_many(*arguments)


def _keep(future: Future[RecordMetadata], record: HandedOver) -> None:
    try:
        result = record._outcome()
    except Exception as error:  # noqa: BLE001 - it is the outcome
        _fail(future, error)
        return
    with suppress(InvalidStateError):
        future.set_result(result)


def _fail(future: Future[RecordMetadata], error: Exception) -> None:
    with suppress(InvalidStateError):
        future.set_exception(error)

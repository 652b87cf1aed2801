"""Records on their way from other threads to a producer: queued here, taken over by its own thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import trio

from .._portal import Portal
from ..errors import again
from ._accumulator import as_bytes
from ._batch import log_unseen
from ._settings import ProducerSettings
from .delivery import Deliveries, Delivery, RecordMetadata
from .errors import BufferFullError, ClosedError, DeliveryTimeoutError, OutcomePendingError
from .producer import Producer

_HANDOVER_BYTES = 4 << 20
_RECORD_COST = 200


class HandedOver:
    """One record and its outcome, now or later."""

    __slots__ = ("_callbacks", "_delivery", "_error", "_looked_at")

    def __init__(self) -> None:
        self._delivery: Delivery | None = None
        self._error: Exception | None = None
        """Why it never came into a batch."""
        self._looked_at = False
        self._callbacks: list[Callable[[HandedOver], None]] | None = None

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._error is not None or (self._delivery is not None and self._delivery.done)

    def __del__(self) -> None:
        if self._error is not None and not self._looked_at:
            log_unseen("a record", self._error)

    def _outcome(self) -> RecordMetadata:
        self._looked_at = True
        if self._error is not None:
            raise again(self._error)
        if self._delivery is None:
            raise OutcomePendingError("the outcome of the record is not known yet; wait for it first")
        return self._delivery.result()

    def _failure(self) -> Exception | None:
        """Why it failed, or None if it did not; it is `done`."""
        self._looked_at = True
        return self._error or (self._delivery.error if self._delivery is not None else None)

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._error is not None:
            return f"<{name}: {self._error!r}>"
        return f"<{name}: waiting>" if self._delivery is None else f"<{name} of {self._delivery!r}>"

    # In the trio thread

    def _tell(self, callback: Callable[[HandedOver], None]) -> None:
        """Call when the outcome is known, which may be now."""
        if self._error is not None:
            self._looked_at = True
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


class Handover:
    """The queue between any number of threads and one producer; what waits in it is bounded."""

    def __init__(
        self, portal: Portal[Producer], producer: Callable[[], Producer], delivery_timeout_ms: int
    ) -> None:
        self._delivery_timeout = delivery_timeout_ms / 1000
        self._portal = portal
        self._producer = producer
        self._queue: deque[tuple[HandedOver, int, float, tuple[Any, ...]]] = deque()
        """Each with its size, the time by which its outcome must be known, and what `try_append` takes."""
        self._queued = 0
        self._space = threading.Condition()
        self._moved = trio.Event()
        self._moving = False
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
        deadline = time.monotonic() + self._delivery_timeout
        with self._space:
            if self._portal.closed:
                raise ClosedError("the producer is closed")
            if self._queued > _HANDOVER_BYTES:
                return False
            first = not self._queue and not self._moving
            self._moving |= first
            self._queued += cost
            self._queue.append((record, cost, deadline, (topic, value, *arguments)))
        if first:
            self._portal.post(self._begin_moving)
        return True

    def no_space(self, settings: ProducerSettings, *, waited: bool) -> BufferFullError:
        """What to raise for a record that found no room."""
        within = (
            f"no buffer space within max_block_ms={settings.max_block_ms}" if waited else "no buffer space"
        )
        return BufferFullError(
            f"{within}: {self._queued} bytes wait to be handed over, besides buffer_memory="
            f"{settings.buffer_memory}; send more slowly, raise buffer_memory, or see why the leaders do not answer"
        )

    def wait_for_space(self, seconds: float) -> bool:
        """Block until there is room, or the receiver has stopped; False after the timeout in seconds."""
        with self._space:
            return self._space.wait_for(
                lambda: self._queued <= _HANDOVER_BYTES or self._portal.closed, seconds
            )

    def tell_of_space(self, callback: Callable[[], None]) -> None:
        """Call once when that is so; in the trio thread, or now."""
        with self._space:
            if self._queued > _HANDOVER_BYTES and not self._portal.closed:
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
        with self._space:
            # Whoever found it open is done with queueing; who comes from now on finds it closed.
            left, self._queue = self._queue, deque()
            self._space.notify_all()
        for record, *_ in left:
            record._error = error
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
        append = self._producer().intake.try_take
        moved = 0
        while self._queue:
            record, cost, _, arguments = self._queue[0]
            try:
                record._delivery = append(*arguments)
            except Exception as error:  # noqa: BLE001 - it is the outcome, and must not end the thread
                record._error = error
            if not (record._delivery or record._error):
                break
            self._queue.popleft()
            moved += cost
            record._moved()
        return self._account(moved)

    def _account(self, moved: int) -> bool:
        with self._space:
            self._queued -= moved
            self._moving = bool(self._queue)
            self._space.notify_all()
        self._wake_waiters()
        event, self._moved = self._moved, trio.Event()
        event.set()
        return self._moving

    def _wake_waiters(self) -> None:
        if self._waiters and (self._queued <= _HANDOVER_BYTES or self._portal.closed):
            with self._space:
                waiters, self._waiters = self._waiters, []
            for callback in waiters:
                callback()

    async def _move_on(self) -> None:
        while self._moving:
            record, cost, deadline, arguments = self._queue[0]
            try:
                record._delivery = await self._take(deadline, arguments)
            except Exception as error:  # noqa: BLE001 - it is the outcome, and must not end the thread
                record._error = error
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
        while record._delivery is None and record._error is None:
            await self._moved.wait()
        if record._delivery is not None:
            await record._delivery._settled()

    async def flush(self) -> None:
        await self.all_moved()
        await self._producer().intake.flush()

    async def end_transaction(self, end: Callable[[], Awaitable[None]]) -> None:
        """Await the end of a transaction, which takes nothing more: what is queued must not get into the next."""
        with self._space:
            queued = [record for record, *_ in self._queue]
        try:
            await end()
            for record in queued:
                # Whoever gives a transaction up knows that its records are not delivered.
                record._looked_at = True
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

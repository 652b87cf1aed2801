"""Listeners for asyncio: handlers are async functions of the program's loop; all else is as in trio."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from contextvars import copy_context
from typing import TypeVar

import trio

from .._portal import Portal
from ..asyncio._bridge import Bridge, done, soon
from ..asyncio.producer import Producer
from ..client.errors import ClosedError
from ..client.producer import Producer as TrioProducer
from ._engine import Engine
from ._faces import Asked, Elsewhere, lent, portal_of
from ._turns import Hands, Turn, drive
from .errors import ListenerError
from .listener import may_take_sigterm, partitions_given
from .status import ListenerStatus

R = TypeVar("R")


class Acknowledgment(Asked):
    """Handed to the handler with its record, or its batch, in the manual modes."""

    async def acknowledge(self) -> None:
        """It is done. Offsets are committed up to the first record that is not."""
        call = self._portal.submit(self._tell)
        if self._waits:
            # Cancelling this does not take the acknowledgement back.
            await done(call.future)
            call.future.result()


class _Hands(Hands):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = copy_context()
        self.tasks: set[asyncio.Task[None]] = set()
        self.portal: Portal[Engine]

    async def run(self, turn: Turn) -> None:
        over = trio.Event()
        begun: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = self._loop.create_task(drive(turn, self.handler))
            begun.append(task)
            self.tasks.add(task)
            task.add_done_callback(ended)

        def ended(task: asyncio.Task[None]) -> None:
            self.tasks.discard(task)
            self.portal.try_post(over.set)

        self._loop.call_soon_threadsafe(begin, context=self._context.copy())
        try:
            await over.wait()
        except trio.Cancelled:
            soon(self._loop, lambda: [task.cancel() for task in begun])
            raise
        if begun[0].cancelled() and turn.error is None:
            turn.fail(ListenerError("the handler was cancelled"))

    def acknowledgment(self, tell: Callable[[], Awaitable[None]], *, waits: bool) -> Acknowledgment:
        return Acknowledgment(self.portal, tell, waits=waits)

    def lend(self, producer: TrioProducer) -> Producer:
        return lent(Producer, self.portal, producer)

    async def flush(self, lent: Producer) -> None:
        await lent._handover.all_moved()


class Listener(Elsewhere):
    """`insync.replication.listeners.Listener` for asyncio, with the same methods, all of them async but `stop`.

    Handlers run as tasks of the loop in which `run` was awaited. A transaction's producer is one of
    `insync.replication.asyncio`.
    """

    async def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `insync.replication.listeners.Listener.pause`."""
        chosen = partitions_given(partitions)
        await self._ask(lambda engine: engine.pause(chosen))

    async def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `insync.replication.listeners.Listener.resume`."""
        chosen = partitions_given(partitions)
        await self._ask(lambda engine: engine.resume(chosen))

    async def status(self) -> ListenerStatus:
        """The listener's state, its partitions and their lag."""
        return await self._there(self._status)

    async def _ask(self, function: Callable[[Engine], None]) -> None:
        await self._there(lambda: function(self._running()))

    async def _there(self, function: Callable[[], R]) -> R:
        portal = self._portal
        if portal is None:
            return function()

        async def run() -> R:
            return function()

        try:
            call = portal.submit(run)
            await done(call.future)
            return call.future.result()
        except ClosedError:
            return function()  # it has ended meanwhile

    async def run(self) -> None:
        """See `insync.replication.listeners.Listener.run`; cancelling it cancels its handlers."""
        loop = asyncio.get_running_loop()
        hands = _Hands(loop)
        engine = self._begin(hands)
        with ExitStack() as stack:
            stack.callback(self._ended)
            async with _Open(lambda: portal_of(engine)) as held:
                hands.portal = held._portal
                if may_take_sigterm():
                    with suppress(NotImplementedError, RuntimeError):
                        loop.add_signal_handler(signal.SIGTERM, self.stop)
                        stack.callback(loop.remove_signal_handler, signal.SIGTERM)
                self._set_opened(held._portal)
                try:
                    await held._call(engine.run)
                finally:
                    await asyncio.gather(*hands.tasks, return_exceptions=True)


class _Open(Bridge[Engine]):
    """The listener's thread."""

"""Listeners for threads: handlers are plain functions, each at work in a thread; all else is as in trio."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from typing import TypeVar

import trio

from .._portal import Held, Portal
from ..client.errors import ClosedError
from ..client.producer import Producer
from ..client.threads.blocking import BlockingProducer
from ._engine import Engine
from ._faces import Asked, Elsewhere, lent, portal_of
from ._turns import Hands, Turn, drive_blocking
from .listener import may_take_sigterm, partitions_given
from .status import ListenerStatus

R = TypeVar("R")


class Acknowledgment(Asked):
    """Handed to the handler with its record, or its batch, in the manual modes."""

    def acknowledge(self) -> None:
        """It is done. Offsets are committed up to the first record that is not. From any thread."""
        call = self._portal.submit(self._tell)
        if self._waits:
            call.future.result()


class _Hands(Hands):
    def __init__(self, threads: int) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self.portal: Portal[Engine]

    async def run(self, turn: Turn) -> None:
        # A thread cannot be cancelled: one that is at work when `run` is interrupted goes on by itself.
        await trio.to_thread.run_sync(
            drive_blocking, turn, self.handler, abandon_on_cancel=True, limiter=self._limiter
        )

    def acknowledgment(self, tell: Callable[[], Awaitable[None]], *, waits: bool) -> Acknowledgment:
        return Acknowledgment(self.portal, tell, waits=waits)

    def lend(self, producer: Producer) -> BlockingProducer:
        return lent(BlockingProducer, self.portal, producer)

    async def flush(self, lent: BlockingProducer) -> None:
        await lent._handover.all_moved()


class Listener(Elsewhere):
    """`insync.replication.listeners.Listener` for threads, with the same methods. `run` blocks.

    Up to `concurrency` handlers are at work at a time, each in a thread. A transaction's producer is a
    `BlockingProducer`.
    """

    _is_async = False

    def pause(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `insync.replication.listeners.Listener.pause`."""
        chosen = partitions_given(partitions)
        self._ask(lambda engine: engine.pause(chosen))

    def resume(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """See `insync.replication.listeners.Listener.resume`."""
        chosen = partitions_given(partitions)
        self._ask(lambda engine: engine.resume(chosen))

    def status(self) -> ListenerStatus:
        """The listener's state, its partitions and their lag."""
        return self._there(self._status)

    def _ask(self, function: Callable[[Engine], None]) -> None:
        self._there(lambda: function(self._running()))

    def _there(self, function: Callable[[], R]) -> R:
        portal = self._portal
        if portal is None:
            return function()

        async def run() -> R:
            return function()

        try:
            return portal.call(run)
        except ClosedError:
            return function()  # it has ended meanwhile

    def run(self) -> None:
        """See `insync.replication.listeners.Listener.run`; an interrupt ends it without waiting for handlers."""
        hands = _Hands(self._settings.concurrency)
        engine = self._begin(hands)
        with ExitStack() as stack:
            portal = hands.portal = portal_of(engine)
            stack.callback(self._ended)
            with Held(portal):
                if may_take_sigterm():
                    former = signal.signal(signal.SIGTERM, lambda *_: self.stop())
                    stack.callback(signal.signal, signal.SIGTERM, former)
                self._set_opened(portal)
                portal.call(engine.run)

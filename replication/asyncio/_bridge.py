"""An object that is open in a thread of trio's, seen from an event loop of asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from .._portal import JOIN_SECONDS, Portal, close_at_exit, closed
from ..client import ClosedError
from ..client import _arguments as given

T = TypeVar("T")
R = TypeVar("R")


def soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Call it in the loop, from any thread; not at all if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def released(arrange: Callable[[Callable[[], None]], None]) -> None:
    """Wait until somebody calls, from any thread, what `arrange` is given."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    arrange(lambda: soon(loop, _release, waiter))
    await waiter


async def done(future: Future[Any]) -> None:
    """Wait until a future of another thread is done; cancelling this leaves the future alone."""
    await released(lambda release: future.add_done_callback(lambda _: release()))


class Bridge(Generic[T]):
    """An async context manager of asyncio that holds one of trio open."""

    close_seconds: float | None = JOIN_SECONDS
    """How long leaving the block may take."""
    _not_open: type[Exception] = ClosedError
    """Raised by what needs the block to be entered."""

    def __init__(self, portal: Callable[[], Portal[T]]) -> None:
        self._make = portal
        self._opened: Portal[T] | None = None

    @property
    def _portal(self) -> Portal[T]:
        if self._opened is None:
            raise self._not_open(
                f"the {type(self).__name__} is not open; use it inside its `async with` block"
            )
        return self._opened

    @property
    def _held(self) -> T:
        """The open object; there is one only once the block is entered."""
        return self._portal.ready.result(0)

    async def __aenter__(self) -> Self:
        portal = self._opened = self._make()
        portal.start()
        try:
            await done(portal.ready)
            portal.ready.result()
        except BaseException:
            portal.kill()
            raise
        close_at_exit(portal)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
        else:
            # A task that was cancelled does not wait for a cluster that may be away.
            await self.close(0)

    async def close(self, timeout: float | None = None) -> None:
        """Finish and end the thread; after `timeout` seconds without finishing. May be called again."""
        timeout = given.timeout(timeout)
        portal = self._portal
        closed(portal)
        portal.begin_to_close()
        try:
            async with asyncio.timeout(self.close_seconds if timeout is None else timeout):
                await done(portal.ended)
        except TimeoutError:
            portal.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(JOIN_SECONDS):
                    await done(portal.ended)
        except BaseException:
            portal.kill()
            raise

    async def _call(self, function: Callable[[], Awaitable[R]], undo: Callable[[R], None] | None = None) -> R:
        """Run it there. If this is cancelled so is that; `undo` gets a result that comes nevertheless."""
        call = self._portal.submit(function, undo)
        try:
            await done(call.future)
        except BaseException:
            call.abandon()
            raise
        return call.future.result()

    async def _run(self, function: Callable[[], R]) -> R:
        async def run() -> R:
            return function()

        return await self._call(run)

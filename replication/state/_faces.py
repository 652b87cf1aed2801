"""What the faces for asyncio and for threads are made of: methods of the trio class, run in a thread of trio's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import trio

from .._portal import Call, Portal
from .errors import StateClosedError


class Held:
    """A lock that is held by a task of trio's thread until `release`; its outcome is that of `call.future`."""

    def __init__(self, portal: Portal[Any], lock: Any, name: str, lease_ms: int) -> None:
        self.token: Future[int] = Future()
        self._portal = portal
        self._end: trio.Event | None = None
        self.call: Call[None] = portal.submit(lambda: self._hold(lock, name, lease_ms))
        self.call.future.add_done_callback(self._ended)

    async def _hold(self, lock: Any, name: str, lease_ms: int) -> None:
        self._end = trio.Event()
        async with lock.hold(name, lease_ms) as token:
            self.token.set_result(token)
            await self._end.wait()

    def _ended(self, call: Future[None]) -> None:
        if not self.token.done():
            error = None if call.cancelled() else call.exception()
            self.token.set_exception(error or StateClosedError("the lock was not acquired"))

    @property
    def is_lost(self) -> bool:
        """Whether another may hold the lock by now."""
        return self.call.future.done()

    def release(self) -> None:
        """Give it back soon."""
        end = self._end
        if end is not None:
            self._portal.try_post(end.set)


P = ParamSpec("P")
R = TypeVar("R")


def portal(make: Callable[[], Any]) -> Portal[Any]:
    """A thread in which a copy is open."""
    return Portal(
        make, name="insync-state", closed_error=lambda what: StateClosedError(f"the copy was {what}")
    )


def awaited(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Any, P], Awaitable[R]]:
    """An async method of the trio class, as an async method for asyncio."""

    @wraps(method)
    async def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._call(lambda: method(self._held, *args, **kwargs))

    return call


def awaited_plain(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Awaitable[R]]:
    """A plain method of the trio class, which looks at state that trio's thread changes: async for asyncio."""

    @wraps(method)
    async def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(lambda: method(self._held, *args, **kwargs))

    return call


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Any, P], R]:
    """An async method of the trio class, as one that blocks."""

    @wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call(lambda: method(self._held, *args, **kwargs))

    return call


def blocking_plain(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], R]:
    """A plain method of the trio class, run where the state is changed."""

    @wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        async def run() -> R:
            return method(self._held, *args, **kwargs)

        return self._portal.call(run)

    return call

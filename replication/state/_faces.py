"""The parts of the faces for asyncio and for threads: methods of the trio class, run in a thread of trio's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
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


class Reading:
    """The iterator of a block such as `changes()`, read and ended from elsewhere; its methods run in trio."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self._heard: Any = None
        self._lock = trio.Lock()
        self._waits = trio.CancelScope()
        self._is_over = False
        self._unread: deque[Any] = deque()
        """Items that came for readers that were cancelled."""

    async def begin(self) -> None:
        self._heard = await self._block.__aenter__()

    async def next(self) -> Any:
        """Raises StopAsyncIteration when there is no more."""
        async with self._lock:
            if self._is_over:
                # Another reader, which was before this one, was told so in the middle.
                raise StopAsyncIteration
            if self._unread:
                return self._unread.popleft()
            with trio.CancelScope() as self._waits:
                return await self._heard.__anext__()
        raise StopAsyncIteration

    def put_back(self, item: Any) -> None:
        """Nobody has waited for this: it comes again."""
        self._unread.appendleft(item)

    async def end(self) -> None:
        """Leave the block. Readers that were given up may not know it yet: they go first."""
        self._is_over = True
        self._waits.cancel()
        async with self._lock:
            await self._block.__aexit__(None, None, None)

    def end_in(self, portal: Portal[Any]) -> Callable[[None], None]:
        """A function for trio's thread that leaves the block soon: nobody took what `begin` has opened."""

        def end_soon(_: None) -> None:
            assert portal.nursery is not None
            # When what the block reads is being closed, there is no task any more, and nothing to leave.
            with suppress(RuntimeError):
                portal.nursery.start_soon(self.end)

        return end_soon


P = ParamSpec("P")
R = TypeVar("R")


class CopyFacts(ABC):
    """The facts about itself that a copy tells without asking anybody, in any thread."""

    @property
    @abstractmethod
    def _copy(self) -> Any: ...

    @property
    def applied(self) -> int:
        """Everything below this offset is in the state of this copy."""
        value: int = self._copy.applied
        return value

    @property
    def lag(self) -> int:
        """Records that are committed, as far as this copy knows, and not applied."""
        value: int = self._copy.lag
        return value

    @property
    def token(self) -> int:
        """How far the log reaches with the last command of this handle."""
        value: int = self._copy.token
        return value

    @property
    def clock_ms(self) -> int:
        """The greatest timestamp of all records that are applied."""
        value: int = self._copy.clock_ms
        return value

    @property
    def is_keeper(self) -> bool:
        """Whether this copy writes the snapshots at present."""
        value: bool = self._copy.is_keeper
        return value

    @property
    def restored_from(self) -> int:
        """The offset up to which a snapshot reached when this copy began."""
        value: int = self._copy.restored_from
        return value

    @property
    def state_version(self) -> int:
        """The topic's version, by which this copy applies commands."""
        value: int = self._copy.state_version
        return value

    @property
    def name(self) -> str:
        """The name of this session."""
        value: str = self._copy.name
        return value


class ElectionFacts(CopyFacts):
    """The facts that an election tells in the same way."""

    @property
    def is_leader(self) -> bool:
        """Whether this handle leads, as far as it can know."""
        return bool(self._copy.is_leader)

    @property
    def leader_token(self) -> int | None:
        """The fencing token of the newest leadership of this handle."""
        token: int | None = self._copy.leader_token
        return token


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

"""A daemon thread that runs trio for callers that do not."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Generic, Self, TypeVar

import trio

from ._client import Client
from .errors import ClosedError

T = TypeVar("T")
C = TypeVar("C", bound=Client)

_JOIN_SECONDS = 5.0


class Portal(Generic[C]):
    """Opens a client in a thread of its own and runs calls there.

    `close` ends within its timeout whatever the cluster does; a thread that does not end in time is a daemon
    and holds up nobody.
    """

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._token: trio.lowlevel.TrioToken | None = None
        self._ready: Future[C] = Future()
        self._closing = trio.Event()
        self._abandon = trio.CancelScope()
        self.nursery: trio.Nursery | None = None
        self._lock = threading.Lock()
        self._calls: set[Future[Any]] = set()
        self.closed = False
        self._end: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="insync-client", daemon=True)

    @classmethod
    def open(cls, make: Callable[[], C]) -> tuple[Self, C]:
        """Start the thread and wait until the client is open; raises what opening it raises."""
        portal = cls(make)
        portal._thread.start()
        try:
            return portal, portal._ready.result()
        except BaseException:
            portal.close(0)
            raise

    def post(self, function: Callable[[], None]) -> None:
        """Run a function in the trio thread soon, in order; raises `ClosedError` if that has ended."""
        token = self._token
        if self.closed or token is None:
            raise ClosedError("the client is closed")
        try:
            token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise ClosedError("the client is closed") from self._end

    def call(self, function: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """Run an async function there and wait for it.

        Raises what it raises; `TimeoutError` after `timeout` seconds. Interrupted or timed out, it is cancelled.
        """
        future: Future[T] = Future()
        scope = trio.CancelScope()
        with self._lock:
            self._calls.add(future)
        try:
            self.post(lambda: self._start(function, future, scope))
            return future.result(timeout)
        except FutureTimeoutError:
            if future.done():
                raise
            self._cancel(scope)
            raise TimeoutError(f"not done within {timeout:g} s") from None
        except BaseException:
            if not future.done():
                self._cancel(scope)
            raise
        finally:
            with self._lock:
                self._calls.discard(future)

    def close(self, timeout: float | None) -> None:
        """Let the client finish for at most `timeout` seconds (None: as long as it takes), then end it."""
        with self._lock:
            closed, self.closed = self.closed, True
        token = self._token
        if token is None or closed:
            return
        try:
            token.run_sync_soon(self._closing.set)
            self._thread.join(timeout)
        except trio.RunFinishedError:
            return
        finally:
            self._kill(token)

    def _kill(self, token: trio.lowlevel.TrioToken) -> None:
        if self._thread.is_alive():
            try:
                token.run_sync_soon(self._abandon.cancel)
            except trio.RunFinishedError:
                return
            self._thread.join(_JOIN_SECONDS)

    def _cancel(self, scope: trio.CancelScope) -> None:
        try:
            self.post(scope.cancel)
        except ClosedError:
            return

    def _start(
        self, function: Callable[[], Awaitable[T]], future: Future[T], scope: trio.CancelScope
    ) -> None:
        assert self.nursery is not None
        self.nursery.start_soon(self._call, function, future, scope)

    async def _call(
        self, function: Callable[[], Awaitable[T]], future: Future[T], scope: trio.CancelScope
    ) -> None:
        with scope:
            try:
                result = await function()
            except Exception as error:  # noqa: BLE001 - it is raised in the thread that called
                future.set_exception(error)
            else:
                future.set_result(result)
        if not future.done():
            future.set_exception(ClosedError("the client was closed during the call"))

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._end = error
            if self._ready.done():
                raise
        finally:
            self.closed = True
            self._fail_calls()

    def _fail_calls(self) -> None:
        error = self._end or ClosedError("the client is closed")
        if not self._ready.done():
            self._ready.set_exception(error)
        with self._lock:
            calls = list(self._calls)
        for future in calls:
            if not future.done():
                future.set_exception(ClosedError("the client was closed during the call"))

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._abandon:
            async with self._make() as client, trio.open_nursery() as self.nursery:
                self._ready.set_result(client)
                await self._closing.wait()
                self.nursery.cancel_scope.cancel()

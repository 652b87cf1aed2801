"""A daemon thread that runs trio for code that does not: scripts, threads, asyncio.

The thread keeps one async context manager open (a client, a node); functions are run inside its block.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

import trio

T = TypeVar("T")
R = TypeVar("R")

JOIN_SECONDS = 5.0
"""How long to wait for a thread whose block was cancelled."""
EXIT_SECONDS = 5.0
"""How long each thing that was left open may finish when the interpreter exits."""

_log = logging.getLogger("insync")


T_co = TypeVar("T_co", covariant=True)


class Opens(Protocol[T_co]):
    """An async context manager."""

    async def __aenter__(self) -> T_co: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None: ...


class Closeable(Protocol):
    """An object to be closed when the interpreter exits."""

    def close(self, timeout: float | None = None) -> None: ...


_left_open: set[Closeable] = set()
_in_use: WeakSet[Closeable] = WeakSet()
"""Those that close themselves once nobody has them any more."""


def close_at_exit(thing: Closeable) -> None:
    """Close it, within `EXIT_SECONDS`, when the interpreter exits; unless `closed` is called before."""
    _left_open.add(thing)


def closed(thing: Closeable) -> None:
    """It needs no closing any more."""
    _left_open.discard(thing)
    _in_use.discard(thing)


def _close_all() -> None:
    for thing in [*_in_use, *_left_open]:
        try:
            thing.close(EXIT_SECONDS)
        except Exception:  # noqa: BLE001 - the interpreter exits; the others are to be closed, too
            _log.exception("%r could not be closed at exit", thing)


# Threads run on until these have run; daemon threads that trio is in would die in the middle of something.
atexit.register(_close_all)


class Call(Generic[R]):
    """One function that runs there; `future` is its outcome.

    Invariant: exactly one side takes the result: who waits on `future`, or `undo` in the trio thread.
    """

    def __init__(self, portal: Portal[Any], undo: Callable[[R], None] | None) -> None:
        self.future: Future[R] = Future()
        self.scope = trio.CancelScope()
        self._portal = portal
        self._undo = undo

    def give_up(self) -> bool:
        """Nobody waits any more, and it is cancelled. False if it had ended before: then its result stands."""
        if not self.future.cancel():
            return False
        self._portal.try_post(self.scope.cancel)
        return True

    def abandon(self) -> None:
        """Nobody waits any more, nor for the result if there is one."""
        undo = self._undo
        if not self.give_up() and undo is not None and self.future.exception() is None:
            result = self.future.result()
            self._portal.try_post(lambda: undo(result))

    async def run(self, function: Callable[[], Awaitable[R]]) -> None:
        with self.scope:
            try:
                result = await function()
            except Exception as error:  # noqa: BLE001 - it is raised in the thread that called
                self.fail(error)
            else:
                self._succeed(result)
        self.fail(self._portal.closed_error("closed during the call"))

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def _succeed(self, result: R) -> None:
        try:
            self.future.set_result(result)
        except InvalidStateError:
            if self._undo is not None:
                self._undo(result)


class Portal(Generic[T]):
    """Keeps what `make` gives open in a thread of its own, and runs calls there.

    `close` ends within its timeout whatever happens there; a thread that does not end in time is a daemon and
    holds up nobody.

    Args:
      make: Called in the thread, in trio; gives the async context manager.
      name: Of the thread.
      closed_error: The exception that tells that it is closed, from its text.
    """

    def __init__(
        self,
        make: Callable[[], Opens[T]],
        *,
        name: str,
        closed_error: Callable[[str], Exception],
    ) -> None:
        self.ready: Future[T] = Future()
        """The block's value once it is entered, or the exception that entering it raises."""
        self.ended: Future[None] = Future()
        """Done when the thread is; with the error that ended it, if one did."""
        self.nursery: trio.Nursery | None = None
        self.finish: Callable[[], Awaitable[None]] | None = None
        """Run there before the block is left, while calls still go on."""
        self.closed = False
        self.closed_error = closed_error
        self._make = make
        self._token: trio.lowlevel.TrioToken | None = None
        self._closing = trio.Event()
        self._abandon = trio.CancelScope()
        self._lock = threading.Lock()
        self._calls: set[Call[Any]] = set()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_ours(self) -> bool:
        """Whether this process has opened it, rather than the one that forked it."""
        return os.getpid() == self._pid

    def open(self) -> T:
        """Start the thread and wait until the block is entered; raises what entering it raises."""
        self.start()
        try:
            return self.ready.result()
        except BaseException:
            self.close(0)
            raise

    def post(self, function: Callable[[], None]) -> None:
        """Run a function in the trio thread soon, in order; raises the closed error if that has ended."""
        if not self.is_ours:
            raise self.closed_error("opened by the parent process: open one in each process")
        token = self._token
        if self.closed or token is None:
            raise self.closed_error("closed")
        try:
            token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise self.closed_error("closed") from self._end

    def try_post(self, function: Callable[[], None]) -> None:
        """The same; if it has ended there is nobody to run it for."""
        with suppress(type(self.closed_error("")), trio.RunFinishedError):
            self.post(function)

    def submit(
        self, function: Callable[[], Awaitable[R]], undo: Callable[[R], None] | None = None
    ) -> Call[R]:
        """Begin to run an async function there; `undo` (in the trio thread) gets a result that nobody took."""
        call = Call(self, undo)
        with self._lock:
            self._calls.add(call)
        call.future.add_done_callback(lambda _: self._forget(call))
        try:
            self.post(lambda: self._start(function, call))
        except BaseException as error:
            call.fail(error)
            raise
        return call

    def call(
        self,
        function: Callable[[], Awaitable[R]],
        timeout: float | None = None,
        undo: Callable[[R], None] | None = None,
    ) -> R:
        """Run an async function there and wait for it.

        Raises what it raises; `TimeoutError` after `timeout` seconds. Interrupted or timed out, it is cancelled.
        """
        call = self.submit(function, undo)
        try:
            return call.future.result(timeout)
        except TimeoutError:
            if not call.give_up():
                return call.future.result()
            raise TimeoutError(f"not done within {timeout:g} s") from None
        except Exception:
            raise
        except BaseException:
            call.abandon()
            raise

    def begin_to_close(self) -> None:
        """Let the block be left; `ended` tells when it was."""
        with self._lock:
            was_closed, self.closed = self.closed, True
        token = self._token
        if token is not None and not was_closed and self.is_ours:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._closing.set)

    def drop(self) -> None:
        """Nobody has it any more: let the block be left, within `EXIT_SECONDS` if the interpreter exits.

        A garbage collector may call this in any thread, in the middle of anything, so it takes no lock that code
        here holds, and waits for nothing.
        """
        token = self._token
        if self.closed or token is None or not self.is_ours:
            return
        self.closed = True
        close_at_exit(self)
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(self._closing.set)

    def kill(self) -> None:
        """Cancel the block, without waiting for it."""
        self.begin_to_close()
        token = self._token
        if token is not None and self._thread.is_alive():
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._abandon.cancel)

    def close(self, timeout: float | None = None) -> None:
        """Leave the block; after `timeout` seconds (None: as long as it takes) cancel what is left of it."""
        self.begin_to_close()
        if self._token is None or not self._thread.is_alive():
            return
        try:
            self._thread.join(timeout)
        finally:
            if self._thread.is_alive():
                self.kill()
                self._thread.join(JOIN_SECONDS)

    @property
    def _end(self) -> BaseException | None:
        return self.ended.exception() if self.ended.done() else None

    def _forget(self, call: Call[Any]) -> None:
        with self._lock:
            self._calls.discard(call)

    def _start(self, function: Callable[[], Awaitable[R]], call: Call[R]) -> None:
        assert self.nursery is not None
        try:
            self.nursery.start_soon(call.run, function)
        except RuntimeError:
            # The block is being left because of an error, which `_run` tells. One from here would end trio itself.
            call.fail(self.closed_error("closed during the call"))

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - `ended` has it, and whoever asks
            end = error
        self.closed = True
        closed(self)
        if not self.ready.done():
            self.ready.set_exception(end or self.closed_error("closed while it was being opened"))
        elif end is not None:
            _log.error("%s ended: %s", self._thread.name, _said(end), exc_info=end)
        if end is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(end)
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.fail(self.closed_error("closed during the call"))

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self.closed:
            return
        with self._abandon:
            async with self._make() as thing, trio.open_nursery() as self.nursery:
                if not self.ready.set_running_or_notify_cancel():
                    return
                self.ready.set_result(thing)
                await self._closing.wait()
                if self.finish is not None:
                    await self.finish()
                self.nursery.cancel_scope.cancel()


def _said(error: BaseException) -> str:
    """The failure's text without the groups that nurseries put around it: their texts only count errors."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(_said, error.exceptions)))
    return str(error) or repr(error)


class Held(Generic[T]):
    """Something that a thread keeps open, for code that blocks; closed at exit if by nobody before.

    One that is collected without `close` warns as a file does, and its thread ends when its work is done. Objects
    in the thread must not refer to it.
    """

    close_seconds: float | None = JOIN_SECONDS
    """How long `close` waits if it is not told."""
    _runs_without_owner = False
    """Whether it goes on until the interpreter exits although nobody has it any more."""
    _owned: Portal[T] | None = None
    """The thread that was started for it."""
    _when_dropped = "its thread and its connections end now"

    def __init__(self, portal: Portal[T]) -> None:
        self._portal = portal
        self._held = portal.open()
        self._owned = portal
        if self._runs_without_owner:
            close_at_exit(self)
        else:
            _in_use.add(self)

    def __del__(self) -> None:
        portal = self._owned
        if portal is None or portal.closed or not portal.is_ours:
            return
        portal.drop()
        warnings.warn(
            f"unclosed {self!r}: {self._when_dropped}; call close() or use it as a context manager",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def close(self, timeout: float | None = None) -> None:
        """Finish, and end the thread; after `timeout` seconds without finishing. May be called again."""
        closed(self)
        self._portal.close(self.close_seconds if timeout is None else timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an interrupt nobody wants to wait for a cluster that may be away.
        interrupted = kind is not None and not issubclass(kind, Exception)
        self.close(1.0 if interrupted else None)

"""The parent's end of the process that writes: started, spoken to, and ended if it does not answer."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from contextlib import suppress
from typing import Any

import trio

from ..errors import StoreClosedError, StoreUnavailableError
from ._child import BUSY, DONE, FORMAT, LENGTH, PACKAGES, START, frame

_RETRY_SECONDS = 0.002
_END_SECONDS = 1.0

_log = logging.getLogger(__name__)


class WriterLostError(StoreUnavailableError):
    """The process ended, or did not answer in time: what it was asked to do may be done or not."""


class Writer:
    """Calls of `Database`, one at a time and in their order, in a process that is started at the first one."""

    def __init__(self, path: str, boot: int, busy_seconds: float) -> None:
        self._path = path
        self._boot = boot
        self._busy_seconds = busy_seconds
        self._stall_seconds = 2 * busy_seconds + 1
        self._turn = trio.StrictFIFOLock()
        self._process: trio.Process | None = None
        self._number = 0
        self._received = b""
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process, if one is running."""
        return None if self._process is None else self._process.pid

    async def open(self) -> None:
        """Start the process, and have it open the store, which it makes if there is none.

        Raises:
          MetadataError: As of a store that cannot be opened.
        """
        async with self._turn:
            await self._opened(trio.current_time() + self._busy_seconds)

    async def run(self, name: str, *arguments: Any, patience: float | None = None) -> Any:
        """Return or raise what `Database.name` does. A call that has begun is completed even if this is cancelled.

        patience: for how long it is tried again while the write lock is held elsewhere.

        Raises:
          WriterLostError: Nobody knows whether it was done.
        """
        deadline = trio.current_time() + (self._busy_seconds if patience is None else patience)
        async with self._turn:
            await self._opened(deadline)
            return await self._call(name, arguments, deadline)

    async def _opened(self, deadline: float) -> None:
        if self._closed:
            raise StoreClosedError("the store was closed before this call began")
        if self._process is not None:
            return
        try:
            await self._start()
            if self._closed:  # while the process was being started: nobody else would end it
                raise StoreClosedError("the store was closed before this call began")
            await self._call("open", (self._boot, FORMAT), deadline)
        except WriterLostError as error:
            raise StoreUnavailableError(str(error)) from error  # nothing was asked of it yet
        except BaseException:
            await self._end()
            raise

    async def _call(self, name: str, arguments: tuple[Any, ...], deadline: float) -> Any:
        self._number += 1
        await self._send((self._number, name, arguments))
        while True:
            outcome, value = await self._reply()
            if outcome == DONE:
                return value
            if outcome != BUSY or trio.current_time() >= deadline:
                raise value
            await trio.sleep(_RETRY_SECONDS)
            await self._send((self._number, None, ()))

    async def _send(self, request: tuple[Any, ...]) -> None:
        """In whole, also if cancelled: half a frame would spoil all that come after it."""
        pipe = self._running().stdin
        assert pipe is not None
        with trio.move_on_after(self._stall_seconds) as limit:
            limit.shield = True
            try:
                await pipe.send_all(frame(request))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise await self._lost("ended") from error
        if limit.cancelled_caught:
            raise await self._lost(f"took nothing for {self._stall_seconds:g} s")

    async def _reply(self) -> tuple[str, Any]:
        """That to the last request; those before it belong to calls that were given up."""
        with trio.move_on_after(self._stall_seconds):
            while True:
                number, outcome, value = await self._frame()
                if number == self._number:
                    return outcome, value
        raise await self._lost(f"did not answer for {self._stall_seconds:g} s")

    async def _frame(self) -> Any:
        """Received bytes stay in `_received` if this is cancelled."""
        pipe = self._running().stdout
        assert pipe is not None
        while True:
            if len(self._received) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(self._received)[0]
                if len(self._received) >= end:
                    body, self._received = self._received[LENGTH.size : end], self._received[end:]
                    return pickle.loads(body)
            try:
                data = await pipe.receive_some(1 << 16)
            except trio.ClosedResourceError as error:
                raise await self._lost("was ended") from error
            if not data:
                raise await self._lost("ended")
            self._received += data

    def _running(self) -> trio.Process:
        if self._process is None:
            raise WriterLostError(f"the store {self._path} was closed meanwhile")
        return self._process

    async def _start(self) -> None:
        folders = {name: list(sys.modules[name].__path__) for name in PACKAGES}
        command = [sys.executable, "-I", "-S", "-c", START, "insync-sqlite-writer", self._path]
        try:
            # A session of its own: what stops or ends all processes of a terminal is not for it.
            self._process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise StoreUnavailableError(
                f"the process that writes {self._path} cannot be started: {sys.executable}: {error.strerror}"
            ) from error
        self._received = b""
        assert self._process.stdin is not None
        with suppress(trio.BrokenResourceError):  # it has ended: seen at the first call
            await self._process.stdin.send_all(pickle.dumps((folders, sys.path)))

    async def _lost(self, what: str) -> WriterLostError:
        process, self._process = self._process, None
        if process is None:
            return WriterLostError(f"the store {self._path} was closed meanwhile")
        process.kill()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_END_SECONDS):
                await process.wait()
            await _close_pipes(process)
        text = f"the process {process.pid} that writes {self._path} {what}; the next write starts another one"
        _log.warning("%s", text)
        return WriterLostError(text)

    async def close(self) -> None:
        """End the process after what it is doing now; calls that wait fail with `StoreClosedError`."""
        self._closed = True
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with trio.CancelScope(shield=True):
            await _close_pipes(process)
            with trio.move_on_after(_END_SECONDS):
                await process.wait()
            if process.returncode is None:
                process.kill()
                with trio.move_on_after(_END_SECONDS):
                    await process.wait()


async def _close_pipes(process: trio.Process) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            await pipe.aclose()

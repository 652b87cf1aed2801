"""One thread that owns the SQLite connection and works off a queue, so that the event loop never waits for it."""

from __future__ import annotations

import math
import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import trio

from ..errors import StoreBusyError, StoreClosedError

T = TypeVar("T")

_RETRY_SECONDS = 0.002


class _Job(Generic[T]):
    """A call waiting for the thread. A writer never overtakes a writer; readers overtake blocked writers."""

    def __init__(self, function: Callable[[], T], writes: bool, deadline: float) -> None:
        self.writes = writes
        self.deadline = deadline
        self.done = trio.Event()
        self.abandoned = False
        self._function = function
        self._result: T | None = None
        self._error: BaseException | None = None

    def attempt(self) -> bool:
        """Run it; False if it met the lock and has time left to try again."""
        if self.abandoned:
            return True
        try:
            self._result = self._function()
        except StoreBusyError as error:
            if time.monotonic() < self.deadline:
                return False
            self._error = error
        except BaseException as error:  # noqa: BLE001 - not hidden: raised again in the task that waits
            self._error = error
        return True

    def fail(self, error: BaseException) -> None:
        self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Worker:
    """The thread. Between jobs it calls `poll` while `polling` is set: at the time that the last call gave, or as
    soon as `notices` is readable and `quiet_seconds` have passed since the last call.

    poll: returns when to be called next, in seconds of the monotonic clock.
    """

    def __init__(
        self, name: str, busy_seconds: float, poll: Callable[[], float], quiet_seconds: float
    ) -> None:
        self.polling = False
        self.notices: int | None = None
        """A file descriptor, set before there is polling, and taken away by `poll` alone."""
        self._busy_seconds = busy_seconds
        self._poll = poll
        self._quiet_seconds = quiet_seconds
        self._next_poll = self._quiet_until = 0.0
        self._ended = False
        self._last: Callable[[], None] = lambda: None
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._blocked: deque[_Job] = deque()
        self._token = trio.lowlevel.current_trio_token()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            os.close(self._wake)
            raise

    async def run(self, function: Callable[[], T], *, writes: bool = False) -> T:
        """Call `function` in the thread. If cancelled, a call that has begun is completed there all the same."""
        if self._ended:
            raise StoreClosedError("the store's thread has ended")
        job = _Job(function, writes, time.monotonic() + self._busy_seconds)
        self._put(job)
        if self._ended:
            # Meanwhile: it may have refused what had come before this call, and nobody else would end this one.
            self._refuse_queued()
        try:
            await job.done.wait()
        finally:
            job.abandoned = True
        return job.result()

    def post(self, callback: Callable[[], object]) -> None:
        """From the thread: call back in the event loop, in the order of posting."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(callback)

    async def stop(self, last: Callable[[], None] = lambda: None) -> None:
        """End the thread after what it is doing now and call `last` in it, as the last thing.

        Jobs that still wait fail with `StoreClosedError`.
        """
        self._last = last
        self._put(None)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)
        os.close(self._wake)

    def _put(self, job: _Job | None) -> None:
        self._queue.put(job)
        os.eventfd_write(self._wake, 1)

    def _main(self) -> None:
        try:
            while self._step():
                pass
        finally:
            self._ended = True
            self._refuse_the_rest()
            self._last()

    def _step(self) -> bool:
        try:
            job = self._queue.get_nowait()
        except queue.Empty:
            self._wait()
        else:
            if job is None:
                return False
            self._begin(job)
            self._heed_notices()
        self._retry_blocked()
        self._poll_if_due()
        return True

    def _wait(self) -> None:
        """Until there may be a job, or something to do without one."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        until = time.monotonic() + _RETRY_SECONDS if self._blocked else math.inf
        if self.polling:
            until = min(until, self._next_poll)
            if self.notices is not None:
                poller.register(self.notices, select.POLLIN)
        ready = [fd for fd, _ in self._sleep(poller, until)]
        if self.notices in ready:
            self._next_poll = min(self._next_poll, self._quiet_until)
            if time.monotonic() < self._quiet_until:
                # It stays readable meanwhile, so it is not waited for.
                poller.unregister(self.notices)
                ready = [fd for fd, _ in self._sleep(poller, min(until, self._next_poll))]
        if self._wake in ready:
            os.eventfd_read(self._wake)

    def _heed_notices(self) -> None:
        """After a job: where the next one is there already, nobody waits for notices."""
        if (
            self.polling
            and self.notices is not None
            and self._quiet_until <= time.monotonic() < self._next_poll
        ):
            poller = select.poll()
            poller.register(self.notices, select.POLLIN)
            if poller.poll(0):
                self._next_poll = self._quiet_until

    @staticmethod
    def _sleep(poller: select.poll, until: float) -> list[tuple[int, int]]:
        if until == math.inf:
            return poller.poll()
        return poller.poll(1000 * max(0.0, until - time.monotonic()))

    def _begin(self, job: _Job) -> None:
        if (job.writes and self._blocked) or not job.attempt():
            self._blocked.append(job)
        else:
            self.post(job.done.set)

    def _retry_blocked(self) -> None:
        while self._blocked and self._blocked[0].attempt():
            self.post(self._blocked.popleft().done.set)

    def _poll_if_due(self) -> None:
        if self.polling and (now := time.monotonic()) >= self._next_poll:
            self._quiet_until = now + self._quiet_seconds
            self._next_poll = self._poll()

    def _refuse_the_rest(self) -> None:
        for job in self._blocked:
            self._refuse(job)
        self._refuse_queued()

    def _refuse_queued(self) -> None:
        """From any thread, once this one has ended."""
        with suppress(queue.Empty):
            while True:
                if (job := self._queue.get_nowait()) is not None:
                    self._refuse(job)

    def _refuse(self, job: _Job) -> None:
        job.fail(StoreClosedError("the store was closed before this call began"))
        self.post(job.done.set)

"""The writer thread of a log directory: all that changes a log happens there, in order.

The event loop hands over work and never waits. Each wake-up of the thread takes all that has piled up, and each
wake-up of the loop delivers all that was done: a hop between threads costs far more than an append, so it is
paid for a queue and not for an entry.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from ...storage import Chunk, Log, StorageError

Completion = Callable[[], None]


@attrs.frozen(slots=True)
class AppendWork:
    """Append `chunk` to the log of `lane`; then call `done()` on the event loop."""

    lane: Lane
    chunk: Chunk
    done: Completion


@attrs.frozen(slots=True)
class CallWork:
    """Run `function` in the thread; then call `done(result)` on the event loop."""

    lane: Lane
    function: Callable[[], object]
    done: Callable[[object], None]


Work = AppendWork | CallWork


@attrs.define(eq=False, slots=True)
class Lane:
    """The work of one log. After a failure the work that was queued behind it is dropped unheard."""

    failed: Callable[[str], None]
    log: Log | None = None
    broken: bool = False


class LogWriter:
    """One thread for one log directory; start it with `start`, end it with `stop`.

    `after` is called on the event loop after each delivery of completions; `died` with an error that nobody
    expected, from the thread or from a completion, after which nothing is written or told any more.
    """

    def __init__(self, name: str, after: Completion, died: Callable[[Exception], None]) -> None:
        self.has_failed = False
        """Whether some work was not done as asked."""
        self._after = after
        self._died = died
        self._silent = False
        self._queue: deque[Work] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"insync-log-{name}", daemon=True)
        self._token: trio.lowlevel.TrioToken | None = None
        self._stopped = trio.Event()

    def start(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Queue work; from the event loop only."""
        self._queue.append(work)
        self._wake.set()

    def fall_silent(self) -> None:
        """Go on with the work, but tell nobody: those who would act on it are being stopped."""
        self._silent = True

    async def stop(self) -> None:
        """Do all that is queued, then end the thread (if it was ever started)."""
        if self._token is None:
            return
        self._stopping = True
        self._wake.set()
        with trio.CancelScope(shield=True):
            await self._stopped.wait()

    def _run(self) -> None:
        assert self._token is not None
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - not hidden: it ends the node
            self.has_failed = True
            self._token.run_sync_soon(self._report, error)
        finally:
            self._token.run_sync_soon(self._stopped.set)

    def _work(self) -> None:
        assert self._token is not None
        while True:
            self._wake.wait()
            self._wake.clear()
            stopping = self._stopping
            while self._queue:
                completions = self._carry_out(self._take_all())
                self._token.run_sync_soon(self._deliver, completions)
            if stopping:
                return

    def _take_all(self) -> list[Work]:
        taken = []
        while self._queue:
            taken.append(self._queue.popleft())
        return taken

    def _carry_out(self, batch: Sequence[Work]) -> list[Completion]:
        """Appends that follow one another in one log go to disk in one gathered write."""
        completions: list[Completion] = []
        runs: dict[Lane, list[AppendWork]] = {}
        for work in batch:
            if isinstance(work, AppendWork):
                runs.setdefault(work.lane, []).append(work)
            else:
                self._append_run(work.lane, runs.pop(work.lane, []), completions)
                self._call(work, completions)
        for lane, run in runs.items():
            self._append_run(lane, run, completions)
        return completions

    def _append_run(self, lane: Lane, run: list[AppendWork], completions: list[Completion]) -> None:
        if not run or lane.broken:
            return
        assert lane.log is not None
        try:
            lane.log.append([work.chunk for work in run])
        except StorageError as error:
            self._fail(lane, error, completions)
            return
        completions.extend(work.done for work in run)

    def _call(self, work: CallWork, completions: list[Completion]) -> None:
        if work.lane.broken:
            return
        try:
            result = work.function()
        except StorageError as error:
            self._fail(work.lane, error, completions)
        else:
            completions.append(partial(work.done, result))

    def _fail(self, lane: Lane, error: StorageError, completions: list[Completion]) -> None:
        lane.broken = True
        self.has_failed = True
        completions.append(partial(lane.failed, str(error)))

    def _deliver(self, completions: Sequence[Completion]) -> None:
        if self._silent:
            return
        try:
            for complete in completions:
                complete()
            self._after()
        except Exception as error:  # noqa: BLE001 - not hidden: it ends the node
            self.has_failed = True
            self._report(error)

    def _report(self, error: Exception) -> None:
        if not self._silent:
            self._silent = True
            self._died(error)

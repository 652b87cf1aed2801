"""The writer thread of a log directory: all that changes a log happens there, in order.

The event loop hands over work and never waits. Each wake-up of the thread takes all that has piled up, and each
wake-up of the loop delivers all that was done: a hop between threads costs far more than an append, so it is
paid for a queue and not for an entry.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import attrs
import trio

from ...storage import Chunk, Log, StorageError
from ...transport import turn

TOGETHER = 8
"""How many logs wait for the device at a time."""

Completion = Callable[[], None]


def _nothing() -> None:
    pass


@attrs.frozen(slots=True)
class AppendWork:
    """Append `chunk` to the log of `lane`; then call `done()` on the event loop, or `dropped()` if it was not."""

    lane: Lane
    chunk: Chunk
    done: Completion
    dropped: Completion = _nothing


@attrs.frozen(slots=True)
class CallWork:
    """Run `function` in the thread; then call `done(result)` on the event loop.

    `waits`: it mostly waits for the device, and touches nothing but its own log's files. Such work of several logs
    waits together: after a failover each partition that is led anew stores its epoch, and the device brings many
    small files home in hardly more time than one.
    """

    lane: Lane
    function: Callable[[], object]
    done: Callable[[object], None]
    dropped: Completion = _nothing
    waits: bool = False


Work = AppendWork | CallWork


@attrs.define(eq=False, slots=True)
class Lane:
    """The work of one log. After a failure the work that was queued behind it is dropped."""

    failed: Callable[[StorageError], None]
    log: Log | None = None
    broken: bool = False
    """No more of its work is begun; the thread sets it on a failure."""
    closed: bool = False
    """Nothing more is told of it, not even of what was done; set on the event loop, with `broken`."""


@attrs.frozen(slots=True)
class Told:
    """What is to be called on the event loop for a lane; `instead` if that has been closed meanwhile."""

    lane: Lane
    call: Completion
    instead: Completion = _nothing


class LogWriter:
    """One thread for one log directory; start it with `start`, end it with `stop`.

    `after` is called on the event loop after each delivery of completions; `died` with an error that nobody
    expected, from the thread or from a completion, after which nothing is written or told any more.
    """

    def __init__(self, name: str, after: Completion, died: Callable[[Exception], None]) -> None:
        self.has_failed = False
        """Whether some work was not done as asked."""
        self.under_way = 0
        """Number of the piece of work that has begun and not ended; 0 if there is none."""
        self.queued = 0
        """Pieces of work that were submitted and whose end has not been told."""
        self._count = 0
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
        self.queued += 1
        self._queue.append(work)
        if not self._wake.is_set():  # else the thread has not begun to look at the queue
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
                taken = self._take_all()
                told = self._carry_out(taken)
                self._token.run_sync_soon(self._deliver, told, len(taken))
            if stopping:
                return

    def _take_all(self) -> list[Work]:
        taken = []
        while self._queue:
            taken.append(self._queue.popleft())
        return taken

    def _carry_out(self, batch: Sequence[Work]) -> list[Told]:
        """Appends that follow one another in one log go to disk in one gathered write."""
        told: list[Told] = []
        runs: dict[Lane, list[AppendWork]] = {}
        waiting: dict[Lane, CallWork] = {}
        for work in batch:
            if isinstance(work, AppendWork):
                runs.setdefault(work.lane, []).append(work)
                continue
            if not work.waits or work.lane in waiting:
                self._wait_together(waiting, told)
            self._append_run(work.lane, runs.pop(work.lane, []), told)
            if work.waits:
                waiting[work.lane] = work
            else:
                self._call(work, told)
        self._wait_together(waiting, told)
        for lane, run in runs.items():
            self._append_run(lane, run, told)
        return told

    def _wait_together(self, waiting: dict[Lane, CallWork], told: list[Told]) -> None:
        """Do one piece of work for each of these logs, several at a time; nothing else is done meanwhile."""
        works = list(waiting.values())
        waiting.clear()
        if len(works) < 2:
            for work in works:
                self._call(work, told)
            return
        left = deque(works)
        notes: dict[Lane, list[Told]] = {work.lane: [] for work in works}
        unexpected: list[Exception] = []

        def work_off() -> None:
            with suppress(IndexError):
                while True:
                    work = left.popleft()
                    try:
                        self._do(work, notes[work.lane])
                    except Exception as error:  # noqa: BLE001 - told to the writer's own thread, below
                        unexpected.append(error)

        helpers = [
            threading.Thread(target=work_off, name=f"{self._thread.name}-{number}", daemon=True)
            for number in range(min(TOGETHER, len(works)) - 1)
        ]
        self._begin()
        try:
            for helper in helpers:
                helper.start()
            work_off()
            for helper in helpers:
                helper.join()
        finally:
            self.under_way = 0
        if unexpected:
            raise unexpected[0]
        for note in notes.values():
            told += note

    def _append_run(self, lane: Lane, run: list[AppendWork], told: list[Told]) -> None:
        if not run:
            return
        if lane.broken:
            told.extend(Told(lane, work.dropped, work.dropped) for work in run)
            return
        assert lane.log is not None
        self._begin()
        try:
            lane.log.append([work.chunk for work in run])
        except StorageError as error:
            told.extend(Told(lane, work.dropped, work.dropped) for work in run)
            self._fail(lane, error, told)
        else:
            told.extend(Told(lane, work.done, work.dropped) for work in run)
        finally:
            self.under_way = 0

    def _call(self, work: CallWork, told: list[Told]) -> None:
        self._begin()
        try:
            self._do(work, told)
        finally:
            self.under_way = 0

    def _do(self, work: CallWork, told: list[Told]) -> None:
        if work.lane.broken:
            told.append(Told(work.lane, work.dropped, work.dropped))
            return
        try:
            result = work.function()
        except StorageError as error:
            told.append(Told(work.lane, work.dropped, work.dropped))
            self._fail(work.lane, error, told)
        else:
            told.append(Told(work.lane, partial(work.done, result), work.dropped))

    def _begin(self) -> None:
        self._count += 1
        self.under_way = self._count

    def _fail(self, lane: Lane, error: StorageError, told: list[Told]) -> None:
        lane.broken = True
        self.has_failed = True
        told.append(Told(lane, partial(lane.failed, error)))

    def _deliver(self, told: Sequence[Told], count: int) -> None:
        self.queued -= count
        if self._silent:
            return
        try:
            with turn():
                for each in told:
                    if each.lane.closed:
                        each.instead()
                    else:
                        each.call()
                self._after()
        except Exception as error:  # noqa: BLE001 - not hidden: it ends the node
            self.has_failed = True
            self._report(error)

    def _report(self, error: Exception) -> None:
        if not self._silent:
            self._silent = True
            self._died(error)

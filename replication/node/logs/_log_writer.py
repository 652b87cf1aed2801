"""The writer thread of a log directory: all that changes a log happens there, in order.

The event loop hands over work and never waits for a device. Each wake-up of the thread takes all that has piled up,
and each wake-up of the loop delivers all that was done: a hop between threads costs far more than an append, so it
is paid for a queue and not for an entry. For little work the loop gives the thread a moment (`BRIEF`) at the end of
its turn: most of an append is Python, which only one of the two can run anyway, and to be woken costs as much. Only
then is the thread woken, too: before that it would find the interpreter's lock taken, and sleep a second time.

Work that mostly waits for the device and concerns one log is done beside this thread (`_side_worker`): later work
of that log waits for it, that of other logs does not.

Appends to a log with `durability=flushed` are told when they have come to the device. While one flush is under way
that log's appends are held; the next write takes them all, and the next flush brings them all (group commit).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import attrs
import msgspec
import trio

from ....storage import Chunk, Handover, Log, StorageError, wait_for_descriptors
from ....transport import turn
from ._flush_threads import FlushThreads
from ._side_worker import SideWork, SideWorker
from ._telling import tell

BRIEF = 0.001
"""Seconds that the event loop gives the thread for little work; a device that needs longer is not waited for again
before all that was handed over is done."""
LITTLE = 64 << 10
"""Bytes of an append, from which on writing takes longer than all else: then the loop has better things to do. A
batch of 33 records of 1 KiB is below it: to hand that over and to be told takes longer than to write it."""
FEW = 8
"""Appends that are little work together."""

Completion = Callable[[], None]


def _nothing() -> None:
    pass


class AppendWork(msgspec.Struct, frozen=True):
    """Append `chunk` to the log of `lane`; then call `done()` on the event loop, or `dropped()` if it was not."""

    lane: Lane
    chunk: Chunk
    done: Completion
    dropped: Completion = _nothing


@attrs.frozen(slots=True)
class CallWork:
    """Run `function` in the thread; then call `done(result)` on the event loop.

    `waits`: it mostly waits for the device, and touches nothing but its own log's files: it is done beside the
    writer thread, before any later work of its lane. After a failover each partition that is led anew stores its
    epoch, those of a new topic make their folders; and the device brings many small files home in hardly more time
    than one.
    `common`: see `SideWork`.
    """

    lane: Lane
    function: Callable[[], object]
    done: Callable[[object], None]
    dropped: Completion = _nothing
    waits: bool = False
    common: tuple[Callable[[Sequence[Any]], None], object] | None = None


@attrs.frozen(slots=True)
class _FlushWork:
    """Bring to the device what `run` has appended to the log of `lane`."""

    lane: Lane
    run: Sequence[AppendWork]


Work = AppendWork | CallWork


@attrs.frozen(slots=True)
class _Resume:
    """The lane's work beside the writer thread is done."""

    lane: Lane


@attrs.define(eq=False, slots=True)
class Lane:
    """The work of one log. After a failure the work that was queued behind it is dropped."""

    failed: Callable[[StorageError], None]
    log: Log | None = None
    broken: bool = False
    """No more of its work is begun; the thread sets it on a failure."""
    closed: bool = False
    """No more completions are reported, not even of finished work; set on the event loop, with `broken`."""
    held: deque[Work] | None = None
    """Work that waits for the work beside the writer thread; None if there is none. The thread's own."""


@attrs.frozen(slots=True)
class Call:
    """A function to call on the event loop for a lane: `done`, or `dropped` if that has been closed meanwhile."""

    lane: Lane
    done: Completion
    dropped: Completion = _nothing


Told = Call | AppendWork
"""An append that has been done needs no `Call`: it has the same three fields."""

_chunk_of = attrgetter("chunk")


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
        self._queue: deque[Work | _Resume | None] = deque()
        """None: end the thread when all before it is done."""
        self._done: deque[tuple[Sequence[Told], int]] = deque()
        """The work that was done, for the event loop to tell."""
        self._collects = False
        """Whether a `_collect` is under way."""
        self._handover = Handover()
        self._beside = SideWorker(
            f"insync-side-{name}", self._do_beside, self._done_beside, self._died_beside, self._handover.leave
        )
        self._flushes = FlushThreads[_FlushWork, Sequence[Told]](
            f"insync-flush-{name}",
            self._flush_run,
            lambda work, told: self._resume([work.lane], told),
            self._died_beside,
            self._handover.leave,
        )
        self._notes: dict[Lane, list[Told]] = {}
        """The news to tell of the work that is done beside."""
        self._lanes_beside = 0
        self._side_has_died = False
        self._stopping = False
        """The thread ends when nothing is done beside it any more."""
        self._turn = turn()
        self._loop_waits = False
        self._is_much = False
        """The work under way is not little, or has been waited for in vain."""
        # A daemon: a thread that hangs in the device must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"insync-log-{name}", daemon=True)
        self._token: trio.lowlevel.TrioToken | None = None
        self._stopped = trio.Event()
        self.expect: Callable[[], None] | None = None
        """Told of each append, which brings messages from other nodes soon."""

    def start(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._thread.start()

    @property
    def signs_of_life(self) -> tuple[int, int, int]:
        """Numbers of the pieces of work under way: here, beside, and of flushes; 0 for none."""
        return self.under_way, self._beside.under_way, self._flushes.under_way

    def submit(self, work: Work) -> None:
        """Queue work; from the event loop only."""
        is_large = False
        if isinstance(work, AppendWork):
            if self.expect is not None:
                self.expect()
            self.queued += 1
            is_large = len(work.chunk.data) > LITTLE
            if is_large or self.queued > FEW:
                self._is_much = True
        else:
            # Work beside counts neither here nor at its end (`_resume`): a long queue has acks=0 wait for appends,
            # and appends to other logs do not wait for it.
            self.queued += not work.waits
            self._is_much = True
        # Before the thread is asked: one that finds nothing sleeps until it is asked again.
        self._queue.append(work)
        if self._turn.is_open and not is_large:
            # Thousands of partitions may be written to in one turn: each time that the thread is woken, the two
            # take the interpreter's lock from each other.
            self._turn.note(self)
        else:
            self._handover.ask()

    def flush(self) -> None:
        """At the end of a turn, or when one hurries: have little work done now."""
        if self._is_much or self._token is None:
            # Before `start` no thread would answer. The ask is counted: the first `rest` of the thread ends by it.
            self._handover.ask()
            return
        # Before the thread is asked: it looks at this when it is done, and wakes no loop that waits.
        self._loop_waits = True
        if not self._handover.ask_and_wait(BRIEF):
            # Before `_collect`, which takes it back if the thread was late by little and all is done.
            self._is_much = True
        self._loop_waits = False
        # The thread may have looked at `_loop_waits` before, and leaves it to us then.
        self._collect()

    def _collect(self) -> None:
        """Tell of all that was done."""
        if self._collects:
            # From the end of a turn in `_deliver`: the call above goes on with what is done by now. Otherwise
            # completions that append more would nest without a bound.
            return
        self._collects = True
        try:
            while self._done:
                self._deliver(*self._done.popleft())
        finally:
            self._collects = False

    def fall_silent(self) -> None:
        """Continue the work, but report nothing: the receivers are being stopped."""
        self._silent = True

    async def stop(self) -> None:
        """Do all that is queued, then end the thread (if it was ever started)."""
        if self._token is None:
            return
        self._queue.append(None)
        self._handover.ask()
        await self._stopped.wait()
        # A thread that has ended a flush lets this one go on, and so end, before it asks the loop to tell of it.
        self._collect()

    def _run(self) -> None:
        assert self._token is not None
        wait_for_descriptors()
        try:
            self._work()
        except trio.RunFinishedError:
            # The event loop has ended while the device hung: nobody is left to be told, and what is still queued
            # was never acknowledged.
            self.has_failed = True
        except Exception as error:  # noqa: BLE001 - not hidden: it ends the node
            self.has_failed = True
            tell(self._token, self._report, error)
        finally:
            # Also after an error: their threads would wait for work for good.
            self._beside.end()
            self._flushes.end()
            # Before the end is told: the system may give the id of this thread to another, which nobody may bind.
            self._handover.end()
            # Last of all: `stop` returns by it, and the log directory is closed behind it.
            tell(self._token, self._stopped.set)

    def _work(self) -> None:
        assert self._token is not None
        asked = 0
        # A stop waits for the work beside, behind which more is held. A thread beside that died resumes no lane.
        while not self._stopping or (self._lanes_beside and not self._side_has_died):
            if not self._queue:  # a lane may have been resumed without waking this thread
                asked = self._handover.rest(asked)
            queue = self._queue
            if len(queue) == 1 and self._append_alone(queue[0]):
                queue.popleft()
                # `_done` has it by now, and a loop that gives up waiting says so before it collects: one of the two
                # sees the word of the other.
                if not self._loop_waits:
                    # Not by `tell`: where the loop has ended this raises, and the thread writes nothing more.
                    self._token.run_sync_soon(self._collect)
                continue
            work: list[Work | _Resume] = []
            # By number: others add to the queue meanwhile, which no iteration survives. And the end of this portion
            # is told before the next one begins.
            for _ in range(len(self._queue)):
                each = self._queue.popleft()
                if each is None:
                    # No `break`: a lane that was resumed may stand behind it.
                    self._stopping = True
                else:
                    work.append(each)
            if work:
                beside: list[CallWork | _FlushWork] = []
                told, count = self._carry_out(work, beside)
                self._done.append((told, count))
                # Not before: what was asked for before it in its log is told first.
                for apart in beside:
                    if isinstance(apart, _FlushWork):
                        self._flushes.submit(apart)
                    else:
                        self._beside.submit(apart)
                # A count alone wakes nobody: the loop hears of these appends when they are flushed.
                if told and not self._loop_waits:
                    self._token.run_sync_soon(self._collect)

    def _append_alone(self, work: Work | _Resume | None) -> bool:
        """The common case: a single append, and nothing to be done before it. False: it is something else."""
        if not isinstance(work, AppendWork) or work.lane.held is not None:
            return False
        log = work.lane.log
        if log is None or log.settings.flushes:
            return False
        self._done.append((self._append_run(work.lane, [work]), 1))
        return True

    def _carry_out(
        self, batch: Sequence[Work | _Resume], beside: list[CallWork | _FlushWork]
    ) -> tuple[list[Told], int]:
        """Do a batch of work, except what waits for the device: that is added to `beside`, for the caller to start.

        Returns the completions to deliver on the event loop, and the number of queued pieces of work that they end.
        Consecutive appends to one log reach the disk in one gathered write.
        """
        told: list[Told] = []
        count = 0
        runs: dict[Lane, list[AppendWork]] = {}
        left = deque(batch)
        while left:
            work = left.popleft()
            lane = work.lane
            if isinstance(work, _Resume):
                # Here, and not where that work has ended: `_work` must not end before the held work is done, too.
                self._lanes_beside -= 1
                assert lane.held is not None
                # All of it was asked for before anything that is still in this batch.
                left.extendleft(reversed(lane.held))
                lane.held = None
                continue
            if lane.held is not None:
                # Not counted yet: it comes here again when its lane is resumed.
                lane.held.append(work)
                continue
            if isinstance(work, AppendWork):
                count += 1
                runs.setdefault(lane, []).append(work)
                continue
            if lane in runs:
                # Within a log the order is that of asking: a call finds the appends before it written.
                self._write(lane, runs.pop(lane), told, beside)
                if lane.held is not None:
                    # These appends are told after their flush, and the call after them.
                    lane.held.append(work)
                    continue
            if work.waits:
                # At once, for later work of this batch, too. A call beside has its log for itself: `copy_tail`, for
                # one, allows no append meanwhile.
                self._hold(lane)
                beside.append(work)
            else:
                count += 1
                self._call(work, told)
        for lane, run in runs.items():
            self._write(lane, run, told, beside)
        return told, count

    def _write(
        self, lane: Lane, run: list[AppendWork], told: list[Told], beside: list[CallWork | _FlushWork]
    ) -> None:
        """Do consecutive appends to one log; what they have to wait for goes to `beside`."""
        done = self._append_run(lane, run)
        # Only a run that was written comes back itself: of dropped appends nothing is flushed.
        if done is run and lane.log is not None and lane.log.settings.flushes:
            self._hold(lane)
            beside.append(_FlushWork(lane, run))
        else:
            told += done

    def _hold(self, lane: Lane) -> None:
        lane.held = deque()
        self._lanes_beside += 1

    def _do_beside(self, work: SideWork) -> None:
        assert isinstance(work, CallWork)
        wait_for_descriptors()
        # A lane has one piece of work beside at a time: no two threads share this list.
        self._do(work, self._notes.setdefault(work.lane, []))

    def _done_beside(self, portion: Sequence[SideWork]) -> None:
        told: list[Told] = []
        lanes: list[Lane] = []
        for work in portion:
            assert isinstance(work, CallWork)
            told += self._notes.pop(work.lane)
            lanes.append(work.lane)
        self._resume(lanes, told)

    def _resume(self, lanes: Sequence[Lane], told: Sequence[Told]) -> None:
        """Told before anything that was held back is done, so in the order in which it was asked for.

        The writer thread is only woken if it has something to do. It holds work back first and then looks at the
        queue; here the queue comes first, and then what is held: one of the two sees what the other has done.
        """
        assert self._token is not None
        self._done.append((told, 0))
        self._queue.extend(map(_Resume, lanes))
        # A stop waits for `_lanes_beside`, which only the writer thread counts down.
        if self._stopping or any(lane.held for lane in lanes):
            self._handover.ask()
        tell(self._token, self._collect)

    def _died_beside(self, error: Exception) -> None:
        assert self._token is not None
        # Before the thread is asked: it looks at this, and would otherwise rest for good while a stop waits.
        self.has_failed = self._side_has_died = True
        tell(self._token, self._report, error)
        self._handover.ask()

    def _append_run(self, lane: Lane, run: list[AppendWork]) -> Sequence[Told]:
        """Do consecutive appends to one log; returns what the event loop is to tell of them."""
        if lane.broken:
            # After a failed append the log ends before it: these would stand behind a hole, and be acknowledged.
            return self._dropped(lane, run)
        assert lane.log is not None
        self._count += 1
        self.under_way = self._count
        try:
            lane.log.append(list(map(_chunk_of, run)))
        except StorageError as error:
            return self._dropped(lane, run, error)
        finally:
            # Also after an error: a number that stays looks like a write that hangs.
            self.under_way = 0
        return run

    def _flush_run(self, work: _FlushWork) -> Sequence[Told]:
        """Bring appends to the device; returns what the event loop is to tell of them."""
        lane, run = work.lane, work.run
        wait_for_descriptors()
        if lane.broken:
            return self._dropped(lane, run)
        assert lane.log is not None
        try:
            lane.log.flush()
        except StorageError as error:
            # The batches are in the file, and still not acknowledged: the device may have none of them.
            return self._dropped(lane, run, error)
        return run

    def _dropped(
        self, lane: Lane, run: Sequence[AppendWork], error: StorageError | None = None
    ) -> list[Told]:
        told: list[Told] = [Call(lane, work.dropped, work.dropped) for work in run]
        if error is not None:
            self._fail(lane, error, told)
        return told

    def _call(self, work: CallWork, told: list[Told]) -> None:
        self._count += 1
        self.under_way = self._count
        try:
            self._do(work, told)
        finally:
            self.under_way = 0

    def _do(self, work: CallWork, told: list[Told]) -> None:
        if work.lane.broken:
            told.append(Call(work.lane, work.dropped, work.dropped))
            return
        try:
            result = work.function()
        except StorageError as error:
            told.append(Call(work.lane, work.dropped, work.dropped))
            self._fail(work.lane, error, told)
        else:
            told.append(Call(work.lane, partial(work.done, result), work.dropped))

    def _fail(self, lane: Lane, error: StorageError, told: list[Told]) -> None:
        # By the thread that failed, before the loop hears of it: work that is queued already must find it.
        lane.broken = True
        # A silent writer reports nothing: this alone then keeps the node from closing the folder as clean.
        self.has_failed = True
        told.append(Call(lane, partial(lane.failed, error)))

    def _deliver(self, told: Sequence[Told], count: int) -> None:
        self.queued -= count
        if not self.queued:
            self._is_much = False
        if self._silent or not told:
            return
        try:
            # One turn: answers leave by one write for each connection, and new appends wake the thread once.
            with self._turn:
                for each in told:
                    # Looked at for each: a completion before it, such as `failed`, may have closed the lane.
                    if each.lane.closed:
                        each.dropped()
                    else:
                        each.done()
                # Inside of the turn, behind all of them: parked fetches are looked at once.
                self._after()
        except Exception as error:  # noqa: BLE001 - not hidden: it ends the node
            # The completion may have left the broker amid a step: nothing more is told.
            self.has_failed = True
            self._report(error)

    def _report(self, error: Exception) -> None:
        if not self._silent:
            self._silent = True
            self._died(error)

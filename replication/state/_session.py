"""One opened handle: gives commands numbers, sends them together, and repeats them until their outcome is known."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial

import attrs
import trio

from ..client.errors import ClientError, RecordTooLargeError
from ..client.producer import Producer
from ..client.producer.delivery import Delivery
from ..errors import again
from ._applying import FENCED, Answer, Applied
from ._copy import Copy
from ._entries import LARGEST_BATCH, MOST_NAME, Close, Commands, Entry, Join, Open, encode
from .errors import (
    CommandTooLargeError,
    FencedError,
    IdempotencyConflictError,
    StateClosedError,
    StateError,
)
from .settings import StateSettings

_OVERHEAD = 5
"""Bytes that a command takes in a record besides its own."""
_PAUSE = 0.05


@attrs.define(eq=False, slots=True)
class _Pending:
    """A command whose answer has not come. A task waits for it, which is woken once."""

    command: bytes
    key: str | None
    number: int = -1
    task: trio.lowlevel.Task | None = None
    answer: Answer | None = None
    error: BaseException | None = None
    end: int = 0
    """The offset behind its record."""


@attrs.define(eq=False, slots=True)
class _Batch:
    """Commands of one record; sent again, whole, if it is unclear what became of it."""

    first: int
    pending: list[_Pending]


class Session:
    """Used by `Replica`; `run` must run while it is."""

    def __init__(
        self, copy: Copy, producer: Producer, name: str, settings: StateSettings, largest: int
    ) -> None:
        self.copy = copy
        self.name = name
        self.token = -1
        self.nonce = os.urandom(12)
        self.copy_name = f"{name[: MOST_NAME - 30]}#{self.nonce.hex()}"
        """Of this very process's copy."""
        self.error: StateError | None = None
        self.on_failed: Callable[[StateError], None] = lambda error: None
        self._producer = producer
        self._largest = largest
        self._settings = settings
        self._queue: deque[_Pending] = deque()
        self._pending: dict[int, _Pending] = {}
        """By number; the lowest one stands first, as numbers are given in order."""
        self._next = 0
        self._again: deque[_Batch] = deque()
        self._more = trio.Event()
        self._room = trio.Event()
        self._records = 0
        self._idle = trio.Event()
        self._acknowledged = trio.Event()

    # Commands

    async def submit(self, command: bytes, key: str | None = None) -> _Pending:
        """Have a command applied; comes back when it is, here. Raises what `Replica.submit` raises."""
        if len(command) + len(key or "") * 4 + 1024 > self._largest:
            raise CommandTooLargeError(
                f"the command has {len(command)} bytes; a record holds max_request_size="
                f"{self._largest} with its envelope"
            )
        while len(self._queue) + len(self._pending) >= self._settings.max_under_way:
            self._check()
            await self._room.wait()
        self._check()
        pending = _Pending(command, key)
        self._queue.append(pending)
        self._more.set()
        pending.task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            # Take back commands that are not sent yet; the outcome of the others is unknown.
            pending.task = None
            if pending.number < 0:
                self._queue.remove(pending)
                self._make_room()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if pending.error is not None:
            raise pending.error
        return pending

    def _check(self) -> None:
        self.copy.check()
        if self.error is not None:
            raise again(self.error)

    def _settle(self, pending: _Pending) -> None:
        if pending.task is not None:
            trio.lowlevel.reschedule(pending.task)
            pending.task = None

    def _make_room(self) -> None:
        room, self._room = self._room, trio.Event()
        room.set()

    # Opening and closing

    async def open(self) -> None:
        """Begin the session, which fences the previous holder of the name."""
        await self.send_until_applied(Open(self.name, self.nonce), lambda: self.token >= 0)

    @property
    def has_joined(self) -> bool:
        """Whether the version of this copy's code is known since the newest roll call."""
        known = self.copy.applier.sessions.get(self.name)
        return known is not None and known.token == self.token and known.joined > self.copy.applier.called

    async def join(self) -> None:
        """Tell all copies the version of this one's code, unless they know it; raises as `submit` does."""
        entry = Join(self.name, self.token, *self.copy.applier.code)
        await self.send_until_applied(entry, lambda: self.error is not None or self.has_joined)
        self._check()

    async def close(self) -> None:
        """Let the others forget the answers. The call waits for commands under way."""
        while (self._pending or self._queue) and self.error is None and self.copy.error is None:
            await self._idle.wait()
        if self.token >= 0 and self.error is None and self.copy.error is None:
            await self.send_once(Close(self.name, self.token))

    async def send_until_applied(self, entry: Entry, is_done: object) -> None:
        """Send a record that may stand in the log twice, until `is_done`."""
        assert callable(is_done)
        while not is_done():
            self.copy.check()
            offset = await self.send_once(entry)
            if offset is None:
                await trio.sleep(_PAUSE)
            else:
                await self.copy.wait_until(offset + 1)

    async def send_once(self, entry: Entry) -> int | None:
        """The offset of the record; None if it is not known to be in the log."""
        at = self.copy.at
        try:
            return (
                await self._producer.send_and_wait(at.topic, encode(entry), partition=at.partition)
            ).offset
        except ClientError as error:
            if error.outcome == "absent" and not error.retriable:
                raise
            return None

    # What the copy has applied

    def on_applied(self, applied: list[Applied]) -> None:
        """After each record: answers for those who wait, and whether the name is still ours."""
        name, token, pending = self.name, self.token, self._pending
        for each in applied:
            if each.token != token or each.name != name:
                continue
            waiting = pending.pop(each.number, None)
            if waiting is None:
                continue
            if each.answer is FENCED:
                waiting.error = self._fenced()
            else:
                self._answer(waiting, each.answer, each.context.offset + 1)
            if waiting.task is not None:
                trio.lowlevel.reschedule(waiting.task)
                waiting.task = None
        if not applied:
            self._look_at_name()

    def _answer(self, waiting: _Pending, answer: Answer, end: int) -> None:
        waiting.answer, waiting.end = answer, end
        key = waiting.key
        if key is not None and self.copy.applier.conflicts(key, waiting.command):
            waiting.error = IdempotencyConflictError(
                f"id {key!r} of {self.copy.at} belongs to a command with other arguments, so this one was not "
                "applied: send the same arguments, in the same form, or use another id"
            )

    def _look_at_name(self) -> None:
        known = self.copy.applier.sessions.get(self.name)
        if known is not None and known.nonce == self.nonce:
            if self.token < known.token:
                # Opened, perhaps twice: the later record counts.
                self.token = known.token
                self._send_all_again()
        elif self.token >= 0 and self.error is None:
            self.fail(self._fenced())

    def on_restored(self) -> None:
        """The state has jumped over records: what they came to for this handle stands in the session."""
        self._look_at_name()
        known = self.copy.applier.sessions.get(self.name)
        if known is None or self.error is not None:
            return
        for number in [number for number in self._pending if number in known.answers]:
            waiting = self._pending.pop(number)
            self._answer(waiting, known.answers[number], self.copy.applied)
            self._settle(waiting)
        self._send_all_again()

    def _send_all_again(self) -> None:
        """Send all again, whatever became of it: those that are not done will be, the others are known."""
        for number, waiting in self._pending.items():
            self._again.append(_Batch(number, [waiting]))
            self._more.set()

    def _fenced(self) -> FencedError:
        return FencedError(
            f"{self.name!r} of {self.copy.at} was opened elsewhere since, or its copy was silent while the version "
            "was raised; this handle is shut out"
        )

    def on_turn(self) -> None:
        """After a run of records: wake those who wait for room."""
        if self.copy.error is not None:
            self.fail(self.copy.error)
        self._make_room()
        if not self._pending and not self._queue:
            idle, self._idle = self._idle, trio.Event()
            idle.set()

    def fail(self, error: StateError) -> None:
        """Nothing of this handle will be answered any more."""
        if self.error is not None:
            return
        self.error = error
        self.on_failed(error)
        for waiting in (*self._pending.values(), *self._queue):
            waiting.error = error
            self._settle(waiting)
        self._pending.clear()
        self._queue.clear()
        self._make_room()
        self._idle.set()

    # Sending

    async def run(self) -> None:
        """Send what is there, for ever: everything that is ready at a moment in one record."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while (self._queue or self._again) and self.error is None:
                while self._records >= self._settings.records_in_flight:
                    await self._sent()
                batch = self._again.popleft() if self._again else self._take()
                await self._send(batch)

    async def _sent(self) -> None:
        self._acknowledged = trio.Event()
        await self._acknowledged.wait()

    def _take(self) -> _Batch:
        queue, size = self._queue, 0
        taken: list[_Pending] = []
        first = self._next
        while queue and len(taken) < LARGEST_BATCH:
            size += len(queue[0].command) + _OVERHEAD
            if taken and size > self._settings.batch_bytes:
                break
            pending = queue.popleft()
            pending.number = first + len(taken)
            self._pending[pending.number] = pending
            taken.append(pending)
        self._next = first + len(taken)
        return _Batch(first, taken)

    async def _send(self, batch: _Batch) -> None:
        at = self.copy.at
        low = next(iter(self._pending), self._next)
        entry = Commands(
            self.name,
            self.token,
            min(low, batch.first),
            batch.first,
            [each.command for each in batch.pending],
            {index: each.key for index, each in enumerate(batch.pending) if each.key is not None},
            self._settings.deduplicate_for_ms,
        )
        self._records += 1
        try:
            await self._producer.send(
                at.topic, encode(entry), partition=at.partition, on_delivery=partial(self._delivered, batch)
            )
        except ClientError as error:
            self._records -= 1
            await self._failed(batch, error)

    def _delivered(self, batch: _Batch, delivery: Delivery) -> None:
        self._records -= 1
        self._acknowledged.set()
        error = delivery.error
        if error is None:
            return
        if error.outcome == "absent" and not error.retriable:
            self._refuse(batch, error)
        else:
            self._repeat(batch)

    async def _failed(self, batch: _Batch, error: ClientError) -> None:
        if error.retriable:
            await trio.sleep(_PAUSE)
            self._repeat(batch)
        else:
            self._refuse(batch, error)

    def _repeat(self, batch: _Batch) -> None:
        """It may be in the log or not: the machine knows numbers that it has seen already."""
        if any(each.number in self._pending for each in batch.pending):
            self._again.append(batch)
            self._more.set()

    def _refuse(self, batch: _Batch, error: ClientError) -> None:
        for each in batch.pending:
            if self._pending.pop(each.number, None) is not None:
                each.error = (
                    CommandTooLargeError(str(error)) if isinstance(error, RecordTooLargeError) else error
                )
                self._settle(each)
        self.on_turn()


def closed(what: str) -> StateClosedError:
    return StateClosedError(f"{what} is not open; use it inside its `async with` block")

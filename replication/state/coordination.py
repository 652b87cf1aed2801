"""A queue, locks and elections that every process shares. The timestamps of records measure their leases."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import trio

from ..client import _arguments as given
from ..client.errors import ClientError
from ..errors import again
from ._batteries import Holding, Item, LockState, QueueState
from ._packing import own
from ._session import closed
from .collections import _Battery
from .errors import StateError
from .replica import CLOSE_SECONDS, Tasks

_LOOK = 0.5
"""Seconds after which a waiter checks a lease again, because the clocks of others may differ."""
_NONCE = re.compile("#[0-9a-f]{24}$")
"""The suffix of an owner behind the name of its handle; owners in logs of earlier versions have none."""


class LockLostError(StateError):
    """A lock was not prolonged in time; another process may hold it now."""


class ResignedError(StateError):
    """This handle of an election has resigned, and does not run any more."""


class ReplicatedQueue(_Battery):
    """A first-in, first-out queue. An item that is taken but not acknowledged within its lease is delivered again.

    Since an item may be delivered twice, processing it must be idempotent, or use `Item.token` as a fencing token.
    After five deliveries without an acknowledgement it becomes a dead letter.
    """

    make = QueueState

    async def put(self, value: Any, *, id: str | None = None) -> int:
        """Add an item; returns its id. `id` is an idempotency key: an item with the same key is added only once."""
        return int(await self.command("put", value, id=id))

    async def take(self, lease_ms: int = 30_000) -> Item:
        """Take the oldest item; waits for one. After a cancellation an item may be taken until its lease ends."""
        given.whole("lease_ms", lease_ms, least=1)
        await self.read()
        while True:
            found = await self.take_nowait(lease_ms) if self._has_some() else None
            if found is not None:
                return found
            with trio.move_on_after(_LOOK):
                await self.moved()

    async def take_nowait(self, lease_ms: int = 30_000) -> Item | None:
        """Take the oldest item, or None if none is available."""
        found = await self.command("take", given.whole("lease_ms", lease_ms, least=1))
        return Item(*found) if found is not None else None

    async def ack(self, item: Item) -> bool:
        """Acknowledge an item; returns whether it was still ours. If not, another taker has it or will get it."""
        return bool(await self.command("ack", *_held(item)))

    async def nack(self, item: Item) -> bool:
        """Return an item to the queue at once; returns whether it was still ours."""
        return bool(await self.command("nack", *_held(item)))

    async def prolong(self, item: Item, lease_ms: int = 30_000) -> bool:
        """Extend the lease of an item from now on; returns whether it was still ours."""
        return bool(await self.command("prolong", *_held(item), given.whole("lease_ms", lease_ms, least=1)))

    async def size(self, *, after: int | None = None) -> int:
        """The number of waiting items."""
        await self.read(after=after)
        return self._state.size()

    async def counts(self, *, after: int | None = None) -> dict[str, int]:
        """The numbers of items that are `waiting`, `taken` and `dead`."""
        await self.read(after=after)
        return self._state.counts()

    async def dead_letters(self) -> list[Item]:
        """Items that were delivered too often without an acknowledgement."""
        await self.read()
        return [each._replace(value=own(each.value)) for each in self._state.dead_letters()]

    async def requeue_dead(self) -> int:
        """Return all dead letters to the queue; returns their number."""
        return int(await self.command("requeue_dead"))

    def _has_some(self) -> bool:
        due = self._state.next_due_ms()
        return self._state.size() > 0 or (due is not None and due <= time.time() * 1000)

    @property
    def _state(self) -> QueueState:
        state = self.stale
        assert isinstance(state, QueueState)
        return state


def _held(item: Item) -> tuple[int, int]:
    """By which a command names it."""
    if not isinstance(item, Item):
        raise given.refused("item", item, "pass what `take` returned")
    return item.id, item.token


class ReplicatedLock(_Battery):
    """Locks by name, with leases and fencing tokens.

    A handle that takes over the name of another one does not take over its locks: it waits until their leases end.
    A paused holder does not know that its lease has ended. Only the target of its writes can prevent harm: send the
    token with each write, and let the target refuse a token below the greatest that it has seen.
    """

    make = LockState

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._blocks: dict[str, trio.Lock] = {}
        """By lock: held by the task of this handle that is in a block of `hold`, others wait for it."""

    async def acquire(self, name: str, lease_ms: int = 30_000) -> int:
        """Wait for the lock; returns a fencing token greater than all before. Prolongs a lock that it holds."""
        token, _ = await self._acquire(name, lease_ms)
        return token

    async def _acquire(self, name: str, lease_ms: int) -> tuple[int, float]:
        """The token, and when it was asked for: the lease lasts from then on, not from when waiting began."""
        while True:
            asked = trio.current_time()
            token = await self.acquire_nowait(name, lease_ms)
            if token is not None:
                return token, asked
            while (held := self._state.holder(name)) is not None and held.until_ms > time.time() * 1000:
                with trio.move_on_after(_LOOK):
                    await self.moved()

    async def acquire_nowait(self, name: str, lease_ms: int = 30_000) -> int | None:
        """Try to take the lock; returns the fencing token, or None if another handle holds it."""
        given.whole("lease_ms", lease_ms, least=1)
        is_ours, token, _ = await self.command("acquire", given.text("name", name), self._owner, lease_ms)
        return int(token) if is_ours else None

    @property
    def _owner(self) -> str:
        """Differs for each opening of a name: who is shut out may believe for a lease that it holds its locks."""
        return self._session.copy_name if self._session is not None else self.name

    async def release(self, name: str, token: int) -> bool:
        """Release the lock; returns whether it was still held under this token."""
        return bool(await self.command("release", given.text("name", name), given.whole("token", token)))

    async def holder(self, name: str) -> Holding | None:
        """The current holder; None if there is none, or its lease has ended by the newest record."""
        given.text("name", name)
        await self.read()
        held = self._state.holder(name)
        if held is None or held.until_ms <= self.clock_ms:
            return None
        return held._replace(owner=_NONCE.sub("", held.owner))

    @asynccontextmanager
    async def hold(self, name: str, lease_ms: int = 30_000) -> AsyncIterator[int]:
        """Hold the lock in a block and prolong it meanwhile; yields the fencing token.

        If the lease ends because it could not be prolonged, cancels the block and raises LockLostError. The end of
        the block releases the lock, also after an error. After a cancellation the lock stays until its lease ends.

        The tasks and threads of one handle wait for each other, too. Like other locks it cannot be held twice: on
        trio a block inside a block of the same lock raises RuntimeError, elsewhere it waits for ever.
        """
        given.text("name", name)
        block = self._blocks.setdefault(name, trio.Lock())
        try:
            async with block, self._hold(name, lease_ms) as token:
                yield token
        finally:
            if not block.locked() and self._blocks.get(name) is block:
                del self._blocks[name]

    @asynccontextmanager
    async def _hold(self, name: str, lease_ms: int) -> AsyncIterator[int]:
        """`hold`, of one task at a time: for the log the tasks of a handle are one owner."""
        token, asked_first = await self._acquire(name, lease_ms)
        lost: list[LockLostError] = []
        raised: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def prolong(ends: float) -> None:
                while True:
                    # At once if the lease is over already: the answer may have come late.
                    await trio.sleep_until(min(trio.current_time() + lease_ms / 3000, ends))
                    asked = trio.current_time()
                    again: int | None = None
                    with trio.move_on_at(ends):
                        try:
                            again = await self.acquire_nowait(name, lease_ms)
                        except ClientError:
                            again = None
                    if again != token:
                        lost.append(
                            LockLostError(f"lock {name!r}: its lease of {lease_ms} ms was not prolonged")
                        )
                        nursery.cancel_scope.cancel()
                        return
                    ends = asked + lease_ms / 1000

            nursery.start_soon(prolong, asked_first + lease_ms / 1000)
            try:
                yield token
            except Exception as error:  # noqa: BLE001 - raised below: the nursery would make a group of it
                raised = error
            finally:
                nursery.cancel_scope.cancel()
        if lost:
            raise lost[0] from raised
        if raised is not None:
            with trio.move_on_after(CLOSE_SECONDS), suppress(ClientError):
                await self.release(name, token)
            raise raised
        await self.release(name, token)

    @property
    def _state(self) -> LockState:
        state = self.stale
        assert isinstance(state, LockState)
        return state


class ReplicatedElection(ReplicatedLock):
    """Elects one of all open handles, for work that only one process may do, such as a cron job.

    `is_leader` depends on this process's clock, and the process may pause between the check and the work. Work that
    must not be done twice has to pass on `leader_token`, as with a lock.
    """

    _SEAT = "leader"

    def __init__(self, *args: Any, lease_ms: int = 10_000, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lease_ms = given.whole("lease_ms", lease_ms, least=100)
        self._leads_until = 0.0
        self._changed = trio.Event()
        self._campaign = trio.CancelScope()
        self._ended = trio.Event()
        """The campaign has."""
        self._late: int | None = None
        """A token that came when the handle did not run any more."""
        self._over: StateError | None = closed("the election")
        """Why this handle does not run."""
        self.leader_token: int | None = None
        """The fencing token of the newest leadership of this handle; None: it has never led."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._campaign, self._ended, self._late = trio.CancelScope(), trio.Event(), None
        assert self._session is not None
        self._over, self._session.on_failed = self._session.error, self._stopped
        nursery = await self._stack.enter_async_context(Tasks())
        nursery.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        why = closed("the election")
        self._leaves_by = trio.current_time() + CLOSE_SECONDS
        try:
            if error is None or isinstance(error, Exception):
                await self._give_up(why)
        finally:
            self._stand_down(why)
            await super().__aexit__(kind, error, traceback)

    async def resign(self) -> None:
        """Give up the leadership at once, and stop running for it: only another handle can lead from now on."""
        if self._over is None:
            await self._give_up(
                ResignedError(f"handle {self.name!r} has resigned: open another one to run for leadership")
            )

    async def _give_up(self, why: StateError) -> None:
        token = self.leader_token if self.is_leader else None
        self._stand_down(why)
        # If this fails, another handle leads when the lease ends.
        with trio.move_on_after(CLOSE_SECONDS), suppress(ClientError):
            await self._ended.wait()
            token = self._late if self._late is not None else token
            if token is not None:
                await self.release(self._SEAT, token)

    @property
    def is_leader(self) -> bool:
        """Whether this handle leads. Turns false before another handle can lead, if clocks run at similar rates."""
        return time.monotonic() < self._leads_until

    async def wait_for_leadership(self) -> int:
        """Wait until this handle leads; returns the fencing token.

        Raises:
          ResignedError: The handle has resigned, now or before.
          StateError: Its copy has stopped (`FencedError`, ...), or is not open.
        """
        while self._over is None and not self.is_leader:
            await self._changed.wait()
        if self._over is not None:
            raise again(self._over)
        assert self.leader_token is not None
        return self.leader_token

    async def leader(self) -> str | None:
        """The name of the current leader."""
        held = await self.holder(self._SEAT)
        return held.owner if held is not None else None

    async def _run(self) -> None:
        try:
            await self._run_until_over()
        finally:
            self._ended.set()

    async def _run_until_over(self) -> None:
        with self._campaign:
            while True:
                asked = time.monotonic()
                try:
                    token = await self.acquire_nowait(self._SEAT, self._lease_ms)
                except StateError as error:
                    # The copy has stopped, or another has the name.
                    return self._stopped(error)
                except ClientError:
                    token = None
                    await trio.sleep(self._lease_ms / 3000)
                if self._over is not None:
                    # An answer that has woken this task already is not kept away by the end of the campaign.
                    self._late = token
                    return None
                if token is not None:
                    # The margin before the end of the lease covers clocks of different rates.
                    self.leader_token, self._leads_until = token, asked + 0.9 * self._lease_ms / 1000
                    self._tell()
                with trio.move_on_after(self._lease_ms / 3000), suppress(StateError):
                    await self._seat_is_free()

    def _stand_down(self, why: StateError) -> None:
        """It does not lead or run any more; whoever waits for it to lead is told."""
        self._over, self._leads_until = why, 0.0
        self._campaign.cancel()
        self._tell()

    def _stopped(self, why: StateError) -> None:
        """The copy has stopped, or another handle has the name."""
        if self._over is None:
            self._stand_down(why)

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _seat_is_free(self) -> None:
        """Return when another handle gives up the seat; never return if the seat is ours or taken."""
        while True:
            if not self.is_leader and self._state.holder(self._SEAT) is None:
                return
            await self.moved()

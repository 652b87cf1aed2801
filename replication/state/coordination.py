"""A queue, locks and elections that every process shares. Their leases run by the timestamps of records."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import trio

from ..client import _arguments as given
from ..client.errors import ClientError
from ._batteries import Holding, Item, LockState, QueueState
from .collections import _Battery
from .errors import StateError
from .replica import Tasks

_LOOK = 0.5
"""Seconds after which who waits for a lease to run out looks again, whatever the clocks of others say."""
_CLOSE_SECONDS = 5.0


class LockLostError(StateError):
    """A lock could not be prolonged in time: another may hold it now."""


class ReplicatedQueue(_Battery):
    """First in, first out. An item that was taken and is not acknowledged within its lease is given out again.

    So an item may be given out twice; what is done with it must bear that, or use `Item.token` as a fencing token.
    After five deliveries in vain it is a dead letter.
    """

    make = QueueState

    async def put(self, value: Any, *, id: str | None = None) -> int:
        """Its id. With `id`, an idempotency key: an item that was put under the same key is not put twice."""
        return int(await self.command("put", value, id=id))

    async def take(self, lease_ms: int = 30_000) -> Item:
        """The oldest item; waits until there is one. Cancelled, it may have been taken: then its lease runs out."""
        given.whole("lease_ms", lease_ms, least=1)
        await self.read()
        while True:
            found = await self.take_nowait(lease_ms) if self._has_some() else None
            if found is not None:
                return found
            with trio.move_on_after(_LOOK):
                await self.moved()

    async def take_nowait(self, lease_ms: int = 30_000) -> Item | None:
        """The oldest item, or None if there is none to be had now."""
        found = await self.command("take", given.whole("lease_ms", lease_ms, least=1))
        return Item(*found) if found is not None else None

    async def ack(self, item: Item) -> bool:
        """It is done; whether it was still ours. If not, somebody else has got it, or will."""
        return bool(await self.command("ack", item.id, item.token))

    async def nack(self, item: Item) -> bool:
        """Give it back at once; whether it was still ours."""
        return bool(await self.command("nack", item.id, item.token))

    async def prolong(self, item: Item, lease_ms: int = 30_000) -> bool:
        """Keep it for so long from now on; whether it was still ours."""
        return bool(
            await self.command("prolong", item.id, item.token, given.whole("lease_ms", lease_ms, least=1))
        )

    async def size(self, *, after: int | None = None) -> int:
        """How many items wait to be taken."""
        await self.read(after=after)
        return self._state.size()

    async def counts(self, *, after: int | None = None) -> dict[str, int]:
        """How many are `waiting`, `taken` and `dead`."""
        await self.read(after=after)
        return self._state.counts()

    async def dead_letters(self) -> list[Item]:
        """What was given out too often in vain."""
        await self.read()
        return self._state.dead_letters()

    async def requeue_dead(self) -> int:
        """Put all dead letters back; how many."""
        return int(await self.command("requeue_dead"))

    def _has_some(self) -> bool:
        due = self._state.next_due_ms()
        return self._state.size() > 0 or (due is not None and due <= time.time() * 1000)

    @property
    def _state(self) -> QueueState:
        state = self.stale
        assert isinstance(state, QueueState)
        return state


class ReplicatedLock(_Battery):
    """Locks by name, with leases and fencing tokens.

    A holder that stands still does not know that its lease has run out. Only what it changes can know: hand the
    token on with each write, and have whoever is written to refuse one that is smaller than one it has seen.
    """

    make = LockState

    async def acquire(self, name: str, lease_ms: int = 30_000) -> int:
        """Wait for the lock; its fencing token, greater than all before. Held by this handle it is prolonged."""
        while True:
            token = await self.acquire_nowait(name, lease_ms)
            if token is not None:
                return token
            while (held := self._state.holder(name)) is not None and held.until_ms > time.time() * 1000:
                with trio.move_on_after(_LOOK):
                    await self.moved()

    async def acquire_nowait(self, name: str, lease_ms: int = 30_000) -> int | None:
        """The fencing token, or None if another holds it."""
        given.whole("lease_ms", lease_ms, least=1)
        is_ours, token, _ = await self.command("acquire", given.text("name", name), self.name, lease_ms)
        return int(token) if is_ours else None

    async def release(self, name: str, token: int) -> bool:
        """Whether it was still held under this token."""
        return bool(await self.command("release", given.text("name", name), given.whole("token", token)))

    async def holder(self, name: str) -> Holding | None:
        """Who holds it now; None: nobody, or one whose lease has run out by the newest record."""
        await self.read()
        held = self._state.holder(name)
        return held if held is not None and held.until_ms > self.clock_ms else None

    @asynccontextmanager
    async def hold(self, name: str, lease_ms: int = 30_000) -> AsyncIterator[int]:
        """Hold the lock in a block, prolonging it; gives the fencing token.

        Raises LockLostError, and cancels the block, if the lease runs out because it could not be prolonged.
        A block that fails gives it back, too; one that is cancelled leaves it to its lease.
        """
        began = trio.current_time()
        token = await self.acquire(name, lease_ms)
        lost: list[LockLostError] = []
        raised: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def prolong(ends: float) -> None:
                while True:
                    await trio.sleep(lease_ms / 3000)
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

            nursery.start_soon(prolong, began + lease_ms / 1000)
            try:
                yield token
            except Exception as error:  # noqa: BLE001 - raised below: the nursery would make a group of it
                raised = error
            finally:
                nursery.cancel_scope.cancel()
        if lost:
            raise lost[0] from raised
        if raised is not None:
            with trio.move_on_after(_CLOSE_SECONDS), suppress(ClientError):
                await self.release(name, token)
            raise raised
        await self.release(name, token)

    @property
    def _state(self) -> LockState:
        state = self.stale
        assert isinstance(state, LockState)
        return state


class ReplicatedElection(ReplicatedLock):
    """One of all that are open leads: for work that one process is to do, as a cron job.

    `is_leader` is by this process's clock; between asking and acting it may have stood still. What must not be done
    twice hands on `leader_token`, as with a lock.
    """

    _SEAT = "leader"

    def __init__(self, *args: Any, lease_ms: int = 10_000, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lease_ms = given.whole("lease_ms", lease_ms, least=100)
        self._leads_until = 0.0
        self._changed = trio.Event()
        self.leader_token: int | None = None
        """The fencing token of the newest leadership of this handle; None: it has never led."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._campaign = trio.CancelScope()
        nursery = await self._stack.enter_async_context(Tasks())
        nursery.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, Exception):
                await self.resign()
        finally:
            self._campaign.cancel()
            await super().__aexit__(kind, error, traceback)

    async def resign(self) -> None:
        """Give the leadership to another at once, and run for it no more."""
        self._campaign.cancel()
        token, was_leader = self.leader_token, self.is_leader
        self._leads_until = 0.0
        if was_leader and token is not None:
            # If this fails another leads when the lease runs out.
            with trio.move_on_after(_CLOSE_SECONDS), suppress(ClientError):
                await self.release(self._SEAT, token)

    @property
    def is_leader(self) -> bool:
        """Whether this handle leads, as far as it can know; it stops believing so before others may lead."""
        return time.monotonic() < self._leads_until

    async def wait_for_leadership(self) -> int:
        """Come back when this handle leads; the fencing token."""
        while not self.is_leader:
            await self._changed.wait()
        assert self.leader_token is not None
        return self.leader_token

    async def leader(self) -> str | None:
        """The name of the handle that leads now."""
        held = await self.holder(self._SEAT)
        return held.owner if held is not None else None

    async def _run(self) -> None:
        with self._campaign:
            while True:
                asked = time.monotonic()
                try:
                    token = await self.acquire_nowait(self._SEAT, self._lease_ms)
                except StateError:
                    return  # the copy has stopped, or another has the name
                except ClientError:
                    token = None
                    await trio.sleep(self._lease_ms / 3000)
                if token is not None:
                    # By a margin earlier than the lease, for clocks that run at different speeds.
                    self.leader_token, self._leads_until = token, asked + 0.9 * self._lease_ms / 1000
                    changed, self._changed = self._changed, trio.Event()
                    changed.set()
                with trio.move_on_after(self._lease_ms / 3000), suppress(StateError):
                    await self._seat_is_free()

    async def _seat_is_free(self) -> None:
        """Come back when somebody else gives the seat back; if it is ours or taken, never."""
        while True:
            if not self.is_leader and self._state.holder(self._SEAT) is None:
                return
            await self.moved()

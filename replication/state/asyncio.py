"""Replicated state for asyncio: the same classes as in `insync.replication.state`, with the same methods.

All of them are async, also those that only look. A call that is cancelled may have been carried out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from ..asyncio._bridge import Bridge, done
from . import collections as _collections
from . import coordination as _coordination
from . import handle as _handle
from . import replica as _replica
from ._copy import Change
from ._faces import CopyFacts, ElectionFacts, Held, Reading, awaited, awaited_plain, portal
from ._resumable import Resumable
from .errors import StateClosedError
from .machine import StateMachine
from .objects import ReplicatedObject
from .settings import StateSettings
from .shards import Shards


class _Face(CopyFacts, Bridge[Any]):
    close_seconds = 15.0
    _not_open = StateClosedError

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(lambda: portal(make))

    @property
    def _copy(self) -> Any:
        return self._held

    submit = awaited(_replica.Replica.submit)
    read = awaited(_replica.Replica.read)
    wait_until = awaited(_replica.Replica.wait_until)
    moved = awaited(_replica.Replica.moved)
    snapshot = awaited(_replica.Replica.snapshot)
    raise_version = awaited(_replica.Replica.raise_version)
    digest = awaited_plain(_replica.Replica.digest)

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[Change]]:
        """See `insync.replication.state.Replica.changes`."""
        async with self._reading(self._held.changes()) as changes:
            yield changes

    @asynccontextmanager
    async def _reading(self, block: Any) -> AsyncIterator[AsyncIterator[Any]]:
        reading = Reading(block)

        async def following() -> Any:
            return await self._call(reading.next, undo=reading.put_back)

        await self._call(reading.begin, undo=reading.end_in(self._portal))
        try:
            yield Resumable(following)
        finally:
            await self._call(reading.end)


class Replica(_Face):
    """See `insync.replication.state.Replica`; `look` runs a function on the machine, where it does not change."""

    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str,
        machine: Callable[[], StateMachine],
        *,
        name: str = "",
        settings: StateSettings | None = None,
        **options: Any,
    ) -> None:
        made = _replica.Replica(servers, topic, machine, name=name, settings=settings, **options)
        super().__init__(lambda: made)

    async def look(self, function: Callable[[Any], Any]) -> Any:
        """The result of a quick function on this copy's machine; call `read` before for a current state."""
        return await self._run(lambda: function(self._held.machine))


class _Opened(_Face):
    held: Any

    @classmethod
    def open(
        cls,
        servers: str | Sequence[str],
        topic: str,
        *,
        name: str = "",
        settings: StateSettings | None = None,
        **options: Any,
    ) -> Self:
        """The arguments are those of `insync.replication.state.Replica`."""
        made = cls.held.open(servers, topic, name=name, settings=settings, **options)
        return cls(lambda: made)


class ReplicatedDict(_Opened):
    """See `insync.replication.state.ReplicatedDict`."""

    held = _collections.ReplicatedDict

    put = awaited(_collections.ReplicatedDict.put)
    put_many = awaited(_collections.ReplicatedDict.put_many)
    put_if = awaited(_collections.ReplicatedDict.put_if)
    delete = awaited(_collections.ReplicatedDict.delete)
    get = awaited(_collections.ReplicatedDict.get)
    items = awaited(_collections.ReplicatedDict.items)
    get_stale = awaited_plain(_collections.ReplicatedDict.get_stale)
    items_stale = awaited_plain(_collections.ReplicatedDict.items_stale)

    @asynccontextmanager
    async def watch(self, key: str | bytes) -> AsyncIterator[AsyncIterator[Any]]:
        """See `insync.replication.state.ReplicatedDict.watch`."""
        async with self._reading(self._held.watch(key)) as values:
            yield values


class ReplicatedCounter(_Opened):
    """See `insync.replication.state.ReplicatedCounter`."""

    held = _collections.ReplicatedCounter

    add = awaited(_collections.ReplicatedCounter.add)
    value = awaited(_collections.ReplicatedCounter.value)
    values = awaited(_collections.ReplicatedCounter.values)
    value_stale = awaited_plain(_collections.ReplicatedCounter.value_stale)


class ReplicatedSet(_Opened):
    """See `insync.replication.state.ReplicatedSet`."""

    held = _collections.ReplicatedSet

    add = awaited(_collections.ReplicatedSet.add)
    discard = awaited(_collections.ReplicatedSet.discard)
    contains = awaited(_collections.ReplicatedSet.contains)
    members = awaited(_collections.ReplicatedSet.members)
    contains_stale = awaited_plain(_collections.ReplicatedSet.contains_stale)


class ReplicatedQueue(_Opened):
    """See `insync.replication.state.ReplicatedQueue`."""

    held = _coordination.ReplicatedQueue

    put = awaited(_coordination.ReplicatedQueue.put)
    take = awaited(_coordination.ReplicatedQueue.take)
    take_nowait = awaited(_coordination.ReplicatedQueue.take_nowait)
    ack = awaited(_coordination.ReplicatedQueue.ack)
    nack = awaited(_coordination.ReplicatedQueue.nack)
    prolong = awaited(_coordination.ReplicatedQueue.prolong)
    size = awaited(_coordination.ReplicatedQueue.size)
    counts = awaited(_coordination.ReplicatedQueue.counts)
    dead_letters = awaited(_coordination.ReplicatedQueue.dead_letters)
    requeue_dead = awaited(_coordination.ReplicatedQueue.requeue_dead)


class ReplicatedLock(_Opened):
    """See `insync.replication.state.ReplicatedLock`."""

    held = _coordination.ReplicatedLock

    acquire = awaited(_coordination.ReplicatedLock.acquire)
    acquire_nowait = awaited(_coordination.ReplicatedLock.acquire_nowait)
    release = awaited(_coordination.ReplicatedLock.release)
    holder = awaited(_coordination.ReplicatedLock.holder)

    @asynccontextmanager
    async def hold(self, name: str, lease_ms: int = 30_000) -> AsyncIterator[int]:
        """Hold the lock in a block, prolonging it; gives the fencing token.

        The block is not cancelled if the lease runs out: leaving it raises LockLostError then.
        """
        held = Held(self._portal, self._held, name, lease_ms)
        try:
            await done(held.token)
            yield held.token.result()
        except BaseException:
            held.release()
            if not held.token.done():
                held.call.abandon()
            raise
        held.release()
        await done(held.call.future)
        held.call.future.result()


class ReplicatedElection(ElectionFacts, ReplicatedLock):
    """See `insync.replication.state.ReplicatedElection`."""

    held = _coordination.ReplicatedElection

    wait_for_leadership = awaited(_coordination.ReplicatedElection.wait_for_leadership)
    leader = awaited(_coordination.ReplicatedElection.leader)
    resign = awaited(_coordination.ReplicatedElection.resign)


class Replicated(_Face):
    """See `insync.replication.state.Replicated`."""

    def __init__(self, made: _handle.Replicated) -> None:
        self._made = made
        super().__init__(lambda: made)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._made, name)
        if isinstance(method, _handle.CommandMethod):
            return _Command(self, method)
        return _Query(self, method)


class _Command:
    def __init__(self, face: Replicated, method: _handle.CommandMethod) -> None:
        self._face = face
        self._method = method

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._face._call(lambda: self._method(*args, **kwargs))

    async def once(self, id: str, /, *args: Any, **kwargs: Any) -> Any:
        """See `insync.replication.state`."""
        return await self._face._call(lambda: self._method.once(id, *args, **kwargs))


class _Query:
    def __init__(self, face: Replicated, method: _handle.QueryMethod) -> None:
        self._face = face
        self._method = method

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._face._call(lambda: self._method(*args, **kwargs))

    async def after(self, token: int, /, *args: Any, **kwargs: Any) -> Any:
        """See `insync.replication.state`."""
        return await self._face._call(lambda: self._method.after(token, *args, **kwargs))

    async def stale(self, *args: Any, **kwargs: Any) -> Any:
        """The answer of this copy itself."""
        return await self._face._run(lambda: self._method.stale(*args, **kwargs))


def replicate(
    make: Callable[[], ReplicatedObject],
    servers: str | Sequence[str],
    topic: str,
    *,
    name: str = "",
    settings: StateSettings | None = None,
    **options: Any,
) -> Replicated:
    """See `insync.replication.state.replicate`."""
    return Replicated(_handle.replicate(make, servers, topic, name=name, settings=settings, **options))


__all__ = [
    "Replica",
    "Replicated",
    "ReplicatedCounter",
    "ReplicatedDict",
    "ReplicatedElection",
    "ReplicatedLock",
    "ReplicatedQueue",
    "ReplicatedSet",
    "Shards",
    "replicate",
]

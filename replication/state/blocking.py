"""Replicated state for threads: the same classes as in `insync.replication.state`, with the same methods.

They block, also those that only look. Any number of threads may share one.
A call that is interrupted may have been done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from .._portal import Held
from . import collections as _collections
from . import coordination as _coordination
from . import handle as _handle
from . import replica as _replica
from ._copy import Change
from ._faces import CopyFacts, ElectionFacts, Reading, blocking, blocking_plain, portal
from ._faces import Held as LockHeld
from .machine import StateMachine
from .objects import ReplicatedObject
from .settings import StateSettings
from .shards import BlockingShards as Shards


class _Face(CopyFacts, Held[Any]):
    close_seconds = 15.0

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(portal(make))

    @property
    def _copy(self) -> Any:
        return self._held

    submit = blocking(_replica.Replica.submit)
    read = blocking(_replica.Replica.read)
    wait_until = blocking(_replica.Replica.wait_until)
    moved = blocking(_replica.Replica.moved)
    snapshot = blocking(_replica.Replica.snapshot)
    raise_version = blocking(_replica.Replica.raise_version)
    digest = blocking_plain(_replica.Replica.digest)

    @contextmanager
    def changes(self) -> Iterator[Iterator[Change]]:
        """See `insync.replication.state.Replica.changes`; to be read by one thread."""
        with self._reading(self._held.changes()) as changes:
            yield changes

    @contextmanager
    def _reading(self, block: Any) -> Iterator[Iterator[Any]]:
        reading, portal = Reading(block), self._portal

        def all_read() -> Iterator[Any]:
            while True:
                try:
                    read = portal.call(reading.next)
                except StopAsyncIteration:
                    return
                yield read

        portal.call(reading.begin, undo=reading.end_in(portal))
        try:
            yield all_read()
        finally:
            portal.call(reading.end)


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

    def look(self, function: Callable[[Any], Any]) -> Any:
        """The result of a quick function on this copy's machine; call `read` before for a current state."""
        return _look(self, function)


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

    put = blocking(_collections.ReplicatedDict.put)
    put_many = blocking(_collections.ReplicatedDict.put_many)
    put_if = blocking(_collections.ReplicatedDict.put_if)
    delete = blocking(_collections.ReplicatedDict.delete)
    get = blocking(_collections.ReplicatedDict.get)
    items = blocking(_collections.ReplicatedDict.items)
    get_stale = blocking_plain(_collections.ReplicatedDict.get_stale)
    items_stale = blocking_plain(_collections.ReplicatedDict.items_stale)

    @contextmanager
    def watch(self, key: str | bytes) -> Iterator[Iterator[Any]]:
        """See `insync.replication.state.ReplicatedDict.watch`; to be read by one thread."""
        with self._reading(self._held.watch(key)) as values:
            yield values


class ReplicatedCounter(_Opened):
    """See `insync.replication.state.ReplicatedCounter`."""

    held = _collections.ReplicatedCounter

    add = blocking(_collections.ReplicatedCounter.add)
    value = blocking(_collections.ReplicatedCounter.value)
    values = blocking(_collections.ReplicatedCounter.values)
    value_stale = blocking_plain(_collections.ReplicatedCounter.value_stale)


class ReplicatedSet(_Opened):
    """See `insync.replication.state.ReplicatedSet`."""

    held = _collections.ReplicatedSet

    add = blocking(_collections.ReplicatedSet.add)
    discard = blocking(_collections.ReplicatedSet.discard)
    contains = blocking(_collections.ReplicatedSet.contains)
    members = blocking(_collections.ReplicatedSet.members)
    contains_stale = blocking_plain(_collections.ReplicatedSet.contains_stale)


class ReplicatedQueue(_Opened):
    """See `insync.replication.state.ReplicatedQueue`."""

    held = _coordination.ReplicatedQueue

    put = blocking(_coordination.ReplicatedQueue.put)
    take = blocking(_coordination.ReplicatedQueue.take)
    take_nowait = blocking(_coordination.ReplicatedQueue.take_nowait)
    ack = blocking(_coordination.ReplicatedQueue.ack)
    nack = blocking(_coordination.ReplicatedQueue.nack)
    prolong = blocking(_coordination.ReplicatedQueue.prolong)
    size = blocking(_coordination.ReplicatedQueue.size)
    counts = blocking(_coordination.ReplicatedQueue.counts)
    dead_letters = blocking(_coordination.ReplicatedQueue.dead_letters)
    requeue_dead = blocking(_coordination.ReplicatedQueue.requeue_dead)


class ReplicatedLock(_Opened):
    """See `insync.replication.state.ReplicatedLock`."""

    held = _coordination.ReplicatedLock

    acquire = blocking(_coordination.ReplicatedLock.acquire)
    acquire_nowait = blocking(_coordination.ReplicatedLock.acquire_nowait)
    release = blocking(_coordination.ReplicatedLock.release)
    holder = blocking(_coordination.ReplicatedLock.holder)

    @contextmanager
    def hold(self, name: str, lease_ms: int = 30_000) -> Iterator[int]:
        """Hold the lock in a block, prolonging it; gives the fencing token.

        The block is not ended if the lease runs out: leaving it raises LockLostError then.
        """
        held = LockHeld(self._portal, self._held, name, lease_ms)
        try:
            yield held.token.result()
        except BaseException:
            held.release()
            if not held.token.done():
                held.call.abandon()
            raise
        held.release()
        held.call.future.result()


class ReplicatedElection(ElectionFacts, ReplicatedLock):
    """See `insync.replication.state.ReplicatedElection`."""

    held = _coordination.ReplicatedElection

    wait_for_leadership = blocking(_coordination.ReplicatedElection.wait_for_leadership)
    leader = blocking(_coordination.ReplicatedElection.leader)
    resign = blocking(_coordination.ReplicatedElection.resign)


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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._face._portal.call(lambda: self._method(*args, **kwargs))

    def once(self, id: str, /, *args: Any, **kwargs: Any) -> Any:
        """See `insync.replication.state`."""
        return self._face._portal.call(lambda: self._method.once(id, *args, **kwargs))


class _Query:
    def __init__(self, face: Replicated, method: _handle.QueryMethod) -> None:
        self._face = face
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._face._portal.call(lambda: self._method(*args, **kwargs))

    def after(self, token: int, /, *args: Any, **kwargs: Any) -> Any:
        """See `insync.replication.state`."""
        return self._face._portal.call(lambda: self._method.after(token, *args, **kwargs))

    def stale(self, *args: Any, **kwargs: Any) -> Any:
        """The answer of this copy itself."""

        async def run() -> Any:
            return self._method.stale(*args, **kwargs)

        return self._face._portal.call(run)


def _look(face: Replica, function: Callable[[Any], Any]) -> Any:
    async def run() -> Any:
        return function(face._held.machine)

    return face._portal.call(run)


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

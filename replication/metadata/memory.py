"""A store in memory, shared by several handles of one process: for tests, the simulator and single-process use."""

from __future__ import annotations

import secrets
import weakref
from bisect import bisect_left, insort
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import takewhile
from types import TracebackType
from typing import Literal, Self

import attrs
import trio

from ._history import History
from ._transaction import check_key, check_prefix, check_timeout, check_transaction, holds
from ._values import (
    Committed,
    Compare,
    Conflict,
    Delete,
    Delta,
    Entry,
    Listing,
    Operation,
    Outcome,
    Read,
    TooOld,
    Unknown,
)
from ._watch import WatchHub
from .abc import MetadataStore, Session, Watch
from .errors import (
    InvalidTransactionError,
    SessionExpiredError,
    StoreClosedError,
    StoreUnavailableError,
)

_named: weakref.WeakValueDictionary[str, MemoryHub] = weakref.WeakValueDictionary()


class MemoryHub:
    """The shared state of one memory store's handles, and the faults that a test may inject.

    watch_delay: seconds of trio's clock by which every watch event comes late.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.store_id = secrets.token_hex(16)
        self.watch_delay = 0.0
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._history = History()
        self._sessions: dict[int, MemorySession] = {}
        self._last_session_id = 0
        self._handles: set[MemoryStore] = set()
        self._outage = False
        self._unknown: Literal["applied", "dropped"] | None = None

    @classmethod
    def named(cls, name: str) -> MemoryHub:
        """The hub of this name, made at first use; it lives as long as somebody holds it."""
        hub = _named.get(name)
        if hub is None:
            hub = _named[name] = cls()
        return hub

    def store(self) -> MemoryStore:
        """A new handle."""
        return MemoryStore(self)

    def expire(self, session: Session) -> None:
        """End a session as if its timeout had passed."""
        self._end_session(session.id)

    def stop_renewing(self, session: Session) -> None:
        """Let a session end `timeout_ms` from now, as if its process had been stopped or killed."""
        if (found := self._sessions.get(session.id)) is not None:
            found.start_countdown()

    def start_outage(self) -> None:
        """Make every method raise `StoreUnavailableError`, and stop all renewals, until `end_outage`."""
        self._outage = True
        for session in self._sessions.values():
            session.start_countdown()

    def end_outage(self) -> None:
        """Bring the store back: surviving sessions live on, every watch gets a `Resync`."""
        self._outage = False
        for session in self._sessions.values():
            session.stop_countdown()
        for handle in self._handles:
            handle.watches.resync(self.revision)

    def lose_next_outcome(self, how: Literal["applied", "dropped"]) -> None:
        """Answer the next commit with `Unknown`, after applying it or instead of it."""
        self._unknown = how

    def check_reachable(self) -> None:
        """Raise `StoreUnavailableError` during an outage."""
        if self._outage:
            raise StoreUnavailableError("the memory store is in an outage that a test began")

    def get(self, key: str) -> Read:
        return Read(self.revision, self._entries.get(key), self.store_id)

    def list(self, prefix: str) -> Listing:
        tail = self._keys[bisect_left(self._keys, prefix) :]
        keys = takewhile(lambda key: key.startswith(prefix), tail)
        return Listing(self.revision, {key: self._entries[key] for key in keys}, self.store_id)

    def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        changed = self._history.since(since_revision)
        if changed is None or since_revision > self.revision:
            return TooOld(self.revision, self.store_id)
        chosen = [key for key in changed if key.startswith(prefix)]
        entries = {key: self._entries[key] for key in chosen if key in self._entries}
        return Delta(self.revision, entries, frozenset(chosen) - entries.keys(), self.store_id)

    def raise_revision(self, floor: int, store_id: str | None) -> int:
        self.revision = max(self.revision, floor) + 1
        self._last_session_id = max(self._last_session_id, self.revision)
        self._history.restart(self.revision)
        self.store_id = store_id or self.store_id
        for handle in self._handles:
            handle.watches.resync(self.revision)
        return self.revision

    def commit(
        self, compares: Sequence[Compare], operations: Sequence[Operation], session_id: int | None
    ) -> Outcome:
        if session_id is not None and session_id not in self._sessions:
            raise SessionExpiredError(session_id)
        unknown, self._unknown = self._unknown, None
        if unknown == "dropped":
            return Unknown("a test dropped the transaction")
        for compare in compares:
            if not holds(compare, self._entries.get(compare.key)):
                return Conflict(compare.key)
        committed = self._apply(operations, session_id)
        return Unknown("a test withheld the outcome") if unknown == "applied" else committed

    def _apply(self, operations: Sequence[Operation], session_id: int | None) -> Committed:
        changes = [op for op in operations if not isinstance(op, Delete) or op.key in self._entries]
        if not changes:
            return Committed(self.revision, {})
        self.revision += 1
        versions: dict[str, int] = {}
        for change in changes:
            if isinstance(change, Delete):
                self._remove(change.key)
            else:
                owner = session_id if change.ephemeral else None
                versions[change.key] = self._put(change.key, change.value, owner)
        self._changed([change.key for change in changes])
        return Committed(self.revision, versions)

    def _put(self, key: str, value: bytes, owner: int | None) -> int:
        old = self._entries.get(key)
        if old is None:
            insort(self._keys, key)
        version = 1 if old is None else old.version + 1
        self._entries[key] = Entry(key, value, version, self.revision, owner)
        return version

    def _remove(self, key: str) -> None:
        del self._entries[key]
        del self._keys[bisect_left(self._keys, key)]

    def _changed(self, keys: Sequence[str]) -> None:
        self._history.add(self.revision, keys)
        self._announce(keys)

    def _announce(self, keys: Sequence[str]) -> None:
        if not self._outage:
            for handle in self._handles:
                handle.watches.changed(keys, self.revision)

    def attach(self, handle: MemoryStore) -> None:
        self._handles.add(handle)

    def detach(self, handle: MemoryStore) -> None:
        """Forget a handle and end its sessions."""
        self._handles.discard(handle)
        for session in [s for s in self._sessions.values() if s.handle is handle]:
            self._end_session(session.id)

    def open_session(self, handle: MemoryStore, timeout_ms: int, nursery: trio.Nursery) -> MemorySession:
        self._last_session_id += 1
        session = MemorySession(self._last_session_id, timeout_ms, handle, nursery)
        self._sessions[session.id] = session
        return session

    def _end_session(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        session.stop_countdown()
        session.expired.set()
        self.revision += 1
        keys = [entry.key for entry in self._entries.values() if entry.session_id == session_id]
        for key in keys:
            self._remove(key)
        self._changed(keys)


@attrs.define(eq=False, init=False)
class MemorySession(Session):
    """A session that needs no renewals: it ends by `close` or by a fault that a test injects."""

    id: int
    timeout_ms: int
    expired: trio.Event
    handle: MemoryStore
    _nursery: trio.Nursery
    _countdown: trio.CancelScope | None

    def __init__(self, id: int, timeout_ms: int, handle: MemoryStore, nursery: trio.Nursery) -> None:
        self.id = id
        self.timeout_ms = timeout_ms
        self.expired = trio.Event()
        self.handle = handle
        self._nursery = nursery
        self._countdown = None

    def start_countdown(self) -> None:
        """End the session after its timeout."""
        if self._countdown is None:
            self._countdown = trio.CancelScope()
            self._nursery.start_soon(self._count_down, self._countdown, trio.current_time())

    def stop_countdown(self) -> None:
        """Renew the session."""
        if self._countdown is not None:
            self._countdown.cancel()
            self._countdown = None

    async def _count_down(self, scope: trio.CancelScope, start: float) -> None:
        with scope:
            await trio.sleep_until(start + self.timeout_ms / 1000)
            self._countdown = None
            self.handle.hub.expire(self)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.expired.is_set():
            self.handle.hub.check_reachable()
            self.handle.hub.expire(self)


class MemoryStore(MetadataStore):
    """A handle on a `MemoryHub`; without one, on a hub of its own."""

    def __init__(self, hub: MemoryHub | None = None) -> None:
        self.hub = hub if hub is not None else MemoryHub()
        self.watches = WatchHub(partial(getattr, self.hub, "watch_delay"))
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> Self:
        if self._nursery is not None:
            raise StoreClosedError("a store handle can be entered once only; ask the hub for another")
        self.hub.check_reachable()
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        self.hub.attach(self)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.hub.detach(self)
        self.watches.close()
        assert self._nursery is not None and self._nursery_manager is not None, "it was entered"
        # Cancelled already if one of its tasks failed; it must be left in any case.
        self._nursery.cancel_scope.cancel()
        await self._nursery_manager.__aexit__(None, None, None)

    def _live_nursery(self) -> trio.Nursery:
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            raise StoreClosedError("the memory store is not open; use it inside `async with store:`")
        return self._nursery

    async def _reach(self) -> None:
        self._live_nursery()
        await trio.lowlevel.checkpoint()
        self.hub.check_reachable()

    async def get(self, key: str) -> Read:
        check_key(key)
        await self._reach()
        return self.hub.get(key)

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        await self._reach()
        return self.hub.list(prefix)

    async def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        check_prefix(prefix)
        await self._reach()
        return self.hub.changes(prefix, since_revision)

    async def commit(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> Outcome:
        check_transaction(compares, operations, session is not None, self.limits)
        if session is not None and not (isinstance(session, MemorySession) and session.handle is self):
            raise InvalidTransactionError(f"session {session.id} was opened by another handle")
        await self._reach()
        return self.hub.commit(compares, operations, None if session is None else session.id)

    async def raise_revision(self, floor: int, *, store_id: str | None = None) -> int:
        await self._reach()
        return self.hub.raise_revision(floor, store_id)

    async def open_session(self, timeout_ms: int) -> MemorySession:
        check_timeout(timeout_ms)
        await self._reach()
        return self.hub.open_session(self, timeout_ms, self._live_nursery())

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Watch]:
        check_prefix(prefix)
        return self.watches.open(prefix, self._start_watch)

    async def _start_watch(self) -> int:
        await self._reach()
        return self.hub.revision

"""The border between the framework and the code of a store, which anybody may have written.

`open_store` puts every store behind it. An exception of a store that the interface does not know, raised anywhere
(in a call, in a watch, in a task of its own), becomes `StoreUnavailableError`, or `Unknown` of a transaction. A
call that does not return has a deadline. Failures that follow each other are told later and later, see `Pace`. So
a defect of a plugin, a damaged file or a full disk costs a node its store for as long, and nothing else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

import attrs
import trio

from .._places import place_of
from ._limits import Limits
from ._pace import CountedLog, OutageLog, Pace
from ._transaction import check_key, check_prefix, check_timeout, check_transaction
from ._values import Compare, Delta, Listing, Operation, Outcome, Read, TooOld, Unknown
from ._watch import PrefixWatch, WatchHub
from .abc import MetadataStore, Session, Watch
from .errors import (
    InvalidTransactionError,
    MetadataError,
    SessionExpiredError,
    StoreClosedError,
    StoreCorruptError,
    StoreUnavailableError,
    StoreVersionError,
)

CALL_SECONDS = 15.0
"""Time limit of a read or a transaction: longer than any store of the framework waits for a lock or an answer."""

SESSION_SECONDS = 30.0
"""Time limit of opening or closing a session, which may be a connection of its own."""

OPENING = "open"
_READS = frozenset(("get", "list", "changes"))

T = TypeVar("T")
R = TypeVar("R", Read, Listing, Delta, TooOld, Delta | TooOld)

log = logging.getLogger("insync.metadata")


class StoreFailedError(StoreUnavailableError):
    """The store's code raised what the interface does not know, or did not return in time.

    A read: nothing came of it. A transaction is `Unknown` instead. The original error is the cause.
    """


@attrs.frozen
class _Failure:
    """A failure of a store's code. what: the same for failures of the same kind."""

    what: str
    text: str
    cause: BaseException | None = None

    def error(self) -> StoreFailedError:
        error = StoreFailedError(self.text)
        error.__cause__ = self.cause
        return error


def _kind(call: str) -> str:
    return "read" if call in _READS else "write"


def _plugin(store: MetadataStore) -> str:
    return f"{type(store).__module__}.{type(store).__name__}"


def _leaf(error: BaseException) -> BaseException:
    """The first error of a group, the error itself if it is none."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class GuardedSession(Session):
    """A session of the store behind the border, which ends with that store's handle at the latest."""

    def __init__(self, store: GuardedStore, inner: Session, owner: MetadataStore) -> None:
        self.id = inner.id
        self.timeout_ms = inner.timeout_ms
        self.expired = inner.expired
        self.store = store
        self.inner = inner
        self.owner = owner

    async def close(self) -> None:
        await self.store.close_session(self)


class GuardedStore(MetadataStore):
    """A handle on the store that `make` makes; it stands in a task of its own, so that its errors end there.

    name: for messages, what the store is and where; without secrets. wait_seconds: how long entering it waits for a
    store that `is_elsewhere`. When a task of the store itself fails, its
    handle is left and another one is made, with pauses, until that works: sessions are over then, and watches get a
    `Resync`.
    """

    def __init__(self, make: Callable[[], MetadataStore], name: str, *, wait_seconds: float = 0.0) -> None:
        self.name = name
        self._make = make
        self._wait_seconds = wait_seconds
        self.inner = make()
        self.default_session_timeout_ms = self.inner.default_session_timeout_ms
        self._watches = WatchHub()
        self._sessions: set[GuardedSession] = set()
        self._calls: dict[trio.CancelScope, _Failure | None] = {}
        self._pace = Pace()
        self._told = CountedLog(log)
        self._nameless_told = False
        self._outage = OutageLog(log, name)
        self._leave = trio.Event()
        self._left = trio.Event()
        self._hosting = trio.CancelScope()
        self._entered = False
        self._broken: _Failure | None = None
        self._mended = trio.Event()
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None

    # opening and leaving

    async def __aenter__(self) -> Self:
        if self._nursery_manager is not None:
            raise StoreClosedError(f"this handle on {self.name} was entered before; make another one")
        self._nursery_manager = trio.open_nursery()
        nursery = await self._nursery_manager.__aenter__()
        refused: MetadataError | None = StoreUnavailableError(f"{self.name} was not entered")
        try:
            refused = await nursery.start(self._host)
        finally:
            if refused is not None:
                nursery.cancel_scope.cancel()
                await self._nursery_manager.__aexit__(None, None, None)
        if refused is not None:
            raise refused
        self._nursery = nursery
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        nursery, manager = self._open(), self._nursery_manager
        assert manager is not None, "entered with the nursery"
        self._nursery = None
        self._watches.close()
        self._leave.set()
        if self._broken is not None:
            self._hosting.cancel()
        with trio.CancelScope(shield=True), trio.move_on_after(SESSION_SECONDS):
            await self._left.wait()
        self._hosting.cancel()
        nursery.cancel_scope.cancel()
        await manager.__aexit__(None, None, None)
        for session in self._sessions:
            session.expired.set()

    def _open(self) -> trio.Nursery:
        if self._nursery is None:
            raise StoreClosedError(f"{self.name} is not open; use it inside `async with store:`")
        return self._nursery

    async def _host(self, task_status: trio.TaskStatus[MetadataError | None]) -> None:
        """Hold the store's handle, in a task of its own; after a failure of its own tasks, another one."""
        with self._hosting:
            deadline = trio.current_time() + self._wait_seconds
            while (refused := await self._hold(task_status)) is not None and not self._entered:
                if not self._may_come(refused) or trio.current_time() >= deadline:
                    task_status.started(refused)
                    return
                self._outage.failed(OPENING, str(refused))
                await self._pace.failed(OPENING)
                self.inner = self._make()
            while self._entered and not self._leave.is_set():
                await self._pace.failed(OPENING)
                self.inner = self._make()
                await self._hold(trio.TASK_STATUS_IGNORED)
        self._left.set()

    def _may_come(self, refused: MetadataError) -> bool:
        return self.inner.is_elsewhere and isinstance(refused, StoreUnavailableError)

    async def _hold(self, task_status: trio.TaskStatus[MetadataError | None]) -> MetadataError | None:
        """Enter the store and hold it until it is left or fails; the error if that happens."""
        entered = False
        try:
            async with self.inner:
                entered = self._entered = True
                # Who uses the store may be cancelled and still have to write; it is left when they are done.
                self._hosting.shield = True
                self._broken = None
                self._mended.set()
                self._pace.worked(OPENING)
                self._outage.worked(OPENING)
                task_status.started(None)
                await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - the border: any error of a plugin's ends here, told as a failure
            known = _leaf(error)
            if not entered and isinstance(known, MetadataError):
                if self._entered:
                    self._told.error(
                        f"open {type(known)}", f"{self.name} cannot be opened again yet: {known}"
                    )
                return known
            failure = self._failure("a task of its own" if entered else OPENING, error)
            if self._entered:
                self._tell(failure)
            if entered:
                self._fail(failure)
            return failure.error()
        return None

    def _fail(self, failure: _Failure) -> None:
        """The handle is gone, and with it whatever was under way or stood on it."""
        self._broken = failure
        self._mended = trio.Event()
        for session in list(self._sessions):
            session.expired.set()
        for scope in self._calls:
            self._calls[scope] = failure
            scope.cancel()

    # calls

    def _failure(self, call: str, error: BaseException) -> _Failure:
        leaf = _leaf(error)
        kind = type(leaf)
        return _Failure(
            f"{call} {kind.__name__}",
            f"{self.name}: {call} of {_plugin(self.inner)} raised {kind.__module__}.{kind.__qualname__}: "
            f"{leaf}{place_of(leaf)}",
            error,
        )

    def _stalled(self, call: str, seconds: float) -> _Failure:
        return _Failure(f"{call} stalled", f"{self.name}: {call} did not return within {seconds:g} s")

    def _tell(self, failure: _Failure) -> None:
        self._told.error(failure.what, failure.text)

    async def _run(
        self,
        call: str,
        function: Callable[[], Awaitable[T]],
        seconds: float,
        scope: trio.CancelScope | None = None,
    ) -> T | _Failure:
        """The result of a call of the store, or its failure. Raises what the interface knows."""
        scope = scope or trio.CancelScope()
        scope.deadline = trio.current_time() + seconds
        self._calls[scope] = None
        result: T
        try:
            with scope:
                result = await function()
        except MetadataError as error:
            return self._sorted(call, error)
        except Exception as error:  # noqa: BLE001 - as above
            leaf = _leaf(error)
            return self._sorted(call, leaf) if isinstance(leaf, MetadataError) else self._failure(call, error)
        finally:
            failure = self._calls.pop(scope)
        if scope.cancelled_caught:
            return failure or self._stalled(call, seconds)
        return result

    def _sorted(self, call: str, error: MetadataError) -> _Failure:
        """Raise what callers know. Any other error of a store is an outage to them, however it came about."""
        match error:
            case StoreClosedError() if not self._leave.is_set():
                return self._failure(call, error)
            case StoreCorruptError() | StoreVersionError():
                raise StoreUnavailableError(str(error)) from error
        raise error

    async def _call(
        self, call: str, function: Callable[[MetadataStore], Awaitable[T]], seconds: float = CALL_SECONDS
    ) -> T | _Failure:
        """As `_run`, with the pauses after failures, and told in the log."""
        self._open()
        if (broken := self._broken) is not None:
            await self._pace.failed(call)
            raise broken.error()
        inner = self.inner
        try:
            result = await self._run(call, lambda: function(inner), seconds)
        except StoreUnavailableError as error:
            if inner.is_elsewhere:
                self._outage.failed(_kind(call), str(error))
            await self._pace.failed(call)
            raise
        except MetadataError:
            self._worked(call)
            raise
        if isinstance(result, _Failure):
            self._tell(result)
            await self._pace.failed(call)
        else:
            self._worked(call)
        return result

    def _worked(self, call: str) -> None:
        self._pace.worked(call)
        self._outage.worked(_kind(call))

    async def _ask(
        self, call: str, function: Callable[[MetadataStore], Awaitable[T]], seconds: float = CALL_SECONDS
    ) -> T:
        result = await self._call(call, function, seconds)
        if isinstance(result, _Failure):
            raise result.error()
        return result

    def _named(self, reading: R) -> R:
        """The reading; the first that does not name its store is told."""
        if not reading.store_id and not self._nameless_told:
            self._nameless_told = True
            log.warning(
                "%s: a %s of %s has an empty store_id, so that nodes would not notice another store in its place; "
                "give the store a random text when it is made, and each reading this text",
                self.name,
                type(reading).__name__,
                _plugin(self.inner),
            )
        return reading

    # the interface

    @property
    def limits(self) -> Limits:
        try:
            return self.inner.limits
        except MetadataError:
            raise
        except Exception as error:
            failure = self._failure("limits", error)
            self._tell(failure)
            raise failure.error() from error

    async def get(self, key: str) -> Read:
        check_key(key)
        return self._named(await self._ask("get", lambda inner: inner.get(key)))

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        return self._named(await self._ask("list", lambda inner: inner.list(prefix)))

    async def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        check_prefix(prefix)
        return self._named(await self._ask("changes", lambda inner: inner.changes(prefix, since_revision)))

    async def commit(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> Outcome:
        self._open()
        check_transaction(compares, operations, session is not None, self.limits)
        own = None if session is None else self._own(session)
        inner = None if own is None else own.inner
        try:
            outcome = await self._call(
                "commit", lambda store: store.commit(compares, operations, session=inner)
            )
        except SessionExpiredError:
            if own is not None:
                own.expired.set()
            raise
        if isinstance(outcome, _Failure):
            return Unknown(outcome.text)
        return outcome

    def _own(self, session: Session) -> GuardedSession:
        if not (isinstance(session, GuardedSession) and session.store is self):
            raise InvalidTransactionError(f"session {session.id} was opened by another handle")
        if session.expired.is_set() or session.owner is not self.inner:
            raise SessionExpiredError(session.id)
        return session

    async def raise_revision(self, floor: int, *, store_id: str | None = None) -> int:
        return await self._ask("raise_revision", lambda inner: inner.raise_revision(floor, store_id=store_id))

    def ddl(self) -> str:
        return self.inner.ddl()

    async def open_session(self, timeout_ms: int) -> GuardedSession:
        check_timeout(timeout_ms)
        self._open()
        owner = self.inner
        inner = await self._ask("open_session", lambda inner: inner.open_session(timeout_ms), SESSION_SECONDS)
        session = GuardedSession(self, inner, owner)
        self._sessions = {each for each in self._sessions if not each.expired.is_set()} | {session}
        return session

    async def close_session(self, session: GuardedSession) -> None:
        """Of a session that is over, nothing; its owner may be gone."""
        self._sessions.discard(session)
        if session.expired.is_set() or session.owner is not self.inner or self._nursery is None:
            await trio.lowlevel.checkpoint()
            session.expired.set()
            return
        await self._ask("close", lambda _: session.inner.close(), SESSION_SECONDS)

    # watches

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Watch]:
        check_prefix(prefix)
        return self._watching(prefix)

    @asynccontextmanager
    async def _watching(self, prefix: str) -> AsyncIterator[Watch]:
        """The store's watch stands in a task of its own, which passes its events on."""
        relay = _Relay(prefix)

        async def start() -> int:
            revision = await self._open().start(self._relay, relay)
            if isinstance(revision, MetadataError):
                raise revision
            assert isinstance(revision, int), "a relay begins with a revision or an error"
            return revision

        try:
            async with self._watches.open(prefix, start) as watch:
                assert isinstance(watch, PrefixWatch)
                relay.target = watch
                relay.ready.set()
                yield watch
        finally:
            relay.scope.cancel()

    async def _relay(self, relay: _Relay, task_status: trio.TaskStatus[int | MetadataError]) -> None:
        """Pass events on. After a failure another watch begins, with an event that says so."""
        with relay.scope:
            while not self._leave.is_set():
                try:
                    # Until its first event a watch has a deadline, as a call has.
                    relay.opening = trio.CancelScope()
                    result = await self._run(
                        "watch", lambda: self._pass_on(relay, task_status), CALL_SECONDS, relay.opening
                    )
                except MetadataError as error:
                    result = _Failure(f"watch {type(error).__name__}", f"{self.name}: {error}", error)
                if self._leave.is_set():
                    break
                if relay.target is None:
                    failure = result or _Failure("watch", f"{self.name}: a watch ended as it began")
                    known = failure.cause
                    await self._pace.failed("watch")
                    task_status.started(
                        known if isinstance(known, StoreUnavailableError) else failure.error()
                    )
                    return
                if result is not None:
                    self._told.error(
                        result.what, f"the watch of {relay.prefix!r} is interrupted: {result.text}"
                    )
                await self._pace.failed("watch")
                await self._mended.wait()

    async def _pass_on(self, relay: _Relay, task_status: trio.TaskStatus[int | MetadataError]) -> None:
        async with self.inner.watch(relay.prefix) as watch:
            event = await watch.__anext__()
            relay.opening.deadline = math.inf
            self._pace.worked("watch")
            if relay.target is None:
                task_status.started(event.revision)
                await relay.ready.wait()
            else:
                relay.target.resync(event.revision)
            assert relay.target is not None, "it is there with the first event"
            async for event in watch:
                relay.target.pass_on(event)


@attrs.define(eq=False)
class _Relay:
    """A watch of a caller, and the task that passes the store's events on to it."""

    prefix: str
    target: PrefixWatch | None = None
    ready: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    opening: trio.CancelScope = attrs.field(factory=trio.CancelScope)

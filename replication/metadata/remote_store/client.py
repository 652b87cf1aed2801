"""`remote+SCHEME://...`: a store that another process serves, reached over any transport."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import Self

import attrs
import msgspec
import trio

from ....transport import (
    AuthError,
    Connection,
    FrameTooLargeError,
    Identity,
    NotAuthorisedError,
    ProtocolError,
    RemoteError,
    SecretError,
    Security,
    TransportError,
    VersionMismatchError,
    connect,
)
from ....transport import Limits as FrameLimits
from .._limits import Limits
from .._transaction import check_key, check_prefix, check_timeout, check_transaction, own_session
from .._values import Compare, Delta, Listing, Operation, Outcome, Read, Resync, TooOld, Unknown
from .._watch import PrefixWatch, WatchHub
from ..abc import MetadataStore, Session, Watch
from ..errors import (
    InvalidTransactionError,
    MetadataError,
    SessionExpiredError,
    StoreClosedError,
    StoreCorruptError,
    StoreLostError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnsupportedError,
    TransactionTooLargeError,
)
from . import _messages as m

REQUEST_SECONDS = 5.0
_ATTEMPT_SECONDS = 1.0
_RETRY_SECONDS = 0.05
_RENEWALS_PER_TIMEOUT = 4
_FOREVER = float("inf")

_FRAME = Limits(max_bytes=FrameLimits().max_body_bytes - 1024, item_bytes=32)
"""A transaction goes in one frame: msgpack takes less than this for each item, and for the rest."""

log = logging.getLogger("insync.metadata")


class RemoteSession(Session):
    """A session at the server, renewed from here four times in each timeout.

    It counts as over once the server said so, or has answered no renewal that was sent within the timeout.
    """

    def __init__(self, store: RemoteStore, opened: m.Opened, sent: float) -> None:
        self.id = opened.id
        self.timeout_ms = opened.timeout_ms
        self.expired = trio.Event()
        self.store = store
        self.handle = opened.handle
        self._alive_until = sent + opened.timeout_ms / 1000
        self._scope = trio.CancelScope()

    async def keep_renewing(self) -> None:
        """Renew until the session is over."""
        period = self.timeout_ms / 1000 / _RENEWALS_PER_TIMEOUT
        with self._scope:
            while True:
                with trio.CancelScope(deadline=self._alive_until) as patience:
                    await trio.sleep(period)
                    await self._renew(period)
                if patience.cancelled_caught or trio.current_time() >= self._alive_until:
                    log.warning("metadata session %d was not renewed for %d ms", self.id, self.timeout_ms)
                    self.end()

    async def _renew(self, seconds: float) -> None:
        sent = trio.current_time()
        try:
            await self.store.ask(m.Kind.RENEW_SESSION, m.Handle(self.handle), seconds)
        except SessionExpiredError:
            log.warning("metadata session %d (%d ms) is over", self.id, self.timeout_ms)
            self.end()
        except MetadataError as error:
            log.debug("metadata session %d cannot be renewed: %s", self.id, error)
        else:
            self._alive_until = sent + self.timeout_ms / 1000

    def stop_renewing(self) -> None:
        """Let the session run out, as if this process were stopped; for tests of what others then do."""
        self._scope.cancel()

    def end(self) -> None:
        self.expired.set()
        self._scope.cancel()
        self.store.forget(self)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.expired.is_set():
            try:
                await self.store.ask(m.Kind.CLOSE_SESSION, m.Handle(self.handle))
            finally:
                self.end()


@attrs.frozen
class _Engine:
    """The parts that an open handle runs on."""

    nursery: trio.Nursery
    nursery_manager: AbstractAsyncContextManager[trio.Nursery]


class RemoteStore(MetadataStore):
    """A handle on the store served at `url` (of a transport: tcp://host:port, unix:///path, ...).

    It connects when first needed and again after every loss. While there is no connection everything raises
    `StoreUnavailableError`; a transaction whose answer was lost is `Unknown`. When the server starts again all
    sessions are over.

    `security`: what to prove to the server, and to ask of it. `identity`: as whom to come; servers let in the nodes
    of their cluster, and whom their rules name (else `StoreRefusedError`).
    """

    is_elsewhere = True

    def __init__(
        self,
        url: str,
        *,
        security: Security | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.url = url
        self._identity = identity or Identity()
        self._security = security
        self._connection: Connection | None = None
        self._connecting = trio.Lock()
        self._sessions: set[RemoteSession] = set()
        self._watches = WatchHub()
        self._watch_numbers = 0
        self._engine: _Engine | None = None
        self._entered = False
        self._limits = _FRAME

    # opening and leaving

    async def __aenter__(self) -> Self:
        if self._entered:
            raise StoreClosedError("a store handle can be entered once only; make another one")
        self._entered = True
        manager = trio.open_nursery()
        self._engine = _Engine(await manager.__aenter__(), manager)
        try:
            self._limits = await self._first_answer()
        except BaseException as error:
            engine, self._engine = self._engine, None
            engine.nursery.cancel_scope.cancel()
            await manager.__aexit__(None, None, None)
            raise error
        return self

    async def _first_answer(self) -> Limits:
        """The limits. A proof that is refused now is refused later, too: nobody is to wait for that."""
        try:
            described = self._read(await self.ask(m.Kind.DESCRIBE, m.Nothing()), m.Described)
        except StoreUnavailableError as error:
            if isinstance(error.__cause__, AuthError | SecretError | VersionMismatchError):
                raise StoreRefusedError(str(error)) from error
            raise
        return described.limits().with_also(_FRAME)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        engine = self._open_engine()
        self._watches.close()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_ATTEMPT_SECONDS):
                async with trio.open_nursery() as closing:
                    for session in list(self._sessions):
                        closing.start_soon(_close_quietly, session)
            for session in list(self._sessions):
                session.end()
        self._engine = None
        if self._connection is not None:
            self._connection.abort("the store was closed")
        engine.nursery.cancel_scope.cancel()
        await engine.nursery_manager.__aexit__(None, None, None)

    def _open_engine(self) -> _Engine:
        if self._engine is None:
            raise StoreClosedError(f"the store at {self.url} is not open; use it inside `async with store:`")
        return self._engine

    # asking

    async def _connected(self) -> Connection:
        """Raises `StoreUnavailableError`."""
        engine = self._open_engine()
        async with self._connecting:
            if self._connection is None or self._connection.closed.is_set():
                try:
                    self._connection = await connect(
                        self.url,
                        identity=self._identity,
                        security=self._security,
                        nursery=engine.nursery,
                        timeout=_ATTEMPT_SECONDS,
                    )
                except TransportError as error:
                    raise StoreUnavailableError(
                        f"the metadata store at {self.url} cannot be reached: {error}"
                    ) from error
            return self._connection

    async def ask(self, kind: m.Kind, message: msgspec.Struct, seconds: float = REQUEST_SECONDS) -> bytes:
        """The answer's body.

        Raises what the server's store raised, `StoreRefusedError` or `StoreUnavailableError`.
        """
        connection = await self._connected()
        try:
            with await connection.request(kind, m.encode(message), timeout=seconds) as response:
                return response.body
        except NotAuthorisedError as error:
            raise StoreRefusedError(f"the metadata store at {self.url}: {error.detail}") from error
        except RemoteError as error:
            raise self._raised(error) from error
        except FrameTooLargeError as error:
            raise TransactionTooLargeError(
                f"the request to the metadata store at {self.url} is too large: {error}"
            ) from error
        except TransportError as error:
            kind_of = StoreLostError if error.delivery == "maybe" else StoreUnavailableError
            raise kind_of(f"the metadata store at {self.url} did not answer: {error}") from error

    def _raised(self, error: RemoteError) -> MetadataError:
        """The exception that the server's store raised."""
        match error.code:
            case m.Failure.SESSION_EXPIRED:
                return SessionExpiredError(0)
            case m.Failure.CORRUPT:
                return StoreCorruptError(f"the metadata store at {self.url}: {error.detail}")
            case m.Failure.TOO_LARGE:
                return TransactionTooLargeError(f"the metadata store at {self.url}: {error.detail}")
            case m.Failure.UNSUPPORTED:
                return StoreUnsupportedError(f"the metadata store at {self.url}: {error.detail}")
            case m.Failure.INVALID:
                return InvalidTransactionError(f"the metadata store at {self.url}: {error.detail}")
        # A code of the transport's tells nothing of what the server's store has done.
        known = error.code in (m.Failure.UNAVAILABLE, m.Failure.CLOSED)
        kind_of = StoreUnavailableError if known else StoreLostError
        return kind_of(f"the metadata store at {self.url}: {error.detail}")

    def _read(self, body: bytes, kind: type[m.T]) -> m.T:
        try:
            return m.decode(body, kind)
        except ProtocolError as error:
            raise StoreLostError(f"the server at {self.url} is not a metadata store: {error}") from error

    # the interface

    @property
    def limits(self) -> Limits:
        """The limits of the store behind, and of a frame."""
        return self._limits

    async def get(self, key: str) -> Read:
        check_key(key)
        return self._read(await self.ask(m.Kind.GET, m.Key(key)), m.Found).read()

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        return (await self._all_pages(m.Kind.LIST, m.Key(prefix))).listing()

    async def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        check_prefix(prefix)
        return (await self._all_pages(m.Kind.CHANGES, m.Since(prefix, since_revision))).changes()

    async def _all_pages(self, kind: m.Kind, message: msgspec.Struct) -> m.Found:
        """An answer that may be larger than a frame. If the connection is lost in between, so is the rest of it."""
        found = page = self._read(await self.ask(kind, message), m.Found)
        while page.more:
            page = self._read(await self.ask(m.Kind.MORE, m.Cursor(page.more)), m.Found)
            found.entries += page.entries
            found.deleted += page.deleted
        return found

    async def commit(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> Outcome:
        check_transaction(compares, operations, session is not None, self._limits)
        self._open_engine()
        own = None if session is None else own_session(session, RemoteSession, self)
        message = m.Commit.of(compares, operations, None if own is None else own.handle)
        try:
            return self._read(await self.ask(m.Kind.COMMIT, message), m.Ended).outcome()
        except SessionExpiredError as error:
            assert own is not None, "only a transaction with a session is refused for it"
            own.end()
            raise SessionExpiredError(own.id) from error
        except StoreLostError as error:
            return Unknown(str(error))

    async def raise_revision(self, floor: int, *, store_id: str | None = None) -> int:
        answer = await self.ask(m.Kind.RAISE_REVISION, m.RaiseRevision(floor, store_id))
        return self._read(answer, m.Revision).revision

    async def open_session(self, timeout_ms: int) -> RemoteSession:
        check_timeout(timeout_ms)
        sent = trio.current_time()
        answer = await self.ask(m.Kind.OPEN_SESSION, m.OpenSession(timeout_ms))
        session = RemoteSession(self, self._read(answer, m.Opened), sent)
        self._sessions.add(session)
        self._open_engine().nursery.start_soon(session.keep_renewing)
        return session

    def forget(self, session: RemoteSession) -> None:
        """The session is over."""
        self._sessions.discard(session)

    # watches

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Watch]:
        check_prefix(prefix)
        return self._watching(prefix)

    @asynccontextmanager
    async def _watching(self, prefix: str) -> AsyncIterator[Watch]:
        engine = self._open_engine()
        number = self._next_number()

        async def start() -> int:
            return (await self._next(number, prefix, REQUEST_SECONDS)).revision

        async with self._watches.open(prefix, start) as watch:
            assert isinstance(watch, PrefixWatch)
            scope = trio.CancelScope()
            engine.nursery.start_soon(self._follow, watch, number, scope)
            try:
                yield watch
            finally:
                scope.cancel()

    def _next_number(self) -> int:
        self._watch_numbers += 1
        return self._watch_numbers

    async def _next(self, number: int, prefix: str, seconds: float) -> m.Event:
        return self._read(await self.ask(m.Kind.WATCH, m.WatchNext(number, prefix), seconds), m.Event)

    async def _follow(self, watch: PrefixWatch, number: int, scope: trio.CancelScope) -> None:
        """Pass the server's events on. After a loss another watch begins, with an event that says so."""
        with scope:
            while True:
                try:
                    event = (await self._next(number, watch.prefix, _FOREVER)).event(watch.prefix)
                except MetadataError as error:
                    log.debug("the watch of %r is interrupted: %s", watch.prefix, error)
                    number = self._next_number()
                    await trio.sleep(_RETRY_SECONDS)
                    continue
                if isinstance(event, Resync):
                    watch.resync(event.revision)
                else:
                    watch.changed([watch.prefix], event.revision)


async def _close_quietly(session: RemoteSession) -> None:
    with suppress(MetadataError):
        await session.close()

"""The SQLite store: one file on one machine, shared by many processes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import attrs
import trio

from .._limits import Limits
from .._transaction import check_key, check_prefix, check_timeout, check_transaction, own_session
from .._values import Compare, Delta, Listing, Operation, Outcome, Read, TooOld, Unknown
from .._watch import WatchHub
from ..abc import MetadataStore, Session, Watch
from ..errors import (
    InvalidTransactionError,
    MetadataError,
    SessionExpiredError,
    StoreClosedError,
    StoreCorruptError,
    StoreUnavailableError,
)
from ._child import flat
from ._database import Announcement, Database
from ._leases import HeldLease, boot_id
from ._notices import Notices
from ._schema import IDENTITY_BYTES
from ._worker import Worker
from ._writer import Writer, WriterLostError

_POLL_SECONDS = 0.02
"""Between two looks for changes, where the system does not tell of them. Where it does, the least time between
a look and the next one that its word brings about: the worker's quiet time."""
_UNNOTICED_SECONDS = 0.25
"""Between two looks while the system tells of changes: files may be deleted, and it may not tell of all."""
_MOMENT_SECONDS = 0.001
"""From the write that the system tells of to the moment at which the transaction can be seen, or so."""
_RENEWALS_PER_TIMEOUT = 4
_LEAVE_SECONDS = 1.0

_LIMITS = Limits(max_operations=100_000, max_bytes=64 << 20)
"""SQLite itself takes more. A transaction holds the write lock, though, for which others wait `busy_timeout_ms`."""

_log = logging.getLogger(__name__)


def _identity(store_id: str) -> bytes:
    try:
        identity = bytes.fromhex(store_id)
    except ValueError:
        identity = b""
    if len(identity) != IDENTITY_BYTES:
        raise InvalidTransactionError(
            f"the id of a SQLite store has 32 hexadecimal digits, unlike {store_id!r}"
        )
    return identity


class SqliteSession(Session):
    """A session whose lease is renewed by a task of its store, four times in each timeout."""

    def __init__(self, store: SqliteStore, held: HeldLease) -> None:
        self.id = held.session_id
        self.timeout_ms = held.timeout_ms
        self.expired = trio.Event()
        self.store = store
        self.held = held
        self._renewals = trio.CancelScope()

    async def keep_renewing(self) -> None:
        """Renew until the lease is lost."""
        with self._renewals:
            while True:
                if not self.held.renew():
                    break
                await trio.sleep(self.timeout_ms / 1000 / _RENEWALS_PER_TIMEOUT)
            self.store.forget(self)

    def stop_renewing(self) -> None:
        """Let the lease run out, as if this process were stopped; for tests of what others then do."""
        self._renewals.cancel()

    def end(self) -> None:
        """Stop renewing for good, and wake the tasks that wait for that."""
        self._renewals.cancel()
        self.held.drop()
        self.expired.set()

    async def close(self) -> None:
        await self.store.close_session(self)


@attrs.frozen
class _Engine:
    """The parts that an open handle runs on."""

    worker: Worker
    database: Database
    writer: Writer | None
    notices: Notices | None
    nursery: trio.Nursery
    nursery_manager: AbstractAsyncContextManager[trio.Nursery]


class SqliteStore(MetadataStore):
    """A handle on the SQLite file `path`, made if absent (its folder must exist), on a local file system.

    Beside the file lie SQLite's `-wal` and `-shm` and our `-leases`. Readers never wait. Writers wait for each
    other at most `busy_timeout_ms`, then raise `StoreUnavailableError`. A commit is on the device before it is
    answered or can be read (SQLite's synchronous=FULL), so neither a killed process nor a power cut takes it.
    After a fork the child must make a store of its own.

    writes_apart: Run the write transactions in a small process beside this one, as `open_store` has it. Otherwise a
    process that is stopped inside a transaction blocks all writers until it runs or dies.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, busy_timeout_ms: int = 5_000, writes_apart: bool = False
    ) -> None:
        self.path = os.path.abspath(path)
        self._writes_apart = writes_apart
        self._sweeping = False
        self._busy_seconds = busy_timeout_ms / 1000
        self._sessions: dict[int, SqliteSession] = {}
        self._watches = WatchHub()
        self._engine: _Engine | None = None
        self._pid = 0
        self._poll_failure = ""
        self._trusts_notices = True
        self._was_told = False
        self._moment = _MOMENT_SECONDS

    # opening and leaving

    async def __aenter__(self) -> Self:
        if self._pid:
            raise StoreClosedError(f"this handle on {self.path} was entered before; make another one")
        self._pid = os.getpid()
        boot = boot_id()
        try:
            worker = Worker("insync-metadata", self._busy_seconds, self._poll, _POLL_SECONDS)
        except OSError as error:
            raise StoreUnavailableError(
                f"the store on {self.path} cannot be opened: the system gives this process no descriptor ({error})"
            ) from error
        opened = ExitStack()
        writer = Writer(self.path, boot, self._busy_seconds) if self._writes_apart else None
        try:
            sweep = None
            if writer is not None:
                await writer.open()
                sweep = partial(worker.post, self._sweep_soon)

            def open_database() -> Database:
                database = Database(self.path, boot, partial(self._announce, worker), sweep)
                opened.callback(database.close)
                return database

            database = await worker.run(open_database, writes=True)
        except BaseException:
            # If this was cancelled, the thread may open the database yet, and nobody else would close it.
            await worker.stop(opened.close)
            if writer is not None:
                await writer.close()
            raise
        notices = self._ask_for_notices()
        worker.notices = None if notices is None else notices.fd
        manager = trio.open_nursery()
        self._engine = _Engine(worker, database, writer, notices, await manager.__aenter__(), manager)
        return self

    def _ask_for_notices(self) -> Notices | None:
        """Every transaction writes to SQLite's write-ahead log, and hardly anything else does."""
        try:
            # SQLite follows a symbolic link, and keeps its log beside the file.
            return Notices(os.path.realpath(self.path) + "-wal")
        except OSError as error:
            _log.info(
                "changes of %s are looked for every %d ms: the system does not tell of them (%s)",
                self.path, 1000 * _POLL_SECONDS, error,
            )  # fmt: skip
            return None

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        engine, self._engine = self._open_engine(), None
        engine.nursery.cancel_scope.cancel()
        self._watches.close()
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.end()
        try:
            with trio.CancelScope(shield=True):
                await self._remove_sessions(engine, sessions)
                if engine.writer is not None:
                    await engine.writer.close()
                try:
                    await engine.worker.stop(engine.database.close)
                finally:
                    if engine.notices is not None:
                        engine.notices.close()
        finally:
            await engine.nursery_manager.__aexit__(None, None, None)

    async def _remove_sessions(self, engine: _Engine, session_ids: Collection[int]) -> None:
        """Their leases are dropped, so readers see them gone already; what fails here, the next writer does."""
        if session_ids:
            with trio.move_on_after(_LEAVE_SECONDS), suppress(StoreUnavailableError, StoreCorruptError):
                await self._write(engine, "remove_sessions", frozenset(session_ids))

    async def _write(self, engine: _Engine, name: str, *arguments: Any) -> Any:
        """Run `Database.name`, here or in the process that writes; the watches have heard of it then."""
        if engine.writer is None:
            call = partial(getattr(engine.database, name), *arguments)
            return await engine.worker.run(call, writes=True)
        result = await engine.writer.run(name, *arguments)
        if engine.worker.polling:
            with suppress(MetadataError):  # it is written; the next poll tells the watches
                await engine.worker.run(engine.database.catch_up)
        return result

    def _open_engine(self) -> _Engine:
        if self._engine is None:
            raise StoreClosedError(f"the store on {self.path} is not open; use it inside `async with store:`")
        if self._pid != os.getpid():
            raise StoreClosedError(
                f"the store on {self.path} belongs to the parent process; open one after the fork"
            )
        return self._engine

    # the interface

    @property
    def limits(self) -> Limits:
        return _LIMITS

    async def get(self, key: str) -> Read:
        check_key(key)
        engine = self._open_engine()
        return await engine.worker.run(partial(engine.database.read, key))

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        engine = self._open_engine()
        return await engine.worker.run(partial(engine.database.read_range, prefix))

    async def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        check_prefix(prefix)
        engine = self._open_engine()
        return await engine.worker.run(partial(engine.database.read_changes, prefix, since_revision))

    async def commit(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> Outcome:
        check_transaction(compares, operations, session is not None, self.limits)
        engine = self._open_engine()
        own = None if session is None else own_session(session, SqliteSession, self)
        arguments: tuple[Any, ...] = tuple(compares), tuple(operations), None if own is None else own.held
        if engine.writer is not None:
            place = None if own is None else (own.id, own.held.slot)
            arguments = flat(compares), flat(operations), place
        try:
            outcome: Outcome = await self._write(engine, "commit", *arguments)
            return outcome
        except WriterLostError as error:
            return Unknown(str(error))
        except SessionExpiredError:
            if own is not None:
                self.forget(own)
            raise

    async def raise_revision(self, floor: int, *, store_id: str | None = None) -> int:
        """`store_id` has 32 hexadecimal digits, as the ids that the store tells."""
        identity = None if store_id is None else _identity(store_id)
        engine = self._open_engine()
        revision: int = await self._write(engine, "raise_revision", floor, identity)
        return revision

    async def open_session(self, timeout_ms: int) -> SqliteSession:
        check_timeout(timeout_ms)
        engine = self._open_engine()
        held = await self._write(engine, "open_session", timeout_ms)
        if engine.writer is not None:
            held = HeldLease.taken_over(engine.database.leases, *held)
        session = self._sessions[held.session_id] = SqliteSession(self, held)
        engine.nursery.start_soon(session.keep_renewing)
        return session

    async def close_session(self, session: SqliteSession) -> None:
        """End a session of this handle; of one that is over, nothing."""
        if self.forget(session):
            await self._remove_sessions(self._open_engine(), {session.id})

    def forget(self, session: SqliteSession) -> bool:
        """Mark a session as over; whether this handle still counted it as alive."""
        session.end()
        return self._sessions.pop(session.id, None) is not None

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Watch]:
        check_prefix(prefix)
        return self._watching(prefix)

    @asynccontextmanager
    async def _watching(self, prefix: str) -> AsyncIterator[Watch]:
        """Poll for what other processes do while a watch is open."""
        engine = self._open_engine()
        engine.worker.polling = True
        catch_up = partial(engine.worker.run, engine.database.catch_up)
        try:
            async with self._watches.open(prefix, catch_up) as watch:
                yield watch
        finally:
            engine.worker.polling = len(self._watches) > 0

    # called in the worker thread

    def _announce(self, worker: Worker, announcement: Announcement) -> None:
        if len(self._watches):
            worker.post(partial(self._tell_watches, announcement))

    def _poll(self) -> float:
        now = time.monotonic()
        engine = self._engine
        if engine is None:
            return now + _POLL_SECONDS
        try:
            pause = self._look(engine)
            self._poll_failure = ""
        except MetadataError as error:
            pause = _POLL_SECONDS
            if str(error) != self._poll_failure:
                _log.warning(
                    "watches of %s are interrupted until the store can be read: %s", self.path, error
                )
            self._poll_failure = str(error)
        return now + pause

    def _look(self, engine: _Engine) -> float:
        """Announce what is news; how long to wait for a notice before the next look, in seconds."""
        database, notices = engine.database, engine.notices
        if notices is None or not self._trusts_notices:
            database.poll()
            return _POLL_SECONDS
        self._was_told |= notices.drain()
        seen = database.seen
        is_coming = database.poll()
        if database.seen != seen:
            # The system tells of a write before anybody can read it, and the word of a transaction that cannot be
            # seen yet may have been read with that of this one.
            if self._was_told:
                self._was_told = is_coming
            elif notices.drain():
                self._was_told = True
            else:
                self._distrust(engine)
                return _POLL_SECONDS
        if is_coming:
            pause, self._moment = self._moment, min(2 * self._moment, _POLL_SECONDS)
            return pause
        self._moment = _MOMENT_SECONDS
        until_deadline = database.next_deadline - time.monotonic()
        return max(_POLL_SECONDS, min(_UNNOTICED_SECONDS, until_deadline))

    def _distrust(self, engine: _Engine) -> None:
        self._trusts_notices = False
        engine.worker.notices = None
        _log.warning(
            "changes of %s are looked for every %d ms from now on: the system did not tell of one; keep the store "
            "on a local file system, and the processes that share it under one kernel",
            self.path, 1000 * _POLL_SECONDS,
        )  # fmt: skip

    # called back in the event loop

    def _sweep_soon(self) -> None:
        if self._engine is not None and not self._sweeping:
            self._sweeping = True
            self._engine.nursery.start_soon(self._sweep, self._engine)

    async def _sweep(self, engine: _Engine) -> None:
        """Remove the sessions that are over, once; the next poll sees whether some are left."""
        assert engine.writer is not None
        then = engine.database.swept
        try:
            await engine.writer.run("remove_sessions", frozenset(), patience=0)
        except MetadataError:
            then = engine.database.not_swept
        finally:
            self._sweeping = False
        with suppress(MetadataError):
            await engine.worker.run(then)

    def _tell_watches(self, announcement: Announcement) -> None:
        if announcement.keys is None:
            self._watches.resync(announcement.revision)
        else:
            self._watches.changed(announcement.keys, announcement.revision)

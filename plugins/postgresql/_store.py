"""The store in PostgreSQL: one connection for reads and transactions, one that listens and renews sessions."""

from __future__ import annotations

import logging
import re
import select
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import trio
from psycopg import Connection

from insync.replication.metadata import (
    Committed,
    Compare,
    Conflict,
    Delta,
    Entry,
    Exists,
    InvalidTransactionError,
    Limits,
    Listing,
    MetadataError,
    MetadataStore,
    Missing,
    Operation,
    Outcome,
    Put,
    Read,
    Session,
    SessionExpiredError,
    StoreClosedError,
    StoreCorruptError,
    StoreUnavailableError,
    StoreUnsupportedError,
    StoreVersionError,
    TooOld,
    Unknown,
    ValueIs,
    VersionIs,
    Watch,
)
from insync.replication.metadata.toolkit import (
    WatchHub,
    check_key,
    check_prefix,
    check_timeout,
    check_transaction,
    own_session,
)

from ._address import PostgresqlAddress
from ._link import Link, StoreSilentError, connect
from ._schema import SCHEMA_VERSION, channel, ddl, filled

POLL_SECONDS = 0.1
"""Between two looks for changes, behind a pooler that lets no notification through."""
_OLDEST_SERVER = 130_000
_NOTIFIED_SECONDS = 1.0
_LOOK_SECONDS = 10.0
"""Between two looks at least: a server that was made read-only sends no more notifications."""
_RENEWALS_PER_TIMEOUT = 4
_LEAVE_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_MOMENT_SECONDS = 0.001
_NEVER = 1 << 62
"""A revision since which nothing has changed."""
_KINDS = {Missing: "missing", Exists: "exists", VersionIs: "version", ValueIs: "value"}

_LIMITS = Limits(max_operations=100_000, max_bytes=32 << 20)
"""PostgreSQL takes more. A transaction holds the lock of the store's row, though, for which others wait."""

_STATE = (
    "s.revision, s.store_id, s.floor, EXISTS (SELECT FROM {ns}.sessions WHERE deadline <= clock_timestamp())"
)
_ENTRY = "e.key, e.value, e.version, e.revision, e.session_id"
_GET = f"SELECT {_STATE}, {_ENTRY} FROM {{ns}}.store s LEFT JOIN {{ns}}.entries e ON e.key = %s"
_LIST = (
    f"SELECT {_STATE}, {_ENTRY} FROM {{ns}}.store s LEFT JOIN {{ns}}.entries e ON e.key ^@ %s ORDER BY e.key"
)
_CHANGES = f"""SELECT {_STATE}, {_ENTRY} FROM {{ns}}.store s LEFT JOIN (
    SELECT key, value, version, revision, session_id FROM {{ns}}.entries
        WHERE revision > %(since)s AND key ^@ %(prefix)s
    UNION ALL SELECT key, NULL, NULL, NULL, NULL FROM {{ns}}.tombstones t
        WHERE revision > %(since)s AND key ^@ %(prefix)s
            AND NOT EXISTS (SELECT FROM {{ns}}.entries e WHERE e.key = t.key)) e ON true"""
_SWEEP = "SELECT FROM {ns}.begin_writing(%s::bigint[])"
_TRANSACT = """SELECT * FROM {ns}.transact(%s, %s::text[], %s::text[], %s::bigint[], %s::bytea[],
    %s::text[], %s::bytea[], %s::boolean[])"""
_STEP = """SELECT s.revision, s.floor, (SELECT {ns}.renew(%(ids)s::bigint[])),
    (SELECT extract(epoch FROM min(deadline) - clock_timestamp())::float8 FROM {ns}.sessions), c.key
    FROM {ns}.store s LEFT JOIN (SELECT key FROM {ns}.entries WHERE revision > %(seen)s
        UNION SELECT key FROM {ns}.tombstones WHERE revision > %(seen)s) c ON true"""

_log = logging.getLogger(__name__)


def make(url: str) -> MetadataStore:
    """The store of a URL, for the entry point group `insync.metadata_stores`. Raises `InvalidStoreUrlError`."""
    return PostgresqlStore(PostgresqlAddress.parse(url))


class PostgresqlSession(Session):
    """A session that its store renews from the event loop, four times in each timeout.

    It counts as over once the server said so, or has confirmed no renewal for as long as the timeout.
    """

    def __init__(self, store: PostgresqlStore, session_id: int, timeout_ms: int, asked: float) -> None:
        self.id = session_id
        self.timeout_ms = timeout_ms
        self.expired = trio.Event()
        self.store = store
        self.renewed = asked
        """When the last renewal that the server confirmed was asked for: at the earliest it counts from then."""
        self.is_renewed = True

    @property
    def next_renewal(self) -> float:
        return self.renewed + self.timeout_ms / 1000 / _RENEWALS_PER_TIMEOUT

    async def keep_watch(self) -> None:
        """End it when the server has been silent for too long."""
        while not self.expired.is_set():
            left = self.renewed + self.timeout_ms / 1000 - trio.current_time()
            if left > 0:
                await trio.sleep(left)
            elif self.is_renewed:
                _log.warning("PostgreSQL has not renewed session %d for its %d ms", self.id, self.timeout_ms)
                self.end()
            else:
                return

    def stop_renewing(self) -> None:
        """Let the session run out, as if this process were stopped; for tests of what others then do."""
        self.is_renewed = False

    def end(self) -> None:
        """The session is over, or must be taken to be."""
        self.expired.set()
        self.store.forget(self)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.expired.is_set():
            self.end()
            await self.store.end_sessions([self.id])


class PostgresqlStore(MetadataStore):
    """A handle on the keys in one schema of a PostgreSQL database, which is made on first use.

    Reads are single statements on the primary; a transaction is one call of a function that locks the store's row.
    A connection that is lost while a transaction is under way leaves it `Unknown`; all else raises
    `StoreUnavailableError` until a server of the URL takes writes again.
    """

    is_elsewhere = True
    default_session_timeout_ms = 6_000

    def __init__(self, address: PostgresqlAddress) -> None:
        self.address = address
        self.main = Link(address, lambda connection: None)
        self.listener = Link(address, self._listen)
        self._sessions: dict[int, PostgresqlSession] = {}
        self._watches = WatchHub()
        self._nursery: trio.Nursery | None = None
        self._manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nudge = trio.Event()
        self._seen = 0
        self._gap = False
        self._polling: bool | None = None
        self._sweeping = False

    def _sql(self, text: str) -> Any:
        return filled(text, self.address.namespace)

    # opening and leaving

    async def __aenter__(self) -> Self:
        if self._manager is not None:
            raise StoreClosedError("a store handle can be entered once only; make another one")
        self._manager = trio.open_nursery()
        self._nursery = nursery = await self._manager.__aenter__()
        try:
            await self.main.run(self._prepare)
            await self._step()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.main.close()
                await self.listener.close()
            self._nursery = None
            nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)
            raise
        nursery.start_soon(self._follow)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        nursery, manager = self._open(), self._manager
        assert manager is not None, "entered with the nursery"
        self._watches.close()
        nursery.cancel_scope.cancel()
        sessions = list(self._sessions.values())
        for session in sessions:
            session.end()
        try:
            with trio.CancelScope(shield=True):
                with trio.move_on_after(_LEAVE_SECONDS), suppress(MetadataError):
                    await self.end_sessions([session.id for session in sessions])
                self._nursery = None
                await self.main.close()
                await self.listener.close()
        finally:
            await manager.__aexit__(None, None, None)

    def _open(self) -> trio.Nursery:
        if self._nursery is None:
            raise StoreClosedError(f"{self.address} is not open; use it inside `async with store:`")
        return self._nursery

    def _prepare(self, connection: Connection) -> None:
        """Make the schema, or check the one that is there."""
        if connection.info.server_version < _OLDEST_SERVER:
            raise StoreUnsupportedError(
                f"{self.address} is of version {connection.info.server_version // 10_000}; use 13 or later"
            )
        if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
            raise StoreUnsupportedError(
                f"{self.address} has the encoding {encoding}, which cannot hold all keys; create a database with "
                "`createdb --encoding UTF8 --template template0`"
            )
        if "store" not in (self._relations(connection) or ()):
            with connection.transaction():
                connection.execute(
                    "SELECT pg_advisory_xact_lock(hashtext(%s))", [channel(self.address.namespace)]
                )
                self._make(connection)
        row = connection.execute(self._sql("SELECT schema_version FROM {ns}.store")).fetchone()
        if row is None or row[0] > SCHEMA_VERSION:
            raise StoreVersionError(
                f"{self.address} has schema version {row and row[0]}, this release knows {SCHEMA_VERSION}; use the "
                "release that made it, or a newer one"
            )

    def _relations(self, connection: Connection) -> list[str] | None:
        """The names in the schema; None if there is none. Names that lack are cached, rows of tables are not."""
        row = connection.execute(
            "SELECT ARRAY (SELECT relname::text FROM pg_class WHERE relnamespace = n.oid) FROM pg_namespace n "
            "WHERE nspname = %s",
            [self.address.namespace],
        ).fetchone()
        return None if row is None else row[0]

    def _make(self, connection: Connection) -> None:
        """In a schema that an administrator has made for it, or in a new one."""
        found = self._relations(connection)
        if found and "store" not in found:
            raise StoreCorruptError(
                f"{self.address}: the schema holds tables of another program; choose another namespace"
            )
        if not found:
            connection.execute(ddl(self.address.namespace, make_schema=found is None))

    def ddl(self) -> str:
        return f"BEGIN;\n{ddl(self.address.namespace, role=self.address.user)}COMMIT;\n"

    # what the second connection does

    def _listen(self, connection: Connection) -> None:
        self._gap = True
        connection.execute(self._sql('LISTEN "{channel}"'))
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        # A pooler gives its clients numbers of its own.
        is_pooled = row is not None and row[0] != connection.info.backend_pid
        if self._polling is None and is_pooled:
            with connect(self.address) as other:
                other.execute(self._sql('NOTIFY "{channel}"'))
            self._polling = not select.select([connection], [], [], _NOTIFIED_SECONDS)[0]
            if self._polling:
                _log.warning(
                    "%s is behind a pooler that keeps notifications back, as pgbouncer with pool_mode=transaction: "
                    "watches look for changes every %d ms; connect to the server itself, or with pool_mode=session",
                    self.address, 1000 * POLL_SECONDS,
                )  # fmt: skip

    async def _follow(self) -> None:
        """Renew sessions, pass changes on to watches, and sweep expired sessions."""
        failures = 0
        while True:
            self._nudge = trio.Event()
            try:
                pause = await self._step()
            except MetadataError as error:
                if not failures:
                    _log.warning("watches and sessions of %s are interrupted: %s", self.address, error)
                await trio.sleep(min(_FIRST_PAUSE * 2**failures, _LONGEST_PAUSE))
                failures = min(failures + 1, 10)
                continue
            failures = 0
            with trio.move_on_after(min(pause, POLL_SECONDS) if self._polling else pause):
                await self._stirred()

    async def _step(self) -> float:
        """Renew, look and tell, in one round trip; the seconds until there is something to do in any case."""
        asked = trio.current_time()
        due = self._renewing()
        if all(session.next_renewal > asked for session in due):
            due = []

        def step(connection: Connection) -> list[Any]:
            parameters = {"ids": [session.id for session in due], "seen": _NEVER if self._gap else self._seen}
            return connection.execute(self._sql(_STEP), parameters).fetchall()

        rows = await self.listener.run(step)
        revision, floor, live, until_deadline, _ = rows[0]
        for session in due:
            if session.id in live:
                session.renewed = asked
            elif not session.expired.is_set():
                session.end()
        if self._gap or not floor <= self._seen <= revision:
            self._gap = False
            self._watches.resync(revision)
        elif revision > self._seen:
            self._watches.changed([key for *_, key in rows if key is not None], revision)
        self._seen = revision
        if self.listener.notified:
            return 0
        pauses = [session.next_renewal - trio.current_time() for session in self._renewing()]
        if until_deadline is not None and until_deadline > 0:
            pauses.append(until_deadline + _MOMENT_SECONDS)
        elif until_deadline is not None and not self._sweeping:
            self._sweeping = True
            self._open().start_soon(self._sweep)
        return max(0.0, min([_LOOK_SECONDS, *pauses]))

    async def _sweep(self) -> None:
        """End the sessions that are over. This may wait for the lock, for which no renewal waits."""
        try:
            await self.main.run(lambda connection: connection.execute(self._sql(_SWEEP), [[]]))
        except MetadataError:
            await trio.sleep(_LONGEST_PAUSE)
        self._sweeping = False
        self._nudge.set()

    def _renewing(self) -> list[PostgresqlSession]:
        return [session for session in self._sessions.values() if session.is_renewed]

    async def _stirred(self) -> None:
        """Return when the server has sent something, a session was opened, or those that were over have ended."""
        nudge = self._nudge

        async def wait_for_server(link: socket.socket) -> None:
            await trio.lowlevel.wait_readable(link)
            nudge.set()

        assert self.listener.socket is not None, "a call has just returned"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_server, self.listener.socket)
            await nudge.wait()
            nursery.cancel_scope.cancel()

    # the interface

    @property
    def limits(self) -> Limits:
        return _LIMITS

    async def _rows(self, query: str, parameters: Any = None) -> list[Any]:
        """The rows of one snapshot, in which no session is over: a reader ends those first."""

        def read(connection: Connection) -> list[Any]:
            def ask() -> list[Any]:
                return connection.execute(self._sql(query), parameters, binary=True).fetchall()

            rows = ask()
            if rows[0][3]:
                connection.execute(self._sql(_SWEEP), [[]])
                rows = ask()
            return rows

        self._open()
        return await self.main.run(read)

    async def get(self, key: str) -> Read:
        check_key(key)
        ((revision, store_id, _, _, *entry),) = await self._rows(_GET, [key])
        return Read(revision, Entry(*entry) if entry[0] is not None else None, store_id)

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        rows = await self._rows(_LIST, [prefix])
        return Listing(
            rows[0][0], {row[4]: Entry(*row[4:]) for row in rows if row[4] is not None}, rows[0][1]
        )

    async def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        check_prefix(prefix)
        rows = await self._rows(_CHANGES, {"prefix": prefix, "since": since_revision})
        revision, store_id, floor, *_ = rows[0]
        if not floor <= since_revision <= revision:
            return TooOld(revision, store_id)
        entries = {row[4]: Entry(*row[4:]) for row in rows if row[5] is not None}
        deleted = frozenset(row[4] for row in rows if row[4] is not None and row[5] is None)
        return Delta(revision, entries, deleted, store_id)

    async def commit(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> Outcome:
        check_transaction(compares, operations, session is not None, self.limits)
        self._open()
        own = None if session is None else own_session(session, PostgresqlSession, self)
        parameters = [
            own and own.id,
            [_KINDS[type(each)] for each in compares],
            [each.key for each in compares],
            [each.version if isinstance(each, VersionIs) else None for each in compares],
            [each.value if isinstance(each, ValueIs) else None for each in compares],
            [each.key for each in operations],
            [each.value if isinstance(each, Put) else None for each in operations],
            [isinstance(each, Put) and each.ephemeral for each in operations],
        ]
        try:
            outcome, revision, keys, versions = await self._call(_TRANSACT, parameters)
        except StoreSilentError as error:
            return Unknown(str(error))
        if outcome == "conflict":
            return Conflict(keys[0])
        if outcome == "expired":
            assert own is not None, "only a session expires"
            own.end()
            raise SessionExpiredError(own.id)
        return Committed(revision, dict(zip(keys or (), versions or (), strict=True)))

    async def _call(self, query: str, parameters: Any) -> Any:
        """The one row that a function of the schema returns."""
        return await self.main.run(
            lambda connection: connection.execute(self._sql(query), parameters).fetchone()
        )

    async def raise_revision(self, floor: int, *, store_id: str | None = None) -> int:
        """`store_id` has 32 hexadecimal digits, as the ids that the store tells."""
        if store_id is not None and not re.fullmatch("[0-9a-f]{32}", store_id):
            raise InvalidTransactionError(f"the id of a store has 32 hexadecimal digits, unlike {store_id!r}")
        self._open()
        (revision,) = await self._call("SELECT {ns}.raise_revision(%s, %s)", [floor, store_id])
        raised: int = revision
        return raised

    async def open_session(self, timeout_ms: int) -> PostgresqlSession:
        check_timeout(timeout_ms)
        nursery = self._open()
        asked = trio.current_time()
        (session_id,) = await self._call("SELECT {ns}.open_session(%s)", [timeout_ms])
        session = self._sessions[session_id] = PostgresqlSession(self, session_id, timeout_ms, asked)
        nursery.start_soon(session.keep_watch)
        self._nudge.set()
        return session

    async def end_sessions(self, session_ids: Sequence[int]) -> None:
        """Those that are still there. Where this fails they end with their timeouts, as nobody renews them."""
        if session_ids:
            with suppress(StoreUnavailableError):
                await self._call(_SWEEP, [session_ids])

    def forget(self, session: PostgresqlSession) -> None:
        """The session is over."""
        self._sessions.pop(session.id, None)

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Watch]:
        check_prefix(prefix)
        return self._watching(prefix)

    @asynccontextmanager
    async def _watching(self, prefix: str) -> AsyncIterator[Watch]:
        async def start() -> int:
            revision: int = (await self._rows(f"SELECT {_STATE} FROM {{ns}}.store s"))[0][0]
            return revision

        async with self._watches.open(prefix, start) as watch:
            yield watch

"""The store on ZooKeeper: reads through one connection, a connection of its own for each session."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import attrs
import trio
from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    ZookeeperError,
)
from kazoo.exceptions import (
    SessionExpiredError as ZookeeperSessionExpired,
)
from kazoo.protocol.states import KazooState

from insync.replication.metadata import (
    Compare,
    Conflict,
    Delta,
    InvalidTransactionError,
    Limits,
    Listing,
    MetadataError,
    MetadataStore,
    Operation,
    Outcome,
    Read,
    Session,
    SessionExpiredError,
    StoreClosedError,
    StoreCorruptError,
    StoreVersionError,
    TooOld,
    Unknown,
    Watch,
)
from insync.replication.metadata.toolkit import (
    WatchHub,
    check_key,
    check_prefix,
    check_timeout,
    check_transaction,
    holds,
    own_session,
)

from ._address import ZookeeperAddress
from ._connection import LOST, Connection, Pulse
from ._layout import FORMAT, Layout, Mark, Node
from ._mirror import Mirror, Snapshot
from ._transaction import Multi, Reading, failure

CONNECT_SECONDS = 15.0
READER_TIMEOUT_MS = 10_000
_BEATS_PER_TIMEOUT = 12
_RETRY_SECONDS = 0.02

_log = logging.getLogger(__name__)


def make(url: str) -> MetadataStore:
    """The store of a URL, for the entry point group `insync.metadata_stores`. Raises `InvalidStoreUrlError`."""
    return ZookeeperStore(ZookeeperAddress.parse(url))


class ZookeeperSession(Session):
    """A session of ZooKeeper on a connection of its own, renewed while the event loop runs.

    timeout_ms is what the server granted (its configuration bounds it: 2 to 20 ticks unless set otherwise). It
    counts as over once the server said so, or was not heard of for as long.
    """

    def __init__(self, store: ZookeeperStore, pulse: Pulse) -> None:
        self.id = 0
        self.timeout_ms = 0
        self.expired = trio.Event()
        self.store = store
        self._pulse = pulse
        self._connection: Connection | None = None
        self._scope = trio.CancelScope()

    async def open(self, address: ZookeeperAddress, timeout_ms: int, connect_seconds: float) -> None:
        self._connection = connection = await Connection.open(
            address, timeout_ms, connect_seconds, self._state_changed, self._pulse
        )
        self.id = connection.client.client_id[0]
        self.timeout_ms = connection.timeout_ms

    @property
    def connection(self) -> Connection:
        """Raises `SessionExpiredError`."""
        if self._connection is not None and not self.expired.is_set() and self._connection.over:
            self.end()
        if self._connection is None or self.expired.is_set():
            raise SessionExpiredError(self.id)
        return self._connection

    def _state_changed(self, state: str) -> None:
        if state == KazooState.LOST and self._connection is not None and not self.expired.is_set():
            _log.warning("ZooKeeper session %d (%d ms) is over", self.id, self.timeout_ms)
            self.end()

    async def keep_watch(self) -> None:
        """Show the connection's thread that the event loop runs, and give up when the server is silent."""
        seconds = self.timeout_ms / 1000
        with self._scope:
            while True:
                self._pulse.beat()
                await trio.sleep(seconds / _BEATS_PER_TIMEOUT)
                if time.monotonic() - self.connection.handler.last_contact > seconds:
                    _log.warning(
                        "ZooKeeper has not answered for the %d ms of session %d", self.timeout_ms, self.id
                    )
                    self.end()

    def stop_renewing(self) -> None:
        """Let the session run out, as if this process were stopped; for tests of what others then do."""
        self._pulse.stop()

    def end(self) -> None:
        """The session is over, or must be taken to be."""
        self.expired.set()
        self._scope.cancel()
        self.store.forget(self)
        if self._connection is not None:
            self._connection.abandon()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.expired.is_set():
            self.expired.set()
            self._scope.cancel()
            self.store.forget(self)
            if self._connection is not None:
                await self._connection.close()


@attrs.frozen
class _Engine:
    """The parts that an open handle runs on."""

    connection: Connection
    mirror: Mirror
    nursery: trio.Nursery
    nursery_manager: AbstractAsyncContextManager[trio.Nursery]


class ZookeeperStore(MetadataStore):
    """A handle on the keys below one path of a ZooKeeper ensemble.

    Every read is preceded by a `sync`, so that it sees what was committed through any server. A transaction is
    read, then written as one multi-operation that is void if what was read has changed; then it is tried again.
    Its size is bounded (`InvalidTransactionError`). A connection that is lost while a transaction is under
    way leaves it `Unknown`; all else raises `StoreUnavailableError` until the connection is back, which is tried
    all the time.
    """

    is_elsewhere = True
    default_session_timeout_ms = 6_000

    def __init__(self, address: ZookeeperAddress, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        self.address = address
        self._layout = Layout(address.root, address.credentials or "")
        self._connect_seconds = connect_seconds
        self._sessions: set[ZookeeperSession] = set()
        self._watches = WatchHub()
        self._engine: _Engine | None = None
        self._entered = False
        self._stirred = trio.Event()
        self._lost = False

    # opening and leaving

    async def __aenter__(self) -> Self:
        if self._entered:
            raise StoreClosedError("a store handle can be entered once only; make another one")
        self._entered = True
        connection = await Connection.open(
            self.address, READER_TIMEOUT_MS, self._connect_seconds, self._state_changed
        )
        try:
            await self._prepare(connection)
        except BaseException:
            await connection.close()
            raise
        mirror = Mirror(connection, self._layout, lambda: connection.post(self._stir))
        manager = trio.open_nursery()
        nursery = await manager.__aenter__()
        self._engine = _Engine(connection, mirror, nursery, manager)
        nursery.start_soon(self._follow, connection, mirror)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        engine, self._engine = self._open_engine(), None
        self._watches.close()
        engine.nursery.cancel_scope.cancel()
        try:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    for session in list(self._sessions):
                        nursery.start_soon(session.close)
                await engine.connection.close()
        finally:
            await engine.nursery_manager.__aexit__(None, None, None)

    def _open_engine(self) -> _Engine:
        if self._engine is None:
            raise StoreClosedError(
                f"the store at {self.address.hosts}{self.address.root} is not open; "
                "use it inside `async with store:`"
            )
        return self._engine

    async def _prepare(self, connection: Connection) -> None:
        """Make the frame of the store, or check the one that is there."""
        client, layout = connection.client, self._layout
        await connection.read(client.ensure_path_async(layout.root.rpartition("/")[0] or "/"))
        request = client.transaction()
        request.create(layout.root, FORMAT)
        request.create(layout.keys, Mark.new().encode())
        for path in (layout.revision, layout.created):
            request.create(path, b"")
        (results,) = await connection.read(request.commit_async())
        refused = results if isinstance(results, Exception) else failure(results)
        if refused is not None and not isinstance(refused, NodeExistsError):
            raise connection.unavailable(f"{layout.root} cannot be created: {refused!r}")
        _, found, found_keys = await connection.read(
            client.sync_async(layout.root), client.get_async(layout.root), client.get_async(layout.keys)
        )
        data = found[0] if isinstance(found, tuple) else b""
        if data != FORMAT:
            if data.startswith(FORMAT.rpartition(b" ")[0]):
                raise StoreVersionError(f"{layout.root} holds {data!r}, which is newer than this release")
            raise StoreCorruptError(
                f"{layout.root} in ZooKeeper does not hold a metadata store; choose another path"
            )
        if isinstance(found_keys, tuple) and not found_keys[0]:
            # Made by a release that gave stores no identity; of several that notice, one gives it.
            await connection.read(client.set_async(layout.keys, Mark.new().encode(), version=0))

    # called by the connection

    def _state_changed(self, state: str) -> None:
        """Every watch of ours is gone with the connection, so all is read again when it is back."""
        if state != KazooState.CONNECTED:
            self._lost = True
            if self._engine is not None:
                self._engine.mirror.forget()
        self._stir()

    def _stir(self) -> None:
        self._stirred.set()

    async def _follow(self, connection: Connection, mirror: Mirror) -> None:
        """Tell the watches of this handle what changes, whoever changes it."""
        while True:
            await self._stirred.wait()
            self._stirred = trio.Event()
            if not connection.connected:
                continue
            try:
                snapshot = await mirror.refresh(self._announce)
            except MetadataError as error:
                _log.warning("watches of %s are interrupted: %s", self.address.root, error)
                continue
            if self._lost:
                self._lost = False
                self._watches.resync(snapshot.revision)

    def _announce(self, snapshot: Snapshot) -> None:
        if snapshot.repaired:
            self._watches.resync(snapshot.revision)
        else:
            self._watches.changed(snapshot.changed, snapshot.revision)

    # the interface

    @property
    def limits(self) -> Limits:
        return self._layout.limits

    async def get(self, key: str) -> Read:
        check_key(key)
        await trio.lowlevel.checkpoint()
        reading = await self._read_now(self._open_engine(), {key})
        node = reading.nodes.get(key)
        revision = max(reading.revision, node.entry.revision) if node else reading.revision
        return Read(revision, node.entry if node else None, reading.mark.store_id)

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        await trio.lowlevel.checkpoint()
        return await self._open_engine().mirror.listing(prefix, self._announce)

    async def changes(self, prefix: str, since_revision: int) -> Delta | TooOld:
        check_prefix(prefix)
        await trio.lowlevel.checkpoint()
        return await self._open_engine().mirror.changes(prefix, since_revision, self._announce)

    async def commit(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> Outcome:
        check_transaction(compares, operations, session is not None, self.limits)
        await trio.lowlevel.checkpoint()
        engine = self._open_engine()
        own = None if session is None else own_session(session, ZookeeperSession, self)
        keys = {item.key for item in (*compares, *operations)}
        while True:
            reading = await self._read_now(engine, keys)
            for compare in compares:
                node = reading.nodes.get(compare.key)
                if not holds(compare, node.entry if node else None):
                    return Conflict(compare.key)
            outcome = await self._write(engine, reading, compares, operations, own)
            if outcome is not None:
                return outcome
            # Somebody changed what was just read: look again, not in step with them.
            await trio.sleep(random.SystemRandom().uniform(0, _RETRY_SECONDS))

    async def raise_revision(self, floor: int, *, store_id: str | None = None) -> int:
        """`store_id` has 32 hexadecimal digits, as the ids that the store tells."""
        if store_id is not None and not re.fullmatch("[0-9a-f]{32}", store_id):
            raise InvalidTransactionError(f"the id of a store has 32 hexadecimal digits, unlike {store_id!r}")
        await trio.lowlevel.checkpoint()
        engine = self._open_engine()
        connection, layout = engine.connection, self._layout
        while True:
            reading = await self._read_now(engine, set())
            behind = max(0, floor - reading.revision)
            mark = Mark(store_id or reading.mark.store_id, reading.mark.offset + behind)
            request = connection.client.transaction()
            # Whoever has read before this decides again: its revisions are those of before.
            request.check(layout.created, reading.created)
            request.set_data(layout.created, b"")
            request.set_data(layout.keys, mark.encode())
            request.set_data(layout.revision, b"")
            (results,) = await connection.read(request.commit_async())
            refused = results if isinstance(results, Exception) else failure(results)
            if refused is None:
                return int(results[-1].mzxid) + mark.offset
            if not isinstance(refused, BadVersionError):
                raise connection.unavailable(f"it refuses to raise the revision: {refused!r}")

    async def _read_now(self, engine: _Engine, keys: set[str]) -> Reading:
        """The state of these keys in ZooKeeper now. `created` is read first: it vouches for what follows."""
        connection, layout = engine.connection, self._layout
        connection.check_connected()
        client = connection.client
        ordered = sorted(keys)
        _, created, *marks_and_nodes = await connection.read(
            client.sync_async(layout.root),
            client.exists_async(layout.created),
            client.exists_async(layout.revision),
            client.get_async(layout.keys),
            *(client.get_async(layout.path(key)) for key in ordered),
        )
        revision, mark = (
            engine.mirror.revision_of(marks_and_nodes[:2]),
            engine.mirror.mark_of(marks_and_nodes[:2]),
        )
        if created is None or isinstance(created, Exception):
            raise StoreCorruptError(f"{layout.created} in ZooKeeper was deleted while the store was in use")
        nodes = {}
        for key, answer in zip(ordered, marks_and_nodes[2:], strict=True):
            if isinstance(answer, tuple):
                data, stat = answer
                nodes[key] = Node.read(key, data, stat, mark)
            elif not isinstance(answer, NoNodeError):
                raise connection.unavailable(f"the key {key!r} cannot be read: {answer!r}")
        return Reading(revision, mark, created.version, nodes)

    async def _write(
        self,
        engine: _Engine,
        reading: Reading,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        session: ZookeeperSession | None,
    ) -> Outcome | None:
        """Write what was decided on `reading`; None if that does not stand any more."""
        connection = engine.connection if session is None else session.connection
        if not connection.connected and session is not None:
            raise connection.unavailable(f"the connection of session {session.id} is lost")
        connection.check_connected()
        multi = Multi(self._layout, reading, None if session is None else session.id)
        request = multi.build(connection.client, compares, operations)
        try:
            results: list[Any] = await connection.wait(request.commit_async())
        except ZookeeperSessionExpired as error:
            if session is None:
                return Unknown("the connection's session ended meanwhile")
            session.end()
            raise SessionExpiredError(session.id) from error
        except LOST as error:
            return Unknown(f"the connection to ZooKeeper was lost ({type(error).__name__})")
        except ZookeeperError as error:
            raise connection.unavailable(f"it refuses the transaction: {error!r}") from error
        refused = failure(results)
        if refused is None:
            return multi.committed(operations, results)
        if isinstance(refused, BadVersionError | NoNodeError | NodeExistsError):
            return None
        raise connection.unavailable(f"it refuses the transaction: {refused!r}") from refused

    async def open_session(self, timeout_ms: int) -> ZookeeperSession:
        check_timeout(timeout_ms)
        await trio.lowlevel.checkpoint()
        engine = self._open_engine()
        session = ZookeeperSession(self, Pulse(timeout_ms / 1000 / 3))
        await session.open(self.address, timeout_ms, self._connect_seconds)
        self._sessions.add(session)
        engine.nursery.start_soon(session.keep_watch)
        return session

    def forget(self, session: ZookeeperSession) -> None:
        """The session is over."""
        self._sessions.discard(session)

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Watch]:
        check_prefix(prefix)
        return self._watching(prefix)

    @asynccontextmanager
    async def _watching(self, prefix: str) -> AsyncIterator[Watch]:
        engine = self._open_engine()

        async def start() -> int:
            return (await engine.mirror.refresh(self._announce)).revision

        async with self._watches.open(prefix, start) as watch:
            yield watch

"""The stores of the framework, as the conformance kit wants them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from insync.replication.metadata import (
    GuardedStore,
    MemoryHub,
    MetadataStore,
    RemoteStore,
    Session,
    SqliteStore,
    serve_store,
)
from insync.replication.metadata.guarded import GuardedSession
from insync.replication.metadata.remote_store.client import RemoteSession
from insync.replication.metadata.sqlite_store.store import SqliteSession
from insync.replication.metadata.testing import Bench
from insync.transport import Identity


class MemoryBench(Bench):
    renews_sessions = False

    def __init__(self) -> None:
        self.hub = MemoryHub()

    async def disconnect(self, store: MetadataStore) -> bool:
        self.hub.start_outage()
        self.hub.end_outage()
        return True

    def handle(self) -> MetadataStore:
        return self.hub.store()

    def lose(self, session: Session) -> None:
        self.hub.stop_renewing(session)


class GuardedBench(Bench):
    """Another bench's store behind the border of `open_store`."""

    def __init__(self, inner: Bench) -> None:
        self.inner = inner
        self.late_seconds = inner.late_seconds
        self.renews_sessions = inner.renews_sessions
        self.has_connections = inner.has_connections

    async def disconnect(self, store: MetadataStore) -> bool:
        assert isinstance(store, GuardedStore)
        return await self.inner.disconnect(store.inner)

    def handle(self) -> MetadataStore:
        return GuardedStore(self.inner.handle, "the store of a bench")

    def lose(self, session: Session) -> None:
        assert isinstance(session, GuardedSession)
        self.inner.lose(session.inner)


class SqliteBench(Bench):
    has_connections = False

    def __init__(self, folder: Path, *, writes_apart: bool = False) -> None:
        self.path = folder / "meta.db"
        self.writes_apart = writes_apart

    def handle(self) -> MetadataStore:
        return SqliteStore(self.path, writes_apart=self.writes_apart)

    def lose(self, session: Session) -> None:
        assert isinstance(session, SqliteSession)
        session.stop_renewing()


class RemoteBench(Bench):
    """A SQLite store behind a server; `serving` is entered around each case."""

    late_seconds = 0.2

    def __init__(self, folder: Path, url: str) -> None:
        self.inner = SqliteStore(folder / "meta.db")
        self.url = url
        self.endpoint = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with self.inner, trio.open_nursery() as nursery:
            served = await nursery.start(serve_store, self.inner, self.url)
            self.endpoint = served.endpoints[0]
            yield
            nursery.cancel_scope.cancel()

    def handle(self) -> RemoteStore:
        return RemoteStore(self.endpoint, identity=Identity(node_id=1))

    async def disconnect(self, store: MetadataStore) -> bool:
        assert isinstance(store, RemoteStore)
        if store._connection is not None:
            store._connection.abort("a test cuts the connection")
        return True

    def lose(self, session: Session) -> None:
        assert isinstance(session, RemoteSession)
        session.stop_renewing()

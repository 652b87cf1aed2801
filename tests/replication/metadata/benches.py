"""The stores of the framework, as the conformance kit wants them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from insync.replication.metadata import (
    MemoryHub,
    MetadataStore,
    RemoteStore,
    Session,
    SqliteStore,
    serve_store,
)
from insync.replication.metadata.remote import RemoteSession
from insync.replication.metadata.sqlite import SqliteSession
from insync.replication.metadata.testing import Bench
from insync.transport import Identity


class MemoryBench(Bench):
    def __init__(self) -> None:
        self.hub = MemoryHub()

    def handle(self) -> MetadataStore:
        return self.hub.store()

    def lose(self, session: Session) -> None:
        self.hub.stop_renewing(session)


class SqliteBench(Bench):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "meta.db"

    def handle(self) -> MetadataStore:
        return SqliteStore(self.path)

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

    def lose(self, session: Session) -> None:
        assert isinstance(session, RemoteSession)
        session.stop_renewing()

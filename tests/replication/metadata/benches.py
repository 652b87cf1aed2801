"""The stores of the framework, as the conformance kit wants them."""

from pathlib import Path

from insync.replication.metadata import MemoryHub, MetadataStore, Session, SqliteStore
from insync.replication.metadata.sqlite import SqliteSession
from insync.replication.metadata.testing import Bench


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

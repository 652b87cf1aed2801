"""The PostgreSQL store keeps every promise of the interface, on a real server."""

from itertools import count

import pytest

from insync.plugins.postgresql import PostgresqlAddress, PostgresqlSession, PostgresqlStore
from insync.replication.metadata import MetadataStore, Session
from insync.replication.metadata.testing import CASES, Bench, Case

from .server import PostgresqlServer

_numbers = count()


class PostgresqlBench(Bench):
    def __init__(self, url: str) -> None:
        self.address = PostgresqlAddress.parse(url)

    def handle(self) -> MetadataStore:
        return PostgresqlStore(self.address)

    async def disconnect(self, store: MetadataStore) -> bool:
        assert isinstance(store, PostgresqlStore)
        store.main.cut()
        store.listener.cut()
        return True

    def lose(self, session: Session) -> None:
        assert isinstance(session, PostgresqlSession)
        session.stop_renewing()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_postgresql(case: Case, server: PostgresqlServer) -> None:
    await case.run(PostgresqlBench(server.url(f"conformance_{next(_numbers)}")))

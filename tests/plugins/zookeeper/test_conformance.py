"""The ZooKeeper store keeps every promise of the interface, on a real server."""

import socket
from contextlib import suppress
from itertools import count

import pytest

from insync.plugins.zookeeper import ZookeeperAddress, ZookeeperSession, ZookeeperStore
from insync.replication.metadata import MetadataStore, Session
from insync.replication.metadata.testing import CASES, Bench, Case

from .server import TICK_MS, ZookeeperServer

_numbers = count()


class ZookeeperBench(Bench):
    # A server looks for expired sessions once in a tick, and rounds their ends up to one.
    timeout_ms = 4 * TICK_MS
    late_seconds = (2 * TICK_MS + 200) / 1000

    def __init__(self, server: ZookeeperServer) -> None:
        self.address = ZookeeperAddress(server.hosts, f"/conformance-{next(_numbers)}/cluster")

    def handle(self) -> MetadataStore:
        return ZookeeperStore(self.address)

    async def disconnect(self, store: MetadataStore) -> bool:
        assert isinstance(store, ZookeeperStore) and store._engine is not None
        link = store._engine.connection.client._connection._socket
        if link is not None:
            with suppress(OSError):  # it is being connected again just now
                link.shutdown(socket.SHUT_RDWR)
        return True

    def lose(self, session: Session) -> None:
        assert isinstance(session, ZookeeperSession)
        session.stop_renewing()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_zookeeper(case: Case, server: ZookeeperServer) -> None:
    await case.run(ZookeeperBench(server))

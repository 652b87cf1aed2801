from collections.abc import Iterator

import pytest

from .server import PostgresqlServer, postgresql


@pytest.fixture(scope="package")
def server() -> Iterator[PostgresqlServer]:
    """One server for the tests that do it no harm."""
    with postgresql() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[PostgresqlServer]:
    """A server that the test may kill or configure."""
    with postgresql() as server:
        yield server

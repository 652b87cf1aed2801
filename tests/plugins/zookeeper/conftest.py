from collections.abc import Iterator

import pytest

from tests.tiers import uses

from .server import ZookeeperServer, zookeeper


@pytest.fixture(scope="package")
@uses("jvm")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """One server for the tests that do it no harm."""
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server

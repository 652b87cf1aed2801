"""One Spark session, and one cluster of real nodes, for all tests of the plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from insync.plugins.spark import JavaError, SparkMissingError, check_java, check_pyspark, session
from insync.replication import BlockingAdmin
from tests.processes import NodeProcess, cluster
from tests.requires import missing
from tests.tiers import uses

from .executors.clusters import java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
@uses("jvm")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on local[2]; the only one of the whole run, since a process can have one JVM only."""
    try:
        check_pyspark()
        check_java()
    except (SparkMissingError, JavaError) as error:
        missing(str(error))
    folder = tmp_path_factory.mktemp("spark")
    spark = session(
        "local[2]",
        app_name="tests",
        config={
            "spark.driver.extraJavaOptions": f"{java_options(folder)} -Dderby.system.home={folder}",
            "spark.driver.memory": "1g",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.log.level": "OFF",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        },
    )
    yield spark
    spark.stop()


@pytest.fixture(scope="package")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """Three node processes that no test harms."""
    # A loaded machine may stop a process for longer than a session lasts by default.
    with cluster(tmp_path_factory.mktemp("nodes"), 3, "--session-timeout-ms", "10000") as running:
        yield running


@pytest.fixture(scope="package")
def servers(nodes: list[NodeProcess]) -> str:
    """The bootstrap servers of `nodes`, as an option's value."""
    return ",".join(node.endpoint for node in nodes)


@pytest.fixture(scope="package")
def admin(servers: str) -> Iterator[BlockingAdmin]:
    with BlockingAdmin(servers) as admin:
        yield admin


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; the test creates the topic itself."""
    return request.node.name.replace("[", "-").replace("]", "").replace("_", "-")[-200:]

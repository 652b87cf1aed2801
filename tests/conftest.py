"""What holds for all tests."""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from insync.replication.metadata import MetadataStore
from insync.transport.repeats import REPEATS

from . import hanging, tiers, unsteady

# A process that writes no bytecode compiles all it imports each time. That costs a worker ten seconds of its
# processor or more, and each node process of a test one.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes tells of the machine, not of the code: time is measured in `tests/bench`.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# What the starter's shell says of a terminal, of colours and of a cluster is not for the commands that are tested.
os.environ["COLUMNS"] = "80"
_OF_THE_STARTER = (
    "FORCE_COLOR",
    "INSYNC_NODE_",
    "INSYNC_SECRET",
    "INSYNC_SERVERS",
    "INSYNC_TLS_",
    "INSYNC_TRACEBACK",
    "INSYNC_ZOOKEEPER_",
    "PGPASS",
    "PGUSER",
)
for name in [each for each in os.environ if each.startswith(_OF_THE_STARTER)]:
    del os.environ[name]

# The conformance kits measure beside other workers here, and with processes that they do not watch over. With this
# patience a standstill of a second harms none: a session's timeout of 400 ms is 1,600 ms then.
os.environ.setdefault("INSYNC_KIT_PATIENCE", "4")

# Node processes have sessions of a second by default. Here they are longer than the standstills of a busy machine:
# no node that is well is to be away when a topic with a replica on each is made.
os.environ["INSYNC_NODE_SESSION_TIMEOUT_MS"] = "5000"
# The same for nodes within the program of a test.
MetadataStore.default_session_timeout_ms = 5000


def pytest_configure(config: pytest.Config) -> None:
    unsteady.register(config)
    tiers.register(config)
    config.pluginmanager.register(hanging, "hanging")


def pytest_itemcollected(item: pytest.Item) -> None:
    """With `--dist loadgroup` one process runs all tests of a group."""
    if item.config.pluginmanager.hasplugin("xdist"):
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    """All that share Spark's JVM, or the nodes of a package; all of a file, which may share more; a slow test that
    shares nothing, by itself.

    In one group the slow tests of a file would keep one process at work when all others have ended.
    """
    assert isinstance(item, pytest.Function)
    # Pytest's own fixtures of a session, such as the place of temporary folders, have no `baseid`.
    fixtures = [each[-1] for each in item._fixtureinfo.name2fixturedefs.values() if each[-1].baseid]
    if any(each.argname == "spark" for each in fixtures):
        return "spark"
    for each in fixtures:
        if each.scope == "package":
            return each.baseid
    if item.get_closest_marker("slow") and all(each.scope == "function" for each in fixtures):
        return f"{item.path}::{item.originalname}"
    return str(item.path)


@pytest.fixture(autouse=True)
def _nothing_was_logged_before() -> None:
    """What repeats is counted, not logged again: a test must not pay for what the one before it has logged."""
    REPEATS.forget()

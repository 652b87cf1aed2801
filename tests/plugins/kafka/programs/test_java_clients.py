"""Kafka's own Java client, unmodified, at a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from ....interop.kafka import Java
from ..conftest import Cluster

SMOKE = Path(__file__).parent / "Smoke.java"
GROUPS = Path(__file__).parent / "Groups.java"
TRANSACTIONS = Path(__file__).parent / "Transactions.java"
pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("kafka")]


def test_the_newest_java_client_writes_reads_and_administers(clients: Java, cluster: Cluster) -> None:
    assert clients.run(str(SMOKE), cluster.servers, "newest").splitlines()[-1] == "done"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_newest_java_client_in_groups(clients: Java, cluster: Cluster, protocol: str) -> None:
    assert clients.run(str(GROUPS), cluster.servers, protocol, "newest").splitlines()[-1] == "done"


def test_the_newest_java_client_in_transactions(clients: Java, cluster: Cluster) -> None:
    assert clients.run(str(TRANSACTIONS), cluster.servers, "newest").splitlines()[-1] == "done"

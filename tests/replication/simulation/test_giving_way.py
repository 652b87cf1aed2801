"""S23: a process that stops because another one has its node id is wrong if that is its own entry."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.broker.membership.registration import NodeIdTakenError
from insync.replication.simulation import Settings, Violated
from insync.replication.simulation.world.cluster import Cluster

QUIET = Settings(faults=(), moves=0.0, reassignments=0.0, changes=0.0, rebalance=0.0)


@pytest.fixture
def cluster() -> Cluster:
    """Three registered processes."""
    cluster = Cluster(4, QUIET)
    cluster.begin()
    cluster.run_until(3.0)
    return cluster


def test_no_process_gives_way_to_its_own_entry(cluster: Cluster) -> None:
    node = cluster.nodes[2]
    assert cluster.store.processes[2].process == node.process_name
    with pytest.raises(Violated, match="S23: node 2 gives way to its own entry"):
        cluster.refuses(node, NodeIdTakenError("process 1 registered while this one started"))


def test_no_process_gives_way_to_nobody(cluster: Cluster) -> None:
    del cluster.store.processes[2]
    with pytest.raises(Violated, match="S23"):
        cluster.refuses(cluster.nodes[2], NodeIdTakenError("process 1 registered while this one started"))


def test_a_process_gives_way_to_another_one(cluster: Cluster) -> None:
    known = cluster.store.processes[2]
    cluster.store.processes[2] = structs.replace(known, incarnation=2, process="process 9")
    cluster.refuses(cluster.nodes[2], NodeIdTakenError("process 2 has registered in its place"))
    assert not cluster.nodes[2].up

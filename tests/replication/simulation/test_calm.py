"""What calm takes back: the model leaves nothing behind that a correct protocol could not mend."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.broker.coordination.transacting import MARKER_TIMEOUT
from insync.replication.core.control.records import PartitionRecord
from insync.replication.core.types import PartitionId
from insync.replication.simulation import Run, Settings
from insync.replication.simulation.faults.trust import mend_what_nobody_has
from insync.replication.simulation.world.cluster import Cluster

QUIET = Settings(faults=(), moves=0.0, reassignments=0.0, changes=0.0, rebalance=0.0)


@pytest.fixture
def one() -> Run:
    """A run with a topic and records, in calm."""
    run = Run(4, QUIET)
    run.cluster.begin()
    run._clients_begin()
    run._until(10.0)
    run.cluster.weather.calm = True
    run._until(12.0)
    return run


def test_a_process_that_gives_its_device_up_in_calm_is_started_again(one: Run) -> None:
    cluster, node = one.cluster, one.cluster.nodes[2]
    process, node.stalled_until = node.process, cluster.now + 1.0
    cluster.give_up_device(node)
    assert not node.up
    one._until(cluster.now + 2.0)
    assert node.up and node.process == process + 1


def test_the_node_that_calm_begins_without_is_not_started_by_its_device(one: Run) -> None:
    cluster, node = one.cluster, one.cluster.nodes[2]
    node.stalled_until = cluster.now + 1.0
    cluster.give_up_device(node)
    cluster.away = node
    one._until(cluster.now + 2.0)
    assert not node.up
    one._return(node)
    assert node.up and cluster.away is None


def test_a_process_that_was_started_meanwhile_is_none_of_its_predecessor_s(one: Run) -> None:
    cluster, node = one.cluster, one.cluster.nodes[2]
    node.stalled_until = cluster.now + 2.0
    cluster.give_up_device(node)
    cluster.start(node)
    process = node.process
    cluster.kill(node)
    one._until(cluster.now + 3.0)
    assert not node.up and node.process == process


def test_no_leader_hears_late_of_its_isr_in_calm(one: Run) -> None:
    one.cluster.traps.late_answers.extend((6.0, 8.0))
    one._heal()
    assert one.cluster.traps.lateness() == 0.0


def _rotten(cluster: Cluster, node: int) -> bool:
    (disk,) = (host.disk for host in cluster.nodes[node].hosts.values())
    return bool(disk.is_rotten)


def _spoil(one: Run, *nodes: int) -> PartitionRecord:
    partition = PartitionId("t", 0)
    for node in nodes:
        disk = one.cluster.nodes[node].hosts[partition].disk
        disk.flush()  # only what has been flushed is spoilt
        assert disk.rot(0.5, found_at_start=True)
    return one.cluster.store.partitions[partition].record


def test_a_damaged_copy_stays_damaged_where_a_member_has_all(one: Run) -> None:
    assert _spoil(one, 3).isr == (1, 2, 3)
    mend_what_nobody_has(one.cluster)
    assert _rotten(one.cluster, 3)


def test_no_member_counts_as_complete_that_has_lost_power_since(one: Run) -> None:
    _spoil(one, 3)
    for node in (1, 2):
        one.cluster.nodes[node].lost_data = True
    mend_what_nobody_has(one.cluster)
    assert not _rotten(one.cluster, 3)


def test_a_copy_that_no_election_asks_for_stays_damaged(one: Run) -> None:
    record = _spoil(one, 1, 3)
    one.cluster.store.put_partition(structs.replace(record, isr=(1,)))
    mend_what_nobody_has(one.cluster)
    assert (_rotten(one.cluster, 1), _rotten(one.cluster, 3)) == (False, True)


def test_no_copy_stays_damaged_where_any_living_log_may_be_elected(one: Run) -> None:
    record = _spoil(one, 1)
    one.cluster.store.put_partition(structs.replace(record, leader=-1, isr=(), last_known_elr=(2, 3)))
    mend_what_nobody_has(one.cluster)
    assert not _rotten(one.cluster, 1)


def test_calm_outlasts_the_timeout_of_a_marker_that_was_lost_before_it() -> None:
    """Seed 3087366: the marker was sent again at the last moment of calm, and followers were still fetching."""
    with_transactions = Settings.swarm(3087366, profile="transactions")
    assert with_transactions.calm > MARKER_TIMEOUT + Settings().storm / 3

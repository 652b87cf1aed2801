"""The oracle judges by what could be known when a decision was taken, not by what is known when it takes effect."""

from __future__ import annotations

import attrs
import pytest
from msgspec import structs

from insync.replication.core.control import controller as ctl
from insync.replication.core.control.admin_requests import Put
from insync.replication.core.control.elections import LogInfo
from insync.replication.core.control.records import PartitionRecord, partition_key
from insync.replication.core.types import NO_LEADER, PartitionId
from insync.replication.simulation import Run, Settings, Violated
from insync.replication.simulation.world.node import Host

QUIET = Settings(faults=(), moves=0.0, reassignments=0.0, changes=0.0, rebalance=0.0)
PARTITION = PartitionId("t", 0)


@pytest.fixture
def one() -> Run:
    """A run with a topic and records."""
    run = Run(4, QUIET)
    run.cluster.begin()
    run._clients_begin()
    run._until(10.0)
    return run


def _host(one: Run, node: int = 2) -> Host:
    return one.cluster.nodes[node].hosts[PARTITION]


def _info(host: Host, last_epoch: int, **changes: int) -> LogInfo:
    held = LogInfo(
        incarnation=1,
        leader_epoch=0,
        last_epoch=last_epoch,
        log_end_offset=host.disk.end,
        topic_id=host.facts.topic_id,
    )
    return structs.replace(held, **changes)


def test_a_report_agrees_with_the_disk(one: Run) -> None:
    host, oracle = _host(one), one.cluster.oracle
    assert host.disk.end > 0
    oracle.telling(host, _info(host, 0))
    for wrong in (_info(host, 1), _info(host, 0, log_end_offset=host.disk.end + 1)):
        with pytest.raises(Violated, match="S21"):
            oracle.telling(host, wrong)


def test_a_report_may_be_of_records_that_retention_has_just_deleted(one: Run) -> None:
    host, oracle = _host(one), one.cluster.oracle
    host.disk.advance_start(host.disk.end)
    oracle.telling(host, _info(host, 0))
    with pytest.raises(Violated, match="S21"):
        oracle.telling(host, _info(host, 0, log_start_offset=host.disk.start))


def test_no_log_is_deleted_that_counts(one: Run) -> None:
    with pytest.raises(Violated, match="S17"):
        one.cluster.oracle.retired(_host(one))


def test_a_node_goes_by_what_the_store_said_before_it_was_put_back(one: Run) -> None:
    host, store = _host(one), one.cluster.store
    store.is_put_back = True
    with pytest.raises(Violated, match="S17"):
        one.cluster.oracle.retired(host)
    shown = host.node.shown
    moved = structs.replace(shown.partitions[PARTITION].record, replicas=(1, 3), isr=(1, 3))
    _show(host, moved)
    one.cluster.oracle.retired(host)


def _show(host: Host, record: PartitionRecord) -> None:
    shown = host.node.shown
    versioned = structs.replace(shown.partitions[record.id], record=record)
    host.node.shown = attrs.evolve(shown, partitions={**shown.partitions, record.id: versioned})


def test_a_log_that_was_told_after_the_decision_accuses_nobody(one: Run) -> None:
    """A report that comes while the store takes a commit comes too late for it."""
    cluster, oracle, node = one.cluster, one.cluster.oracle, one.cluster.nodes[1]
    writer = node.writer(node.incarnation)
    record = cluster.store.partitions[PARTITION].record
    before = structs.replace(record, leader=NO_LEADER, isr=(), leader_epoch=1, last_known_elr=(2, 3))
    elected = structs.replace(before, leader=2, isr=(2,), last_known_elr=(), leader_epoch=7, unclean_epoch=7)
    _show(node.hosts[PARTITION], before)
    oracle.asked_unclean.add(PARTITION)
    less, more = (
        _info(_host(one), 0, incarnation=cluster.store.live[node], leader_epoch=1, log_end_offset=end)
        for node, end in ((2, 1), (3, 9))
    )
    every = {PARTITION: (1, 2, 3)}
    asked = ctl.AskReplicas(
        partitions=every, leader_epochs={PARTITION: 1}, topic_ids={PARTITION: record.topic_id}
    )
    oracle.asking(writer, asked)
    oracle.told(writer, {PARTITION: {2: less}})
    put = Put(key=partition_key(PARTITION), record=elected, version=1)
    oracle.deciding(node, ctl.Commit(puts=(put,), checks={}, reason="asked for"))
    oracle.told(writer, {PARTITION: {3: more}})
    oracle._unclean(before, elected, writer)
    oracle.deciding(node, ctl.Commit(puts=(put,), checks={}, reason="asked for"))
    with pytest.raises(Violated, match="S21"):
        oracle._unclean(before, elected, writer)

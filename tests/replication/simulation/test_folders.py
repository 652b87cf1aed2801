"""What faults of folders and of the store may do, and which promises a repair of the store may break."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import pytest
from msgspec import structs

from insync.replication.core.control import records as rec
from insync.replication.core.types import EpochEntry, PartitionId
from insync.replication.simulation import Run, Settings, Topic
from insync.replication.simulation.faults import trust
from insync.replication.simulation.faults.restores import (
    _delete_earlier_epochs,
    _has_only_earlier_epochs,
    _keeps_promises,
    elect_another,
)
from insync.replication.simulation.faults.schedule import Fault
from insync.replication.simulation.oracles.facts import PartitionFacts
from insync.replication.simulation.world.disk import GONE, Disk

PARTITION = PartitionId("t", 0)
QUIET = Settings(
    topics=(Topic(name="t", partitions=1, min_insync_replicas=2),),
    faults=(),
    moves=0.0,
    reassignments=0.0,
    changes=0.0,
)


def log(start: int, end: int, *epochs: tuple[int, int]) -> Disk:
    disk = Disk()
    disk.flat = [GONE] * start + [(0, str(offset)) for offset in range(start, end)]
    disk.start = start
    disk.epochs = [EpochEntry(*each) for each in epochs]
    return disk


def is_excused(*disks: Disk, unclean_epoch: int, leader: int = 1) -> bool:
    """Whether a repair after which this node leads may be one that hands out offsets again. 160 are committed."""
    facts = PartitionFacts("t-0", "t", 1)
    facts.committed = [(0, str(offset)) for offset in range(160)]
    hosts = {
        number: SimpleNamespace(partition=PARTITION, facts=facts, disk=disk)
        for number, disk in enumerate(disks, 1)
    }
    topic = rec.TopicRecord(
        name="t", topic_id="t", partitions=1, replication_factor=3, config=rec.TopicConfig()
    )
    cluster = SimpleNamespace(
        oracle=SimpleNamespace(partitions={PARTITION: facts}),
        nodes={number: SimpleNamespace(id=number, hosts={PARTITION: each}) for number, each in hosts.items()},
        store=SimpleNamespace(topics={"t": topic}),
        note=lambda text: None,
    )
    before = rec.PartitionRecord(
        topic="t",
        partition=0,
        topic_id="t",
        replicas=(1, 2, 3),
        isr=(1,),
        leader=1,
        leader_epoch=max(unclean_epoch, 0),
        unclean_epoch=unclean_epoch,
    )
    _keeps_promises(cluster, PARTITION, leader, before)  # type: ignore[arg-type]
    return facts.unclean


def test_a_repair_may_pass_over_emptied_logs_if_something_was_written_since_an_unclean_election() -> None:
    assert is_excused(log(62, 102, (1, 62), (7, 86)), log(160, 160), log(160, 160), unclean_epoch=7)


def test_a_repair_may_pass_over_them_in_no_other_case() -> None:
    behind, emptied = log(62, 102, (1, 62), (7, 86)), log(160, 160)
    assert not is_excused(behind, emptied, emptied, unclean_epoch=-1)
    assert not is_excused(behind, emptied, emptied, unclean_epoch=8)
    # The emptied one knows an epoch, or is not empty: it tells more than the one that leads.
    assert not is_excused(behind, log(160, 160, (7, 160)), emptied, unclean_epoch=7)
    assert not is_excused(behind, log(159, 160, (7, 159)), emptied, unclean_epoch=7)
    # There is more of it: what the one that leads lacks is not all deleted everywhere.
    assert not is_excused(behind, emptied, log(62, 110, (1, 62), (7, 86)), unclean_epoch=7)
    # No log is complete, or the one that leads is.
    assert not is_excused(behind, log(150, 150), unclean_epoch=7)
    assert not is_excused(log(62, 160, (1, 62), (7, 86)), emptied, unclean_epoch=7)
    # It was written before that election, and another one since.
    old = log(62, 102, (1, 62))
    assert not is_excused(old, emptied, log(62, 90, (1, 62), (7, 86)), unclean_epoch=7)


def settled(until: float = 12.0) -> Run:
    one = Run(4, QUIET)
    one.cluster.begin()
    one.cluster.later(1.0, one._clients_begin)
    one.cluster.run_until(until)
    return one


def fault(kind: str, amount: float) -> Fault:
    return Fault(at=0.0, label="BK", kind=kind, nodes=(1,), seconds=1.0, amount=amount)


@pytest.mark.parametrize(("amount", "strikes"), [(0.4, True), (0.6, False)])
def test_no_disk_lies_behind_a_marker_that_vouches_for_it(amount: float, strikes: bool) -> None:
    """After a clean stop nothing but the count tells, until a process has taken the marker away."""
    one = settled()
    node = one.cluster.nodes[1]
    given = fault("lose power, with a disk that lies, at", amount)
    node.stopped_clean = node.incarnation
    assert trust.lie(one.injector, given, [node]) == strikes
    node.stopped_clean = None
    assert node.up != strikes
    assert trust.lie(one.injector, given, [node]) != strikes


@pytest.mark.parametrize("alone", [True, False])
def test_no_folder_is_put_back_to_before_the_only_log_that_may_lead(alone: bool) -> None:
    one = settled()
    cluster, node = one.cluster, one.cluster.nodes[1]
    copied = trust.Copied.of(node)
    assert not copied.lacks_last_log(cluster, node)
    copied = attrs.evolve(copied, disks={})
    known = cluster.store.partitions[PARTITION]
    members = (1,) if alone else (1, 2)
    cluster.store.partitions[PARTITION] = structs.replace(
        known, record=structs.replace(known.record, isr=members)
    )
    assert copied.lacks_last_log(cluster, node) == alone


@pytest.mark.parametrize("asked", [True, False])
def test_what_an_unclean_election_may_choose_is_whole(asked: bool) -> None:
    """Whether or not a complete replica lives: it may be taken for dead soon."""
    one = settled()
    cluster = one.cluster
    disk = cluster.nodes[1].hosts[PARTITION].disk
    disk.flush()
    assert disk.rot(0.0, found_at_start=False)
    known = cluster.store.partitions[PARTITION]
    record = structs.replace(known.record, isr=(3,), leader=3)
    cluster.store.partitions[PARTITION] = structs.replace(known, record=record)
    if asked:
        cluster.oracle.asked_unclean.add(PARTITION)
    trust.mend_what_nobody_has(cluster)
    assert disk.is_rotten != asked


def test_a_leader_that_has_just_been_elected_deletes_what_is_older_than_its_epoch() -> None:
    """Its log begins with its epoch, although what it has deleted is of an earlier one (K268)."""
    one = settled()
    cluster = one.cluster
    node = elect_another(cluster, 0.0)
    assert node is not None
    host = node.hosts[PARTITION]
    until = cluster.now + 2.0
    while not _has_only_earlier_epochs(host) and cluster.now < until:
        cluster.run_until(cluster.now + 0.005)
    assert host.replica is not None and host.replica.leader is not None
    begun = host.replica.leader.epoch_start
    assert host.disk.start < begun
    _delete_earlier_epochs(cluster, node)
    assert host.disk.start == begun
    cluster.run_until(cluster.now + 1.0)  # it writes on, so its epoch has a record
    assert host.disk.epochs[0] == EpochEntry(host.replica.leader_epoch, begun)

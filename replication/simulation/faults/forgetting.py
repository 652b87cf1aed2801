"""Everything stops at once, and the metadata store comes back without its last commits: no folder can tell.

The device of the store has not kept what it said that it had kept, and the folders' proofs are no newer than what
is left. So the nodes come in without a repair. Elections are forgotten, and logs hold batches of leader epochs that
the store does not know. Machines lose power, or (if the store is on another one) only their processes end: then
each member of the ISR that the store still knows has to hold everything, because nothing names other members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...core import messages as m
from ..oracles.facts import PartitionFacts
from ..world.node import Node
from .restores import Backup, elect_another
from .schedule import Fault

if TYPE_CHECKING:
    from ..world.cluster import Cluster
    from .injector import Injector

ONLY_PROCESSES = 0.4
"""The share of these faults that ends processes alone."""
TRIES = 20
"""How often it is looked whether everything may be cut, a tenth of a second apart."""


def forget(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Let leaders be elected that the store is to forget; cut everything later."""
    cluster = injector.cluster
    store = cluster.store
    if store.is_put_back or any(node.membership is None or node.stopped_clean for node in nodes):
        return False
    backup, proofs = Backup.of(cluster), {node.id: (node.proof, node.folder) for node in nodes}
    place = fault.amount * 7 % 1
    if fault.kind in MAKES_TOPIC:
        _make_topic(cluster, fault)

    def elect() -> None:
        elect_another(cluster, place)

    elect()
    cluster.later(fault.seconds / 2, elect)

    def cut(tries: int) -> None:
        if cluster.calm or not _is_same_cluster(cluster, backup):
            return
        if any(node.folder != proofs[node.id][1] for node in nodes):
            return  # each would see that its new log directory was forgotten
        processes_only = fault.amount < ONLY_PROCESSES
        if processes_only and not _members_have_all(cluster, backup):
            if tries:
                cluster.later(0.1, lambda: cut(tries - 1))
            return
        injector.applied[fault.label] += 1
        cluster.note(f"** {fault}, back to revision {backup.revision}")
        for facts in _outgrown(cluster, backup):
            facts.outgrown = True
        for node in nodes:
            node.proof = proofs[node.id][0]
            if not processes_only:
                injector.lose_power(node, fault, fault.amount * (1 + node.id) % 1)
            injector.crash(node, 0.3 + 2 * fault.amount * node.id % 1)
        backup.forget(cluster)
        cluster.oracle.forgotten()
        _forget_leaders(cluster)

    cluster.later(fault.seconds, lambda: cut(TRIES))
    return False


def _is_same_cluster(cluster: Cluster, backup: Backup) -> bool:
    """Whether the store would forget whole topics alone, and bring none back."""
    store, before = cluster.store, backup.partitions
    if store.is_put_back or not store.reachable or not before.keys() <= store.partitions.keys():
        return False
    if any(each.topic in backup.topics for each in store.partitions.keys() - before.keys()):
        return False
    if any(node.stopped_clean or node.membership is None for node in cluster.nodes.values()):
        return False  # the marker of a clean stop vouches for what the store has forgotten
    for partition, versioned in before.items():
        then, now = versioned.record, store.partitions[partition].record
        if (then.topic_id, then.replicas, then.adding) != (now.topic_id, now.replicas, now.adding):
            return False
        # One that has no folder yet is taken for complete: it never had anything.
        facts = cluster.oracle.partitions[partition]
        there = {host.node.id for host in cluster.hosts_of(partition, facts)}
        if not there >= {*then.isr, *then.elr}:
            return False
    return bool(before)


def _members_have_all(cluster: Cluster, backup: Backup) -> bool:
    """Whether each log shows that elections are forgotten, and who may be elected cleanly lacks nothing."""
    if cluster.oracle.risky or any(node.lost_data or node.offline for node in cluster.nodes.values()):
        return False
    for partition, versioned in backup.partitions.items():
        then, now = versioned.record, cluster.store.partitions[partition].record
        facts = cluster.oracle.partitions[partition]
        hosts = cluster.hosts_of(partition, facts)
        for host in hosts:
            disk = host.disk
            last = disk.flat[-1][0] if disk.end > disk.start else -1
            if disk.is_rotten or (now.leader_epoch > then.leader_epoch and last <= then.leader_epoch):
                return False
            has_all = facts.agreed(disk) == len(facts.committed) and disk.start >= facts.deleted
            if host.node.id in (*then.isr, *then.elr) and not has_all:
                return False
    return True


def _outgrown(cluster: Cluster, backup: Backup) -> Iterator[PartitionFacts]:
    """Partitions in which somebody lacks committed records whom the store will count as a last known member."""
    for partition, versioned in backup.partitions.items():
        facts, then = cluster.oracle.partitions[partition], versioned.record
        logs = {host.node.id: host.disk for host in cluster.hosts_of(partition, facts)}
        known = (logs[node] for node in (*then.isr, *then.elr, *then.last_known_elr) if node in logs)
        if any(facts.agreed(disk) < len(facts.committed) for disk in known):
            yield facts


def _forget_leaders(cluster: Cluster) -> None:
    """An epoch that is in no log, and that nobody who knew of it outlives, may come again."""
    for partition, facts in cluster.oracle.partitions.items():
        hosts = cluster.hosts_of(partition, facts)
        held = {epoch for host in hosts for epoch, _ in host.disk.flat}
        known = cluster.store.partitions[partition].record.leader_epoch
        facts.leaders = {e: who for e, who in facts.leaders.items() if e in held or e <= known}


def _make_topic(cluster: Cluster, fault: Fault) -> None:
    """Have a topic made that the store is to forget, as safe as the others: as many machines may lose something."""
    least = min(topic.min_insync_replicas for topic in cluster.settings.topics)
    request = m.CreateTopicRequest(
        name=f"made-at-{fault.at}", partitions=1, replication_factor=3, config={"min_insync_replicas": least}
    )
    cluster.admin_request(request, f"made at {fault.at}")


MAKES_TOPIC = ("end everything, and forget a topic that was made just now, at",)
KINDS = dict.fromkeys(("end everything, and forget the store's last commits, at", *MAKES_TOPIC), forget)

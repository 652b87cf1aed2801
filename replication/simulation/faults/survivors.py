"""All machines lose power at once, and one device keeps everything: whatever it holds is not given up.

The other devices lose what they had not flushed, or they are lost altogether. Then nothing but the election stands
between what was acknowledged and its loss (S40).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import messages as m
from ...core.types import NO_LEADER
from ..world.node import Node
from .schedule import Fault

if TYPE_CHECKING:
    from ..world.cluster import Cluster
    from .injector import Injector

WIPED = 0.4
"""Part of these faults in which the other devices are lost altogether."""
FIRST = 0.5
"""Part of these faults in which the survivor starts before all others, else some time after them."""
OPERATOR = 2.0
"""Seconds between two looks of the operator at partitions that nobody may lead."""


def spare_one(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """End all machines; the device with the most committed records keeps all."""
    cluster = injector.cluster
    everybody = list(cluster.nodes.values())
    if cluster.store.is_put_back or any(node.membership is None for node in everybody):
        return False
    spared = max(everybody, key=lambda node: (_committed(node), -node.id))
    wipes = fault.amount < WIPED and _may_wipe(cluster, spared)
    for node in everybody:
        if node is spared or not wipes:
            injector.lose_power(node, fault, 1.0 if node is spared else 0.0)
        else:
            _wipe(injector, node)
    for partition, facts in cluster.oracle.partitions.items():
        disk = cluster.oracle.disk_of(spared.id, partition)
        has_all = facts.agreed(disk) == len(facts.committed) > 0 and disk.start >= facts.deleted
        facts.spared = spared.id if has_all and not disk.is_rotten else 0
        facts.wiped = facts.wiped or wipes
    is_first = fault.amount * 7 % 1 < FIRST
    for node in everybody:
        later = node is not spared if is_first else node is spared
        injector.crash(node, 0.3 + later * fault.seconds * (fault.amount * (2 + node.id) % 1))
    call_operator(injector)
    return True


def _may_wipe(cluster: Cluster, spared: Node) -> bool:
    """Whether the survivor alone is enough to go on.

    Nobody may elect a leader of an internal topic uncleanly. A log whose records are all deleted knows no leader
    epoch, and takes offsets that are given out again for its own (seed 2286).
    """
    logs = [each for each in spared.hosts.values() if not each.facts.gone]
    knows_epochs = all(each.disk.start < each.disk.end for each in logs if each.disk.end)
    return knows_epochs and not cluster.settings.coordinates


def _committed(node: Node) -> int:
    return sum(host.facts.agreed(host.disk) for host in node.hosts.values() if not host.facts.gone)


def _wipe(injector: Injector, node: Node) -> None:
    """A new device stands in the place of the old one."""
    for host in node.hosts.values():
        injector.cluster.oracle.retired_by_fault(host)
    node.hosts.clear()
    node.strays.clear()
    node.has_held.clear()
    node.proof = node.stopped_clean = None
    node.directories += 1
    node.boot += 1
    injector.has_lost(node)


def call_operator(injector: Injector) -> None:
    """From now on an operator looks at partitions that nobody may lead."""
    if not injector.has_operator:
        injector.has_operator = True
        _elect_where_nobody_may(injector.cluster)


def _elect_where_nobody_may(cluster: Cluster) -> None:
    """An operator asks for an unclean election where every node is back and the store names nobody."""
    waiting, away = [], {cluster.away.id} if cluster.away is not None else set()
    if cluster.store.live.keys() | away >= cluster.nodes.keys():
        for versioned in cluster.store.partitions.values():
            record = versioned.record
            if record.leader == NO_LEADER and not (*record.isr, *record.elr, *record.last_known_elr):
                waiting.append(m.PartitionName(topic=record.topic, partition=record.partition))
                cluster.oracle.asked_unclean.add(record.id)
    if waiting:
        cluster.admin_request(m.ElectLeadersRequest(partitions=waiting, unclean=True))
    cluster.later(OPERATOR, lambda: _elect_where_nobody_may(cluster))


KINDS = {"cut the power of all machines, and spare a device,": spare_one}

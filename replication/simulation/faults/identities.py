"""Identity files that change while their process is down, and stray logs that an operator restores.

A log's identity file names its topic's id, the log directory has an identity of its own, and its proof says how old
it is. No log is deleted because of any of them, and none counts as complete (S37, S39).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..world.disk import DAMAGED
from ..world.node import Host, Node
from .schedule import Fault
from .survivors import call_operator

if TYPE_CHECKING:
    from ..world.cluster import Cluster
    from .injector import Injector

EVERYBODY = 0.5
"""Part of these faults that end all processes, so that the changed node comes back first and may lead."""
OF_ANOTHER = 0.3
"""Part of the changed topic ids that are those of another topic that there is."""
AHEAD = 2.0
"""Seconds by which a node whose files have changed starts before the others."""


def _ended(injector: Injector, fault: Fault, node: Node) -> None:
    """End a process, and perhaps those of all other nodes, which start later.

    A log that is set aside may be the only one with all that is committed: then nobody may lead (seed 7122880).
    """
    call_operator(injector)
    others = injector.cluster.nodes.values() if fault.amount * 7 % 1 < EVERYBODY else ()
    for other in others:
        if other is not node and other.up:
            injector.crash(other, fault.seconds + AHEAD * (fault.amount * other.id * 3 % 1))
    injector.crash(node, fault.seconds)


def _chosen(node: Node, fault: Fault) -> Host | None:
    """One of a node's logs of topics that there are."""
    there = [host for host in node.hosts.values() if not host.facts.gone and host.disk.identity is None]
    return there[int(0.999 * fault.amount * len(there))] if there else None


def change_topic_id(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Change the topic id of a log, to an unknown one or that of another topic; or damage the file."""
    node, topics = nodes[0], injector.cluster.store.topics
    host = _chosen(node, fault)
    if not node.up or host is None:
        return False
    if fault.kind.startswith("damage"):
        identity = DAMAGED
    else:
        others = [each.topic_id for each in topics.values() if each.topic_id != host.facts.topic_id]
        is_known = bool(others) and fault.amount * 11 % 1 < OF_ANOTHER
        identity = others[0] if is_known else f"no topic's {fault.amount}"
    if not injector.may_lose(node):
        return False
    host.disk.identity = identity
    injector.has_lost(node)
    _ended(injector, fault, node)
    return True


def lose_proof(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Lose the proof of a log directory, and perhaps its identity."""
    node = nodes[0]
    if not node.up or node.membership is None or not injector.may_lose(node):
        return False
    node.proof = None
    if fault.kind.startswith("lose the identity"):
        node.directories += 1
    injector.has_lost(node)
    _ended(injector, fault, node)
    return True


def restore(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Stop a node, put a stray log back in place of the present one, and start the node again."""
    cluster = injector.cluster
    for node in sorted(cluster.nodes.values(), key=lambda each: (each.id - nodes[0].id) % len(cluster.nodes)):
        stray = _restorable(cluster, node)
        if node.up and stray is not None and injector.may_lose(node):
            break
    else:
        return False
    injector.has_lost(node)
    injector.crash(node, fault.seconds)
    present = node.hosts.get(stray.partition)
    if present is not None:
        cluster.oracle.retired_by_fault(present)
        node.keep_stray(present)
    node.strays[stray.partition].remove(stray)
    disk = stray.disk
    disk.identity, disk.is_restored = None, True
    disk.agreed = min(disk.agreed, disk.start)
    disk.recover()
    node.hosts[stray.partition] = stray
    stray.forget(cluster.new_id())
    return True


def _restorable(cluster: Cluster, node: Node) -> Host | None:
    """A sound stray log of a partition of this node, of the topic that has its name now."""
    for partition, strays in node.strays.items():
        known = cluster.store.partitions.get(partition)
        for host in strays:
            if known is None or host.facts is not cluster.oracle.partitions.get(partition):
                continue
            if node.id in known.record.replicas and not host.disk.is_rotten:
                return host
    return None


def mend(cluster: Cluster) -> None:
    """An operator mends the identity files of the logs that are still in their places."""
    for node in cluster.nodes.values():
        for host in node.hosts.values():
            host.disk.identity = None


KINDS = {
    "change the topic id of a log of": change_topic_id,
    "damage the topic id of a log of": change_topic_id,
    "lose the proof of": lose_proof,
    "lose the identity and the proof of": lose_proof,
    "restore a stray log of": restore,
}

"""Faults that lie about the past: folders put back to an older state, logs cut short, disks that never flushed."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import attrs

from ...core.broker.membership.registration import (
    Evidence,
    Held,
    Holdings,
    Membership,
    NextProof,
    StorePutBackError,
)
from ...core.control.elections import WAIT
from ...core.control.records import pulse_key
from ...core.types import PartitionId
from ..errors import require
from ..oracles.facts import PartitionFacts
from ..settings import INTERNAL
from ..world.disk import Disk
from ..world.node import Host, Node
from .schedule import Fault

if TYPE_CHECKING:
    from ..world.cluster import Cluster
    from .injector import Injector


ALONE = 0.3
"""Of the faults that spoil what a follower needs, the share that waits for a leader that nobody could replace."""
WAITS = 150
"""How often such a fault looks, a tenth of a second apart."""


@attrs.frozen
class Copied:
    """A copy of a node's folder, made while its process ran or after it had stopped."""

    disks: dict[PartitionId, tuple[Disk, PartitionFacts]]
    proof: NextProof | None
    stopped_clean: int | None
    directories: int
    has_held: frozenset[PartitionId]

    @classmethod
    def of(cls, node: Node) -> Copied:
        disks = {each: (copy.deepcopy(host.disk), host.facts) for each, host in node.hosts.items()}
        return cls(disks, node.proof, node.stopped_clean, node.directories, frozenset(node.has_held))

    def is_older_than(self, cluster: Cluster, node: Node) -> bool:
        """Whether the store has counted on since; within one count nobody can tell a copy from the folder."""
        counted = cluster.store.get(pulse_key(node.id))
        known = counted.record.pulses.get(node.folder, 0) if counted is not None else 0  # type: ignore[attr-defined]
        return self.proof is not None and self.proof.pulse < known

    def lacks_last_log(self, cluster: Cluster, node: Node) -> bool:
        """Whether it was made before a log on which the store counts alone, as after a repair.

        Then no replica is left that may lead, nor one that was last known to be eligible: an operator has to elect
        one uncleanly, and no promise covers that (seed 12710).
        """
        for partition, versioned in cluster.store.partitions.items():
            record, host = versioned.record, node.hosts.get(partition)
            _, facts = self.disks.get(partition, (None, None))
            if host is None or host.facts is facts:
                continue
            last = {*record.isr, *record.elr, *record.last_known_elr}
            if node.id in last and not any(
                partition in cluster.nodes[other].hosts for other in last - {node.id}
            ):
                return True
        return False

    def put_back(self, cluster: Cluster, node: Node) -> None:
        """The folder holds what it held then; replicas that came since are gone."""
        for partition, host in list(node.hosts.items()):
            disk, facts = self.disks.get(partition, (None, None))
            if disk is None or facts is not host.facts:
                cluster.oracle.retired_by_fault(host)
                del node.hosts[partition]
                continue
            disk.agreed = min(disk.agreed, disk.start)
            host.disk = disk
        node.proof, node.stopped_clean = self.proof, self.stopped_clean
        node.directories, node.has_held = self.directories, set(self.has_held)


def put_back(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Copy a folder now; later the node is killed, and started again from the copy."""
    node, cluster = nodes[0], injector.cluster
    if node.membership is None:
        return False
    copied = Copied.of(node)

    def restore() -> None:
        if cluster.calm or not copied.is_older_than(cluster, node) or not injector.may_lose(node):
            return
        if copied.lacks_last_log(cluster, node):
            return
        injector.applied[fault.label] += 1
        cluster.note(f"** the folder of node {node.id} is put back")
        if node.up:
            cluster.kill(node)
        copied.put_back(cluster, node)
        injector.has_lost(node)
        cluster.start(node)
        for partition in node.hosts:
            cluster.oracle.quorum(partition)

    cluster.later(fault.seconds, restore)
    return False


def start_twin(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Start a second process from a copy of the folder while the first one lives: it may not take its place."""
    node, cluster = nodes[0], injector.cluster
    if node.membership is None:
        return False
    copied = Copied.of(node)

    def start() -> None:
        holder = cluster.store.nodes.get(node.id)
        alive = node.up and holder is not None and holder.incarnation == node.incarnation
        if cluster.calm or not alive or not copied.is_older_than(cluster, node):
            return
        injector.applied[fault.label] += 1
        evidence = Evidence(directory_id=node.folder, stopped_clean=copied.stopped_clean, proof=copied.proof)
        twin = Membership(
            node_id=node.id,
            boot_id=f"boot {node.boot}",
            process="a twin",
            holdings=Holdings(
                directories=(evidence,),
                some_offline=False,
                held=lambda partition: Held(never=True),
                offline=frozenset,
            ),
        )
        seen = cluster.store.seen_by(node.id)
        try:
            twin.begin(seen, cluster.store.revision)
        except StorePutBackError:
            # The store has forgotten commits since the folder was copied: the twin does not start.
            return
        require(not twin.replaces_holder(seen), "S23", f"a copy of node {node.id} takes its place")

    cluster.later(fault.seconds, start)
    return False


def cut_short(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Kill a node; one of its logs then ends before what its checkpoint says is committed."""
    node = nodes[0]
    short = [host for host in node.hosts.values() if host.disk.high_watermark > host.disk.start]
    if not node.up or not short or not injector.may_lose(node):
        return False
    injector.crash(node, fault.seconds)
    disk = short[int(fault.amount * 0.999 * len(short))].disk
    mark = disk.high_watermark
    disk.flushed = disk.start
    # Less than its checkpoint says, whatever the amount: a log that ends there is not short.
    disk.truncate(min(mark - 1, disk.start + int(fault.amount * (mark - disk.start))))
    if disk.end < disk.start:
        disk.restart(disk.start)
    disk.high_watermark = mark
    injector.has_lost(node)
    return True


def lie(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """A machine loses power, and its disk had not flushed what it said that it had; the count may be lost, too."""
    node = nodes[0]
    loses_count = fault.amount < 0.5
    # The marker of a clean stop vouches for the folder, until a process has read it and takes it away: nothing but
    # the count could tell of the loss (seed 23177). Nobody loses power here between a stop and a start.
    is_vouched_for = node.stopped_clean is not None and not loses_count
    if not node.up or is_vouched_for or not injector.may_lose(node):
        return False
    for host in node.hosts.values():
        host.disk.flushed = round(fault.amount * host.disk.flushed)
    if loses_count:
        node.proof = None
    injector.lose_power(node, fault, fault.amount)
    injector.crash(node, fault.seconds)
    return True


def rot(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Spoil a batch of one of a node's logs: as much a loss as any other, until it is copied again."""
    node = nodes[0]
    there = [
        host for host in node.hosts.values() if host.disk.flushed > host.disk.start and not host.facts.gone
    ]
    if not there or not injector.may_lose(node):
        return False
    place = 0.999 * fault.amount * len(there)
    found_at_start = fault.kind.startswith("rot a batch that")
    if not there[int(place)].disk.rot(place % 1, found_at_start=found_at_start):
        return False
    injector.cluster.oracle.risky.add(node.id)
    return True


def rot_needed(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Spoil what a leader is about to send to a replica that is behind; some wait for one that alone has all."""
    if fault.amount < ALONE:
        _rot_only_copy(injector, fault, WAITS)
        return False
    return _rot_what_is_behind(injector, fault, nodes[0], _behind(injector.cluster, nodes[0]))


def _rot_only_copy(injector: Injector, fault: Fault, times: int) -> None:
    """Wait until a leader has followers to bring up to date while nobody else lives who has all (L14)."""
    cluster = injector.cluster
    if cluster.calm or not times:
        return
    for node in cluster.nodes.values():
        alone = [each for each in _behind(cluster, node) if not _may_be_led_by_another(cluster, each[0])]
        if alone and _rot_what_is_behind(injector, fault, node, alone):
            injector.applied[fault.label] += 1
            cluster.note(f"** {fault}: node {node.id}, which alone has all")
            return
    cluster.later(0.1, lambda: _rot_only_copy(injector, fault, times - 1))


def _may_be_led_by_another(cluster: Cluster, host: Host) -> bool:
    known = cluster.store.partitions.get(host.partition)
    if known is None:
        # The store was put back, and has forgotten the partition: nothing of it is waited for now.
        return True
    record = known.record
    return any(each != host.node.id and each in cluster.store.live for each in (*record.isr, *record.elr))


def _behind(cluster: Cluster, node: Node) -> list[tuple[Host, int]]:
    """Of what a node leads, with the end of a replica that lacks something of it."""
    return [
        (host, other.disk.end)
        for host in node.hosts.values()
        if host.replica is not None and host.replica.leader is not None and not host.facts.gone
        for other in cluster.hosts_of(host.partition, host.facts)
        if host.disk.start <= other.disk.end < host.disk.end
    ]


def _rot_what_is_behind(injector: Injector, fault: Fault, node: Node, behind: list[tuple[Host, int]]) -> bool:
    if not behind or not injector.may_lose(node):
        return False
    host, offset = behind[int(0.999 * fault.amount * len(behind))]
    host.disk.flush()
    if not host.disk.rot_at(offset):
        return False
    injector.cluster.oracle.risky.add(node.id)
    return True


def mend_what_nobody_has(cluster: Cluster) -> None:
    """Where no other replica has all that is committed an operator must help: the batch is brought back.

    A member whose machine has lost power since is complete in the record alone: its next start gives its place
    back. Then any living log may be elected, also one that was never eligible (seed 7120725), and a damaged one
    has no word to give: nobody can tell what it held.

    Nor does anybody wait for a complete replica that is down, or is taken for dead soon (seed 202), where an
    unclean election may come first: the others then cut what the log that leads cannot send them (seed 20578635).
    """
    for partition, versioned in cluster.store.partitions.items():
        record, hosts = versioned.record, cluster.hosts_of(partition)
        lost = {host.node.id for host in hosts if host.node.lost_data}
        rotten = {host.node.id for host in hosts if host.disk.is_rotten}
        complete = {*record.isr, *record.elr} - lost
        # The next leader of an internal topic reads all of it, so nothing of it may be spoilt in calm.
        any_may_lead = not complete or _may_elect(cluster, partition) or partition.topic in INTERNAL
        for host in hosts:
            if any_may_lead or (host.node.id in complete and complete <= rotten):
                host.disk.rotten.clear()


def _may_elect(cluster: Cluster, partition: PartitionId) -> bool:
    """Whether a partition without a complete replica may elect another one."""
    topic = cluster.store.topics.get(partition.topic)
    waits = topic is not None and topic.config.unclean_leader_election == WAIT
    return not waits or partition in cluster.oracle.asked_unclean


KINDS = {
    "rot what a follower needs, led by": rot_needed,
    "rot a batch of": rot,
    "rot a batch that a start will find, of": rot,
    "put back the folder of": put_back,
    "start a twin of": start_twin,
    "cut short a log of": cut_short,
    "lose power, with a disk that lies, at": lie,
}

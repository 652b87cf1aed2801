"""The conditions that must come true once faults stop: L1 to L10."""

from __future__ import annotations

from ...core.control.records import PartitionRecord
from ...core.coordination.routing import TRANSACTION_TOPIC
from ...core.types import NO_LEADER
from ..clients.plain import Producer
from ..errors import require
from ..world.cluster import Cluster

MOST_PARKED = 100


def check_health(cluster: Cluster, producers: list[Producer], *, without: int | None = None) -> None:
    """Everything leads, follows and is answered; `without` is a node that is down or hangs, and must be out.

    A partition that an operator has meanwhile moved to that node alone waits for it.
    """
    here = len(cluster.nodes) - (without is not None)
    for topic in cluster.settings.topics:
        possible = topic.replication_factor <= here
        made = topic.name in cluster.store.topics
        require(made or not possible, "L1", f"topic {topic.name} was never created")
    for versioned in cluster.store.partitions.values():
        _check_partition(cluster, versioned.record, _missing(cluster, versioned.record, without))
    overdue = [sent for sent in cluster.requests.overdue() if sent.node != without]
    require(not overdue, "L5", f"never answered: {overdue[:1]}")
    vain = unwanted(cluster)
    require(not vain, "L5", f"nobody wants to know any more: {vain}")
    for node in cluster.nodes.values():
        if node.id != without and node.broker is not None:
            parked = node.broker.serving.parked
            require(parked < MOST_PARKED, "L5", f"node {node.id} keeps {parked} fetches")
    if without is None:
        _check_admin_requests(cluster)
        for producer in producers:
            _check_producer(producer)


def unwanted(cluster: Cluster) -> list[str]:
    """Questions that are open though no replica wants to know, or not from that leader."""
    found = []
    for node in cluster.nodes.values():
        for partition, leader in node.broker.following.asked.items() if node.broker is not None else ():
            host = node.hosts.get(partition)
            replica = host.replica if host is not None else None
            record = replica.versioned.record if replica is not None and replica.versioned else None
            if replica is None or record is None or (replica.role, record.leader) != ("follower", leader):
                found.append(f"node {node.id} asks node {leader} for {partition}")
    return found


def _check_admin_requests(cluster: Cluster) -> None:
    """L8: reassignments are over, their replicas are where they belong, and preferred replicas lead."""
    records = [versioned.record for versioned in cluster.store.partitions.values()]
    for record in records:
        require(not record.reassigning, "L8", f"never finished: {record}")
        holding = {host.node.id for host in cluster.hosts_of(record.id) if not host.facts.gone}
        require(holding == set(record.replicas), "L8", f"nodes {sorted(holding)} have a log of {record}")
    left = [host.name for node in cluster.nodes.values() for host in node.hosts.values() if host.facts.gone]
    require(not left, "L8", f"of deleted topics there are still {left}")
    orphans = [record for record in records if record.topic not in cluster.store.topics]
    require(not orphans, "L8", f"without a topic: {orphans}")
    for topic in cluster.store.topics.values():
        parts = [record for record in records if record.topic == topic.name]
        require(len(parts) == topic.partitions, "L8", f"{topic} has {len(parts)} partitions")
        right = all(each.min_insync_replicas == topic.config.min_insync_replicas for each in parts)
        require(right, "L8", f"the minimum ISR is {topic.config.min_insync_replicas}: {parts}")
    for preferred in {record.replicas[0] for record in records} if cluster.settings.rebalance else ():
        led = [record.leader == preferred for record in records if record.replicas[0] == preferred]
        require(led.count(False) * 10 <= len(led), "L8", f"node {preferred} does not get its partitions back")


def _check_producer(producer: Producer) -> None:
    facts = producer.facts
    settled = all(entry.acknowledged for entry in producer.window)
    require(
        settled or facts.unclean or facts.forgot or facts.gone,
        "L9",
        f"{facts.name}: never acknowledged: {list(producer.window)}",
    )


def _missing(cluster: Cluster, record: PartitionRecord, without: int | None) -> int | None:
    """The node that a partition must do without: a log made after a log directory went offline is in another."""
    if without is None:
        return None
    node = cluster.nodes[without]
    works = node.up and node.stalled_until <= cluster.now
    return None if works and node.offline and record.id not in node.offline else without


def _check_partition(cluster: Cluster, record: PartitionRecord, without: int | None) -> None:
    members = {node for node in record.replicas if node != without}
    waits = (record.leader, record.isr, set(record.elr)) == (NO_LEADER, (), {without})
    if not members:
        require(waits, "L1", record)
        return
    if waits:
        # Alone in the ISR when its disk hung: followers that had been cut off had lagged for too long by then.
        return
    require(record.leader != NO_LEADER and record.leader != without, "L1", record)
    require(without not in record.isr, "L7", f"node {without} is gone: {record}")
    require(members == set(record.isr), "L2", record)
    replicas = {host.node.id: host.replica for host in cluster.hosts_of(record.id) if not host.facts.gone}
    leader = replicas.get(record.leader)
    if leader is None or leader.leader is None:
        require(False, "L1", f"node {record.leader} does not lead: {record}")
        return
    require(leader.leader.change.pending is None, "L4", leader.leader.change.pending)
    if len(record.isr) < record.min_isr or _is_written_on(cluster, record, without):
        return
    for member in members:
        replica = replicas.get(member)
        if replica is None:
            require(False, "L2", f"node {member} has no replica: {record}")
            return
        ends = (replica.log.high_watermark, replica.log.log_end_offset, replica.log.outstanding)
        expected = (leader.log.log_end_offset, leader.log.log_end_offset, 0)
        require(ends == expected, "L3", f"{record.id} on {member}: {replica.log}, leader: {leader.log}")
        behind = replica.log.log_start_offset < leader.log.log_start_offset
        require(not behind, "L2", f"{record.id} on {member} keeps what is deleted: {replica.log}")


def _is_written_on(cluster: Cluster, record: PartitionRecord, without: int | None) -> bool:
    """Whether something may just be written: by a transaction that waits for the absent node, or of expired ids."""
    waits = without is not None and cluster.transactions.unfinished
    return bool(waits) or (cluster.settings.expires > 0 and record.topic == TRANSACTION_TOPIC)


def leaderships(cluster: Cluster) -> list[tuple[int, int]]:
    return [(v.record.leader, v.record.leader_epoch) for v in cluster.store.partitions.values()]

"""A metadata store that is put back to an older state: nobody goes by it, and the nodes' folders repair it.

The store is copied, and put back later, with the nodes stopped or while they run. Those that run stop at their next
look, and none that is started goes on (S26). Then an operator runs the repair over all folders. After it everything
that was committed is there (S7), and the oracle watches on.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
from msgspec import structs

from ...core.control import records as rec
from ...core.control.elections import WAIT
from ...core.recovery.repair import FoundFolder, FoundLog, plan
from ...core.types import NO_LEADER, PartitionId
from ..errors import require
from ..settings import SESSION
from ..world.node import Host, Node
from .schedule import Fault

if TYPE_CHECKING:
    from ..oracles.facts import PartitionFacts
    from ..world.cluster import Cluster
    from .injector import Injector

NOTICED = 3.0
"""After so long every process that reaches the store, and does not stand still, all the while has looked at it."""
AT_ONCE = 0.005
"""How often it is looked whether a leader that was cut off is deposed."""
NEW_LEADER = 0.5
"""The share of deposed leaders that have to have been elected just before."""
ELECTED = 2.0
"""After so long one of them leads, or will not."""
NEXT_TRY = 0.5
"""A store that cannot be put back now may be a little later: for so long the copy waits."""
STARTED_EARLY = 0.5
"""How often a node is started before the repair, by mistake."""


@attrs.frozen
class Backup:
    """The content of a copy of the store. Sessions have ended, and with them what they own, when it is put back."""

    revision: int
    tables: dict[str, object]
    pulses: dict[int, rec.PulseRecord]

    @classmethod
    def of(cls, cluster: Cluster) -> Backup:
        store = cluster.store
        tables = {name: copy.copy(getattr(store, name)) for name in store.DURABLE}
        return cls(store.revision, tables, dict(store.pulses))

    @property
    def partitions(self) -> Mapping[PartitionId, rec.Versioned]:
        found = self.tables["partitions"]
        assert isinstance(found, dict)
        return found

    @property
    def topics(self) -> Mapping[str, rec.TopicRecord]:
        found = self.tables["topics"]
        assert isinstance(found, dict)
        return found

    def forget(self, cluster: Cluster) -> None:
        """The store holds what it held then."""
        store = cluster.store
        store.forget_sessions()
        for name, table in self.tables.items():
            setattr(store, name, copy.copy(table))
        store.revision = self.revision

    def put_back(self, cluster: Cluster) -> None:
        """The same, and it is not to be used before it is repaired."""
        self.forget(cluster)
        store = cluster.store
        store.is_put_back = True
        for node in cluster.nodes.values():
            node.is_ahead = self.is_noticed_by(node)

    def is_noticed_by(self, node: Node) -> bool:
        """Within one count of its folder nobody can tell: others may write until the revision is what it was."""
        if node.proof is None:
            return False
        return self.is_behind_count_of(node) or (not node.up and node.proof.revision > self.revision)

    def is_behind_count_of(self, node: Node) -> bool:
        """Whether its folder has counted further. Nobody but the node itself counts on, whatever others write."""
        counted = self.pulses.get(node.id)
        known = counted.pulses.get(node.folder, 0) if counted is not None else 0
        return node.proof is not None and node.proof.stored > known


def back_up(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Copy the store now; put it back later."""
    cluster = injector.cluster
    if not _may_be_copied(cluster):
        return False
    backup = Backup.of(cluster)
    cluster.later(fault.seconds, lambda: _put_back(injector, fault, backup))
    return False


def back_up_and_depose(injector: Injector, fault: Fault, nodes: list[Node]) -> bool:
    """Copy the store and cut a node off, to which clients go on to write; put the copy back when another has taken
    over and has committed less than that. Chance alone hardly ever hits this: a moment later a checkpoint may say
    what is committed, and then no repair goes by the lengths of logs.

    Some are elected just before, and have committed nothing in their epoch when they are cut off. Then they delete
    all that is older: their logs begin with that epoch, although what is deleted is of an earlier one.
    """
    cluster = injector.cluster
    if not _may_be_copied(cluster):
        return False
    backup = Backup.of(cluster)
    if fault.amount >= NEW_LEADER:
        return _depose(injector, fault, nodes[0], backup, deletes=False)
    elected = elect_another(cluster, fault.amount / NEW_LEADER)
    if elected is not None:
        _await_election(injector, fault, elected, backup, cluster.now + ELECTED)
    return False


def elect_another(cluster: Cluster, place: float) -> Node | None:
    """Move a leadership to another living member, as a planned election does."""
    able = [
        (known.record, member)
        for known in cluster.store.partitions.values()
        for member in known.record.isr
        if NO_LEADER != known.record.leader != member in cluster.store.live
    ]
    if not able or cluster.store.is_put_back:
        return None
    record, member = able[int(place * len(able))]
    epochs = record.leader_epoch + 1, record.partition_epoch + 1
    moved = structs.replace(record, leader=member, leader_epoch=epochs[0], partition_epoch=epochs[1])
    cluster.put_record(moved, "mover")
    cluster.store_changed()
    return cluster.nodes[member]


def _may_be_copied(cluster: Cluster) -> bool:
    """Whether a store that is put back brings no topic back that was deleted since."""
    wanted = {topic.name for topic in cluster.settings.topics}
    return not cluster.settings.recreations and wanted == cluster.store.topics.keys()


def _await_election(injector: Injector, fault: Fault, node: Node, backup: Backup, until: float) -> None:
    cluster = injector.cluster
    if cluster.now > until or cluster.calm or cluster.store.is_put_back:
        return
    if not any(_has_only_earlier_epochs(host) for host in node.hosts.values()):
        cluster.later(AT_ONCE, lambda: _await_election(injector, fault, node, backup, until))
    elif _depose(injector, fault, node, backup, deletes=True):
        injector.applied[fault.label] += 1
        cluster.note(f"** {fault}, elected just before")


def _has_only_earlier_epochs(host: Host) -> bool:
    """Whether a leader has committed everything that is older than its epoch, and nothing else."""
    replica = host.replica
    if replica is None or replica.leader is None or host.facts.gone:
        return False
    return host.disk.start < replica.leader.epoch_start == replica.log.high_watermark


def _depose(injector: Injector, fault: Fault, deposed: Node, backup: Backup, *, deletes: bool) -> bool:
    cluster = injector.cluster
    if not deposed.up:
        return False
    others = [other for other in cluster.nodes if other != deposed.id]
    cluster.cut([pair for o in others for pair in ((deposed.id, o), (o, deposed.id))], fault.seconds)
    injector.lose_store(fault, [deposed])
    until = cluster.now + fault.seconds

    def look() -> None:
        if cluster.now > until or cluster.calm:
            return
        if not _is_deposed(cluster, deposed):
            cluster.later(AT_ONCE, look)
        elif _may_be_put_back(cluster, backup, cold=True):
            if deletes:
                _delete_earlier_epochs(cluster, deposed)
            _put_back(injector, attrs.evolve(fault, amount=0.0), backup)

    cluster.later(SESSION, look)
    return True


def _delete_earlier_epochs(cluster: Cluster, node: Node) -> None:
    """The retention of a leader that has not heard of the next one."""
    for host in node.hosts.values():
        if _has_only_earlier_epochs(host):
            assert host.replica is not None
            cluster.retain(host, host.replica.log.high_watermark)


def _is_deposed(cluster: Cluster, node: Node) -> bool:
    """Whether another leads, and has committed something in its epoch, where a node has the longest log."""
    for partition, host in node.hosts.items():
        for other in cluster.leaders_of(partition):
            assert other.replica is not None and other.replica.leader is not None
            committed = other.replica.log.high_watermark > other.replica.leader.epoch_start
            if other.node is not node and committed and other.disk.end < host.disk.end:
                return True
    return False


def _may_be_put_back(cluster: Cluster, backup: Backup, *, cold: bool) -> bool:
    """Whether a repair can make whole what is put back now: every folder holds what it held, and nodes can tell."""
    store = cluster.store
    if cluster.oracle.risky or store.is_put_back or not store.reachable or backup.revision == store.revision:
        return False
    if any(host.disk.is_rotten for host in _logs(cluster)):
        return False
    # One that was put back within a sign of life has caught up before its nodes look: no promise covers that.
    # The same goes for one that is down: until the others look, they may write up to the revision that it knows.
    nodes = [node for node in cluster.nodes.values() if node.up or node.proof is not None]
    return cold or all(backup.is_behind_count_of(node) for node in nodes)


def _put_back(injector: Injector, fault: Fault, backup: Backup) -> None:
    cluster = injector.cluster
    if cluster.now + NOTICED + 1 > cluster.settings.storm:
        return
    cold = fault.amount < 0.5
    if not _may_be_put_back(cluster, backup, cold=cold):
        cluster.later(NEXT_TRY, lambda: _put_back(injector, fault, backup))
        return
    injector.applied[fault.label] += 1
    cluster.note("** the store is put back to an older state")
    if cold:
        for node in cluster.nodes.values():
            cluster.kill(node)
    backup.put_back(cluster)
    if cluster.chance(STARTED_EARLY):
        node = cluster.nodes[1 + int(cluster.random.random() * len(cluster.nodes))]
        if not node.up and node.is_ahead:
            cluster.start(node)
    cluster.later(NOTICED, lambda: _repair(cluster))


def _logs(cluster: Cluster) -> list[Host]:
    return [host for node in cluster.nodes.values() for host in node.hosts.values()]


def _repair(cluster: Cluster) -> None:
    """The operator stops what still runs (it could not reach the store), repairs, and starts every node."""
    for node in cluster.nodes.values():
        # One that was cut off from the store until a moment ago need not have looked at it either (seed 359).
        awake = not node.paused and cluster.now - max(node.resumed_at, node.found_store_at) >= NOTICED
        looks = node.up and node.controller is not None and awake and cluster.reaches_store(node)
        stays = looks and node.is_ahead
        require(not stays, "S26", f"node {node.id} goes on with a store that was put back")
        cluster.kill(node)
        for host in node.hosts.values():
            host.disk.recover()
    store = cluster.store
    seen = {key: each for key in _keys(cluster) if (each := store.get(key)) is not None}
    repair = plan([_folder(node) for node in cluster.nodes.values()], seen)
    for compare, put in repair.writes:
        if put.key == rec.CLUSTER_KEY:
            continue
        require(store.holds(compare), "S26", f"the repair writes over what it has not read: {compare}")
        match put.record:
            case rec.PartitionRecord() as record:
                store.put_partition(record)
            case rec.TopicRecord() as topic:
                store.put_topic(topic)
            case rec.IncarnationRecord() | rec.PulseRecord() as own:
                store.put_of_node(put.key, own, None)
            case None:
                store.drop(put.key)
    store.revision = max(store.revision, repair.floor) + 1
    store.is_put_back = False
    cluster.note(f"** the store is repaired, to lead: {dict(repair.leaders)}")
    for partition, leader in repair.leaders.items():
        before = seen.get(rec.partition_key(partition))
        _keeps_promises(cluster, partition, leader, before.record if before is not None else None)
    cluster.oracle.repaired()
    for node in cluster.nodes.values():
        node.is_ahead = False
        cluster.start(node)


def _keeps_promises(cluster: Cluster, partition: PartitionId, leader: int, before: object) -> None:
    """S16 and S7, with the exceptions of decision 69: what the folders cannot show."""
    facts = cluster.oracle.partitions.get(partition)
    logs = {
        node.id: _log(partition, host)
        for node in cluster.nodes.values()
        if (host := node.hosts.get(partition)) is not None and host.facts is facts
    }
    if facts is None or facts.unclean or leader not in logs:
        return
    topic = cluster.store.topics[partition.topic]
    unclean = before.unclean_epoch if isinstance(before, rec.PartitionRecord) else -1
    if topic.config.unclean_leader_election != WAIT:
        unclean = 0
    since = {node for node, log in logs.items() if log.last_epoch >= unclean >= 0}
    if logs[leader].log_start_offset < facts.deleted:
        _stays_deleted(cluster, facts, leader, logs, is_clean=not since)
    if _has_all_that_is_left(cluster, facts, leader, logs, is_later=leader in since):
        cluster.note(
            f"** {partition} may give out the offsets again that were deleted from {logs[leader]} on"
        )
        facts.unclean = True


def _stays_deleted(
    cluster: Cluster, facts: PartitionFacts, leader: int, logs: Mapping[int, FoundLog], *, is_clean: bool
) -> None:
    """S16: a repair brings nothing back that somebody was told is deleted, unless the folders leave no choice.

    They leave none if the log that leads has a record which those that have deleted lack, as it may be committed;
    or if these know no leader epoch, and something was written since an election that may have been unclean.
    """
    chosen = logs[leader]
    for node, log in logs.items():
        if log.log_start_offset < facts.deleted or _held(cluster, facts, node) < len(facts.committed):
            continue
        if log.last_epoch >= 0:
            excused = chosen.completeness > log.completeness
        else:
            excused = chosen.log_end_offset > log.log_end_offset or not is_clean
        require(
            excused, "S16", f"{facts.name} is to be led by {chosen}, though node {node} has deleted: {log}"
        )
    cluster.note(f"** {facts.name} may show again what was deleted up to {facts.deleted}")
    facts.deleted = chosen.log_start_offset


def _has_all_that_is_left(
    cluster: Cluster, facts: PartitionFacts, leader: int, logs: Mapping[int, FoundLog], *, is_later: bool
) -> bool:
    """Whether the log that leads has not all that is committed, but lacks no record that is anywhere.

    Everything that it lacks is deleted in each log that is complete, and none of these knows a leader epoch. They
    may as well be left over from before what the log that leads has written: after an election that may have been
    unclean (`is_later`; seed 3888), or behind their ends (seed 287564034). Its records would be lost, had one of
    them led.
    """
    committed = len(facts.committed)
    held = {node: _held(cluster, facts, node) for node in logs}
    others = [held[node] for node, log in logs.items() if log.last_epoch >= 0]
    if not others or not max(others) == held[leader] < committed <= max(held.values()):
        return False
    ends = [log.log_end_offset for node, log in logs.items() if held[node] == committed]
    return is_later or logs[leader].log_end_offset > max(ends)


def _held(cluster: Cluster, facts: PartitionFacts, node: int) -> int:
    """How many leading offsets of a node's log are the committed ones."""
    (host,) = [each for each in cluster.nodes[node].hosts.values() if each.facts is facts]
    return facts.agreed(host.disk)


def _keys(cluster: Cluster) -> list[str]:
    store = cluster.store
    own = [key(node) for node in cluster.nodes for key in (rec.incarnation_key, rec.pulse_key)]
    topics = [*map(rec.topic_key, store.topics), *map(rec.deleted_key, store.deleted)]
    return [*own, *topics, *map(rec.partition_key, store.partitions)]


def _folder(node: Node) -> FoundFolder:
    proof = node.proof
    return FoundFolder(
        cluster_id="",
        node_id=node.id,
        directory_id=node.folder,
        boot_id=f"boot {node.boot}",
        stopped_clean=node.stopped_clean,
        incarnation=proof.incarnation if proof is not None else 0,
        pulse=proof.pulse if proof is not None else 0,
        revision=proof.revision if proof is not None else 0,
        leader_epoch=proof.leader_epoch if proof is not None else 0,
        logs=tuple(_log(partition, host) for partition, host in node.hosts.items()),
    )


def _log(partition: PartitionId, host: Host) -> FoundLog:
    disk = host.disk
    return FoundLog(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=host.facts.topic_id,
        log_start_offset=disk.start,
        log_end_offset=disk.end,
        epochs=tuple((each.epoch, each.start_offset) for each in disk.epochs),
        high_watermark=disk.high_watermark or 0,
    )


KINDS = {
    "put back the store, copied now": back_up,
    "depose, and put back the store, copied now:": back_up_and_depose,
}

"""Errors of the host around the machines: disks, sessions and the reading of batches."""

from __future__ import annotations

from typing import Any

import attrs

from insync.replication.core.broker.assignments import Assignments
from insync.replication.core.broker.broker import Broker
from insync.replication.core.broker.events import ViewRead
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.partition.leader import LeaderRole
from insync.replication.core.types import CONSUMER
from insync.replication.simulation.cluster import Cluster
from insync.replication.simulation.disk import Disk
from insync.replication.simulation.node import Node

from .catalogue import Patch, mutant


@mutant("Z12", "keep the epochs when nothing is cut (KAFKA-10706)")
def _(patch: Patch) -> None:
    right = Disk.truncate

    def truncate(self: Disk, offset: int) -> None:
        if offset < self.end:
            right(self, offset)

    patch.setattr(Disk, "truncate", truncate)


@mutant("Z18b", "let a process lead on what its predecessor was told")
def _(patch: Patch) -> None:
    right = Cluster.enter

    def enter(self: Cluster, node: Node, incarnation: int) -> None:
        node.registered = 0
        right(self, node, incarnation)

    patch.setattr(Cluster, "enter", enter)


@mutant("Z32", "take for flushed what is not (Pegasus #719)")
def _(patch: Patch) -> None:
    def recover(self: Disk) -> None:
        self.flushed = self.end
        self.trim_epochs()

    patch.setattr(Disk, "recover", recover)


@mutant("Z33", "leave out epoch 0 when epochs are recovered (KAFKA-10432)")
def _(patch: Patch) -> None:
    right = Disk.recover

    def recover(self: Disk) -> None:
        right(self)
        self.epochs = [entry for entry in self.epochs if entry.epoch > 0]

    patch.setattr(Disk, "recover", recover)


@mutant("Z34", "lose the epochs with the power, and believe that there were none (KAFKA-16541)")
def _(patch: Patch) -> None:
    right = Disk.lose_power

    def lose_power(self: Disk, offset: int, *, torn: bool) -> None:
        right(self, offset, torn=torn)
        self.epochs = self.epochs[:1]

    patch.setattr(Disk, "lose_power", lose_power)


@mutant("K33", "leave out the last batch of a leader epoch when a log is compacted")
def _(patch: Patch) -> None:
    patch.setattr(Disk, "_last_of_epochs", lambda self, below: set())


@mutant("Z37", "bound a consumer's read by the end of the file (KAFKA-9807)")
def _(patch: Patch) -> None:
    right = LeaderRole._answer

    def answer(self: LeaderRole, event: ev.Fetch, *rest: Any, **named: Any) -> fx.FetchAnswer:
        answered = right(self, event, *rest, **named)
        if event.replica_id == CONSUMER and answered.error == ErrorCode.NONE:
            return attrs.evolve(answered, limit_offset=answered.log_end_offset, news=True)
        return answered

    patch.setattr(LeaderRole, "_answer", answer)


@mutant("Z47", "compact what is not committed (KAFKA-13194)")
def _(patch: Patch) -> None:
    patch.setattr(Cluster, "cleaning_bound", lambda self, host: host.disk.end)


@mutant("Z54", "keep the session while the disk hangs (LavinMQ #2151)")
def _(patch: Patch) -> None:
    patch.setattr(Cluster, "healthy", lambda self, node: True)


@mutant("K28", "write only the last batch of each producer down for the next start (Kafka's snapshots)")
def _(patch: Patch) -> None:
    right = Disk.opened

    def opened(self: Disk) -> ev.Opened:
        found = right(self)
        last = tuple(attrs.evolve(each, batches=each.batches[-1:]) for each in found.producers)
        return attrs.evolve(found, producers=last)

    patch.setattr(Disk, "opened", opened)


@mutant("K120", "let no time pass for replicas")
def _(patch: Patch) -> None:
    patch.setattr(Broker, "_tick_replicas", lambda self: None)


@mutant("K121", "go by a reading of the store that is older than what is known")
def _(patch: Patch) -> None:
    right = Assignments.read

    def read(self: Assignments, event: ViewRead) -> None:
        known = self._context.view
        if event.view.revision < known.revision:
            self._context.view = ClusterView()
        right(self, event)

    patch.setattr(Assignments, "read", read)


@mutant("K122", "let replicas learn who lives when they begin, and never again")
def _(patch: Patch) -> None:
    right = Assignments.read

    def read(self: Assignments, event: ViewRead) -> None:
        nodes = event.view.nodes.values()
        self._alive = {(each.node_id, each.incarnation, each.offline, each.leaving) for each in nodes}
        right(self, event)

    patch.setattr(Assignments, "read", read)


@mutant("K123", "take a log of a topic that was deleted for that of its namesake")
def _(patch: Patch) -> None:
    def follow_topics(self: Assignments) -> None:
        for partition in list(self._context.replicas):
            if partition.topic not in self._context.view.topics:
                self._context.step_replica(partition, ev.TopicDeleted())

    patch.setattr(Assignments, "_follow_topics", follow_topics)


@mutant("K181", "tell the first portion of the replicas that a reading concerns, and forget the others")
def _(patch: Patch) -> None:
    right = Assignments._tell_some

    def tell_some(self: Assignments) -> None:
        right(self)
        self._untold.clear()

    patch.setattr(Assignments, "_tell_some", tell_some)


@mutant("K182", "tell a replica of whose turn has come that the nodes have changed, and not of its record")
def _(patch: Patch) -> None:
    right = Assignments._tell

    def tell(self: Assignments, partition: Any, *, nodes_changed: bool) -> None:
        record = self._tell_record
        if nodes_changed and partition in self._context.replicas:
            self._tell_record = lambda partition: None  # type: ignore[method-assign]
        try:
            right(self, partition, nodes_changed=nodes_changed)
        finally:
            self._tell_record = record  # type: ignore[method-assign]

    patch.setattr(Assignments, "_tell", tell)

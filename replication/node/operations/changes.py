"""The changes between two readings of the metadata store, one line of the log for each, and why.

A node tells of the partitions that it hosts; the controller of all. Readings may skip versions: then one line goes
from what was known to what is, and the partition epochs in it say how many steps that were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs

from ...core.control.records import ControllerRecord, NodeRecord, PartitionRecord, Versioned
from ...core.control.view import ClusterView
from ...core.types import NO_LEADER, PartitionId
from ..log_lines import Event, event

Reasons = Mapping[tuple[PartitionId, int], str]
"""By partition and partition epoch: why this node itself has written it."""


@attrs.frozen
class Changes:
    """The difference of two views. `tells`: the partitions that get log lines."""

    before: ClusterView
    after: ClusterView
    tells: Callable[[PartitionId], bool]
    reasons: Reasons

    def events(self) -> Iterator[Event]:
        """Nodes, then the controller, then partitions. Nothing but a summary of the first reading."""
        if not self.before.revision:
            yield event(
                "cluster_read",
                revision=self.after.revision,
                nodes=sorted(self.after.nodes),
                topics=len(self.after.topics),
                partitions=len(self.after.partitions),
                controller=_holder(self.after),
            )
            return
        yield from self._nodes()
        if self._office(self.before) != self._office(self.after):
            yield self._controller()
        yield from self._partitions()

    def _nodes(self) -> Iterator[Event]:
        before, after = self.before.nodes, self.after.nodes
        for node in sorted(before.keys() | after.keys()):
            state, why = _node_change(before.get(node), after.get(node))
            if state:
                known = after.get(node) or before[node]
                yield event("node_changed", member=node, state=state, incarnation=known.incarnation, why=why)

    def _office(self, view: ClusterView) -> tuple[int, int] | None:
        holder = view.controller
        return None if holder is None else (holder.node_id, holder.controller_epoch)

    def _controller(self) -> Event:
        former, now = self.before.controller, self.after.controller
        return event(
            "controller_changed",
            controller=_holder(self.after),
            was_controller=_holder(self.before),
            controller_epoch=self.after.controller_epoch,
            why=_why_controller(former, now, self.after),
        )

    def _partitions(self) -> Iterator[Event]:
        changed = self.after.differs_from(self.before)
        for partition in self.after.partitions if changed is None else changed:
            versioned = self.after.partitions.get(partition)
            known = self.before.partitions.get(partition)
            if versioned is None:
                continue
            if known is not None and known.record is versioned.record:
                continue
            if self.tells(partition):
                yield from self._partition(partition, known, versioned.record)
        for partition in self.before.partitions.keys() if changed is None else changed:
            gone = partition in self.before.partitions and partition not in self.after.partitions
            if gone and self.tells(partition):
                yield event("partition_deleted", partition=str(partition), why="its topic was deleted")

    def _partition(
        self, partition: PartitionId, known: Versioned | None, record: PartitionRecord
    ) -> Iterator[Event]:
        former = known.record if known is not None else None
        if former is not None and former.topic_id != record.topic_id:
            former = None
        if former is not None and former.partition_epoch == record.partition_epoch:
            return
        why = self.reasons.get((partition, record.partition_epoch)) or self._why(former, record)
        yield partition_changed(former, record, why)

    def _why(self, former: PartitionRecord | None, record: PartitionRecord) -> str:
        if former is None:
            return "the partition is new"
        parts = [
            *self._why_leader(former, record),
            *self._why_isr(former, record),
            *_why_settings(former, record),
        ]
        return "; ".join(dict.fromkeys(parts)) or "rewritten without a change"

    def _why_leader(self, former: PartitionRecord, record: PartitionRecord) -> Iterator[str]:
        old, new = former.leader, record.leader
        if old == new:
            if record.leader_epoch != former.leader_epoch and record.replicas == former.replicas:
                yield f"node {new} was elected again"
            return
        if old != NO_LEADER:
            yield (
                self._absence(old, record.id)
                or (f"node {old} is no longer a replica" if old not in record.replicas else "")
                or (
                    f"node {new} is the preferred leader"
                    if new == record.replicas[0]
                    else f"node {old} has given up its leadership"
                )
            )
        if new == NO_LEADER:
            yield "no eligible replica is alive"
        elif record.recovering and not former.recovering:
            yield f"node {new} was elected uncleanly: records may be lost"
        elif old == NO_LEADER:
            yield f"node {new} is alive and has all that was committed"

    def _why_isr(self, former: PartitionRecord, record: PartitionRecord) -> Iterator[str]:
        for node in former.isr:
            if node not in record.isr:
                yield self._absence(node, record.id) or (
                    f"node {node} is no longer a replica"
                    if node not in record.replicas
                    else f"node {node} has not caught up, or came back without proof of its log"
                )
        for node in record.isr:
            if node not in former.isr:
                yield f"node {node} has caught up" if node != record.leader else f"node {node} leads"

    def _absence(self, node: int, partition: PartitionId) -> str:
        """Why a node does not count, if it does not; or did not before it was registered again."""
        now, then = self.after.nodes.get(node), self.before.nodes.get(node)
        if now is None:
            return f"node {node} is not alive"
        if now.leaving:
            return f"node {node} is about to stop"
        if partition in now.offline:
            return f"the log directory on node {node} is offline"
        if then is None or then.incarnation != now.incarnation:
            return f"node {node} was started again"
        return ""


def partition_changed(former: PartitionRecord | None, record: PartitionRecord, why: str) -> Event:
    """The line for one change of a partition; `former` None: there was none, or another topic of that name."""
    return event(
        "partition_changed",
        partition=str(record.id),
        leader=record.leader,
        was_leader=former.leader if former is not None else NO_LEADER,
        leader_epoch=record.leader_epoch,
        isr=list(record.isr),
        was_isr=list(former.isr) if former is not None else [],
        elr=list(record.elr),
        replicas=list(record.replicas),
        partition_epoch=record.partition_epoch,
        was_partition_epoch=former.partition_epoch if former is not None else -1,
        why=why,
    )


def _node_change(before: NodeRecord | None, after: NodeRecord | None) -> tuple[str, str]:
    """The state that a node has now and why, if that is news."""
    if after is None:
        leaving = before is not None and before.leaving
        return "gone", "it has stopped" if leaving else "its session has ended, or it was reported as dead"
    if before is None or before.incarnation != after.incarnation:
        return "alive", "it has registered"
    if after.leaving and not before.leaving:
        return "leaving", "it was asked to stop"
    if before.offline != after.offline:
        return "alive", f"{len(after.offline)} of its replicas are offline, {len(before.offline)} were before"
    return "", ""


def _why_controller(former: ControllerRecord | None, now: ControllerRecord | None, after: ClusterView) -> str:
    if former is None:
        return "there was none"
    if former.node_id in after.nodes and after.nodes[former.node_id].incarnation == former.incarnation:
        return f"node {former.node_id} has resigned, or had lost its session"
    return f"node {former.node_id} is not alive"


def _why_settings(former: PartitionRecord, record: PartitionRecord) -> Iterator[str]:
    if record.reassigning and (record.adding, record.removing) != (former.adding, former.removing):
        yield f"it is to move to nodes {list(record.target)}"
    elif former.reassigning and not record.reassigning:
        yield f"its move to nodes {list(record.replicas)} is complete"
    if record.min_insync_replicas != former.min_insync_replicas:
        yield f"min_insync_replicas is {record.min_insync_replicas} now"


def _holder(view: ClusterView) -> int:
    return view.controller.node_id if view.controller is not None else -1

"""The content of the metadata store, and its consequences for the replicas of this node.

A replica begins when the node is given it, and hears of its partition's record and of the nodes that live. It ends
with its topic, or when it is moved away. Its log is deleted if the store says so: by the record of a deleted topic,
or by a move that this process has seen. Any other log is set aside, because a store that lacks a topic may have
forgotten it. Only after that may the node be given the partition again.

A reading may concern thousands of replicas. They are told in portions, so that requests, heartbeats and the
renewal of the node's session are never behind all of them. One that has not been told yet is as it would be if the
store had been read a moment later; when its turn comes it hears of the newest reading.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...control.quotas import FOLLOWER_THROTTLE, LEADER_THROTTLE, Entity, throttle_of
from ...control.records import TopicConfig, topic_key
from ...control.view import ClusterView
from ...partition import effects as fx
from ...partition import events as ev
from ...types import PartitionId
from ..context import Context
from ..effects import ConfigureLog, CreateLog, DeleteLog, SetLogAside
from ..events import LogDeleted, LogFound, ViewRead
from ..fetching.channels import Channels
from ..fetching.following import Following
from ..fetching.serving import Serving

Alive = set[tuple[int, int, frozenset[PartitionId], bool]]
BREATH = 0.001
"""Seconds between two portions: the driver handles whatever else has come."""


class Assignments:
    """Views are told in any order; one that is older than what is known is ignored, and of others what has changed
    is looked at.
    """

    def __init__(self, context: Context, channels: Channels, serving: Serving, following: Following) -> None:
        self._context = context
        self._channels = channels
        self._serving = serving
        self._following = following
        self._told: dict[PartitionId, int] = {}
        """The version of the record that each replica has heard."""
        self._deleting: set[PartitionId] = set()
        """Partitions whose log is being deleted."""
        self._untold: dict[PartitionId, bool] = {}
        """Partitions that a reading may concern, in the order of their turns; True: who is alive has changed."""
        self._is_telling = False
        """Whether a timer will tell the next portion."""
        self._alive: Alive = set()
        self._configs: dict[str, TopicConfig] = {}
        self._awaiting: dict[PartitionId, None] = {}
        """Partitions that asked for another reading: they receive their record although it has not changed."""

    def found(self, event: LogFound) -> None:
        """A log of an earlier process; whether its replica leads or follows, the store will say."""
        self._context.new_replica(event.partition, event.topic_id)
        self._context.step_replica(event.partition, event.event)

    def may_read(self, revision: int) -> bool:
        """Whether a reading of the store is of this process's time. A reading before its registration shows its
        predecessor, in whose epochs it must not lead.
        """
        registered = self._context.registered
        return registered is not None and revision >= registered

    def read(self, event: ViewRead) -> None:
        """The store was read."""
        context, view = self._context, event.view
        before = context.view
        if view.revision < before.revision:
            return
        changed = view.differs_from(before)
        context.view = view
        are_others = view.nodes is not before.nodes
        if are_others:
            self._channels.nodes_changed()
        if view.topics is not before.topics or changed is None:
            self._concern(self._of_other_topics())
        self._concern(self._changed(changed))
        if are_others and (alive := _alive(view)) != self._alive:
            self._alive = alive
            self._untold |= dict.fromkeys(context.replicas, True)
        if not self._is_telling:
            self._tell_some()
        if view.topics is not before.topics:
            self._configure_logs()
        if view.quotas is not before.quotas:
            self._limit()

    def deleted(self, event: LogDeleted) -> None:
        """The node may be given the partition again, and perhaps has been meanwhile."""
        self._deleting.discard(event.partition)
        if event.partition in self._context.view.partitions:
            self._tell_record(event.partition)

    def _concern(self, partitions: Iterable[PartitionId]) -> None:
        for partition in partitions:
            self._untold.setdefault(partition, False)

    def _of_other_topics(self) -> list[PartitionId]:
        """Replicas of deleted topics, including topics that were created again under the same name."""
        return [partition for partition in self._context.replicas if self._has_lost_topic(partition)]

    def _has_lost_topic(self, partition: PartitionId) -> bool:
        context, view = self._context, self._context.view
        topic = view.topics.get(partition.topic)
        if topic is None:
            # What cannot be read is not known to be deleted.
            return topic_key(partition.topic) not in view.unreadable
        return topic.topic_id != context.topic_ids[partition]

    def _changed(self, changed: frozenset[PartitionId] | None) -> list[PartitionId]:
        """Partitions whose records are to be told here, in order, so that directories fill up by it and runs are
        repeatable.
        """
        context = self._context
        replicas, partitions = context.replicas, context.view.partitions
        if changed is None:
            return [
                partition
                for partition, versioned in partitions.items()
                if partition in replicas or context.node_id in versioned.record.replicas
            ]
        # A leader whose proposal is unclear waits for its record, though that has not changed.
        for partition in list(self._awaiting):
            replica = replicas.get(partition)
            if replica is None or not replica.awaits_record:
                del self._awaiting[partition]
        return [*sorted(changed), *self._awaiting]

    def _tell_some(self) -> None:
        """The next portion; the others follow when the driver has taken breath."""
        self._is_telling = False
        left = self._context.settings.told_at_a_time
        while self._untold and left:
            partition = next(iter(self._untold))
            self._tell(partition, nodes_changed=self._untold.pop(partition))
            left -= 1
        if self._untold:
            self._is_telling = True
            self._context.timers.call_at(self._context.now + BREATH, self._tell_some)

    def _tell(self, partition: PartitionId, *, nodes_changed: bool) -> None:
        """Tell one replica what the store holds now: its topic, its record, who is alive, in this order."""
        context = self._context
        if partition in context.replicas and self._has_lost_topic(partition):
            context.step_replica(partition, ev.TopicDeleted())
        if partition in context.view.partitions:
            self._tell_record(partition)
        if nodes_changed and partition in context.replicas:
            context.step_replica(partition, ev.NodesChanged(live=context.view.live_for(partition)))

    def _tell_record(self, partition: PartitionId) -> None:
        """Tell one replica of its record, unless it has heard this very version; begin it if there is none."""
        context = self._context
        versioned = context.view.partitions[partition]
        replica = context.replicas.get(partition)
        if replica is None:
            if context.node_id not in versioned.record.replicas or partition in self._deleting:
                return
            topic_id = versioned.record.topic_id
            replica = context.new_replica(partition, topic_id)
            context.emit(CreateLog(partition, topic_id))
            # Before its record: a leader that knows no living node would propose to remove all replicas.
            context.step_replica(partition, ev.NodesChanged(live=context.view.live_for(partition)))
        if versioned.version != self._told.get(partition) or replica.awaits_record:
            self._told[partition] = versioned.version
            context.step_replica(partition, ev.RecordChanged(versioned=versioned))

    def copy_again(self, partition: PartitionId) -> None:
        """Give a replica up whose log cannot be used; when that is set aside, the partition begins empty."""
        replica = self._context.replicas[partition]
        assert replica.role == "closed", f"{partition} is in use"
        self._remove(partition, SetLogAside(partition, replica.failure))

    def retire(self, partition: PartitionId, effect: fx.Retire) -> None:
        """A replica holds nothing for this node any more."""
        topic_id = self._context.topic_ids[partition]
        if effect.moved or topic_id in self._context.view.deleted:
            self._remove(partition, DeleteLog(partition))
        else:
            self._remove(partition, SetLogAside(partition, self._why_aside(partition, topic_id)))

    def _why_aside(self, partition: PartitionId, topic_id: str) -> str:
        view = self._context.view
        topic = view.topics.get(partition.topic)
        if topic is None:
            return (
                f"the metadata store knows no topic {partition.topic}, and does not say that it was deleted"
            )
        if topic.topic_id == topic_id:
            return (
                "the metadata store assigns the partition to other nodes, and this process has seen no move"
            )
        return (
            f"the log is of topic id {topic_id}, but topic {partition.topic} has the id {topic.topic_id}, and the "
            "metadata store does not say that the other was deleted"
        )

    def _remove(self, partition: PartitionId, effect: DeleteLog | SetLogAside) -> None:
        """The replica asks for nothing more: its log goes, and fetches of it are told that it is not here."""
        del self._context.replicas[partition], self._context.topic_ids[partition]
        self._told.pop(partition, None)
        self._deleting.add(partition)
        self._serving.wake(partition)
        self._context.emit(effect)

    def read_again(self, effect: fx.ReadRecord) -> None:
        """A replica wants its record, whether or not it has changed."""
        # Noted here and not where a change is proposed: a leader whose log was opened again takes over what its
        # earlier role had proposed, and proposes nothing by that.
        self._awaiting[effect.partition] = None
        self._context.emit(effect)

    def _configure_logs(self) -> None:
        """Have the logs go by what their topics' settings have become."""
        context = self._context
        configs = {name: topic.config for name, topic in context.view.topics.items()}
        former, self._configs = self._configs, configs
        changed = {name for name, config in configs.items() if former.get(name, config) != config}
        if changed:
            for partition in context.replicas:
                if partition.topic in changed:
                    context.emit(ConfigureLog(partition, configs[partition.topic]))

    def _limit(self) -> None:
        """Go by the limits on reassignments that the store has now; where it has none, by the node's settings."""
        context, settings = self._context, self._context.settings
        limits = {Entity(each.entity_type, each.name): each for each, _ in context.view.quotas.values()}
        self._serving.throttle.rate = (
            throttle_of(limits, context.node_id, LEADER_THROTTLE)
            or settings.leader_replication_throttled_rate
        )
        self._following.throttle.rate = (
            throttle_of(limits, context.node_id, FOLLOWER_THROTTLE)
            or settings.follower_replication_throttled_rate
        )


def _alive(view: ClusterView) -> Alive:
    """The state of living nodes that replicas go by."""
    return {(each.node_id, each.incarnation, each.offline, each.leaving) for each in view.nodes.values()}

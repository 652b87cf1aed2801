"""Processes with a consumer in a group: poll, work, poll again; and nodes in between that lose what they say."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ...core.client import membership_events as me
from ...core.client.classic_membership import ClassicMembership, ClassicSettings
from ...core.client.membership import Membership, MembershipSettings
from ...core.groups.assignors.assignment import Assignor
from ...core.groups.records import TopicPartition
from ...core.messages import groups as gm
from .facts import MAX_POLL
from .world import Process, World

if TYPE_CHECKING:
    from .brokers import Broker, Cluster

LAZY = "h"
"""The group whose members never commit: nothing but heartbeats tells them of their coordinator. A coordinator that
others have left answers nothing about a group once it has accepted a write to it, which it cannot commit.
"""


class Client(Process):
    """One process. `serving`: what its machine allows it to hand out."""

    commits = True
    """Whether it commits by its membership."""
    most = 20
    """Records of a partition in a poll."""

    def __init__(
        self,
        cluster: Cluster,
        number: int,
        group: str,
        topics: tuple[str, ...],
        instance: str | None,
        assignors: Sequence[Assignor] = (),
    ) -> None:
        """assignors: of a member of the classic protocol; none: it speaks the consumer protocol."""
        world: World = cluster.world
        super().__init__(world, f"c{number}", rate=world.random.uniform(0.97, 1.03))
        self.cluster = cluster
        self.group = group
        self.serving: dict[TopicPartition, int] = {}
        self.lazy = group == LAZY or not self.commits
        self.auto = not self.lazy and world.chance(0.6)
        common: dict[str, Any] = {
            "group": group,
            "instance_id": instance,
            "enable_auto_commit": self.auto,
            "auto_commit_interval": 1.0,
            "max_poll_interval": MAX_POLL,
            "request_timeout": 2.0,
        }
        self.classic = bool(assignors)
        self.membership: Membership
        if assignors:
            old = ClassicSettings(
                member_id="", assignors=assignors, session_timeout=10.0, heartbeat_interval=1.0, **common
            )
            self.membership = ClassicMembership(old, self.clock)
        else:
            self.membership = Membership(MembershipSettings(member_id=f"m{number}", **common), self.clock)
        self.said: deque[tuple[Broker, Any, int]] = deque(maxlen=6)
        """The last heartbeats that told all, to whom, and of which leader epoch."""
        self.is_losing = False
        """Whether its caller is being told what it has lost."""
        self.lingers_until = 0.0
        """Until when its caller holds what it is to let go. If it speaks the classic protocol, it joins again and
        again meanwhile, and never sends a heartbeat that could tell it that its time is over."""
        self._joins = 0
        self.heard_at = 0.0
        """When the last answer without an error came."""
        self.topics = topics
        self.stopping = False
        self.failed: me.Failed | None = None
        self._coordinator: Broker | None = None
        self._asked: dict[int, int] = {}
        self._polling = False
        self._callbacks = 0
        self._working: dict[TopicPartition, tuple[int, int]] = {}
        self._ticking: float | None = None
        self._commit_ids = 0
        self._offset_marks: dict[TopicPartition, int] = {}
        self.tell(me.Subscribed(topics=topics))
        self._learn_topics()
        self.after(world.random.uniform(0, 0.5), self._poll)

    def lease_is_over(self) -> bool:
        """Whether this process would hand out nothing, were it to look at its clock now."""
        end = self.membership._lease_end
        if end is None:
            # Of the classic protocol: it waits for others to join, and goes on meanwhile with what it keeps.
            return not self.classic
        return self.clock >= end

    def _learn_topics(self) -> None:
        view = self.cluster.view
        if self.world.now < self.lingers_until and isinstance(self.membership, ClassicMembership):
            self.membership._rejoin(self.clock)
        counts = {name: info.partitions for name, info in view.topics.items()}
        self.tell(me.TopicsKnown(names=view.names, counts=counts, looked=frozenset({"a", "b"})))
        if not self.stopping:
            self.after(0.5, self._learn_topics)

    def resubscribe(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.tell(me.Subscribed(topics=topics))

    # Polls

    def _poll(self) -> None:
        """One poll: the caller is done with what the last one returned."""
        for partition, (first, end) in self._working.items():
            self.cluster.oracle.done_with(self, partition, first, end)
        consumed, self._working = self._working, {}
        self._polling = True
        self.tell(me.PollBegan())
        if consumed and not self.auto and not self.lazy and not self.stopping:
            self._commit({each: end for each, (_, end) in consumed.items() if each in self.serving})
        self.after(self.world.random.uniform(0.05, 0.5), self._end_poll)

    def _end_poll(self) -> None:
        if self._callbacks:
            # The poll lasts as long as its callbacks.
            self.after(0.05, self._end_poll)
            return
        # The machine is asked before anything is handed out: the lease may be over.
        self.tell(me.Tick())
        handed: dict[TopicPartition, int] = {}
        for partition, position in sorted(self.serving.items()):
            end = min(position + self.most, self.cluster.oracle_end(partition))
            if position < end:
                self.cluster.oracle.handing_out(self, partition, position)
                self._working[partition] = position, end
                self.serving[partition] = handed[partition] = end
        self._polling = False
        self.tell(me.PollEnded(handed=handed))
        if self.stopping:
            return
        pause = self.world.random.uniform(0.0, 0.6)
        if not self.world.calm and self.world.chance(0.01):
            pause = self.world.random.uniform(2.0, 2 * MAX_POLL)
        self._work(pause)

    def _work(self, pause: float) -> None:
        """On what the poll has returned; then comes the next one."""
        self.after(pause, self._poll)

    def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        if offsets:
            self._commit_ids += 1
            asked = me.CommitAsked(commit_id=self._commit_ids, offsets=offsets, deadline=self.clock + 3.0)
            self.tell(asked)

    def die(self) -> None:
        """Its process is gone, without a word to anybody."""
        self.up = False
        self.serving.clear()

    def stop(self) -> None:
        """Close in good order."""
        if not self.stopping:
            self.stopping = True
            for partition, (first, end) in self._working.items():
                self.cluster.oracle.done_with(self, partition, first, end)
            self._working = {}
            self.tell(me.Closed(deadline=self.clock + 5.0))

    # The machine

    def tell(self, event: me.Event) -> None:
        if not self.up:
            return
        for effect in self.membership.step(event, self.clock):
            match effect:
                case me.FindCoordinator(token=token):
                    self._find(token)
                case me.Send():
                    self._send(effect)
                case me.Withhold(partitions=partitions):
                    for each in partitions:
                        self.serving.pop(each, None)
                case me.CallBack(kind=kind, partitions=partitions):
                    self._call_back(kind, partitions)
                case me.Serve(partition=partition, offset=offset):
                    self._serve(partition, offset)
                case me.Failed():
                    self.failed = effect
                    if self.classic:
                        # A late copy of its own join may have fenced it; whoever runs it starts it again, or not.
                        self.die()
                case me.Ended():
                    self.die()
                case me.CommitDone() | me.LearnTopics():
                    pass  # topics are told all the time
        self._tick_later()

    def _serve(self, partition: TopicPartition, offset: int | None) -> None:
        since = self._offset_marks.get(partition, 0)
        self.cluster.oracle.begins(self, partition, offset, since)
        self.serving[partition] = offset if offset is not None else 0

    def _call_back(self, kind: me.CallbackKind, partitions: frozenset[TopicPartition]) -> None:
        self._callbacks += 1

        def done() -> None:
            self._callbacks -= 1
            self.is_losing = False
            self.tell(me.CallbackDone())

        if kind is not me.CallbackKind.ASSIGNED:
            self.cluster.oracle.takes_back(self, partitions)
        if kind is me.CallbackKind.LOST:
            self.is_losing = True
            for each in partitions:
                self._working.pop(each, None)
        seconds = self.world.random.uniform(0.0, 0.3)
        if kind is me.CallbackKind.REVOKED:
            seconds = max(seconds, self.lingers_until - self.world.now)
        self.after(seconds, done)

    def _tick_later(self) -> None:
        due = self.membership.deadline
        if due is None or (self._ticking is not None and self._ticking <= due):
            return
        self._ticking = due
        self.after(due - self.clock, lambda: self._tick(due))

    def _tick(self, due: float) -> None:
        if self._ticking == due:
            self._ticking = None
            self.tell(me.Tick())

    # The network

    def _find(self, token: int) -> None:
        """Any node says who leads, as far as it knows."""
        any_node = self.world.random.choice(self.cluster.brokers)

        def asked() -> None:
            leader, epoch = any_node.leader, any_node.epoch
            self.world.send(any_node, self, lambda: found(leader, epoch))

        def found(leader: int, epoch: int) -> None:
            if token not in self._asked:
                return
            del self._asked[token]
            if leader < 0:
                self.tell(me.Lost(token=token))
            else:
                self._coordinator = self.cluster.brokers[leader]
                self.tell(me.CoordinatorFound(token=token, leader_epoch=epoch))

        self._asked[token] = 1
        self.world.send(self, any_node, asked)
        self.after(1.0, lambda: self._lost(token))

    def _send(self, send: me.Send) -> None:
        target = self._coordinator
        assert target is not None
        message = send.message
        if isinstance(message, gm.JoinGroupRequest):
            self._joins += 1
            message = structs.replace(message, fresh_id=f"{self.name}-{self._joins}")
        match message:
            case gm.ConsumerGroupHeartbeatRequest():
                if message.member_epoch == gm.JOIN:
                    self.cluster.oracle.joins(self)
                if message.owned is not None:
                    self.said.append((target, message, send.leader_epoch))
            case gm.JoinGroupRequest():
                self.cluster.oracle.joins(self)
            case gm.CommitGroupOffsetsRequest():
                for each in message.offsets:
                    for partition in self._named(each.topic, each.partition):
                        self.cluster.oracle.commits_to(self, partition, each.offset)
            case gm.GroupOffsetsRequest(partitions=wanted):
                for name in wanted or ():
                    for partition in self._named(name.topic, name.partition):
                        self._offset_marks[partition] = len(self.cluster.oracle.log)
        self._asked[send.token] = 1
        began = self.world.now

        def answered(reply: Any) -> None:
            self.world.send(target, self, lambda: heard(reply))

        def heard(reply: Any) -> None:
            if send.token in self._asked and self.cluster.hears(self, message, reply, self.world.now - began):
                del self._asked[send.token]
                if not getattr(reply, "error", 0):
                    self.heard_at = self.world.now
                self.tell(me.Answered(token=send.token, reply=reply))

        self.world.send(self, target, lambda: target.ask(message, send.timeout, send.leader_epoch, answered))
        if isinstance(message, gm.SyncGroupRequest) and message.assignments and not self.world.calm:
            # A copy lies in a socket until the group is further.
            copy = partial(target.ask, message, send.timeout, send.leader_epoch, lambda reply: None)
            for _ in range(2):
                self.world.later(self.world.random.uniform(0.0, 4.0), partial(target.run, copy))
        self.after(send.timeout, lambda: self._lost(send.token))

    def _named(self, topic: str, number: int) -> list[TopicPartition]:
        """The partition of that name that this client holds."""
        ids = [each for each, name in self.membership.held.names.items() if name == topic]
        held = self.membership.held.all
        return [TopicPartition(each, number) for each in ids if TopicPartition(each, number) in held]

    def _lost(self, token: int) -> None:
        if self._asked.pop(token, None) is not None:
            self.tell(me.Lost(token=token))

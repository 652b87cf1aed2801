"""Processes with a consumer in a group, of either protocol: poll, work, poll again."""

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
from ..oracles.groups.facts import MAX_POLL
from ..world.node import Node
from .process import Process

if TYPE_CHECKING:
    from .groups import Groups

REQUEST_TIMEOUT = 2.0
CLOSE_WITHIN = 5.0
BEATS = gm.ConsumerGroupHeartbeatRequest | gm.HeartbeatRequest


class Member(Process):
    """One process. `serving`: the partitions that its machine lets it hand out, and the next offset of each."""

    most = 20
    """Records of a partition in a poll."""

    def __init__(
        self,
        groups: Groups,
        number: int,
        group: str,
        topics: tuple[str, ...],
        instance: str | None,
        assignors: Sequence[Assignor],
        *,
        lazy: bool,
    ) -> None:
        """assignors: of a member of the classic protocol; none: it speaks the consumer protocol.

        lazy: it never commits, so that nothing but heartbeats tells it of its coordinator. One that others have
        left answers nothing about a group once it has accepted a write to it, which it cannot commit.
        """
        self.groups, self.dice = groups, groups.dice
        super().__init__(groups.cluster, f"c{number}", rate=self.dice.uniform(0.97, 1.03))
        self.group = group
        self.topics = topics
        self.serving: dict[TopicPartition, int] = {}
        self.working: dict[TopicPartition, tuple[int, int]] = {}
        """The records that the last poll has returned: of each partition the first offset, and the end."""
        self.lazy = lazy
        self.auto = not lazy and self.dice.random() < 0.6
        common: dict[str, Any] = {
            "group": group,
            "instance_id": instance,
            "enable_auto_commit": self.auto,
            "auto_commit_interval": 1.0,
            "max_poll_interval": MAX_POLL,
            "request_timeout": REQUEST_TIMEOUT,
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
        self.said: deque[tuple[Node, Any]] = deque(maxlen=6)
        """The last heartbeats that told all, and to whom."""
        self.is_losing = False
        """Whether its caller is being told what it has lost."""
        self.lingers_until = 0.0
        """Until when its caller holds what it is to let go. If it speaks the classic protocol, it joins again and
        again meanwhile, and never sends a heartbeat that could tell it that its time is over."""
        self.heard_at = 0.0
        """When the last answer without an error came."""
        self.stopping = False
        self.failed: me.Failed | None = None
        self._joins = 0
        self._coordinator: Node | None = None
        self._asked: set[int] = set()
        self._callbacks = 0
        self._ticking: float | None = None
        self._commit_ids = 0
        self._asked_at: dict[TopicPartition, int] = {}
        """How long the committed log was when the position of a partition was asked for."""
        self.tell(me.Subscribed(topics=topics))
        self._learn_topics()
        self.after(self.dice.uniform(0, 0.5), self._poll)

    @property
    def instance(self) -> str | None:
        """Its name, if it is a static member."""
        return self.membership.settings.instance_id

    def lease_is_over(self) -> bool:
        """Whether this process would hand out nothing, were it to look at its clock now."""
        end = self.membership._lease_end
        if end is None:
            # Of the classic protocol: it waits for others to join, and goes on meanwhile with what it keeps.
            return not self.classic
        return self.clock >= end

    def _learn_topics(self) -> None:
        view = self.groups.view
        if self.cluster.now < self.lingers_until and isinstance(self.membership, ClassicMembership):
            self.membership._rejoin(self.clock)
        counts = {name: info.partitions for name, info in view.topics.items()}
        self.tell(me.TopicsKnown(names=view.names, counts=counts, looked=frozenset(self.groups.topics)))
        if not self.stopping:
            self.after(0.5, self._learn_topics)

    def resubscribe(self, topics: tuple[str, ...]) -> None:
        """Read other topics from now on."""
        self.topics = topics
        self.tell(me.Subscribed(topics=topics))

    # Polls

    def _poll(self) -> None:
        """One poll: the caller is done with what the last one returned."""
        for partition, (first, end) in self.working.items():
            self.groups.handing.done_with(self, partition, first, end)
        consumed, self.working = self.working, {}
        self.tell(me.PollBegan())
        if consumed and not self.auto and not self.lazy and not self.stopping:
            self._commit({each: end for each, (_, end) in consumed.items() if each in self.serving})
        self.after(self.dice.uniform(0.05, 0.5), self._end_poll)

    def _end_poll(self) -> None:
        if self._callbacks:
            # The poll lasts as long as its callbacks.
            self.after(0.05, self._end_poll)
            return
        # The machine is asked before anything is handed out: the lease may be over.
        self.tell(me.Tick())
        handed: dict[TopicPartition, int] = {}
        for partition, position in sorted(self.serving.items()):
            end = min(position + self.most, self.groups.end_of(partition))
            if position < end:
                self.groups.handing.handing_out(self, partition, position)
                self.working[partition] = position, end
                self.serving[partition] = handed[partition] = end
        self.tell(me.PollEnded(handed=handed))
        if self.stopping:
            return
        pause = self.dice.uniform(0.0, 0.6)
        if not self.cluster.calm and self.dice.random() < 0.01:
            pause = self.dice.uniform(2.0, 2 * MAX_POLL)
        self.after(pause, self._work)

    def _work(self) -> None:
        """The caller has worked on what the poll has returned."""
        self._poll()

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
            for partition, (first, end) in self.working.items():
                self.groups.handing.done_with(self, partition, first, end)
            self.working = {}
            self.tell(me.Closed(deadline=self.clock + CLOSE_WITHIN))

    # The machine

    def tell(self, event: me.Event) -> None:
        """One event into its membership, and all that follows from it."""
        if not self.up:
            return
        self.cluster.events += 1
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
        self.groups.handing.begins(self, partition, offset, self._asked_at.get(partition, 0))
        self.serving[partition] = offset if offset is not None else 0

    def _call_back(self, kind: me.CallbackKind, partitions: frozenset[TopicPartition]) -> None:
        self._callbacks += 1

        def done() -> None:
            self._callbacks -= 1
            self.is_losing = False
            self.tell(me.CallbackDone())

        if kind is not me.CallbackKind.ASSIGNED:
            self.groups.handing.takes_back(self, partitions)
        if kind is me.CallbackKind.LOST:
            self.is_losing = True
            for each in partitions:
                self.working.pop(each, None)
        seconds = self.dice.uniform(0.0, 0.3)
        if kind is me.CallbackKind.REVOKED:
            seconds = max(seconds, self.lingers_until - self.cluster.now)
        self.after(seconds, done)

    def _tick_later(self) -> None:
        due = self.membership.deadline
        if due is None or (self._ticking is not None and self._ticking <= due):
            return
        self._ticking = due
        self.after(due - self.clock, partial(self._tick, due))

    def _tick(self, due: float) -> None:
        if self._ticking == due:
            self._ticking = None
            self.tell(me.Tick())

    # The network

    def _find(self, token: int) -> None:
        """Any node says who leads, as far as it knows."""
        self._asked.add(token)
        nodes = [node for node in self.cluster.nodes.values() if node.up]

        def told(response: gm.FindCoordinatorResponse) -> None:
            (found,) = response.coordinators
            if token not in self._asked:
                return
            self._asked.remove(token)
            if found.error or found.node_id not in self.cluster.nodes:
                self.tell(me.Lost(token=token))
            else:
                self._coordinator = self.cluster.nodes[found.node_id]
                self.tell(me.CoordinatorFound(token=token, leader_epoch=found.leader_epoch))

        if nodes:
            self.ask(self.dice.choice(nodes), gm.FindCoordinatorRequest(keys=[self.group]), told)
        self.after(1.0, partial(self._lost, token))

    def _send(self, send: me.Send) -> None:
        assert self._coordinator is not None
        node, message = self._coordinator, self._dressed(send)
        self._asked.add(send.token)
        began = self.cluster.now

        def told(reply: Any) -> None:
            if send.token in self._asked and self.groups.hears(self, node, message, reply, began):
                self._asked.remove(send.token)
                if not reply.error:
                    self.heard_at = self.cluster.now
                self.tell(me.Answered(token=send.token, reply=reply))

        self.ask(node, message, told)
        if isinstance(message, gm.SyncGroupRequest) and message.assignments and not self.cluster.calm:
            # A copy lies in a socket until the group is further.
            for _ in range(2):
                self.groups.echo(node, message, self.dice.uniform(0.0, 4.0))
        self.after(send.timeout, partial(self._lost, send.token))

    def _dressed(self, send: me.Send) -> Any:
        """A request with what its connection adds; the oracle is told of it."""
        handing, message = self.groups.handing, send.message
        if hasattr(message, "coordinator_epoch"):
            message = structs.replace(message, coordinator_epoch=send.leader_epoch)
        match message:
            case gm.ConsumerGroupHeartbeatRequest():
                if message.member_epoch == gm.JOIN:
                    handing.joins(self)
                if message.owned is not None:
                    assert self._coordinator is not None
                    self.said.append((self._coordinator, message))
            case gm.JoinGroupRequest():
                handing.joins(self)
                self._joins += 1
                return structs.replace(message, fresh_id=f"{self.name}-{self._joins}")
            case gm.CommitGroupOffsetsRequest():
                for each in message.offsets:
                    for partition in self._named(each.topic, each.partition):
                        handing.commits_to(self, partition, each.offset)
                # By a name of its own, for the oracle to know it again.
                named = [
                    structs.replace(each, metadata=f"{self.cluster.new_id()}") for each in message.offsets
                ]
                return structs.replace(message, offsets=named)
            case gm.GroupOffsetsRequest(partitions=wanted):
                log = self.cluster.coordinators.log_of_group(self.group)
                for name in wanted or ():
                    for partition in self._named(name.topic, name.partition):
                        self._asked_at[partition] = 0 if log is None else log.length
        return message

    def _named(self, topic: str, number: int) -> list[TopicPartition]:
        """The partition of that name that this client holds."""
        ids = [each for each, name in self.membership.held.names.items() if name == topic]
        held = self.membership.held.all
        return [TopicPartition(each, number) for each in ids if TopicPartition(each, number) in held]

    def _lost(self, token: int) -> None:
        if token in self._asked:
            self._asked.remove(token)
            self.tell(me.Lost(token=token))

"""Consumers in groups: a client's production membership over the simulated network; and askers that join none."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from msgspec import structs

from ...core.client import membership_events as me
from ...core.client.membership import Membership, MembershipSettings
from ...core.groups.records import TopicPartition
from ...core.messages import groups as gm
from ..world.node import Node

if TYPE_CHECKING:
    from ..world.cluster import Cluster

REQUEST_TIMEOUT = 2.0
CLOSE_WITHIN = 5.0
ENDS = 0.02
"""How likely a member ends, each time that it polls: in good order, or as if it were killed."""
OWN = "own"
"""A group without members."""
COMMITS = 0.5
"""How often something is committed for it when somebody asks."""
CALM_WORK = 3.0
"""Seconds of calm for which members stay, at least."""


@attrs.define(eq=False)
class Group:
    """Clients that read `topics` together. `done`: in calm one of them has committed something."""

    name: str
    topics: tuple[str, ...]
    done: bool = False


class Member:
    """One client; when a membership of it is over, another begins."""

    def __init__(self, cluster: Cluster, number: int, group: Group) -> None:
        self._cluster = cluster
        self._name = f"c{number}"
        self._group = group
        self._dice = random.Random(f"member {number} {cluster.seed}")
        self._memberships = 0
        self._commits = 0
        self._calm_since: float | None = None
        self.unfinished: str | None = None
        """The work that has not succeeded in calm."""
        self._asked_in_calm: set[int] = set()
        cluster.later(2 * self._dice.random(), self._begin)

    def _begin(self) -> None:
        """A new member."""
        cluster = self._cluster
        self._memberships += 1
        settings = MembershipSettings(
            group=self._group.name,
            member_id=f"{self._name}-{self._memberships}",
            enable_auto_commit=False,
            request_timeout=REQUEST_TIMEOUT,
        )
        self._membership = Membership(settings, cluster.now)
        self._asked: set[int] = set()
        self._serving: dict[TopicPartition, int] = {}
        self._callbacks = 0
        self._coordinator: Node | None = None
        self._ticking: float | None = None
        self._closing = self._is_over = False
        turn = self._memberships
        self._tell(me.Subscribed(topics=self._group.topics))
        self._learn_topics()
        cluster.later(self._dice.random(), partial(self._poll, turn))

    def _learn_topics(self) -> None:
        topics = self._cluster.store.topics.values()
        self._tell(
            me.TopicsKnown(
                names={each.topic_id: each.name for each in topics},
                counts={each.name: each.partitions for each in topics},
                looked=frozenset(self._group.topics),
            )
        )

    # Polls

    def _poll(self, turn: int) -> None:
        if turn != self._memberships or self._is_over:
            return
        cluster, dice = self._cluster, self._dice
        if cluster.calm and self._calm_since is None:
            self._calm_since = cluster.now
        if self._may_rest():
            self._close()
        elif not cluster.calm and dice.random() < ENDS:
            if dice.random() < 0.5:
                self._close()
            else:
                self._again()
                return
        self._learn_topics()
        self._tell(me.PollBegan())
        cluster.later(0.05 + 0.2 * dice.random(), partial(self._end_poll, turn))

    def _may_rest(self) -> bool:
        """In calm: whether its group has done what it is there for."""
        if self._calm_since is None:
            return False
        self.unfinished = None if self._group.done else f"{self._membership.member_id} of {self._group}"
        return self._group.done and self._cluster.now >= self._calm_since + CALM_WORK

    def _end_poll(self, turn: int) -> None:
        if turn != self._memberships or self._is_over:
            return
        cluster, dice = self._cluster, self._dice
        if self._callbacks:
            cluster.later(0.05, partial(self._end_poll, turn))
            return
        self._tell(me.Tick())
        handed: dict[TopicPartition, int] = {}
        for partition in sorted(self._serving):
            if dice.random() < 0.7:
                handed[partition] = self._serving[partition] = self._serving[partition] + dice.randint(1, 3)
        self._tell(me.PollEnded(handed=handed))
        if handed and not self._closing:
            self._commits += 1
            if cluster.calm:
                self._asked_in_calm.add(self._commits)
            offsets = {each: end for each, end in handed.items() if each in self._serving}
            self._tell(me.CommitAsked(commit_id=self._commits, offsets=offsets, deadline=cluster.now + 3.0))
        cluster.later(0.2 + dice.random(), partial(self._poll, turn))

    def _close(self) -> None:
        if not self._closing:
            self._closing = True
            self._tell(me.Closed(deadline=self._cluster.now + CLOSE_WITHIN))

    def _again(self) -> None:
        """This membership is over for this client, whatever its coordinator knows of it."""
        self._is_over = True
        if self._calm_since is None or self.unfinished is not None:
            self._cluster.later(0.5 + 2 * self._dice.random(), self._begin)

    # The machine

    def _tell(self, event: me.Event) -> None:
        turn = self._memberships
        for effect in self._membership.step(event, self._cluster.now):
            if turn != self._memberships or self._is_over:
                return
            match effect:
                case me.FindCoordinator(token=token):
                    self._find(token)
                case me.Send():
                    self._send(effect)
                case me.Withhold(partitions=partitions):
                    for each in partitions:
                        self._serving.pop(each, None)
                case me.CallBack():
                    self._callbacks += 1
                    self._cluster.later(0.2 * self._dice.random(), partial(self._called_back, turn))
                case me.Serve(partition=partition, offset=offset):
                    self._serving[partition] = offset if offset is not None else 0
                case me.CommitDone(commit_id=commit_id, error=error):
                    self._group.done |= commit_id in self._asked_in_calm and not error
                case me.Failed() | me.Ended():
                    self._again()
                case me.LearnTopics():
                    pass  # told at each poll
        self._tick_later()

    def _called_back(self, turn: int) -> None:
        if turn == self._memberships and not self._is_over:
            self._callbacks -= 1
            self._tell(me.CallbackDone())

    def _tick_later(self) -> None:
        due = self._membership.deadline
        if self._is_over or due is None or (self._ticking is not None and self._ticking <= due):
            return
        self._ticking = due
        wait = max(due - self._cluster.now, 0.0)
        self._cluster.later(wait, partial(self._tick, self._memberships, due))

    def _tick(self, turn: int, due: float) -> None:
        if turn == self._memberships and not self._is_over and self._ticking == due:
            self._ticking = None
            self._tell(me.Tick())

    # The network

    def _find(self, token: int) -> None:
        nodes = [node for node in self._cluster.nodes.values() if node.up]
        self._asked.add(token)
        turn = self._memberships

        def told(response: gm.FindCoordinatorResponse) -> None:
            (found,) = response.coordinators
            if turn != self._memberships or self._is_over or token not in self._asked:
                return
            self._asked.remove(token)
            if found.error or found.node_id not in self._cluster.nodes:
                self._tell(me.Lost(token=token))
                return
            self._coordinator = self._cluster.nodes[found.node_id]
            self._tell(me.CoordinatorFound(token=token, leader_epoch=found.leader_epoch))

        if nodes:
            node = nodes[int(self._dice.random() * len(nodes))]
            self._cluster.coordinators.ask(node, gm.FindCoordinatorRequest(keys=[self._group.name]), told)
        self._cluster.later(1.0, partial(self._lost, turn, token))

    def _send(self, send: me.Send) -> None:
        assert self._coordinator is not None
        message, turn = send.message, self._memberships
        if hasattr(message, "coordinator_epoch"):
            message = structs.replace(message, coordinator_epoch=send.leader_epoch)
        if isinstance(message, gm.CommitGroupOffsetsRequest):
            # By a name of its own, for the oracle to know it again.
            named = [structs.replace(each, metadata=f"{self._cluster.new_id()}") for each in message.offsets]
            message = structs.replace(message, offsets=named)
        self._asked.add(send.token)

        def told(reply: Any) -> None:
            if turn != self._memberships or self._is_over or send.token not in self._asked:
                return
            self._asked.remove(send.token)
            self._tell(me.Answered(token=send.token, reply=reply))

        self._cluster.coordinators.ask(self._coordinator, message, told)
        self._cluster.later(send.timeout, partial(self._lost, turn, send.token))

    def _lost(self, turn: int, token: int) -> None:
        if turn == self._memberships and not self._is_over and token in self._asked:
            self._asked.remove(token)
            self._tell(me.Lost(token=token))


class Asker:
    """Asks whoever takes itself for a coordinator what is committed, and commits for a group without members."""

    def __init__(self, cluster: Cluster, groups: tuple[Group, ...]) -> None:
        self._cluster = cluster
        self._groups = groups
        self._dice = random.Random(f"asker {cluster.seed}")
        self._offset = 0
        cluster.later(self._dice.random(), self._turn)

    def _turn(self) -> None:
        cluster, dice = self._cluster, self._dice
        if cluster.calm:
            return
        names = [OWN, *(group.name for group in self._groups)]
        group = names[int(dice.random() * len(names))]
        self._ask(gm.GroupOffsetsRequest(group=group, require_stable=dice.random() < 0.5))
        if dice.random() < COMMITS:
            self._offset += 1
            topics = self._groups[0].topics
            offset = gm.GroupOffset(
                topic=topics[int(dice.random() * len(topics))],
                partition=0,
                offset=self._offset,
                metadata=f"{cluster.new_id()}",
            )
            self._ask(gm.CommitGroupOffsetsRequest(group=OWN, offsets=[offset]), everybody=False)
        cluster.later(0.1 + 0.5 * dice.random(), self._turn)

    def _ask(self, message: Any, *, everybody: bool = True) -> None:
        cluster = self._cluster
        partition = cluster.coordinators.partition_of(message.group)
        hosts = cluster.leaders_of(partition)
        for host in hosts if everybody else hosts[:1]:
            cluster.coordinators.ask(host.node, message, lambda reply: None)

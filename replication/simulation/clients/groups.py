"""The groups of a run: their members, the topics that these read, and askers that join none or never come back."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.broker.coordination.coordinating import topics_of
from ...core.coordination.topics_view import TopicsView
from ...core.groups.assignors.assignment import Assignor
from ...core.groups.assignors.range import RangeAssignor
from ...core.groups.assignors.sticky import CooperativeStickyAssignor
from ...core.groups.records import TopicPartition
from ...core.messages import groups as gm
from ..oracles.groups.facts import COPIES, LAZY
from ..oracles.groups.handing import Handing
from ..oracles.groups.inputs import Inputs
from ..settings import INTERNAL
from ..world.node import Node
from .copiers import Copier
from .members import BEATS, Member

if TYPE_CHECKING:
    from ..world.cluster import Cluster

COOPERATIVE = CooperativeStickyAssignor()
RATE = 5.0
"""Records a second of each partition; the members only count them."""
MOST_MEMBERS = 6
FLOODED = "flooded"
"""A group that only stray joins know."""
OWN = "own"
"""A group without members."""
CUT_OFF = 14.0
"""Seconds: longer than a session with the time to spare that a new coordinator gives."""


class Groups:
    """See the module's text."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.dice = random.Random(f"members {cluster.seed}")
        settings = cluster.settings
        self.topics = tuple(sorted(each.name for each in settings.topics if each.name not in INTERNAL))
        self.names = tuple(f"g{number}" for number in range(settings.groups))
        if settings.groups and settings.transactions:
            self.names += (COPIES,)
        topics, log_of = cluster.coordinators.topics, cluster.coordinators.log_of_group
        self.handing, self.inputs = Handing(topics, log_of), Inputs(topics, log_of)
        # Members of the classic protocol agree on an assignor; some runs have them beside others, some have none.
        kinds: list[tuple[Assignor, ...]] = [(), (), (RangeAssignor(),), (COOPERATIVE,), (COOPERATIVE,)]
        self.assignors = self.dice.choice(kinds)
        self._classic_share = self.dice.choice((0.5, 1.0))
        """Of members; where all are of the classic protocol, groups stay so."""
        self._numbers = itertools.count()
        self._strays = 0
        self._offset = 0
        self._born: dict[str, float] = {}

    @property
    def view(self) -> TopicsView:
        """The topics as clients learn them."""
        view = topics_of(self.cluster.store.reading())
        for info in view.topics.values():
            self._born.setdefault(info.topic_id, self.cluster.now)
        return view

    def begin(self) -> None:
        """Once all topics are there: members join."""
        for group in self.names:
            for _ in range(self.dice.randint(1, 3) + (group == COPIES)):
                self.cluster.later(self.dice.uniform(0, 4), partial(self._start, group))
        self.cluster.later(self.dice.random(), self._ask)

    def _start(self, group: str) -> None:
        self.start(group)

    def heal(self) -> None:
        """In calm all members run and reach every node; there is one at least."""
        for member in self.handing.clients:
            member.mend()
            member.resume()
        if self.names and not self.alive:
            self.start(self.names[0])

    @property
    def alive(self) -> list[Member]:
        """Members that nobody has stopped, or killed."""
        return [each for each in self.handing.clients if each.up and not each.stopping]

    def one(self) -> Member | None:
        """Any of these."""
        return self.dice.choice(self.alive) if self.alive else None

    def start(self, group: str, instance: str | None = None) -> Member:
        """A process of either protocol begins."""
        count = self.dice.choice((1, 2, 2))
        topics = tuple(sorted(self.dice.sample(self.topics, min(count, len(self.topics)))))
        is_classic = self.assignors and self.dice.random() < self._classic_share
        return self.join(group, topics, instance, self.assignors if is_classic else ())

    def join(
        self,
        group: str,
        topics: tuple[str, ...],
        instance: str | None = None,
        assignors: Sequence[Assignor] = (),
    ) -> Member:
        """A process begins; without assignors it speaks the consumer protocol."""
        kind = Copier if group == COPIES else Member
        is_lazy = group in (LAZY, COPIES)
        member = kind(self, next(self._numbers), group, topics, instance, assignors, lazy=is_lazy)
        self.handing.clients.append(member)
        return member

    def end_of(self, partition: TopicPartition) -> int:
        """How many records a partition has by now."""
        return int(RATE * (self.cluster.now - self._born[partition.topic_id]))

    def leader(self) -> Node | None:
        """The node that leads the first group's partition."""
        hosts = self.cluster.leaders_of(self.cluster.coordinators.partition_of(self.names[0]))
        return max(hosts, key=lambda host: host.replica.leader_epoch).node if hosts else None  # type: ignore[union-attr]

    # Requests that come late, and answers that get lost

    def echo(self, node: Node, message: Any, seconds: float) -> None:
        """A copy of a request comes so much later."""
        ask = partial(self.cluster.coordinators.ask, node, message, lambda reply: None)
        self.cluster.later(seconds, ask)

    def send_late(self, message: Any) -> None:
        """A copy of a request comes much later to whoever leads by now."""
        for host in self.cluster.leaders_of(self.cluster.coordinators.partition_of(message.group)):
            self.echo(host.node, message, self.dice.uniform(0.0, 10.0))

    def hears(self, member: Member, node: Node, message: Any, reply: Any, began: float) -> bool:
        """A member has an answer, and what it sends next gets lost; or its process ends; or it has no answer."""
        dice, beats = self.dice, isinstance(message, BEATS)
        if self.cluster.calm or reply.error:
            return True
        if isinstance(message, gm.SyncGroupRequest) and dice.random() < 0.1:
            return False
        if beats and self.cluster.now - began > 1.0 and dice.random() < 0.03:
            member.cut_off(CUT_OFF)
        if beats and self._is_replaced(node, member.group) and dice.random() < 0.5:
            # One who was heard by a coordinator that is none any more may be heard by nobody for some time.
            member.cut_off(CUT_OFF)
        joins = isinstance(message, gm.JoinGroupRequest) and member.instance is not None
        if joins and dice.random() < 0.15:
            member.die()
            self.start(member.group, member.instance)
        return True

    def _is_replaced(self, node: Node, group: str) -> bool:
        partition = self.cluster.coordinators.partition_of(group)
        known = self.cluster.store.partitions.get(partition) if partition is not None else None
        return known is not None and known.record.leader not in (-1, node.id)

    # Askers

    def _ask(self) -> None:
        """Ask whoever takes itself for the coordinator: a client whose news of who leads may be old."""
        cluster, dice = self.cluster, self.dice
        if not cluster.calm:
            group = dice.choice((OWN, *self.names))
            request = gm.GroupOffsetsRequest(group=group, require_stable=dice.random() < 0.5)
            for host in cluster.leaders_of(cluster.coordinators.partition_of(group)):
                self.echo(host.node, request, 0.0)
            if dice.random() < 0.5:
                self._commit_without_members()
            if dice.random() < 0.1:
                self._join_and_die(dice.choice((FLOODED, *self.names)))
            cluster.later(0.1 + 0.5 * dice.random(), self._ask)

    def _commit_without_members(self) -> None:
        """For a group without members; transactions commit for some of those as well."""
        others = [each.group for each in self.cluster.transactions.transactors]
        self._offset += 1
        offset = gm.GroupOffset(
            topic=self.dice.choice(self.topics),
            partition=0,
            offset=self._offset,
            metadata=f"{self.cluster.new_id()}",
        )
        self._ask_one(gm.CommitGroupOffsetsRequest(group=self.dice.choice((OWN, *others)), offsets=[offset]))

    def _join_and_die(self, group: str) -> None:
        """A client that is given an id, and dies; in a group of their own, many of them (KAFKA-7610)."""
        for _ in range(20 if group == FLOODED else 1):
            self._strays += 1
            message = gm.JoinGroupRequest(
                group=group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=8_000,
                protocol_type="consumer",
                protocols=[
                    gm.GroupProtocol(name="range", metadata=b""),
                    gm.GroupProtocol(name="cooperative-sticky", metadata=b""),
                ],
                known_member_id=True,
                fresh_id=f"stray-{self._strays}",
            )
            self._ask_one(message)

    def _ask_one(self, message: Any) -> None:
        for host in self.cluster.leaders_of(self.cluster.coordinators.partition_of(message.group))[:1]:
            self.echo(host.node, message, 0.0)

"""The faults while members are at work: at any time, or just when they do most harm."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import structs

from ...core.coordination.topics_view import TopicInfo, TopicsView
from ...core.groups import records as r
from ...core.groups.assignors.assignment import Assignor
from ...core.groups.assignors.range import RangeAssignor
from ...core.groups.assignors.sticky import CooperativeStickyAssignor
from ...core.messages import groups as gm
from .brokers import Broker, Cluster
from .clients import LAZY, Client
from .oracle import Oracle
from .probes import Probe
from .world import World

COOPERATIVE = CooperativeStickyAssignor()
CUT_OFF = 14.0
"""Seconds: longer than a session with the time to spare that a new coordinator gives."""


class Faults(Cluster):
    """A cluster with topics whose records only have to be counted."""

    kind: type[Client] = Client
    """The class of the members."""
    pause_between = 1.2
    """Seconds from one misfortune to the next, on average."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        world = World(seed)
        self.made = 0
        topics = {name: self._topic(world.random.randint(1, 5)) for name in ("a", "b")}
        view = TopicsView(topics)
        oracle = Oracle(world, view)
        super().__init__(world, oracle, view)
        self.oracle: Oracle = oracle
        self.born: dict[str, float] = {info.topic_id: 0.0 for info in topics.values()}
        self._numbers = itertools.count()
        self.groups = ("g", "h") if world.chance(0.5) else ("g",)
        self.transactions: dict[int, bool] = {}
        # Members of the classic protocol agree on an assignor; some runs have them beside others, some have none.
        kinds: list[tuple[Assignor, ...]] = [(), (), (RangeAssignor(),), (COOPERATIVE,), (COOPERATIVE,)]
        self.assignors = world.random.choice(kinds)
        self.classic_share = world.random.choice((0.5, 1.0))
        """Of members; where all are of the classic protocol, groups stay so."""
        self.probe = Probe(self, (*self.groups, "t"))

    def _topic(self, partitions: int) -> TopicInfo:
        self.made += 1
        return TopicInfo(f"{self.made:032x}", partitions)

    def oracle_end(self, partition: r.TopicPartition) -> int:
        """Records of a partition so far: five a second."""
        return int(5 * (self.world.now - self.born[partition.topic_id]))

    # Members

    def start(self, group: str, instance: str | None = None) -> Client:
        choice = self.world.random.choice
        topics = choice([("a",), ("a", "b"), ("a", "b")])
        assignors = self.assignors if self.assignors and self.world.chance(self.classic_share) else ()
        return self.join(group, topics, instance, assignors)

    def join(
        self,
        group: str,
        topics: tuple[str, ...],
        instance: str | None = None,
        assignors: Sequence[Assignor] = (),
    ) -> Client:
        """A process begins; without assignors it speaks the consumer protocol."""
        client = self.kind(self, next(self._numbers), group, topics, instance, assignors)
        self.oracle.clients.append(client)
        return client

    def _start(self, group: str, instance: str | None = None) -> None:
        if instance is not None:
            self._stop_static(group)
        self.start(group, instance)

    def _stop_static(self, group: str) -> None:
        """Two processes under one name would put each other off for ever."""
        for client in self.alive:
            if client.membership.settings.instance_id == f"i-{group}":
                client.run(client.stop)

    @property
    def alive(self) -> list[Client]:
        return [each for each in self.oracle.clients if each.up and not each.stopping]

    # Faults

    def fault(self) -> None:
        """One misfortune, and the next one later."""
        if self.world.calm:
            return
        random = self.world.random
        kinds = [
            self._move,
            self._move_twice,
            self._crash_broker,
            self._pause_broker,
            self._pause_broker,
            self._cut,
            self._deafen,
            self._deafen,
            self._cut_client,
            self._kill_client,
            self._pause_client,
            self._pause_client,
            self._join,
            self._join,
            self._stop,
            self._restart_static,
            self._resubscribe,
            self._change_topics,
            self._compact,
            self._compact,
            self._transaction,
            self._transaction,
            self._stand_still,
            self._split,
            self._echo,
            self._echo,
            self._move_back,
        ]
        random.choice(kinds)()
        self.world.later(random.expovariate(1 / self.pause_between), self.fault)

    def _move(self) -> None:
        self.elect()

    def _move_twice(self) -> None:
        """A leader is replaced before all has reached it that its predecessor has committed."""
        self.elect()
        self.world.later(self.world.random.uniform(0.02, 0.6), self.elect)

    def _move_back(self) -> None:
        """Somebody leads, then another, then the first again, which may still read for the first time."""
        random = self.world.random
        first = random.choice(sorted(self.store.isr))
        at = 0.0
        for number in (first, None, first):
            self.world.later(at, partial(self.elect, number))
            at += random.uniform(0.02, 0.4)

    def _crash_broker(self) -> None:
        broker = self.world.random.choice(self.brokers)
        if all(each.up for each in self.brokers):
            broker.up = False
            self.world.later(self.world.random.uniform(0.5, 6.0), lambda: self.revive(broker.number))

    def revive(self, number: int) -> None:
        broker = self.brokers[number]
        if not broker.up:
            broker.up = True
            broker.restart()
            if self.store.leader == number:
                # A new process is a new leadership, even if nobody has noticed that the old one ended.
                self.store.epoch += 1
            self.publish()

    def _pause_broker(self) -> None:
        leader = self.coordinator()
        broker = leader if self.world.chance(0.7) else self.world.random.choice(self.brokers)
        broker.pause(self.world.random.choice([0.3, 2.0, 6.0, 15.0]))

    def _cut(self) -> None:
        """A node from the others and from the store, but not from all clients."""
        broker = self.world.random.choice([self.coordinator(), self.world.random.choice(self.brokers)])
        pairs = {frozenset({broker.name, each.name}) for each in self.brokers if each is not broker}
        pairs |= {
            frozenset({broker.name, each.name}) for each in self.oracle.clients if self.world.chance(0.3)
        }
        self.world.cuts |= pairs
        self.world.later(self.world.random.choice([1.0, 4.0, 12.0]), lambda: self.mend(pairs))

    def _deafen(self) -> None:
        """The leader, and perhaps one that follows it, do not hear that another leads."""
        random = self.world.random
        leader = self.store.leader
        nodes = {leader}
        if self.world.chance(0.5):
            nodes.add(random.choice([each.number for each in self.brokers]))
        self.deaf |= nodes
        self.world.later(
            random.uniform(0.1, 1.0), lambda: self.elect() if self.store.leader == leader else None
        )
        self.world.later(random.choice([3.0, 8.0, 20.0, 30.0]), lambda: self._hear(nodes))

    def _hear(self, nodes: set[int]) -> None:
        self.deaf -= nodes
        self.publish()

    def _stand_still(self) -> None:
        """All nodes and their store, as when their machines are suspended; some clients are heard no more."""
        seconds = self.world.random.uniform(1.0, 12.0)
        self.frozen = True
        for broker in self.brokers:
            broker.pause(seconds)
        self.world.later(seconds + 0.01, self._thaw)
        for client in self.alive:
            if self.world.chance(0.5):
                self.cut_off(client, self.world.random.uniform(seconds, seconds + 8.0))

    def _thaw(self) -> None:
        self.frozen = False

    def _split(self) -> None:
        """The leader and one that follows it do not hear of the next; new members come to that one alone."""
        random = self.world.random
        old = self.store.leader
        follower, other = random.sample([each.number for each in self.brokers if each.number != old], 2)
        if other not in self.store.isr or not self.brokers[other].up or self.brokers[other].paused:
            return
        nodes = {old, follower}
        self.deaf |= nodes
        self.store.leader, self.store.epoch = other, self.store.epoch + 1
        self.elections += 1
        self.publish()
        self.world.later(random.choice([15.0, 25.0]), lambda: self._hear(nodes))
        client = self.start(LAZY if LAZY in self.groups else "g")
        pairs = {frozenset({client.name, self.brokers[each].name}) for each in nodes}
        self.world.cuts |= pairs
        self.world.later(25.0, lambda: self.mend(pairs))

    def _echo(self) -> None:
        """Copies of earlier heartbeats that lay in sockets come when the group changes."""
        client = self._one()
        if client is None:
            return
        if len(self.alive) < 6:
            self.start(client.group)
        for target, message, leader_epoch in client.said:
            for _ in range(3):
                ask = partial(target.ask, message, 5.0, leader_epoch, lambda reply: None)
                self.world.later(self.world.random.uniform(0.0, 1.0), partial(target.run, ask))

    # Just when it does harm

    def answered(self, broker: Broker, message: Any, reply: Any) -> None:
        """A member heard by a coordinator that is none any more may be heard by nobody for some time."""
        beats = isinstance(message, gm.ConsumerGroupHeartbeatRequest | gm.HeartbeatRequest)
        if self.world.calm or not beats or reply.error or broker.epoch >= self.store.epoch:
            return
        if self.coordinator().shard.active and self.world.chance(0.5):
            for client in self.alive:
                if (client.group, client.membership.member_id) == (message.group, message.member_id):
                    self.world.later(0.02, partial(self.cut_off, client, CUT_OFF))

    def hears(self, client: Client, message: Any, reply: Any, waited: float) -> bool:
        """A client has an answer, and what it sends next gets lost; or its process ends; or it has no answer."""
        if self.world.calm or reply.error:
            return True
        if isinstance(message, gm.SyncGroupRequest) and self.world.chance(0.1):
            return False
        beats = isinstance(message, gm.ConsumerGroupHeartbeatRequest | gm.HeartbeatRequest)
        if beats and waited > 1.0 and self.world.chance(0.03):
            self.cut_off(client, CUT_OFF)
        instance = client.membership.settings.instance_id
        joins = isinstance(message, gm.JoinGroupRequest) and instance is not None
        if joins and self.world.chance(0.15):
            client.die()
            self.start(client.group, instance)
        return True

    def cut_off(self, client: Client, seconds: float) -> None:
        """Nothing gets from a client to any node, nor back."""
        pairs = {frozenset({client.name, each.name}) for each in self.brokers}
        self.world.cuts |= pairs
        self.world.later(seconds, lambda: self.mend(pairs))

    # Clients

    def _cut_client(self) -> None:
        client = self._one()
        if client is not None:
            self.cut_off(client, self.world.random.choice([3.0, 12.0, 25.0]))

    def mend(self, pairs: set[frozenset[str]]) -> None:
        self.world.cuts -= pairs
        self.publish()

    def _one(self) -> Client | None:
        return self.world.random.choice(self.alive) if self.alive else None

    def _kill_client(self) -> None:
        client = self._one()
        if client is not None:
            client.die()
            if self.world.chance(0.7):
                self.start(client.group)

    def _pause_client(self) -> None:
        client = self._one()
        if client is not None:
            client.pause(self.world.random.choice([1.0, 5.0, 12.0, 20.0]))

    def _join(self) -> None:
        if len(self.alive) < 6:
            self.start(self.world.random.choice(self.groups))

    def _stop(self) -> None:
        client = self._one()
        if client is not None and len(self.alive) > 1:
            client.run(client.stop)

    def _restart_static(self) -> None:
        """A static member ends and comes back, or another process takes its name."""
        group = self.world.random.choice(self.groups)
        self._stop_static(group)
        self.world.later(self.world.random.uniform(0.0, 3.0), partial(self._start, group, f"i-{group}"))

    def _resubscribe(self) -> None:
        client = self._one()
        if client is not None and not client.paused:
            client.resubscribe(self.world.random.choice([("a",), ("b",), ("a", "b")]))

    def _change_topics(self) -> None:
        random = self.world.random
        topics = dict(self.view.topics)
        name = random.choice(["a", "b"])
        roll = random.random()
        if roll < 0.5 and name in topics:
            topics[name] = structs.replace(topics[name], partitions=topics[name].partitions + 1)
        elif roll < 0.7 and len(topics) > 1:
            topics.pop(name, None)
        else:
            made = self._topic(random.randint(1, 4))
            topics[name] = made
            self.born[made.topic_id] = self.world.now
        self.see(TopicsView(topics))

    def _compact(self) -> None:
        broker = self.world.random.choice(self.brokers)
        broker.compact()
        self.oracle.check_replay(broker)

    def _transaction(self) -> None:
        """Offsets of a group that only transactions write, decided some time later."""
        producer = len(self.transactions)
        self.transactions[producer] = self.world.chance(0.6)
        offset = self.world.random.randint(0, 1000)
        message = gm.TxnOffsetCommitRequest(
            transactional_id="x",
            producer_id=producer,
            producer_epoch=0,
            group="t",
            offsets=[gm.GroupOffset(topic="a", partition=0, offset=offset)],
        )
        broker = self.coordinator()
        broker.run(lambda: broker.ask(message, 5.0, -1, lambda reply: None))
        self.world.later(self.world.random.uniform(0.1, 8.0), lambda: self._decide(producer))

    def _decide(self, producer: int) -> None:
        if not self.coordinator().mark(producer, committed=self.transactions[producer]):
            self.world.later(1.0, lambda: self._decide(producer))

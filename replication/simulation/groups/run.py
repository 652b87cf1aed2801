"""One run: members at work while coordinators move, then calm, in which everything must come right."""

from __future__ import annotations

import itertools
from functools import partial

import attrs

from ...core.coordination import group_messages as gm
from ...core.coordination import records as r
from ...core.coordination.assign_range import RangeAssignor
from ...core.coordination.assign_sticky import CooperativeStickyAssignor
from ...core.coordination.assignment import Assignor
from ...core.coordination.topics_view import TopicInfo, TopicsView
from ..errors import Violated, require
from .brokers import Cluster
from .clients import Client
from .oracle import Oracle
from .world import World

STORM = 60.0
CALM = 40.0
QUIET = 15.0


@attrs.frozen(kw_only=True)
class Result:
    """What became of one run; `violation` is None if everything held."""

    seed: int
    violation: Violated | None
    events: int
    batches: int
    elections: int
    rebalances: int
    handed: int
    commits: int


class Simulation(Cluster):
    """A cluster with topics whose records only have to be counted."""

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
        kinds: list[tuple[Assignor, ...]] = [(), (), (RangeAssignor(),), (CooperativeStickyAssignor(),)]
        self.assignors = world.random.choice(kinds)
        self.classic_share = world.random.choice((0.5, 1.0))
        """Of members; where all are of the classic protocol, groups stay so."""

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
        client = Client(self, next(self._numbers), group, topics, instance, assignors)
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
        ]
        random.choice(kinds)()
        self.world.later(random.expovariate(1 / 1.2), self.fault)

    def _move(self) -> None:
        self.elect()

    def _move_twice(self) -> None:
        """A leader is replaced before all has reached it that its predecessor has committed."""
        self.elect()
        self.world.later(self.world.random.uniform(0.02, 0.6), self.elect)

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

    def _cut_client(self) -> None:
        client = self._one()
        if client is not None:
            pairs = {frozenset({client.name, each.name}) for each in self.brokers}
            self.world.cuts |= pairs
            self.world.later(self.world.random.choice([3.0, 12.0, 25.0]), lambda: self.mend(pairs))

    def mend(self, pairs: set[frozenset[str]]) -> None:
        self.world.cuts -= pairs
        self.publish()

    def _one(self) -> Client | None:
        return self.world.random.choice(self.alive) if self.alive else None

    def _kill_client(self) -> None:
        client = self._one()
        if client is not None:
            client.up = False
            client.serving.clear()
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
            topics[name] = attrs.evolve(topics[name], partitions=topics[name].partitions + 1)
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

    # The run

    def play(self) -> None:
        world = self.world
        for group in self.groups:
            for _ in range(world.random.randint(1, 3)):
                world.later(world.random.uniform(1, 5), partial(self._start, group))
        world.later(3.0, self.fault)
        self._until(STORM)
        self._heal()
        self._until(world.now + CALM)
        self._check_stable()
        before = self._group_epochs()
        self._until(world.now + QUIET)
        self._check_stable()
        after = self._group_epochs()
        changed = [group for group, epoch in after.items() if before.get(group, epoch) != epoch]
        require(not changed, "GL4", f"{before} became {after} in the quiet")
        for client in self.alive:
            client.stop()
        self._until(world.now + 35.0)
        self._check_gone()

    def _until(self, end: float) -> None:
        while self.world.now < end:
            self.world.run_until(min(end, self.world.now + 2.0))
            for broker in self.brokers:
                self.oracle.check_replay(broker)

    def _heal(self) -> None:
        world = self.world
        world.calm = True
        world.cuts.clear()
        self.deaf.clear()
        for broker in self.brokers:
            broker.resume()
            self.revive(broker.number)
        for client in self.oracle.clients:
            client.resume()
        self.store.isr = frozenset(self.store.isr)
        if not self.alive:
            self.start("g")
        for producer in self.transactions:
            # An offset may have come after its marker: here nobody keeps it out, as a partition's leader does.
            world.later(10.0, partial(self._decide, producer))
        self.publish()

    def _group_epochs(self) -> dict[str, int]:
        machine = self.coordinator().shard.machine
        assert machine is not None
        groups, classics = machine.groups, machine.classics  # type: ignore[attr-defined]
        found = {name: groups[name].epoch for name in self.groups if name in groups}
        return found | {name: classics[name].generation for name in self.groups if name in classics}

    def _check_stable(self) -> None:
        """GL1, GL2, GL3: everybody has what is its own, nothing hangs."""
        broker = self.coordinator()
        require(broker.shard.active, "GL2", f"{broker.name} still loads")
        for group in self.groups:
            mine = [
                each
                for each in self.alive
                if each.group == group and each.failed is None and not self._is_kept_out(each)
            ]
            if not mine:
                continue
            topics = {topic for each in mine for topic in each.topics if topic in self.view.topics}
            wanted = {
                r.TopicPartition(self.view.topics[topic].topic_id, number)
                for topic in topics
                for number in range(self.view.topics[topic].partitions)
            }
            served = [partition for each in mine for partition in each.serving]
            require(
                sorted(served) == sorted(wanted), "GL1", f"{group}: {sorted(served)} is not {sorted(wanted)}"
            )
            for partition in wanted:
                if self.oracle.is_ambiguous(partition):
                    continue
                place = group, partition.topic_id, partition.partition
                done = len(self.oracle.processed.get(place, ()))
                require(done + 60 > self.oracle_end(partition), "GL1", f"{place} is read no more")
        opened = broker.shard.open_requests
        require(opened <= len(self.alive) * 2 + 2, "GL3", f"{opened} requests are open")

    def _is_kept_out(self, client: Client) -> bool:
        """Whether another process has its instance, so that it waits for that one's end."""
        instance = client.membership.settings.instance_id
        return instance is not None and any(
            each.membership.settings.instance_id == instance and each.membership.is_member
            for each in self.alive
            if each is not client and each.group == client.group
        )

    def _check_gone(self) -> None:
        """GL6: when nobody is left, nothing is."""
        machine = self.coordinator().shard.machine
        assert machine is not None
        left = dict(machine.groups)  # type: ignore[attr-defined]
        require(not left, "GL6", left)


def run(seed: int) -> Result:
    """Play a seed."""
    simulation = Simulation(seed)
    violation = None
    try:
        simulation.play()
    except Violated as found:
        violation = found
    oracle = simulation.oracle
    return Result(
        seed=seed,
        violation=violation,
        events=simulation.world.events,
        batches=oracle.batches,
        elections=simulation.elections,
        rebalances=oracle.rebalances,
        handed=oracle.handed,
        commits=oracle.commits,
    )

"""One run: members at work while coordinators move, then calm, in which everything must come right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from ...core.groups import records as r
from ..errors import Violated, require
from .clients import Client
from .rare import RareFaults

STORM = 60.0
CALM = 40.0
QUIET = 15.0


@attrs.frozen(kw_only=True)
class Result:
    """The outcome of one run; `violation` is None if everything held."""

    seed: int
    violation: Violated | None
    events: int
    batches: int
    elections: int
    rebalances: int
    handed: int
    commits: int


class Simulation(RareFaults):
    """A run."""

    # The run

    def play(self) -> None:
        world = self.world
        for group in self.groups:
            for _ in range(world.random.randint(1, 3)):
                world.later(world.random.uniform(1, 5), partial(self._start, group))
        world.later(3.0, self.fault)
        self._until(STORM)
        self._heal()
        self._until(world.now + CALM + self.rest)
        self._check_stable()
        before = self._group_epochs()
        self._until(world.now + QUIET)
        self._check_stable()
        after = self._group_epochs()
        for group, epoch in after.items():
            rose = epoch - before.get(group, epoch)
            require(rose <= 2, "GL5", f"{group} was shared out {rose} times in the quiet")
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
            self.oracle.check_silent(self.coordinator())
            self.oracle.check_lingering(self.coordinator())

    def _heal(self) -> None:
        world = self.world
        world.calm = True
        self.oracle.calm_since = world.now
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
            for partition in sorted(wanted):
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


def violation_of(play: Callable[[], None]) -> Violated | None:
    """The violation found when a simulation is played to its end; None if there is none."""
    try:
        play()
    except Violated as found:
        return found
    return None


def run(seed: int) -> Result:
    """Play a seed."""
    simulation = Simulation(seed)
    violation = violation_of(simulation.play)
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

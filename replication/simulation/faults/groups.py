"""Misfortunes of members: at any time, or just when they do most harm."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...core.control.records import PartitionRecord
from ...core.groups.classic_state import ClassicPhase, ClassicState
from ...core.groups.shard import GroupCoordinator
from ...core.types import NO_LEADER
from ..clients.groups import MOST_MEMBERS, Groups
from ..clients.members import Member
from ..oracles.groups.facts import LAZY

if TYPE_CHECKING:
    from ..world.cluster import Cluster

BETWEEN, BETWEEN_WITH_TRANSACTIONS = 1.2, 5.0
"""Seconds from one misfortune to the next, on average."""
MOST_PARTITIONS = 6
RARE = 0.06
"""Of all seeds, for each of those misfortunes that a member has to be prepared for."""
LINGERS = 28.0
"""Seconds of calm until a member lets go that lingers."""
AWAY_AGAIN = 7.0
AWAY_UNTIL = 32.0
"""Seconds: between two times that a static leader is away, and of calm until it is away last."""
REST = 20.0
"""Seconds: a member that lingered is lost and joins again; nobody has read meanwhile, so it reads on first."""


class GroupFaults:
    """By dice of their own."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._cluster: Cluster = groups.cluster
        self._dice = groups.dice
        self.rest = 0.0
        """Seconds that members need in calm beyond those of other runs."""

    def begin(self) -> None:
        """One misfortune after the other; in some runs one that has to be prepared."""
        dice, cluster, storm = self._dice, self._cluster, self._cluster.settings.storm
        cluster.later(1.0, self._turn)
        kind = dice.random()
        if kind < RARE:
            cluster.later(dice.uniform(8.0, 0.7 * storm), self._upgrade)
        elif kind < 2 * RARE:
            cluster.later(storm - cluster.now - dice.uniform(6.0, 16.0), self._linger)
        elif kind < 3 * RARE:
            self.rest = REST
            begins = storm - cluster.now + dice.uniform(6.0, 14.0)
            cluster.later(begins, partial(self._away, dice.uniform(0.0, 3.0)))

    def _turn(self) -> None:
        if self._cluster.calm:
            return
        kinds = (
            self._move,
            self._move_twice,
            self._move_back,
            self._deafen,
            self._deafen,
            self._stand_still,
            self._cut,
            self._cut_from_one,
            self._kill,
            self._pause,
            self._pause,
            self._join,
            self._join,
            self._stop,
            self._restart_static,
            self._resubscribe,
            self._echo,
            self._echo,
            self._split,
            self._compact,
            self._compact,
        )
        self._dice.choice(kinds)()
        between = BETWEEN_WITH_TRANSACTIONS if self._cluster.settings.transactions else BETWEEN
        self._cluster.later(self._dice.expovariate(1 / between), self._turn)

    # Coordinators that move, and do not know it

    def _record(self) -> PartitionRecord | None:
        """The partition that keeps a group."""
        partition = self._cluster.coordinators.partition_of(self._dice.choice(self._groups.names))
        known = self._cluster.store.partitions.get(partition) if partition is not None else None
        return known.record if known is not None else None

    def _elect(self, record: PartitionRecord, only: int | None = None) -> int:
        """Another in-sync replica leads a partition; `only`: that one. The node, or 0 if none can."""
        cluster, known = self._cluster, self._cluster.store.partitions.get(record.id)
        if known is None or cluster.calm or known.record.leader == NO_LEADER:
            return 0
        able = [
            each for each in known.record.isr if each != known.record.leader and each in cluster.store.live
        ]
        able = [each for each in able if not cluster.nodes[each].paused and only in (None, each)]
        chosen = self._dice.choice(able) if able else 0
        if chosen:
            cluster.elect(known.record, chosen)
        return chosen

    def _move(self) -> None:
        record = self._record()
        if record is not None:
            self._elect(record)

    def _move_twice(self) -> None:
        """A leader is replaced before all has reached it that its predecessor has committed."""
        record = self._record()
        if record is not None:
            self._elect(record)
            self._cluster.later(self._dice.uniform(0.02, 0.6), partial(self._elect_later, record, None))

    def _move_back(self) -> None:
        """Somebody leads, then another, then the first again, which may still read for the first time."""
        record = self._record()
        if record is None or not record.isr:
            return
        first = self._dice.choice(record.isr)
        at = 0.0
        for node in (first, None, first):
            self._cluster.later(at, partial(self._elect_later, record, node))
            at += self._dice.uniform(0.02, 0.4)

    def _elect_later(self, record: PartitionRecord, only: int | None) -> None:
        self._elect(record, only)

    def _deafen(self) -> None:
        """The leader, and perhaps one that follows it, do not hear that another leads."""
        dice, record = self._dice, self._record()
        if record is None or record.leader == NO_LEADER:
            return
        deaf = {record.leader}
        if dice.random() < 0.5:
            deaf.add(dice.choice(sorted(self._cluster.nodes)))
        self._deafen_all(deaf, dice.choice((3.0, 8.0, 20.0, 30.0)))
        self._cluster.later(dice.uniform(0.1, 1.0), partial(self._elect_later, record, None))

    def _deafen_all(self, nodes: set[int], seconds: float) -> None:
        for number in nodes:
            node = self._cluster.nodes[number]
            node.deaf_until = max(node.deaf_until, self._cluster.now + seconds)

    def _split(self) -> None:
        """The leader and one that follows it do not hear of the next; a new member comes to that one alone."""
        dice, record = self._dice, self._record()
        if record is None or record.leader == NO_LEADER:
            return
        old, chosen = record.leader, self._elect(record)
        if chosen:
            followers = [each for each in record.replicas if each not in (old, chosen)]
            deaf = {old, *dice.sample(followers, min(1, len(followers)))}
            self._deafen_all(deaf, dice.choice((15.0, 25.0)))
            lazy = LAZY if LAZY in self._groups.names else self._groups.names[0]
            self._groups.start(lazy).cut_off(25.0, *deaf)

    def _stand_still(self) -> None:
        """All nodes and their store, as when their machines are suspended; some clients are heard no more."""
        cluster, dice = self._cluster, self._dice
        seconds = dice.uniform(1.0, 12.0)
        cluster.members.stand_still(seconds)
        for node in cluster.nodes.values():
            cluster.pause(node, seconds)
        for member in self._groups.alive:
            if dice.random() < 0.5:
                member.cut_off(dice.uniform(seconds, seconds + 8.0))

    # Members

    def _cut(self) -> None:
        member = self._groups.one()
        if member is not None:
            member.cut_off(self._dice.choice([3.0, 12.0, 25.0]))

    def _cut_from_one(self) -> None:
        """Some members do not reach the coordinator, and everybody else."""
        leader = self._groups.leader()
        for member in self._groups.alive:
            if leader is not None and self._dice.random() < 0.3:
                member.cut_off(self._dice.choice([1.0, 4.0, 12.0]), leader.id)

    def _kill(self) -> None:
        member = self._groups.one()
        if member is not None:
            member.die()
            if self._dice.random() < 0.7:
                self._groups.start(member.group)

    def _pause(self) -> None:
        member = self._groups.one()
        if member is not None:
            member.pause(self._dice.choice([1.0, 5.0, 12.0, 20.0]))

    def _join(self) -> None:
        if len(self._groups.alive) < MOST_MEMBERS:
            self._groups.start(self._dice.choice(self._groups.names))

    def _stop(self) -> None:
        member = self._groups.one()
        if member is not None and len(self._groups.alive) > 1:
            member.run(member.stop)

    def _restart_static(self) -> None:
        """A static member ends and comes back, or another process takes its name."""
        group = self._dice.choice(self._groups.names)
        self._stop_static(group)
        self._cluster.later(self._dice.uniform(0.0, 3.0), partial(self._start_static, group))

    def _start_static(self, group: str) -> None:
        self._stop_static(group)
        self._groups.start(group, f"i-{group}")

    def _stop_static(self, group: str) -> None:
        """Two processes under one name would put each other off for ever."""
        for member in self._groups.alive:
            if member.instance == f"i-{group}":
                member.run(member.stop)

    def _resubscribe(self) -> None:
        member = self._groups.one()
        if member is not None and not member.paused:
            topics = self._groups.topics
            member.resubscribe(tuple(sorted(self._dice.sample(topics, self._dice.randint(1, len(topics))))))

    def _echo(self) -> None:
        """Copies of earlier heartbeats that lay in sockets come when the group changes."""
        member = self._groups.one()
        if member is None:
            return
        self._join()
        for node, message in member.said:
            for _ in range(3):
                self._groups.echo(node, message, self._dice.uniform(0.0, 1.0))

    def _compact(self) -> None:
        """The offsets of a replica, up to the high watermark."""
        partition = self._cluster.coordinators.partition_of(self._dice.choice(self._groups.names))
        hosts = self._cluster.hosts_of(partition) if partition is not None else []
        if hosts:
            self._cluster.coordinators.compact(self._dice.choice(hosts), self._dice)

    # A static member of the classic protocol comes back with the other one

    def _members(self) -> list[Member]:
        """Those of the first group; they commit, so that who begins late begins where others were."""
        return [each for each in self._groups.alive if each.group == self._groups.names[0]]

    def _known(self) -> ClassicState | None:
        """The first group as its coordinator has it, if it is a classic one."""
        group, leader = self._groups.names[0], self._groups.leader()
        partition = self._cluster.coordinators.partition_of(group)
        if leader is None or leader.broker is None or partition is None:
            return None
        machine = leader.broker.shards.machine(partition)
        return machine.classics.get(group) if isinstance(machine, GroupCoordinator) else None

    def _upgrade(self) -> None:
        """Just when a topic of its group has got a partition that nobody has been assigned (GZ53)."""
        if self._cluster.calm:
            return
        old = self._upgradable()
        if old is None:
            self._cluster.later(1.5, self._upgrade)
            return
        self._grow(old)
        old.die()
        self._groups.join(old.group, old.topics, old.instance)

    def _static(self, members: list[Member]) -> list[Member]:
        """The static members; if there is none, one is started."""
        static = [each for each in members if each.instance is not None]
        if not static:
            group = members[0].group
            self._groups.join(group, members[0].topics, f"i-{group}", self._groups.assignors)
        return static

    def _upgradable(self) -> Member | None:
        """The static member of a classic group at rest."""
        members, known = self._members(), self._known()
        if not members or not all(each.classic for each in members):
            return None
        static = self._static(members)
        if known is None or known.phase is not ClassicPhase.STABLE:
            return None
        return next((each for each in static if each.membership.member_id in known.members), None)

    # A static member of the classic protocol that leads is away while a topic changes

    def _away(self, seconds: float) -> None:
        """It comes back to the topics as they are by then, and is told that all is shared out (GZ64).

        In calm: a group in a storm is hardly ever at rest, and is shared out soon for other reasons.
        """
        cluster = self._cluster
        members, known = self._members(), self._known()
        if cluster.now > cluster.settings.storm + AWAY_UNTIL or not members:
            return
        if not all(each.classic for each in members):
            return
        leads = [each for each in members if known is not None and each.membership.member_id == known.leader]
        static = self._static(members)
        if static and known is not None and known.phase is ClassicPhase.STABLE and leads:
            old = leads[0]
            if old in static:
                old.die()
                self._grow(old)
                cluster.later(seconds, partial(self._return, old))
                # Once more: only who has joined once is the same as a process that begins.
                cluster.later(AWAY_AGAIN, partial(self._away, seconds))
                return
            if len(members) > 1:
                old.run(old.stop)
        cluster.later(1.0, partial(self._away, seconds))

    def _return(self, old: Member) -> None:
        self._groups.join(old.group, old.topics, old.instance, self._groups.assignors)

    def _grow(self, member: Member) -> None:
        self._cluster.topics.grow(member.topics[0], MOST_PARTITIONS)

    # Members whose callers do not let go

    def _linger(self) -> None:
        """Two members join; those that must revoke partitions for them exceed the rebalance timeout (GZ60)."""
        if self._cluster.calm:
            return
        self.rest = REST
        for each in self._members():
            each.lingers_until = self._cluster.settings.storm + LINGERS
        for _ in range(2):
            self._groups.join(self._groups.names[0], self._groups.topics)

"""The faults of a few seeds. Their chances come from a stream of their own: other seeds go as without them."""

from __future__ import annotations

import random
from functools import partial

from msgspec import structs

from ...core.coordination.topics_view import TopicsView
from ...core.groups.classic_state import ClassicPhase
from .clients import Client
from .faults import Faults

GROUP = "g"
"""Its members commit: who begins late begins where others were."""
SHARE = 0.06
"""Of all seeds, for each of these misfortunes."""
LINGERS_UNTIL = 88.0
"""Seconds: long after everybody else has come to rest."""
AWAY_AGAIN = 7.0
AWAY_UNTIL = 92.0
"""Seconds: between two times that a static leader is away, and at which it is away last."""
REST = 20.0
"""Seconds: who lingered is lost and joins again, and what it takes over then was read by nobody meanwhile."""


class RareFaults(Faults):
    """Members that change their protocol, that lead and are away, or that hold on to what they are to let go."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.rest = 0.0
        """Seconds that members need in the calm beyond those of other runs."""
        chance = random.Random(f"rare {seed}")
        kind = chance.random()
        if kind < SHARE:
            self.world.later(chance.uniform(8.0, 40.0), self._upgrade)
        elif kind < 2 * SHARE:
            self.world.later(chance.uniform(44.0, 54.0), self._linger)
        elif kind < 3 * SHARE:
            self.rest = REST
            self.world.later(chance.uniform(66.0, 74.0), partial(self._away, chance.uniform(0.0, 3.0)))

    def _members(self) -> list[Client]:
        return [each for each in self.alive if each.group == GROUP]

    # A static member of the classic protocol comes back with the other one

    def _upgrade(self) -> None:
        """Just when a topic of its group has got a partition that nobody has been assigned (GZ53)."""
        if self.world.calm:
            return
        old = self._upgradable()
        if old is None:
            self.world.later(1.5, self._upgrade)
            return
        self._grow(next(each for each in old.topics if each in self.view.topics))
        old.die()
        self.join(GROUP, old.topics, old.membership.settings.instance_id)

    def _upgradable(self) -> Client | None:
        """The static member of a classic group at rest; if there is none, one is started."""
        members, machine = self._members(), self.coordinator().shard.machine
        if not members or not all(each.classic for each in members):
            return None
        static = [each for each in members if each.membership.settings.instance_id is not None]
        if not static:
            self.join(GROUP, members[0].topics, f"i-{GROUP}", self.assignors)
        known = machine.classics.get(GROUP) if machine is not None else None  # type: ignore[attr-defined]
        if known is None or known.phase is not ClassicPhase.STABLE:
            return None
        for each in static:
            if each.membership.member_id in known.members and self.view.topics.keys() & set(each.topics):
                return each
        return None

    # A static member of the classic protocol that leads is away while a topic changes

    def _away(self, seconds: float) -> None:
        """It comes back to the topics as they are by then, and is told that all is shared out (GZ64).

        In the calm: a group in a storm is hardly ever at rest, and is shared out soon for other reasons.
        """
        if self.world.now > AWAY_UNTIL:
            return
        members, machine = self._members(), self.coordinator().shard.machine
        if not members or not all(each.classic for each in members):
            return
        known = machine.classics.get(GROUP) if machine is not None else None  # type: ignore[attr-defined]
        leads = [each for each in members if known is not None and each.membership.member_id == known.leader]
        static = [each for each in members if each.membership.settings.instance_id is not None]
        if not static:
            self.join(GROUP, members[0].topics, f"i-{GROUP}", self.assignors)
        elif known is not None and known.phase is ClassicPhase.STABLE and leads:
            old = leads[0]
            names = sorted(self.view.topics.keys() & set(old.topics))
            if old in static and names:
                old.die()
                self._grow(names[0])
                self.world.later(seconds, partial(self._return, old))
                # Once more: only who has joined once is the same as a process that begins.
                self.world.later(AWAY_AGAIN, partial(self._away, seconds))
                return
            if old not in static and len(members) > 1:
                old.run(old.stop)
        self.world.later(1.0, partial(self._away, seconds))

    def _return(self, old: Client) -> None:
        self.join(GROUP, old.topics, old.membership.settings.instance_id, self.assignors)

    def _grow(self, name: str) -> None:
        topics = dict(self.view.topics)
        topics[name] = structs.replace(topics[name], partitions=topics[name].partitions + 1)
        self.see(TopicsView(topics))

    # Members whose callers do not let go

    def _linger(self) -> None:
        """Two members join; those that must revoke partitions for them exceed the rebalance timeout (GZ60)."""
        if self.world.calm:
            return
        self.rest = REST
        for each in self._members():
            each.lingers_until = LINGERS_UNTIL
        for _ in range(2):
            self.join(GROUP, ("a", "b"))

"""What faults work on, and what they tell."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import attrs

from insync.replication import Admin, ReplicationError

from .history import History
from .load import TOPICS
from .members import Member
from .network import Network
from .stores import RunStore

Inject = Callable[["Scene"], Awaitable["Bite"]]


@attrs.frozen
class Bite:
    """Whom a fault met, and the evidence that it did; "" is none. harm: what it must not have caused."""

    target: str
    evidence: str
    harm: str = ""


@attrs.frozen
class Scene:
    """What faults work on."""

    members: list[Member]
    spares: list[Member]
    """Nodes that belong to the cluster no more, or not yet."""
    network: Network | None
    store: RunStore
    admin: Admin
    random: random.Random
    history: History
    led: str = TOPICS["all"]
    """The topic whose leaders faults look for."""

    def any_member(self) -> Member:
        return self.random.choice(self.members)

    async def leader(self) -> Member:
        """A node that leads something, if one does."""
        try:
            topics = await self.admin.describe_topics([self.led])
        except ReplicationError:
            return self.any_member()
        leaders = {part.leader for part in topics[0].partitions}
        leading = [member for member in self.members if member.number in leaders]
        return self.random.choice(leading or list(self.members))

    async def controller(self) -> Member:
        number = (await self.admin.describe_cluster()).controller_id
        return next((each for each in self.members if each.number == number), self.members[0])


@attrs.frozen
class Fault:
    """settled: it comes only when all replicas are in sync, because it takes data from one, or must change nothing.

    needs_network: hosts of their own. needs_netem: a kernel that has it as well. needs_port, needs_file: a store
    reached over the network, or as a file.
    """

    name: str
    inject: Inject
    settled: bool = False
    needs_network: bool = False
    needs_netem: bool = False
    needs_port: bool = False
    needs_file: bool = False

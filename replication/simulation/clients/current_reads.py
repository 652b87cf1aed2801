"""Questions for current offsets, put to whoever believes to lead; what was acknowledged before counts (S25)."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ...core.broker.effects import Reply
from ...core.broker.events import ReadIndexArrived
from ...core.errors import ErrorCode
from ...core.messages import PartitionName, ReadIndexRequest, ReadIndexResponse, ReadIndexResult
from ...core.types import PartitionId
from ..errors import require
from ..world.node import Host

if TYPE_CHECKING:
    from ..oracles.facts import PartitionFacts
    from ..world.cluster import Cluster

TIMEOUT = 2.0
AMBUSHES = 0.1
"""How often, of its turns, a reader waits for a bad moment for the leader to stand still."""
SMALL = 0.5
"""The same, if the ISR is small."""
FROZEN = 8.0
"""For so long, in seconds: others have been elected by then, and have joined."""
ALONE = 24.0
"""For so long at most if the ISR is small: former members have to come back first, and one of them has to lead."""
Told = Callable[[ReadIndexResult | None], None]


@attrs.frozen(eq=False)
class Asked:
    """A question that has arrived; `acknowledged`: the end of what was promised to anybody before that."""

    host: Host
    acknowledged: int
    unclean: bool
    told: Told


class CurrentReads:
    """All questions of this kind. Its dice are its own: the rest of a run is as it would be without them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.dice = random.Random(f"current reads {cluster.seed}")
        self.answered = 0

    def ask(self, host: Host, told: Told) -> None:
        """Ask a node; the answer, or None after the time that an answer may take, goes to `told`."""
        once = _Once(told)
        self._cluster.later(self._delay(), partial(self._deliver, host, host.node.process, once))
        self._cluster.later(2 * TIMEOUT, partial(once, None))

    def _deliver(self, host: Host, process: int, told: Told) -> None:
        """To a process that stands still it comes between whatever else it will find when it goes on: what other
        connections hold for it is in no order with this one.
        """
        node, arrive = host.node, partial(self._arrive, host, told)
        if node.process != process or not node.up:
            return
        if node.paused:
            first = self.dice.random() < 0.5
            node.held.insert(0 if first else int(self.dice.random() * (len(node.held) + 1)), arrive)
        else:
            arrive()

    def _delay(self) -> float:
        return 0.01 + 0.14 * self.dice.random()

    def _arrive(self, host: Host, told: Told) -> None:
        node, facts = host.node, host.facts
        if node.broker is None or node.hosts.get(host.partition) is not host or facts.gone:
            return
        message = ReadIndexRequest(
            timeout_ms=round(1000 * TIMEOUT),
            partitions=[PartitionName(topic=host.partition.topic, partition=host.partition.partition)],
        )
        asked = Asked(host, facts.acknowledged, facts.unclean, told)
        self._cluster.tell(node, ReadIndexArrived(asked, message))

    def replied(self, effect: Reply) -> None:
        """S25: what was acknowledged to anybody before the question came lies below the answer."""
        asked, response = effect.request, effect.response
        assert isinstance(asked, Asked) and isinstance(response, ReadIndexResponse)
        (result,) = response.partitions
        facts = asked.host.facts
        if result.error == ErrorCode.NONE and not (facts.unclean or facts.gone):
            self.answered += 1
            require(
                result.offset >= asked.acknowledged,
                "S25",
                "{}: told {} as current, acknowledged up to {}",
                asked.host.name,
                result.offset,
                asked.acknowledged,
            )
            committed = len(facts.committed)
            require(
                result.offset <= committed,
                "S25",
                "{}: told {} as current, committed up to {}",
                asked.host.name,
                result.offset,
                committed,
            )
        self._cluster.later(self._delay(), partial(asked.told, result))


class _Once:
    """Tells one outcome; the others come too late."""

    def __init__(self, told: Told) -> None:
        self._told: Told | None = told

    def __call__(self, result: ReadIndexResult | None) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(result)


class CurrentReader:
    """Asks again and again, of any that believes to lead; in calm until it was answered once."""

    def __init__(self, cluster: Cluster, partition: PartitionId) -> None:
        self._cluster = cluster
        self._partition = partition
        self._facts: PartitionFacts = cluster.oracle.partitions[partition]
        self.unfinished: str | None = None
        """The work that has not succeeded in calm."""

    def turn(self) -> None:
        cluster, dice = self._cluster, self._cluster.current_reads.dice
        if self._facts.gone:
            self.unfinished = None
            return
        if cluster.calm:
            self.unfinished = f"no current offset of {self._partition}"
        hosts = cluster.leaders_of(self._partition)
        if not hosts:
            cluster.later(0.5, self.turn)
            return
        if "PZ" in cluster.settings.faults and not cluster.calm:
            strength = cluster.settings.strength
            ambushes = dice.random() < strength * AMBUSHES
            if ambushes or (_is_small(hosts[0]) and dice.random() < strength * SMALL):
                self._lie_in_wait(hosts[0], 50)
        for host in hosts if dice.random() < 0.5 else hosts[:1]:
            cluster.current_reads.ask(host, partial(self._told, cluster.calm))
        cluster.later(0.1 + dice.random(), self._next)

    def _lie_in_wait(self, host: Host, times: int) -> None:
        """Have a leader stand still while fetches are on their way that would deceive it, or its ISR is small."""
        leader = host.replica.leader if host.replica is not None else None
        if leader is None or host.node.paused or not host.node.up or not times or self._cluster.calm:
            return
        others = [member for member in leader.record.isr if member != host.node.id]
        if _is_small(host) or (others and all(self._is_fetching(host, member) for member in others)):
            self._freeze(host)
        else:
            self._cluster.later(0.02, partial(self._lie_in_wait, host, times - 1))

    def _is_fetching(self, host: Host, member: int) -> bool:
        """Whether a fetch of this member has left it and has not arrived."""
        follower, broker = self._cluster.nodes[member], host.node.broker
        if follower.broker is None or broker is None:
            return False
        asked = follower.broker.following.asked.get(self._partition) == host.node.id
        parked = [each for each in broker.serving.sessions.values() if each.replica_id == member]
        return asked and bool(parked) and all(each.request is None for each in parked)

    def _freeze(self, host: Host) -> None:
        cluster, node, process = self._cluster, host.node, host.node.process
        node.paused = True
        if cluster.trace.keep:
            cluster.note(f"** node {node.id} stands still while fetches are on their way to it")

        acknowledged, until = self._facts.acknowledged, cluster.now + ALONE
        is_small = _is_small(host)

        def resume() -> None:
            if not (node.up and node.paused and node.process == process):
                return
            if (
                is_small
                and self._facts.acknowledged == acknowledged
                and cluster.now < until
                and not cluster.calm
            ):
                cluster.later(1.0, resume)  # nobody has followed it yet: what it says is still true
            else:
                cluster.resume(node)

        cluster.later(FROZEN, resume)

    def _next(self) -> None:
        if not self._cluster.calm or self.unfinished is not None:
            self.turn()

    def _told(self, calm: bool, result: ReadIndexResult | None) -> None:
        if calm and result is not None and result.error == ErrorCode.NONE:
            self.unfinished = None


def _is_small(host: Host) -> bool:
    """Whether it leads, as far as it knows, and its ISR is below the minimum."""
    leader = host.replica.leader if host.replica is not None else None
    return leader is not None and len(leader.record.isr) < leader.record.min_isr

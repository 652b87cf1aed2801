"""Does to a cluster what its schedule says, as far as the guarantees go: no more power failures than promised."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs

from ...core import messages as m
from ...core.control.admin_requests import Request
from ...core.control.records import PartitionRecord
from ...core.types import NO_LEADER, PartitionId, Value
from ..settings import INTERNAL
from ..world.cluster import Cluster
from ..world.members import BEGINS
from ..world.node import Node
from .schedule import Fault
from .traps import ADD, ELECTION, JOIN

MOST_PARTITIONS = 3
"""A topic does not grow beyond this."""


class Injector:
    """`applied` counts, by label, what was done; `cuts` the cut networks, `crashes` the ended processes."""

    def __init__(self, cluster: Cluster, schedule: Sequence[Fault], kinds: Kinds) -> None:
        self.cluster = cluster
        self._kinds = kinds
        self.applied: Counter[str] = Counter()
        self.crashes = 0
        self.has_operator = False
        """Whether somebody asks for an unclean election where nobody else may lead."""
        self._allowed = min(topic.min_insync_replicas for topic in cluster.settings.topics) - 1
        for fault in schedule:
            cluster.later(fault.at, partial(self._apply, fault))
        cluster.later(1.0, self._forgive)

    def _apply(self, fault: Fault) -> None:
        if self.cluster.calm:
            return
        nodes = [self.cluster.nodes[number] for number in fault.nodes]
        if self._kinds[fault.kind](self, fault, nodes):
            self.applied[fault.label] += 1
            self.cluster.note(f"** {fault}")

    # Processes and disks

    def _kill(self, fault: Fault, nodes: list[Node]) -> bool:
        alive = [node for node in nodes if node.up]
        for node in alive:
            self.crash(node, fault.seconds)
        return bool(alive)

    def _lie_in_wait(self, fault: Fault, nodes: list[Node]) -> bool:
        """Strike somebody whom the next moment of a kind is about, soon after it."""

        def strike(candidates: Sequence[int], partition: PartitionId) -> None:
            place = min(fault.amount, 0.999) * len(candidates)
            node = self.cluster.nodes[candidates[int(place)]]
            delay = 0.4 * (place % 1)
            self.cluster.later(delay, partial(self._strike, fault, node))

        if fault.label == "PZ" and "MS" in self.cluster.settings.faults:
            # Until its leader hears that it has joined, only the leader's own caution counts it.
            self.cluster.traps.late_answers.append(fault.seconds)
        if fault.kind == "power off the next to join" and "MS" in self.cluster.settings.faults:
            # It is stored while the next process of that node registers, which has read the store before.
            self.cluster.traps.late_writes.append(0.4 * min(fault.amount, 0.999) + fault.seconds + BEGINS)
        self.cluster.traps.lay(JOIN if fault.kind.endswith("join") else ELECTION, strike)
        return False

    def _strike(self, fault: Fault, node: Node) -> None:
        done = {"CS": self._kill, "PZ": self._pause}.get(fault.label, self._power_off)
        if not self.cluster.calm and done(fault, [node]):
            self.applied[fault.label] += 1
            self.cluster.note(f"** {fault}: node {node.id}")

    def _lie_in_wait_for_leader(self, fault: Fault, nodes: list[Node]) -> bool:
        """Let the log of the next to add a member fail before it hears of it: it leads on by a new role."""

        def strike(involved: Sequence[int], partition: PartitionId) -> None:
            delay = 0.1 * fault.amount
            self.cluster.later(delay, partial(self._fail_log_of, fault, involved, partition))

        self.cluster.traps.lay(ADD, strike)
        return False

    def _fail_log_of(self, fault: Fault, involved: Sequence[int], partition: PartitionId) -> None:
        cluster, leader = self.cluster, self.cluster.nodes[involved[0]]
        host = leader.hosts.get(partition)
        if (
            cluster.calm
            or leader.paused
            or host is None
            or host.replica is None
            or host.replica.leader is None
        ):
            return
        cluster.fail_log(host, fault.seconds)
        if "PZ" in cluster.settings.faults:
            # It says nothing that would show the new role that it keeps up.
            self._pause(attrs.evolve(fault, seconds=4.0), [cluster.nodes[involved[1]]])
        self.applied[fault.label] += 1
        cluster.note(f"** {fault}: node {leader.id}")

    def _shut_down(self, fault: Fault, nodes: list[Node]) -> bool:
        node = nodes[0]
        if not node.up or node.paused or node.controller is None or node.departing:
            return False

        def ended() -> None:
            self.cluster.later(fault.seconds, partial(self._restart, node))

        self.cluster.members.depart(node, ended)
        return True

    def crash(self, node: Node, seconds: float) -> None:
        self.crashes += 1
        self.cluster.kill(node)
        self.cluster.later(seconds, partial(self._restart, node))

    def _restart(self, node: Node) -> None:
        if not node.up and not self.cluster.calm:
            self.cluster.start(node)

    def _power_off(self, fault: Fault, nodes: list[Node]) -> bool:
        """At most min ISR - 1 machines at a time may have lost what they hold of what was acknowledged."""
        node, oracle = nodes[0], self.cluster.oracle
        if not node.up or not self.may_lose(node):
            return False
        self.lose_power(node, fault, fault.amount)
        self.crash(node, fault.seconds)
        for partition in node.hosts:
            oracle.quorum(partition)
        return True

    def may_lose(self, node: Node) -> bool:
        """Whether so few machines have lost something that this one may, too."""
        if self.cluster.store.is_put_back:
            return False  # the repair needs every folder
        return len(self.cluster.oracle.risky | {node.id}) <= min(self._allowed, self._allowed_by_groups())

    def _allowed_by_groups(self) -> int:
        """A topic of the cluster's own is made with as many replicas as there are nodes then."""
        known = self.cluster.oracle.partitions
        own = [facts.min_isr for each, facts in known.items() if each.topic in INTERNAL]
        return min(own, default=len(self.cluster.nodes)) - 1

    def has_lost(self, node: Node) -> None:
        """The node's data may lack something that counted on it."""
        self.cluster.oracle.risky.add(node.id)
        node.lost_data = True

    def lose_power(self, node: Node, fault: Fault, kept: float) -> None:
        """`kept`: which part of what was not flushed is found again."""
        self.has_lost(node)
        node.boot += 1
        for host in node.hosts.values():
            disk = host.disk
            disk.lose_power(disk.flushed + round(kept * (disk.end - disk.flushed)), torn=fault.label == "DK")
            disk.high_watermark = round(kept * disk.high_watermark)

    def _black_out(self, fault: Fault, nodes: list[Node]) -> bool:
        """Every machine at once: committed records may be gone, but each partition must be led again."""
        if self.cluster.store.is_put_back:
            return False
        for number, node in enumerate(nodes, 1):
            self.lose_power(node, fault, fault.amount * number % 1)
        for node in nodes:
            if node.up:
                self.crash(node, fault.seconds * (1 + fault.amount * node.id % 1))
        return True

    def _forgive(self) -> None:
        """A machine that holds everything again, in an ISR that is large enough, may lose it again."""
        risky = self.cluster.oracle.risky
        for number in sorted(risky):
            if self._whole(self.cluster.nodes[number]):
                risky.discard(number)
        self.cluster.later(1.0, self._forgive)

    def _whole(self, node: Node) -> bool:
        if node.lost_data or node.offline or not node.up or node.controller is None:
            return False
        if self.cluster.lacks_logs(node):
            return False
        for partition, host in node.hosts.items():
            facts = host.facts
            if facts.gone:
                continue
            record = self.cluster.store.partitions[partition].record
            enough = node.id in record.isr and len(record.isr) >= record.min_isr
            if not enough or facts.agreed(host.disk) < len(facts.committed) or host.disk.is_rotten:
                return False
        return True

    def _pause(self, fault: Fault, nodes: list[Node]) -> bool:
        return self.cluster.pause(nodes[0], fault.seconds)

    def _hang(self, fault: Fault, nodes: list[Node]) -> bool:
        nodes[0].stalled_until = self.cluster.now + fault.seconds
        return True

    def _fill(self, fault: Fault, nodes: list[Node]) -> bool:
        """One of two log directories takes no more writes, until somebody makes room and restarts the process."""
        node = nodes[0]
        parity = fault.amount < 0.5
        filled = [partition for partition in node.hosts if partition.partition % 2 == parity]
        if not node.up or node.paused or node.controller is None or node.offline or not filled:
            return False
        self.cluster.members.take_offline(node, filled)
        process = node.process

        def restart() -> None:
            if node.up and node.process == process and not self.cluster.calm:
                self.crash(node, 0.3)

        self.cluster.later(fault.seconds, restart)
        return True

    # Network, clocks, store

    def _cut(self, fault: Fault, nodes: list[Node]) -> bool:
        one, other = nodes[0].id, nodes[1].id
        pairs = [(one, other)] if fault.kind == "cut one way" else [(one, other), (other, one)]
        self.cluster.cut(pairs, fault.seconds)
        return True

    def _isolate(self, fault: Fault, nodes: list[Node]) -> bool:
        alone = nodes[0].id
        others = [other for other in self.cluster.nodes if other != alone]
        self.cluster.cut([pair for o in others for pair in ((alone, o), (o, alone))], fault.seconds)
        return True

    def _drift(self, fault: Fault, nodes: list[Node]) -> bool:
        node, cluster = nodes[0], self.cluster
        node.set_clock(cluster.now, rate=fault.amount)
        cluster.later(fault.seconds, lambda: node.set_clock(cluster.now))
        return True

    def _set_ahead(self, fault: Fault, nodes: list[Node]) -> bool:
        nodes[0].set_clock(self.cluster.now, ahead=fault.amount)
        return True

    def lose_store(self, fault: Fault, nodes: list[Node]) -> bool:
        node = nodes[0]
        node.store_cuts += 1
        self.cluster.later(fault.seconds, partial(self._find_store, node))
        return True

    def _find_store(self, node: Node) -> None:
        node.store_cuts = max(0, node.store_cuts - 1)
        node.found_store_at = self.cluster.now

    def _stop_store(self, fault: Fault, nodes: list[Node]) -> bool:
        if not self.cluster.store.reachable:
            return False
        self.cluster.stop_store(fault.seconds)
        return True

    def _answer_late(self, fault: Fault, nodes: list[Node]) -> bool:
        self.cluster.traps.late_answers.append(fault.seconds)
        return True

    def _end_session(self, fault: Fault, nodes: list[Node]) -> bool:
        if nodes[0].id not in self.cluster.store.live:
            return False
        self.cluster.members.end_session(nodes[0])
        return True

    # What an operator asks

    def _admin_request(self, fault: Fault, nodes: list[Node]) -> bool:
        """Have the controller move replicas, or take a move back, or elect the preferred replica."""
        records = [versioned.record for versioned in self.cluster.store.partitions.values()]
        if not records:
            return False
        place = fault.amount * len(records)
        return (
            self.cluster.admin_request(self._request(fault.kind, records[int(place)], place % 1)) is not None
        )

    def _request(self, kind: str, record: PartitionRecord, chance: float) -> Request:
        topic, partition = record.id
        if kind == "elect the preferred":
            return m.ElectLeadersRequest(partitions=[m.PartitionName(topic=topic, partition=partition)])
        target = None if kind == "cancel a reassignment" else self._target(record, chance)
        moved = m.PartitionReassignment(topic=topic, partition=partition, replicas=target)
        return m.AlterReassignmentsRequest(partitions=[moved])

    def _target(self, record: PartitionRecord, chance: float) -> list[int]:
        """As many replicas as there are, or one more or less: never fewer than the minimum ISR."""
        dice = random.Random(chance)
        everyone = sorted(self.cluster.nodes)
        count = min(len(everyone), len(record.target) + dice.choice((0, 0, 0, 1, -1)))
        return dice.sample(everyone, max(count, record.min_insync_replicas))

    def _change(self, fault: Fault, nodes: list[Node]) -> bool:
        """Have the controller set a topic otherwise, or give it a partition."""
        cluster = self.cluster
        place = fault.amount * len(cluster.settings.topics)
        settings, chance = cluster.settings.topics[int(place)], place % 1
        topic = cluster.store.topics.get(settings.name)
        if fault.kind == "add a partition":
            return cluster.topics.grow(settings.name, MOST_PARTITIONS)
        if topic is None:
            return False
        # Never under what the run was drawn with: so many machines may lose what they hold.
        least = settings.min_insync_replicas
        most = min(least + 1, settings.replication_factor)
        config: dict[str, Value] = {"min_insync_replicas": most if chance < 0.5 else least}
        return cluster.admin_request(m.AlterConfigRequest(name=topic.name, config=config)) is not None

    def _delete(self, fault: Fault, nodes: list[Node]) -> bool:
        """Have a topic deleted, and another of its name made soon after."""
        cluster = self.cluster
        place = fault.amount * len(cluster.settings.topics)
        if not cluster.topics.delete(cluster.settings.topics[int(place)].name, by_name=place % 1 < 0.2):
            return False
        cluster.later(fault.seconds, cluster.topics.look)
        return True

    def _move(self, fault: Fault, nodes: list[Node]) -> bool:
        """Move a leadership to another living member, as a planned election does."""
        store = self.cluster.store
        records = [versioned.record for versioned in store.partitions.values()]
        if not records:
            return False
        place = fault.amount * len(records)
        record = records[int(place)]
        others = [m for m in record.isr if m != record.leader and m in store.live]
        if not others or record.leader == NO_LEADER:
            return False
        self.cluster.elect(record, others[int(place % 1 * len(others))])
        return True


Kinds = Mapping[str, Callable[[Injector, Fault, list[Node]], bool]]
"""By the kind of a fault, its doing: whether it took effect."""

KINDS: Kinds = {
    "kill": Injector._kill,
    "kill at once": Injector._kill,
    "kill the next to join": Injector._lie_in_wait,
    "pause the next to join": Injector._lie_in_wait,
    "tell late of the ISR": Injector._answer_late,
    "kill one after the next election": Injector._lie_in_wait,
    "power off the next to join": Injector._lie_in_wait,
    "power off one after the next election": Injector._lie_in_wait,
    "power off": Injector._power_off,
    "power off at once": Injector._black_out,
    "tear a write of": Injector._power_off,
    "shut down": Injector._shut_down,
    "pause": Injector._pause,
    "cut": Injector._cut,
    "cut one way": Injector._cut,
    "isolate": Injector._isolate,
    "drift the clock of": Injector._drift,
    "set ahead the clock of": Injector._set_ahead,
    "cut from the store": Injector.lose_store,
    "end the session of": Injector._end_session,
    "stop the store, as seen by": Injector._stop_store,
    "hang the disk of": Injector._hang,
    "fill a log directory of": Injector._fill,
    "fail the log of the next to add a member": Injector._lie_in_wait_for_leader,
    "move leadership from": Injector._move,
    "set the minimum ISR": Injector._change,
    "add a partition": Injector._change,
    "delete a topic": Injector._delete,
    "reassign": Injector._admin_request,
    "cancel a reassignment": Injector._admin_request,
    "elect the preferred": Injector._admin_request,
}

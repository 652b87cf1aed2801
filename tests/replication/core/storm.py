"""A whole run: clients at work, one fault after the other, then calm, in which everything must come right."""

from __future__ import annotations

from functools import partial

import attrs

from insync.replication.core.errors import ErrorCode
from insync.replication.core.types import NO_LEADER, BatchMeta

from .cluster import CALM, LAG_MAX, STORM, Cluster
from .oracle import require
from .world import Node, Sent, Settings


@attrs.define(eq=False)
class Producer:
    """Writes one batch after the other, each until it is acknowledged."""

    producer_id: int
    sequence: int = 0
    count: int = 1
    attempts: list[Sent] = attrs.Factory(list)


class Storm(Cluster):
    """A cluster with clients and a storm maker; `moving`: leadership is moved by hand, too."""

    moving = True

    def run(self) -> None:
        for node in self.nodes.values():
            self.start(node)
        self.later(0.5, self.watch_sessions)
        self.later(1.0, self.wish)
        for number in (1, 2):
            self.later(2.0, partial(self._write, Producer(number)))
        self.later(2.0, self._write_plainly)
        self.later(2.0, self.consume)
        self.later(4.0, self._fault)
        self.later(4.0, self._move)
        self.run_until(STORM)
        self._heal()
        self.run_until(STORM + CALM)
        self._check_health()
        assert self.store.partition is not None
        settled = self.store.partition
        self.run_until(STORM + CALM + 3 * LAG_MAX)
        require(self.store.partition == settled, "L7", "the record changes though nothing happens")
        self.oracle.at_end()

    # Clients

    def _write(self, producer: Producer) -> None:
        payload = f"{producer.producer_id}:{producer.sequence}"
        if any(sent.reply and sent.reply.error == ErrorCode.NONE for sent in producer.attempts):
            producer.sequence += producer.count
            producer.count = self.random.randint(1, 3)
            producer.attempts.clear()
            payload = f"{producer.producer_id}:{producer.sequence}"
        for sent in producer.attempts:
            unordered = sent.reply and sent.reply.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            require(
                not (unordered and sent.by_the_leader),
                "S12",
                f"{payload} does not go on from what was acknowledged",
            )
        batch = BatchMeta(-1, producer.count, -1, 100, producer.producer_id, 0, producer.sequence)
        if not self.calm or producer.attempts:
            attempt = self.produce(payload, -1, batch, again=True)
            if attempt is not None:
                producer.attempts.append(attempt)
            self.later(self.random.uniform(0.2, 1.2), partial(self._write, producer))

    def _write_plainly(self) -> None:
        acks = self.random.choice((-1, -1, 1, 0))
        if not self.calm:
            count = self.random.randint(1, 3)
            self.produce(f"plain:{self.new_id()}", acks, BatchMeta(-1, count, -1, 100), again=False)
            self.later(self.random.uniform(0.1, 1.0), self._write_plainly)

    # Faults

    def _fault(self) -> None:
        if self.calm:
            return
        node = self.random.choice(list(self.nodes.values()))
        match self.random.randrange(6):
            case 0 | 1:
                if node.up:
                    self.kill(node, lose=self._may_lose(node))
                    self.later(self.random.choice((0.3, 2.0, 8.0)), partial(self._restart, node))
            case 2:
                if node.up and not node.paused:
                    self.pause(node, self.random.choice((0.5, 2.0, 6.0)))
            case 3:
                other = self.random.choice(list(self.nodes.values()))
                pairs = {(node.id, other.id)}
                if self.chance(0.7):
                    pairs.add((other.id, node.id))
                self.cuts |= pairs
                self.later(self.random.uniform(1.0, 10.0), partial(self.cuts.difference_update, pairs))
            case 4:
                node.store_cut = True
                self.later(self.random.uniform(0.5, 6.0), partial(self._reach_store, node))
            case 5:
                for every in self.nodes.values():
                    if every.up and self.chance(0.5):
                        self.kill(every)
                        self.later(self.random.choice((0.3, 2.0, 8.0)), partial(self._restart, every))
        self.later(self.random.expovariate(self.settings.faults), self._fault)

    def _may_lose(self, node: Node) -> bool:
        """At most min ISR - 1 power failures: more may lose what was acknowledged."""
        allowed = self.losses < self.settings.min_isr - 1
        return self.settings.may_lose_data and allowed and self.chance(0.5)

    def _restart(self, node: Node) -> None:
        if not node.up:
            self.start(node)

    @staticmethod
    def _reach_store(node: Node) -> None:
        node.store_cut = False

    def _move(self) -> None:
        """Move leadership to another living member, as a planned election does."""
        if self.calm or not self.moving:
            return
        versioned = self.store.partition
        if versioned is not None:
            record = versioned.record
            others = [m for m in record.isr if m != record.leader and m in self.store.live]
            if others and record.leader != NO_LEADER:
                moved = attrs.evolve(
                    record,
                    leader=self.random.choice(others),
                    leader_epoch=record.leader_epoch + 1,
                    partition_epoch=record.partition_epoch + 1,
                )
                self.put_record(moved)
        self.later(self.random.choice((0.1, 0.5, 1 / self.settings.moves, 8.0)), self._move)

    # Calm

    def _heal(self) -> None:
        self.calm = True
        self.cuts.clear()
        for node in self.nodes.values():
            node.store_cut = False
            if not node.up:
                self.start(node)
            elif node.paused:
                self.resume(node)

    def _check_health(self) -> None:
        versioned = self.store.partition
        if versioned is None:
            require(False, "L1", "the topic was never created")
            return
        record = versioned.record
        require(record.leader != NO_LEADER, "L1", record)
        require(set(record.isr) == set(record.replicas), "L2", record)
        leader = self.nodes[record.leader].replica
        require(leader is not None and leader.leader is not None, "L1", record)
        for node in self.nodes.values():
            assert node.replica is not None and leader is not None
            log = node.replica.log
            ends = (log.high_watermark, log.log_end_offset, log.outstanding)
            expected = (leader.log.log_end_offset, leader.log.log_end_offset, 0)
            require(ends == expected, "L3", f"node {node.id}: {log}, leader: {leader.log}")
        assert leader is not None and leader.leader is not None
        require(leader.leader.change.pending is None, "L4", leader.leader.change.pending)
        for sent in self.sent.values():
            forgotten = self.nodes[sent.node].process != sent.process
            require(sent.reply is not None or forgotten, "L5", f"never answered: {sent}")


def run(seed: int, settings: Settings | None = None) -> Storm:
    """One whole run; raises `Violated`."""
    storm = Storm(seed, settings)
    storm.run()
    return storm

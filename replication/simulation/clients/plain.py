"""The clients of every run: idempotent producers that retry, plain ones that do not, and consumers."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ...core.broker.ports import Found, LookUp, TimedOffset
from ...core.errors import ErrorCode
from ...core.messages import FetchPartition, ListOffsetsPartition, ProduceResult
from ...core.partition.leader import LeaderRole
from ...core.types import BatchMeta, PartitionId
from ..driver.fetches import BATCH_SIZE
from ..driver.requests import Sent
from ..errors import require
from ..world.node import Host

if TYPE_CHECKING:
    from ..world.cluster import Cluster

NEW_EPOCH_CHANCE = 0.05
_ACKS = (*(-1, -1, 1, 0) * 10, 2)
"""Of batches that are written once; 2 is none that there is."""
TOGETHER = 0.2
"""How likely a plain producer writes to any other partition in the same request."""
GIVES_UP = 0.2
"""How likely a client finds out, each time, that its topic was deleted."""


@attrs.define(eq=False)
class Unsettled:
    """A batch that its producer has not yet seen acknowledged, or that waits for an earlier one."""

    payload: str
    batch: BatchMeta
    acknowledged: bool = False


class Producer:
    """Writes numbered batches with acks=all, up to `in_flight` at a time, each until it is acknowledged.

    Until one is acknowledged in a producer epoch it has a single batch on its way, as a client's send window does:
    a leader that does not know the producer accepts any sequence, so a second one could be taken before the first.
    Now and then it begins again in a new producer epoch, as one that was started anew does.
    Every attempt sends all that is unsettled, in order and in one message, as one connection would.
    """

    def __init__(self, cluster: Cluster, partition: PartitionId, producer_id: int) -> None:
        self._cluster = cluster
        self.partition = partition
        self.facts = cluster.oracle.partitions[partition]
        self._id = producer_id
        self._epoch = 0
        self._sequence = 0
        self._established = False
        self.window: deque[Unsettled] = deque()

    def turn(self) -> None:
        cluster = self._cluster
        if self.facts.gone and cluster.chance(GIVES_UP):
            return
        while self.window and self.window[0].acknowledged:
            self.window.popleft()
        if not cluster.calm and not cluster.lull:
            if not self.window and cluster.chance(NEW_EPOCH_CHANCE):
                self._epoch, self._sequence, self._established = self._epoch + 1, 0, False
            room = cluster.settings.in_flight if self._established else 1
            for _ in range(cluster.random.randint(1, cluster.settings.in_flight)):
                if len(self.window) < room:
                    self._add()
        open_ones = [entry for entry in self.window if not entry.acknowledged]
        if open_ones:
            cluster.requests.send([self._attempt(entry) for entry in open_ones])
        if open_ones or not cluster.calm:
            cluster.later(0.2 + cluster.random.random(), self.turn)

    def _add(self) -> None:
        count = self._cluster.random.randint(1, 3)
        batch = BatchMeta(-1, count, -1, BATCH_SIZE, self._id, self._epoch, self._sequence)
        self.window.append(Unsettled(f"{self._id}:{self._epoch}:{self._sequence}", batch))
        self._sequence += count

    def _attempt(self, entry: Unsettled) -> Sent:
        return Sent(
            self.partition,
            entry.payload,
            -1,
            entry.batch,
            True,
            facts=self.facts,
            judge=partial(self._judge, entry),
            done=partial(self._told, entry),
        )

    def _told(self, entry: Unsettled, reply: ProduceResult) -> None:
        if reply.error == ErrorCode.NONE:
            entry.acknowledged = True
            self._established |= entry.batch.producer_epoch == self._epoch

    def _judge(self, entry: Unsettled, reply: ProduceResult, by_the_leader: bool) -> None:
        """S12: the leader has all that was acknowledged, so the first unsettled batch goes on from there."""
        if reply.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and by_the_leader:
            first = next((one for one in self.window if not one.acknowledged), None)
            facts, leader = self.facts, self._cluster.store.partitions[self.partition].record.leader
            disk = self._cluster.oracle.disk_of(leader, self.partition)
            forgot = facts.forgot or bool(facts.blind) or disk.forgot
            facts.forgot |= first is entry and forgot
            require(first is not entry or facts.unclean or forgot, "S12", "{} is out of order", entry)


class PlainProducer:
    """Writes with any acks and never again, to whichever topic has the name when the batch arrives."""

    def __init__(self, cluster: Cluster, partition: PartitionId) -> None:
        self._cluster = cluster
        self._partition = partition
        self._facts = cluster.oracle.partitions[partition]

    def turn(self) -> None:
        cluster = self._cluster
        if self._facts.gone and cluster.chance(GIVES_UP):
            return
        if cluster.calm:
            return
        if not cluster.lull:
            self._send()
        cluster.later(0.1 + 0.9 * cluster.random.random(), self.turn)

    def _send(self) -> None:
        cluster = self._cluster
        acks = cluster.random.choice(_ACKS)
        batch = BatchMeta(-1, cluster.random.randint(1, 3), -1, BATCH_SIZE)
        names_epoch = cluster.chance(0.3)
        # Now and then several partitions at once; some may be unknown to the node, or led elsewhere.
        others = [each for each in cluster.store.partitions if each != self._partition]
        more = [each for each in others if cluster.chance(TOGETHER)]
        cluster.requests.send_together(
            [
                Sent(
                    each,
                    f"plain:{cluster.new_id()}",
                    acks,
                    batch,
                    False,
                    names_epoch=names_epoch,
                    by_name=True,
                )
                for each in (self._partition, *more)
            ]
        )


class Consumer:
    """Reads anywhere from any replica, and asks leaders where the log ends; the oracle judges what it gets."""

    def __init__(self, cluster: Cluster, partition: PartitionId) -> None:
        self._cluster = cluster
        self._partition = partition
        self._facts = cluster.oracle.partitions[partition]

    def turn(self) -> None:
        cluster = self._cluster
        if self._facts.gone and cluster.chance(GIVES_UP):
            return
        hosts = cluster.hosts_of(self._partition)
        if not hosts:
            cluster.later(0.5, self.turn)
            return
        host = hosts[int(cluster.random.random() * len(hosts))]
        node = host.node
        if host.replica is not None and node.up and not node.paused:
            end = host.replica.log.log_end_offset
            question = FetchPartition(
                topic=self._partition.topic,
                partition=self._partition.partition,
                fetch_offset=int(cluster.random.random() * (end + 1)),
                max_bytes=1 + int(cluster.random.random() * 4 * BATCH_SIZE),
            )
            cluster.serve(host, question)
            if host.replica.leader is not None:
                error, offset = host.replica.leader.latest_offset()
                if error == ErrorCode.NONE:
                    cluster.oracle.latest(host, offset)
                self._ask_by_time(host, int(cluster.random.random() * (end + 1)))
                self._ask_why(host.replica.leader)
        if not cluster.calm:
            cluster.later(0.5, self.turn)

    def _ask_by_time(self, host: Host, timestamp: int) -> None:
        """S10: no record is told of by its time that is not committed."""
        assert host.node.broker is not None
        topic, number = self._partition
        wanted = ListOffsetsPartition(topic=topic, partition=number, timestamp=timestamp)
        queries = host.node.broker.queries
        look_up = host.node.broker.context.logs.offset_for_timestamp
        found: dict[LookUp, Found] = {}
        for each in queries.look_ups([wanted]):
            offset = look_up(each.partition, each.timestamp_ms)
            found[each] = None if offset is None else TimedOffset(offset, offset)
        told = queries.list_offset(wanted, found)
        if told.error == ErrorCode.NONE and not host.facts.unclean:
            committed = len(host.facts.committed)
            require(
                told.offset < committed,
                "S10",
                "{} answers a look-up by time with offset {}; the committed log ends at {}",
                host.name,
                told.offset,
                committed,
            )

    @staticmethod
    def _ask_why(leader: LeaderRole) -> None:
        """Of every replica that is outside the ISR it can be told why."""
        for node in leader.record.replicas:
            told = leader.why_out(node)
            require(
                bool(told) == (node not in leader.record.isr),
                "S9",
                "{} in {}: {}",
                node,
                leader.record.isr,
                told,
            )


class Cleaner:
    """Compacts one replica of a partition or another, as the maintenance of its node does."""

    def __init__(self, cluster: Cluster, partition: PartitionId) -> None:
        self._cluster = cluster
        self._partition = partition
        self._facts = cluster.oracle.partitions[partition]

    def turn(self) -> None:
        cluster = self._cluster
        if self._facts.gone and cluster.chance(GIVES_UP):
            return
        if cluster.calm:
            return
        hosts = cluster.hosts_of(self._partition)
        host = hosts[int(cluster.random.random() * len(hosts))] if hosts else None
        topic = None if self._facts.gone else cluster.store.topics.get(self._partition.topic)
        ready = host is not None and host.node.up and not host.node.paused and host.busy_since is None
        # Of a topic that somebody else has made under this name nobody expects gaps.
        if host is not None and ready and topic is not None and topic.config.compacts:
            cluster.compact(host)
        cluster.later((0.2 + cluster.random.random()) / cluster.settings.compactions, self.turn)


class Deleter:
    """Has the oldest records deleted: by a request to a leader, or by the retention of one node."""

    def __init__(self, cluster: Cluster, partition: PartitionId) -> None:
        self._cluster = cluster
        self._partition = partition
        self._facts = cluster.oracle.partitions[partition]

    def turn(self) -> None:
        cluster = self._cluster
        if self._facts.gone and cluster.chance(GIVES_UP):
            return
        if cluster.calm:
            return
        hosts = [h for h in cluster.hosts_of(self._partition) if h.replica is not None and not h.node.paused]
        if hosts:
            host = hosts[int(cluster.random.random() * len(hosts))]
            assert host.replica is not None
            log = host.replica.log
            if host.replica.role == "closed" or host.replica.stepping:
                pass
            elif cluster.chance(0.3):
                wanted = log.log_start_offset + int(cluster.random.random() * 6)
                cluster.retain(host, min(wanted, log.high_watermark))
            elif host.replica.leader is not None or cluster.chance(0.1):
                cluster.requests.delete(host, self._admin_request(log.log_start_offset, log.high_watermark))
        cluster.later((0.2 + 2 * cluster.random.random()) / cluster.settings.deletes, self.turn)

    def _admin_request(self, start: int, high_watermark: int) -> int:
        """Any offset of the log, the high watermark itself, or (rarely) one that nobody may delete up to."""
        draw = self._cluster.random.random()
        if draw < 0.2:
            return -1
        if draw < 0.4:
            return high_watermark + int(draw * 10)
        return start + int((draw - 0.4) / 0.6 * (high_watermark - start + 1))

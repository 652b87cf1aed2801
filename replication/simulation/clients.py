"""The clients of every run: idempotent producers that retry, plain ones that do not, and consumers."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ..core import effects as fx
from ..core import events as ev
from ..core.errors import ErrorCode
from ..core.types import CONSUMER, BatchMeta, PartitionId
from .errors import require
from .requests import Sent

if TYPE_CHECKING:
    from .cluster import Cluster


@attrs.define(eq=False)
class Unsettled:
    """A batch that its producer has not yet seen acknowledged, or that waits for an earlier one."""

    payload: str
    batch: BatchMeta
    acknowledged: bool = False


class Producer:
    """Writes numbered batches with acks=all, up to `in_flight` at a time, each until it is acknowledged.

    Every attempt sends all that is unsettled, in order and in one message, as one connection would.
    """

    def __init__(self, cluster: Cluster, partition: PartitionId, producer_id: int) -> None:
        self._cluster = cluster
        self.partition = partition
        self._id = producer_id
        self._sequence = 0
        self.window: deque[Unsettled] = deque()

    def turn(self) -> None:
        cluster = self._cluster
        while self.window and self.window[0].acknowledged:
            self.window.popleft()
        if not cluster.calm:
            for _ in range(cluster.random.randint(1, cluster.settings.in_flight)):
                if len(self.window) < cluster.settings.in_flight:
                    self._add()
        open_ones = [entry for entry in self.window if not entry.acknowledged]
        if open_ones:
            cluster.requests.send([self._attempt(entry) for entry in open_ones])
        if open_ones or not cluster.calm:
            cluster.later(0.2 + cluster.random.random(), self.turn)

    def _add(self) -> None:
        count = self._cluster.random.randint(1, 3)
        batch = BatchMeta(-1, count, -1, 100, self._id, 0, self._sequence)
        self.window.append(Unsettled(f"{self._id}:{self._sequence}", batch))
        self._sequence += count

    def _attempt(self, entry: Unsettled) -> Sent:
        return Sent(
            self.partition,
            entry.payload,
            -1,
            entry.batch,
            True,
            judge=partial(self._judge, entry),
            done=partial(self._told, entry),
        )

    def _told(self, entry: Unsettled, reply: fx.ReplyProduce) -> None:
        if reply.error == ErrorCode.NONE:
            entry.acknowledged = True

    def _judge(self, entry: Unsettled, reply: fx.ReplyProduce, by_the_leader: bool) -> None:
        """S12: the leader has all that was acknowledged, so the first unsettled batch goes on from there."""
        if reply.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and by_the_leader:
            first = next((one for one in self.window if not one.acknowledged), None)
            facts = self._cluster.oracle.partitions[self.partition]
            require(first is not entry or facts.unclean, "S12", f"{entry} is out of order")


class PlainProducer:
    """Writes with any acks and never again."""

    def __init__(self, cluster: Cluster, partition: PartitionId) -> None:
        self._cluster = cluster
        self._partition = partition

    def turn(self) -> None:
        cluster = self._cluster
        if cluster.calm:
            return
        acks = cluster.random.choice((-1, -1, 1, 0))
        batch = BatchMeta(-1, cluster.random.randint(1, 3), -1, 100)
        cluster.requests.send([Sent(self._partition, f"plain:{cluster.new_id()}", acks, batch, False)])
        cluster.later(0.1 + 0.9 * cluster.random.random(), self.turn)


class Consumer:
    """Reads anywhere from any replica, and asks leaders where the log ends; the oracle judges what it gets."""

    def __init__(self, cluster: Cluster, partition: PartitionId) -> None:
        self._cluster = cluster
        self._partition = partition

    def turn(self) -> None:
        cluster = self._cluster
        hosts = cluster.hosts_of(self._partition)
        host = hosts[int(cluster.random.random() * len(hosts))]
        node = host.node
        if host.replica is not None and node.up and not node.paused:
            end = host.replica.log.log_end_offset
            event = ev.Fetch(
                request_id=0,
                replica_id=CONSUMER,
                incarnation=-1,
                leader_epoch=-1,
                fetch_offset=int(cluster.random.random() * (end + 1)),
                last_fetched_epoch=-1,
            )
            cluster.serve(host, event, _ignore)
            if host.replica.leader is not None:
                error, offset = host.replica.leader.latest_offset()
                if error == ErrorCode.NONE:
                    cluster.oracle.latest(host, offset)
        if not cluster.calm:
            cluster.later(0.5, self.turn)


def _ignore(answer: ev.Fetched) -> None:
    """What a consumer was given, the oracle has seen."""

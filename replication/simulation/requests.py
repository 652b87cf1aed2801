"""Produce requests on their way: from a client to a node that may lead, and the answer back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ..core.errors import ErrorCode
from ..core.messages import DescribeProducersResult
from ..core.partition import effects as fx
from ..core.partition import events as ev
from ..core.types import BatchMeta, PartitionId
from .errors import require
from .node import Host

if TYPE_CHECKING:
    from .cluster import Cluster
    from .facts import PartitionFacts

REQUEST_TIMEOUT = 3.0


@attrs.define(eq=False)
class Sent:
    """One batch in one request. `again`: the same batch may be sent more than once."""

    partition: PartitionId
    payload: str
    acks: int
    batch: BatchMeta
    again: bool
    node: int = 0
    process: int = 0
    arrived: bool = False
    names_epoch: bool = False
    """Whether it goes out with the leader epoch that the node has then, for no other leader to take it."""
    leader_epoch: int = -1
    by_name: bool = False
    """Whether it is for whichever topic has the name when it arrives; else for the one of `facts`."""
    facts: PartitionFacts | None = None
    """Of the topic that is meant; without it of whichever has the name when it is sent."""
    judge: Callable[[fx.ReplyProduce, bool], None] | None = None
    """Told of the answer as it is given, and whether by the leader of the store's record."""
    done: Callable[[fx.ReplyProduce], None] | None = None
    """Told of the answer when it arrives, if it does."""


@attrs.define(eq=False)
class Deletion:
    """A request that a partition begins at `offset`."""

    partition: PartitionId
    offset: int
    node: int
    process: int


class Requests:
    """All requests that wait for an answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.waiting: dict[int, Sent] = {}
        self.deleting: dict[int, Deletion] = {}
        self.acknowledged = 0

    def send(self, batches: Sequence[Sent]) -> bool:
        """Send batches of one partition, in order, as one message to a node that holds itself for the leader.

        Whether there was a node to send to.
        """
        cluster = self._cluster
        host = self._choose(batches[0].partition, batches[0].facts)
        if host is None:
            return False
        for sent in batches:
            sent.node, sent.process, sent.facts = host.node.id, host.node.process, host.facts
            if sent.names_epoch and host.replica is not None:
                sent.leader_epoch = host.replica.leader_epoch
        cluster.send(0, host.node, partial(self._arrive, host, tuple(batches)))
        return True

    def describe(
        self,
        partition: PartitionId,
        facts: PartitionFacts,
        producer_id: int,
        told: Callable[[DescribeProducersResult], None],
    ) -> None:
        """Ask a node that holds itself for the leader what a producer has written; `told` gets what it says."""
        cluster, host = self._cluster, self._choose(partition, facts)
        if host is None:
            return

        def arrive() -> None:
            leader = host.replica.leader if host.replica is not None else None
            if leader is not None:
                cluster.send(host.node.id, None, partial(told, leader.describe_producer(producer_id)))

        cluster.send(0, host.node, arrive)

    def _choose(self, partition: PartitionId, meant: PartitionFacts | None) -> Host | None:
        """A node that holds itself for the leader, or else any that has a replica; None if there is none."""
        cluster = self._cluster
        hosts = [h for h in cluster.hosts_of(partition) if h.node.up and h.replica is not None]
        hosts = [h for h in hosts if meant is None or h.facts is meant]
        leaders = [h for h in hosts if h.replica is not None and h.replica.leader is not None]
        candidates = leaders or hosts
        return candidates[int(cluster.random.random() * len(candidates))] if candidates else None

    def _arrive(self, host: Host, batches: tuple[Sent, ...]) -> None:
        if batches[0].by_name:
            host = host.node.hosts.get(host.partition, host)
        for sent in batches:
            if host.replica is None or (sent.arrived and not sent.again):
                return
            sent.facts = host.facts
            sent.arrived = True
            request = self._cluster.new_id()
            self.waiting[request] = sent
            deadline = host.node.clock(self._cluster.now) + REQUEST_TIMEOUT
            self._cluster.step(
                host,
                ev.Produce(
                    request_id=request,
                    acks=sent.acks,
                    batch=sent.batch,
                    deadline=deadline,
                    handle=sent.payload,
                    leader_epoch=sent.leader_epoch,
                ),
            )

    def answered(self, host: Host, reply: fx.ReplyProduce) -> None:
        """L5: each request is answered once. What the answer promises is the oracle's to judge."""
        sent = self.waiting.pop(reply.request_id, None)
        if sent is None:
            require(False, "L5", f"{reply} answers nothing that waits")
            return
        cluster = self._cluster
        if reply.error == ErrorCode.NONE:
            if sent.acks == -1:
                self.acknowledged += 1
                cluster.oracle.promised(sent, reply.base_offset)
            elif sent.acks == 1:
                cluster.oracle.written(host, sent, reply.base_offset)
        elif reply.error.definite and not sent.again:
            cluster.oracle.refused(sent)
        if sent.judge is not None:
            sent.judge(reply, cluster.oracle.is_current(host))
        if sent.done is not None and sent.acks != 0:
            cluster.send(host.node.id, None, partial(sent.done, reply))

    def delete(self, host: Host, offset: int) -> None:
        """Ask a node to delete what lies below `offset` of a partition."""
        node = host.node
        deletion = Deletion(host.partition, offset, node.id, node.process)

        def arrive() -> None:
            if host.replica is None:
                return
            request = self._cluster.new_id()
            self.deleting[request] = deletion
            deadline = node.clock(self._cluster.now) + REQUEST_TIMEOUT
            self._cluster.step(host, ev.DeleteRecords(request_id=request, offset=offset, deadline=deadline))

        self._cluster.send(0, node, arrive)

    def deletion_answered(self, host: Host, reply: fx.ReplyDeleteRecords) -> None:
        deletion = self.deleting.pop(reply.request_id, None)
        if deletion is None:
            require(False, "L5", f"{reply} answers nothing that waits")
        elif reply.error == ErrorCode.NONE:
            self._cluster.oracle.deletion_promised(host, max(deletion.offset, reply.low_watermark))

    def overdue(self) -> list[Sent | Deletion]:
        """Requests without an answer, though the process that had them still runs."""
        nodes = self._cluster.nodes
        waiting: list[Sent | Deletion] = [*self.waiting.values(), *self.deleting.values()]
        return [sent for sent in waiting if nodes[sent.node].process == sent.process]

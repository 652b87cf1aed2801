"""Requests that change logs on their way: from a client to a node that may lead, and the answer back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ...core import messages as m
from ...core.broker.effects import Reply
from ...core.broker.events import DeleteRecordsArrived, ProduceArrived
from ...core.errors import ErrorCode
from ...core.types import BatchMeta, PartitionId
from ..errors import require
from ..world.disk import Stored
from ..world.network import DAMAGED, ModelPayload
from ..world.node import Host, Node

if TYPE_CHECKING:
    from ..oracles.facts import PartitionFacts
    from ..world.cluster import Cluster

REQUEST_TIMEOUT = 3.0


@attrs.define(eq=False)
class Sent:
    """One batch in one request. `again`: the same batch may be sent more than once."""

    partition: PartitionId
    payload: str
    acks: int
    batch: BatchMeta
    again: bool
    host: Host | None = None
    """The host to which it is sent."""
    arrived: bool = False
    names_epoch: bool = False
    """Whether it goes out with the leader epoch that the node has then, for no other leader to take it."""
    leader_epoch: int = -1
    by_name: bool = False
    """Whether it is for whichever topic has the name when it arrives; else for the one of `facts`."""
    facts: PartitionFacts | None = None
    """Of the topic that is meant; without it of whichever has the name when it is sent."""
    transaction: m.ProduceTransaction | None = None
    judge: Callable[[m.ProduceResult, bool], None] | None = None
    """Told of the answer as it is given, and whether by the leader of the store's record."""
    done: Callable[[m.ProduceResult], None] | None = None
    """Told of the answer when it arrives, if it does."""


@attrs.frozen(eq=False)
class Arrived:
    """A request that a process has, and has not answered; about batches, or about a deletion."""

    node: int
    process: int
    at: float
    """When it has arrived."""
    batches: tuple[Sent, ...] = ()
    deletion: tuple[Host, int] | None = None
    """Of everything below an offset."""


class Requests:
    """All requests that wait for an answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: dict[Arrived, None] = {}
        self.acknowledged = 0

    def send(self, batches: Sequence[Sent]) -> bool:
        """Send batches of one partition, in order, to a node that holds itself for the leader.

        Each is a request; they stay together, as on one connection. Whether there was a node to send to.
        """
        host = self._choose(batches[0].partition, batches[0].facts)
        if host is None:
            return False
        for sent in batches:
            self._address(sent, host)
        self._cluster.send(0, host.node, partial(self._arrive, host.node, [(sent,) for sent in batches]))
        return True

    def send_together(self, batches: Sequence[Sent]) -> bool:
        """Send batches of several partitions in one request, to a node that believes to lead the first of them.

        The node may host any of them, or none.
        """
        host = self._choose(batches[0].partition, batches[0].facts)
        if host is None:
            return False
        for sent in batches:
            self._address(sent, host.node.hosts.get(sent.partition))
        self._cluster.send(0, host.node, partial(self._arrive, host.node, [tuple(batches)]))
        return True

    @staticmethod
    def _address(sent: Sent, host: Host | None) -> None:
        if host is not None and sent.facts not in (None, host.facts):
            host = None  # of another topic of that name
        sent.host = host
        if host is not None:
            sent.facts = host.facts
            if sent.names_epoch and host.replica is not None:
                sent.leader_epoch = host.replica.leader_epoch

    def describe(
        self,
        partition: PartitionId,
        facts: PartitionFacts,
        producer_id: int,
        told: Callable[[m.DescribeProducersResult], None],
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
        hosts = [h for h in cluster.hosts_of(partition, meant) if h.node.up and h.replica is not None]
        leaders = [h for h in hosts if h.replica is not None and h.replica.leader is not None]
        candidates = leaders or hosts
        return candidates[int(cluster.random.random() * len(candidates))] if candidates else None

    def _arrive(self, node: Node, requests: Sequence[tuple[Sent, ...]]) -> None:
        cluster = self._cluster
        for batches in requests:
            for sent in batches:
                host = node.hosts.get(sent.partition)
                if node.broker is None or (sent.arrived and not sent.again):
                    return
                if cluster.transactions.is_past(sent):
                    return
                if sent.by_name:
                    sent.facts = host.facts if host is not None else sent.facts
                elif host is not sent.host:
                    return  # its client means another topic
            self._produce(node, batches)

    def _produce(self, node: Node, batches: tuple[Sent, ...]) -> None:
        cluster, payload = self._cluster, ModelPayload()
        request = Arrived(node.id, node.process, self._cluster.now, batches)
        self._waiting[request] = None
        for sent in batches:
            sent.arrived = True
            damaged = not cluster.calm and cluster.chance(DAMAGED)
            payload.add((Stored(sent.batch, sent.payload),), sent.batch.size_bytes, damaged=damaged)
        message = m.ProduceRequest(
            acks=batches[0].acks,
            transaction=batches[0].transaction,
            timeout_ms=round(1000 * REQUEST_TIMEOUT),
            partitions=[
                m.ProducePartition(
                    topic=sent.partition.topic,
                    partition=sent.partition.partition,
                    size=sent.batch.size_bytes,
                    leader_epoch=sent.leader_epoch,
                )
                for sent in batches
            ],
        )
        cluster.tell(node, ProduceArrived(request, message, payload))

    def replied(self, node: Node, effect: Reply) -> None:
        """L5: each request is answered once, for each of its partitions. The oracle judges what that promises."""
        request, response = effect.request, effect.response
        assert isinstance(request, Arrived)
        require(request in self._waiting, "L5", "{} answers nothing that waits", response)
        del self._waiting[request]
        if request.deletion is not None:
            assert isinstance(response, m.DeleteRecordsResponse)
            self._deleted(*request.deletion, response)
            return
        assert isinstance(response, m.ProduceResponse)
        unanswered = {sent.partition: sent for sent in request.batches}
        for result in response.partitions:
            sent = unanswered.pop(PartitionId(result.topic, result.partition), None)
            if sent is None:
                require(False, "L5", f"{result} was not asked for, or is answered twice")
                return
            self._answered(node, sent, result, alone=len(request.batches) == 1)
        require(not unanswered, "L5", "not answered: {}", list(unanswered))

    def _answered(self, node: Node, sent: Sent, result: m.ProduceResult, *, alone: bool) -> None:
        cluster, error = self._cluster, ErrorCode(result.error)
        if error == ErrorCode.NONE:
            if sent.acks == -1:
                self.acknowledged += 1
                cluster.oracle.promised(sent, result.base_offset)
            elif sent.acks == 1 and alone:
                # Beside others the answer may be later than the write, and another leader may have cut it since.
                host = node.hosts.get(sent.partition)
                if host is not None and host.facts is sent.facts:
                    cluster.oracle.written(host, sent, result.base_offset)
        elif error.definite and not sent.again:
            cluster.oracle.refused(sent)
        if sent.judge is not None:
            host = node.hosts.get(sent.partition)
            sent.judge(result, host is not None and host is sent.host and cluster.oracle.is_current(host))
        if sent.done is not None and sent.acks != 0:
            cluster.send(node.id, None, partial(sent.done, result))

    def delete(self, host: Host, offset: int) -> None:
        """Ask a node to delete what lies below `offset` of a partition."""
        node, partition = host.node, host.partition
        wanted = m.DeleteRecordsPartition(topic=partition.topic, partition=partition.partition, offset=offset)
        message = m.DeleteRecordsRequest(timeout_ms=round(1000 * REQUEST_TIMEOUT), partitions=[wanted])
        process = node.process

        def arrive() -> None:
            if node.hosts.get(partition) is host and node.broker is not None:
                request = Arrived(node.id, process, self._cluster.now, deletion=(host, offset))
                self._waiting[request] = None
                self._cluster.tell(node, DeleteRecordsArrived(request, message))

        self._cluster.send(0, node, arrive)

    def _deleted(self, host: Host, offset: int, response: m.DeleteRecordsResponse) -> None:
        (result,) = response.partitions
        if result.error == ErrorCode.NONE:
            self._cluster.oracle.deletion_promised(host, max(offset, result.low_watermark))

    def overdue(self) -> list[Arrived]:
        """Requests without an answer whose time is over, though the process that has them still runs.

        Producers in transactions go on as long as nothing may be committed, so that a young one is no sign of harm.
        """
        nodes, before = self._cluster.nodes, self._cluster.now - 2 * REQUEST_TIMEOUT
        return [
            each for each in self._waiting if each.at < before and nodes[each.node].process == each.process
        ]

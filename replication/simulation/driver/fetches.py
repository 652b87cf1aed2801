"""Fetches as they reach the broker that serves them, and its answers on their way back.

A node's transport keeps order on a connection and never repeats anything. Here requests are numbered: what is
overtaken, or comes twice, is asked past the session, and an answer that comes too late may still be shown to the
replicas. They must know by themselves what is of no use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from ...core.broker.effects import Answer, CloseConnection
from ...core.broker.events import Disconnected, FetchArrived
from ...core.broker.fetching.fetch_session import NEW_SESSION, NO_SESSION, WITHOUT_SESSION
from ...core.broker.producing.payloads import MalformedBatchError, to_metas
from ...core.errors import code_of
from ...core.messages import FetchPartition, FetchRequest, FetchResponse, FetchResult, PartitionName
from ...core.partition import events as ev
from ...core.partition.effects import FetchNext
from ...core.types import PartitionId
from ..world.disk import Stored
from ..world.network import DAMAGED, Link, ModelBatches, ModelPayload, Question
from ..world.node import Host, Node

if TYPE_CHECKING:
    from ..world.cluster import Cluster

FETCH_WAIT = 0.5
STRANGER = 0.02
"""How often a request comes together with one of somebody who has no business with it."""
PAST = 0.5
"""How often an answer that no request waits for is shown to the replicas: a node never does, they must bear it."""
FULL = 0.05
"""How often an answer has room for one batch only."""
BATCH_SIZE = 100
"""Of each batch that a simulated client sends, in bytes."""
LARGEST = 4
"""Batches of one partition in an answer, at most."""


class Intruder:
    """A connection of somebody who is not simulated, and everything that is asked over it."""


class Peer(NamedTuple):
    """The other end of a connection."""

    node_id: int
    principal: str


class Fetches:
    """All fetches that nodes serve each other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._heard: dict[int, dict[int, int]] = {}
        """Of each node's process: the number of the last request of each other node."""

    def process_began(self, node: Node) -> None:
        """It is registered; what its predecessor served is forgotten."""
        self._heard[node.id] = {}

    def serve(self, question: Question) -> None:
        """A fetch arrives at the node that is to serve it."""
        cluster, node, follower = self._cluster, question.link.peer, question.link.dialler.id
        message, heard = question.asked.message, self._heard[node.id]
        assert isinstance(message, FetchRequest)
        message = self._with_room(message)
        if question.number <= heard.get(follower, 0):
            # It was overtaken, or comes again: what it asks is asked past the session.
            message = structs.replace(
                message, session_id=NO_SESSION, session_epoch=WITHOUT_SESSION, forgotten=[], max_wait_ms=0
            )
        else:
            heard[follower] = question.number
        cluster.tell(node, FetchArrived(question.link, question, message, Peer(follower, f"node {follower}")))
        if not cluster.calm and cluster.chance(STRANGER):
            self._intrude(node)

    def _with_room(self, message: FetchRequest) -> FetchRequest:
        """For one to four batches of each partition, and now and then for one batch of all of them."""
        dice = self._cluster.random
        is_full = dice.random() < FULL
        if not is_full and not message.partitions:
            return message
        return structs.replace(
            message,
            max_bytes=BATCH_SIZE if is_full else message.max_bytes,
            partitions=[
                structs.replace(each, max_bytes=BATCH_SIZE * (1 + int(dice.random() * LARGEST)))
                for each in message.partitions
            ],
        )

    def overtaken(self, question: Question, message: FetchResponse, payload: ModelPayload) -> None:
        """An answer that no request waits for: perhaps the replicas see it."""
        node, position = question.link.dialler, 0
        shown = self._cluster.chance(PAST)
        for result in message.partitions if shown else ():
            asked, host = question.open.get(key := _key(result)), node.hosts.get(key)
            # Of another topic's answer a replica could not know by itself.
            if host is not None and asked is not None and host.facts.topic_id == asked.topic_id:
                self._show(host, asked, result, payload, position)
            position += result.size

    def _show(
        self, host: Host, asked: FetchNext, result: FetchResult, payload: ModelPayload, position: int
    ) -> None:
        try:
            batches = payload.batches(position, result.size) if result.size else ModelBatches(())
        except MalformedBatchError:
            return
        self._cluster.step(
            host,
            ev.Fetched(
                fetch_offset=asked.fetch_offset,
                leader_epoch=asked.leader_epoch,
                last_fetched_epoch=asked.last_fetched_epoch,
                error=code_of(result.error),
                high_watermark=result.high_watermark,
                log_start_offset=result.log_start_offset,
                log_end_offset=result.log_end_offset,
                diverging=result.diverging,
                batches=to_metas(batches),
                handle=batches,
                may_skip=self._cluster.settings.compactions > 0,
            ),
        )

    def _intrude(self, node: Node) -> None:
        """Somebody who may only consume begins a session, or names one that others began, with the right epoch, or
        asks in the name of a node.
        """
        broker, cluster, stranger = node.broker, self._cluster, Intruder()
        assert broker is not None
        sessions = list(broker.serving.sessions.values())
        inquiry = sessions[int(cluster.random.random() * len(sessions))] if sessions else None
        message = FetchRequest(
            replica_id=-1, incarnation=-1, max_wait_ms=0, min_bytes=1, max_bytes=BATCH_SIZE, partitions=[]
        )
        roll = cluster.random.random()
        if roll < 0.3 or inquiry is None or inquiry.session is None:
            message = structs.replace(message, session_epoch=NEW_SESSION)
        elif roll < 0.8:
            forgotten = [PartitionName(topic=each.topic, partition=each.partition) for each in inquiry.open]
            session = inquiry.session
            message = structs.replace(
                message, session_id=session.id, session_epoch=session.answers, forgotten=forgotten
            )
        else:
            asked = [
                FetchPartition(
                    topic=topic,
                    partition=partition,
                    fetch_offset=each.fetch_offset + 1,
                    max_bytes=each.max_bytes,
                    leader_epoch=each.leader_epoch,
                    last_fetched_epoch=each.last_fetched_epoch,
                    high_watermark=each.high_watermark,
                    log_start_offset=each.log_start_offset,
                    topic_id=each.topic_id,
                )
                for (topic, partition), each in inquiry.open.items()
            ]
            others = [each for each in cluster.nodes.values() if each is not node]
            victim = others[int(cluster.random.random() * len(others))]
            message = structs.replace(
                message, replica_id=victim.id, incarnation=victim.incarnation, partitions=asked
            )
        cluster.tell(node, FetchArrived(stranger, stranger, message, Peer(-1, "a client")))
        if cluster.chance(0.5):
            cluster.tell(node, Disconnected(stranger))

    def answer(self, node: Node, effect: Answer) -> None:
        """Send what a broker says to a node, if it is still there."""
        question, cluster = effect.request, self._cluster
        if not isinstance(question, Question):
            return
        payload = ModelPayload()
        ranges: Iterator[tuple[Stored, ...]] = iter(effect.parts)  # type: ignore[arg-type]
        for result in effect.response.partitions:
            if result.size:
                batches = next(ranges)
                disk = node.hosts[_key(result)].disk
                damaged = not cluster.calm and cluster.chance(DAMAGED)
                payload.add(batches, result.size, damaged=damaged or disk.damage(batches) is not None)
        response = cluster.versions.answer(node, question.link.dialler, effect.response)
        cluster.network.answer(question, response, payload)

    def close(self, node: Node, effect: CloseConnection) -> None:
        """The end of a connection, with all that is in flight on it."""
        if isinstance(effect.connection, Link):
            self._cluster.network.reset(effect.connection)


def _key(result: FetchResult) -> PartitionId:
    return PartitionId(result.topic, result.partition)

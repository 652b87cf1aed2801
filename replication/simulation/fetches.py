"""Fetches between the nodes: one session for each pair of them, by the same machine that a node uses (KIP-227).

The transport of a node keeps order on a connection and never repeats anything, and so does what stands for it here:
requests are numbered, and only the newest one and its answer are of the session. What is overtaken, comes twice or
too late may reach the replicas all the same, past the session: they must know by themselves what is of no use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import attrs

from ..core.broker.effects import Answer, CloseConnection
from ..core.broker.events import Disconnected, FetchArrived
from ..core.broker.fetch_session import (
    NEW_SESSION,
    NO_SESSION,
    WITHOUT_SESSION,
    FollowerSession,
    SessionRequest,
)
from ..core.errors import ErrorCode
from ..core.messages import FetchPartition, FetchRequest, FetchResponse, FetchResult, PartitionName
from ..core.partition import effects as fx
from ..core.partition import events as ev
from ..core.types import PartitionId
from .disk import LEFT_OUT, Stored
from .node import Host, Node

if TYPE_CHECKING:
    from .cluster import Cluster

FETCH_WAIT = 0.5
FETCH_TIMEOUT = 1.5
FETCH_BACKOFF = 0.3
SETTLE = 0.01
"""How long a request waits for what other partitions want to ask in it."""
STRANGER = 0.02
"""How often a request comes together with one of somebody who has no business with it."""
PAST = 0.5
"""How often an answer that no request waits for is shown to the replicas: a node never does, they must bear it."""
FULL = 0.05
"""How often an answer has room for one batch only."""
BATCH_SIZE = 100
"""Of each batch that a simulated client sends, in bytes."""

Question = fx.FetchNext


@attrs.define(eq=False)
class Link:
    """What one process asks of one node. `number`: of the request under way, 0 if there is none."""

    follower: Node
    leader: Node
    session: FollowerSession[PartitionId, Question] = attrs.Factory(FollowerSession)
    number: int = 0
    due: bool = False


@attrs.frozen(eq=False, slots=True)
class Request:
    """A fetch request on its way; `number` grows with every one that any node sends.

    `open`: every question that it asks, by itself or because its session has it open.
    """

    link: Link
    number: int
    message: FetchRequest
    open: Mapping[PartitionId, Question]


class Intruder:
    """A connection of somebody who is not simulated, and everything that is asked over it."""


class Peer(NamedTuple):
    """Who is at the other end of a connection."""

    node_id: int
    principal: str


class Fetches:
    """All fetches between nodes. `links` are those of each node's process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._links: dict[int, dict[int, Link]] = {}
        self._heard: dict[int, dict[int, int]] = {}
        """Of each node's process: the number of the last request of each other node."""
        self._asking: dict[Host, Link] = {}

    def process_began(self, node: Node) -> None:
        """It is registered; what its predecessor had asked and served is forgotten."""
        self.process_ended(node)
        self._heard[node.id] = {}

    def process_ended(self, node: Node) -> None:
        for host in node.hosts.values():
            self._asking.pop(host, None)
        for link in self._links.get(node.id, {}).values():
            link.number = 0
        self._links[node.id] = {}

    def unasked(self) -> list[str]:
        """Questions that are open, or will be asked again, though no replica wants to know."""
        return [
            f"node {node} asks node {link.leader.id} for {partition}"
            for node, links in self._links.items()
            for link in links.values()
            for partition in link.session.open
            if self._link_of(link.follower, partition) is not link
        ]

    def _link_of(self, node: Node, partition: PartitionId) -> Link | None:
        host = node.hosts.get(partition)
        return self._asking.get(host) if host is not None else None

    # The side that asks

    def want(self, host: Host, effect: fx.FetchNext) -> None:
        """A replica asks for what comes next; after a failure only when the pause is over."""
        cluster, node = self._cluster, host.node
        links = self._links[node.id]
        link = links.get(effect.leader)
        if link is None:
            link = links[effect.leader] = Link(node, cluster.nodes[effect.leader])
        former = self._asking.get(host)
        if former is not None and former is not link:
            former.session.withdraw(host.partition)
        self._asking[host] = link
        host.question = cluster.new_id()
        if effect.delayed:
            cluster.on(node, FETCH_BACKOFF, partial(self._ask, host, link, effect, host.question))
        else:
            self._ask(host, link, effect, host.question)

    def stop(self, host: Host) -> None:
        """What a replica has asked is void."""
        host.question = self._cluster.new_id()
        link = self._asking.pop(host, None)
        if link is not None:
            link.session.withdraw(host.partition)

    def _ask(self, host: Host, link: Link, effect: Question, question: int) -> None:
        if host.question == question:
            link.session.ask(host.partition, effect)
            self._send_soon(link)

    def _send_soon(self, link: Link) -> None:
        """The request under way is given up then, for the next one to tell of whatever has come up."""
        if not link.due:
            link.due = True
            self._cluster.on(link.follower, SETTLE, partial(self._send, link))

    def _send(self, link: Link) -> None:
        link.due, link.number = False, 0
        if not link.session.open:
            return
        cluster, node = self._cluster, link.follower
        link.number = cluster.new_id()
        message = self._message(node, link.session.request())
        request = Request(link, link.number, message, dict(link.session.open))
        cluster.send(node.id, link.leader, partial(self._serve, link.leader, request))
        cluster.on(node, FETCH_TIMEOUT, partial(self._late, link, link.number))

    def _late(self, link: Link, number: int) -> None:
        """No answer has come: every replica that has asked is told, and a new session begins with what they ask."""
        if link.number != number:
            return
        link.number = 0
        failed, link.session = link.session.open, FollowerSession()
        for partition, asked in failed.items():
            host = link.follower.hosts.get(partition)
            if host is not None:
                self._cluster.step(
                    host, ev.FetchFailed(fetch_offset=asked.fetch_offset, leader_epoch=asked.leader_epoch)
                )

    def _message(self, node: Node, told: SessionRequest[PartitionId, Question]) -> FetchRequest:
        dice = self._cluster.random
        return FetchRequest(
            replica_id=node.id,
            incarnation=node.incarnation,
            max_wait_ms=round(1000 * FETCH_WAIT),
            min_bytes=1,
            max_bytes=BATCH_SIZE if dice.random() < FULL else 100 * BATCH_SIZE,
            partitions=[
                FetchPartition(
                    topic=partition.topic,
                    partition=partition.partition,
                    fetch_offset=asked.fetch_offset,
                    max_bytes=BATCH_SIZE * (1 + int(dice.random() * 4)),
                    leader_epoch=asked.leader_epoch,
                    last_fetched_epoch=asked.last_fetched_epoch,
                    high_watermark=asked.high_watermark,
                    log_start_offset=asked.log_start_offset,
                    topic_id=asked.topic_id,
                )
                for partition, asked in told.questions.items()
            ],
            session_id=told.session_id,
            session_epoch=told.session_epoch,
            forgotten=[PartitionName(topic=each.topic, partition=each.partition) for each in told.withdrawn],
        )

    def _take(self, request: Request, response: FetchResponse, parts: Sequence[tuple[Stored, ...]]) -> None:
        """An answer arrives; if not to the request under way, it is dropped, or the replicas see it even so."""
        link, ranges = request.link, iter(parts)
        found = {
            PartitionId(result.topic, result.partition): (result, next(ranges) if result.size else ())
            for result in response.partitions
        }
        if link.number != request.number:
            if self._cluster.chance(PAST):
                for partition, (result, batches) in found.items():
                    question = request.open.get(partition)
                    if question is not None and self._is_meant(link.follower, partition, question):
                        self._tell(link.follower, partition, question, result, batches)
            return
        link.number = 0
        if response.error != ErrorCode.NONE:
            link.session.end()
        else:
            for partition, question in link.session.answered(response.session_id, found).items():
                self._tell(link.follower, partition, question, *found[partition])
        if link.session.open:
            self._send_soon(link)

    @staticmethod
    def _is_meant(node: Node, partition: PartitionId, question: Question) -> bool:
        """Whether a replica is of the topic that was asked about: of another it could not know by itself."""
        host = node.hosts.get(partition)
        return host is not None and host.facts.topic_id == question.topic_id

    def _tell(
        self,
        node: Node,
        partition: PartitionId,
        question: Question,
        result: FetchResult,
        batches: tuple[Stored, ...],
    ) -> None:
        host = node.hosts.get(partition)
        if host is None:
            return
        self._cluster.step(
            host,
            ev.Fetched(
                fetch_offset=question.fetch_offset,
                leader_epoch=question.leader_epoch,
                last_fetched_epoch=question.last_fetched_epoch,
                error=ErrorCode(result.error),
                high_watermark=result.high_watermark,
                log_start_offset=result.log_start_offset,
                log_end_offset=result.log_end_offset,
                diverging=result.diverging,
                batches=tuple([batch.meta for batch in batches if batch.state != LEFT_OUT]),
                handle=batches,
                may_skip=self._cluster.settings.compactions > 0,
            ),
        )

    # The side that serves

    def _serve(self, node: Node, request: Request) -> None:
        heard = self._heard.get(node.id)
        if node.broker is None or heard is None:
            return
        cluster, link, message = self._cluster, request.link, request.message
        follower = link.follower.id
        if request.number <= heard.get(follower, 0):
            # It was overtaken, or comes again: what it asks is asked past the session.
            message = attrs.evolve(
                message, session_id=NO_SESSION, session_epoch=WITHOUT_SESSION, forgotten=[], max_wait_ms=0
            )
            request = attrs.evolve(request, message=message)
        else:
            heard[follower] = request.number
        cluster.tell(node, FetchArrived(link, request, message, Peer(follower, f"node {follower}")))
        if not cluster.calm and cluster.chance(STRANGER):
            self._intrude(node)

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
            message = attrs.evolve(message, session_epoch=NEW_SESSION)
        elif roll < 0.8:
            forgotten = [PartitionName(topic=each.topic, partition=each.partition) for each in inquiry.open]
            session = inquiry.session
            message = attrs.evolve(
                message, session_id=session.id, session_epoch=session.answers, forgotten=forgotten
            )
        else:
            asked = [attrs.evolve(each, fetch_offset=each.fetch_offset + 1) for each in inquiry.open.values()]
            others = [each for each in cluster.nodes.values() if each is not node]
            victim = others[int(cluster.random.random() * len(others))]
            message = attrs.evolve(
                message, replica_id=victim.id, incarnation=victim.incarnation, partitions=asked
            )
        cluster.tell(node, FetchArrived(stranger, stranger, message, Peer(-1, "a client")))
        if cluster.chance(0.5):
            cluster.tell(node, Disconnected(stranger))

    def answer(self, node: Node, effect: Answer) -> None:
        """Send what a broker says to a node, if it is still there."""
        request = effect.request
        if isinstance(request, Request):
            take = partial(self._take, request, effect.response, effect.parts)  # type: ignore[arg-type]
            self._cluster.send(node.id, request.link.follower, take)

    def close(self, node: Node, effect: CloseConnection) -> None:
        """The end of a connection, with all that is in flight on it."""
        link = effect.connection
        if isinstance(link, Link):
            self._cluster.tell(node, Disconnected(link))
            if link.number > 0:
                link.number = -link.number  # nothing that is in flight arrives
                self._cluster.on(link.follower, self._cluster.delay(), partial(self._late, link, link.number))

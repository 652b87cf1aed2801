"""Fetches between the nodes: one session for each pair of them, by the same machine that a node uses (KIP-227).

The transport of a node keeps order on a connection and never repeats anything, and so does what stands for it here:
requests are numbered, and only the newest one and its answer are of the session. What is overtaken, comes twice or
too late may reach the replicas all the same, past the session: they must know by themselves what is of no use.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ..core.broker.fetch_session import (
    NEW_SESSION,
    NO_SESSION,
    FollowerSession,
    LeaderSession,
    SessionCache,
    SessionRequest,
)
from ..core.errors import ErrorCode
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
"""How often a request comes together with one that begins a session of somebody else's."""
PAST = 0.5
"""How often an answer that no request waits for is shown to the replicas: a node never does, they must bear it."""
FULL = 0.05
"""How often an answer has no room for another partition."""

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
    """A fetch request on its way; `number` grows with every one that any node sends."""

    link: Link
    number: int
    incarnation: int
    told: SessionRequest[PartitionId, Question]


@attrs.frozen(eq=False, slots=True)
class Part:
    """What is answered about one partition. `question`: as the leader has it."""

    question: Question
    answer: fx.FetchAnswer
    batches: tuple[Stored, ...]


@attrs.define(eq=False)
class Inquiry:
    """One session of a leader and its requests; `request` is the one that waits."""

    session: LeaderSession[PartitionId, Question]
    link: Link | None
    """None: of somebody who is not simulated."""
    news: dict[PartitionId, None] = attrs.Factory(dict)
    request: Request | None = None
    latest: Request | None = None


class Serving:
    """The sessions of the process that a node is now, and which of them waits for what."""

    def __init__(self, node: Node, slots: int) -> None:
        self.cache: SessionCache[PartitionId, Question] = SessionCache(slots, b"%d" % node.incarnation)
        self.inquiries: dict[int, Inquiry] = {}
        self.waiting: dict[PartitionId, dict[Inquiry, None]] = {}
        self.heard: dict[int, int] = {}
        """The number of the last request of each node."""

    def begin(
        self, link: Link | None, questions: dict[PartitionId, Question]
    ) -> tuple[Inquiry, Request | None]:
        """A new session, which replaces that of the same link; and the request that has lost its own by this."""
        if link is not None:
            for former in [each for each in self.inquiries.values() if each.link is link]:
                self.end(former)
        session, evicted = self.cache.begin(questions, 0.0, link)
        assert session is not None, "any session gives way here"
        refused = None
        if evicted is not None:
            refused = self.inquiries[evicted.id].request
            self.end(self.inquiries[evicted.id])
        inquiry = self.inquiries[session.id] = Inquiry(session, link)
        self.look_at(inquiry, session.open)
        return inquiry, refused

    def find(self, told: SessionRequest[PartitionId, Question], link: Link | None) -> Inquiry | ErrorCode:
        """The session that a request of `link` goes on with, and knows from now on what it says."""
        session = self.cache.find(told.session_id, 0.0, link)
        if isinstance(session, ErrorCode):
            return session
        inquiry = self.inquiries[session.id]
        changed = session.accept(told)
        if changed is None:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        for partition in told.withdrawn:
            self.overlook(inquiry, partition)
        self.look_at(inquiry, changed)
        return inquiry

    def look_at(self, inquiry: Inquiry, partitions: Iterable[PartitionId]) -> None:
        for partition in partitions:
            inquiry.news[partition] = None
            self.waiting.setdefault(partition, {})[inquiry] = None

    def overlook(self, inquiry: Inquiry, partition: PartitionId) -> None:
        inquiry.news.pop(partition, None)
        self.waiting.get(partition, {}).pop(inquiry, None)

    def end(self, inquiry: Inquiry) -> None:
        inquiry.request = None
        for partition in inquiry.session.open:
            self.overlook(inquiry, partition)
        del self.inquiries[inquiry.session.id]
        self.cache.end(inquiry.session.id)


class Fetches:
    """All fetches between nodes. `links` are those of each node's process, `serving` what it serves."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._links: dict[int, dict[int, Link]] = {}
        self._serving: dict[int, Serving] = {}
        self._asking: dict[Host, Link] = {}

    def process_began(self, node: Node) -> None:
        """It is registered; what its predecessor had asked and served is forgotten."""
        self.process_ended(node)
        self._serving[node.id] = Serving(node, slots=len(self._cluster.nodes) - 1)

    def process_ended(self, node: Node) -> None:
        for host in node.hosts.values():
            self._asking.pop(host, None)
        for link in self._links.get(node.id, {}).values():
            link.number = 0
        self._links[node.id] = {}
        self._serving.pop(node.id, None)

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
        request = Request(link, link.number, node.incarnation, link.session.request())
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

    def _take(
        self, request: Request, session_id: int, parts: dict[PartitionId, Part], error: ErrorCode
    ) -> None:
        """An answer arrives; if not to the request under way, it is dropped, or the replicas see it even so."""
        link = request.link
        if link.number != request.number:
            if self._cluster.chance(PAST):
                for partition, part in parts.items():
                    if self._is_meant(link.follower, partition, part.question):
                        self._tell(link.follower, partition, part.question, part)
            return
        link.number = 0
        if error != ErrorCode.NONE:
            link.session.end()
        else:
            asked = link.session.answered(session_id, parts)
            for partition, question in asked.items():
                self._tell(link.follower, partition, question, parts[partition])
        if link.session.open:
            self._send_soon(link)

    @staticmethod
    def _is_meant(node: Node, partition: PartitionId, question: Question) -> bool:
        """Whether a replica is of the topic that was asked about: of another it could not know by itself."""
        host = node.hosts.get(partition)
        return host is not None and host.facts.topic_id == question.topic_id

    def _tell(self, node: Node, partition: PartitionId, question: Question, part: Part) -> None:
        host = node.hosts.get(partition)
        if host is None:
            return
        answer, batches = part.answer, part.batches
        self._cluster.step(
            host,
            ev.Fetched(
                fetch_offset=question.fetch_offset,
                leader_epoch=question.leader_epoch,
                last_fetched_epoch=question.last_fetched_epoch,
                error=answer.error,
                high_watermark=answer.high_watermark,
                log_start_offset=answer.log_start_offset,
                log_end_offset=answer.log_end_offset,
                diverging=answer.diverging,
                batches=tuple([batch.meta for batch in batches if batch.state != LEFT_OUT]),
                handle=batches,
                may_skip=self._cluster.settings.compactions > 0,
            ),
        )

    # The side that serves

    def _serve(self, node: Node, request: Request) -> None:
        serving = self._serving.get(node.id)
        if serving is None:
            return
        follower = request.link.follower.id
        if request.number <= serving.heard.get(follower, 0):
            self._serve_past_session(node, request)
            return
        serving.heard[follower] = request.number
        cluster = self._cluster
        found: Inquiry | ErrorCode
        if request.told.session_epoch == NEW_SESSION:
            found = self._begin(node, serving, request.link, dict(request.told.questions))
        else:
            found = serving.find(request.told, request.link)
        if isinstance(found, ErrorCode):
            self._reply(node, request, NO_SESSION, {}, found)
            return
        found.request = found.latest = request
        if not self._try_answer(node, found, final=False):
            cluster.on(node, FETCH_WAIT, partial(self._expire, node, found, request))
        if not cluster.calm and cluster.chance(STRANGER):
            self._intrude(node, serving, found)

    def _intrude(self, node: Node, serving: Serving, of: Inquiry) -> None:
        """A stranger begins a session of its own; another names one that it has not begun, with the right epoch."""
        if self._cluster.chance(0.5):
            self._begin(node, serving, None, {})
            return
        session = of.session
        claim = SessionRequest[PartitionId, Question](
            session.id, session.answers, {}, withdrawn=tuple(session.open)
        )
        serving.find(claim, None)

    def _begin(
        self, node: Node, serving: Serving, link: Link | None, questions: dict[PartitionId, Question]
    ) -> Inquiry:
        inquiry, refused = serving.begin(link, questions)
        if refused is not None:
            self._reply(node, refused, NO_SESSION, {}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return inquiry

    def _serve_past_session(self, node: Node, request: Request) -> None:
        parts = {}
        for partition, question in request.told.questions.items():
            answer = self._consult(node, partition, question, request)
            if answer.news:
                parts[partition] = self._part(node, partition, question, answer)
        if parts:
            self._reply(node, request, NO_SESSION, parts)

    def _expire(self, node: Node, inquiry: Inquiry, request: Request) -> None:
        if inquiry.request is request:
            self._try_answer(node, inquiry, final=True)

    def woken(self, host: Host) -> bool:
        """Whether somebody waits for news of this partition."""
        serving = self._serving.get(host.node.id)
        return serving is not None and bool(serving.waiting.get(host.partition))

    def look_again(self, host: Host) -> None:
        """The partition has news for somebody, perhaps."""
        serving = self._serving.get(host.node.id)
        for inquiry in list(serving.waiting.get(host.partition, ())) if serving is not None else ():
            inquiry.news[host.partition] = None
            self._try_answer(host.node, inquiry, final=False)

    def _try_answer(self, node: Node, inquiry: Inquiry, *, final: bool) -> bool:
        """Answer if there is something to say; `final`: also if there is nothing."""
        request, latest = inquiry.request, inquiry.latest
        if request is None or latest is None:
            return False
        parts: dict[PartitionId, Part] = {}
        for partition in list(inquiry.news):
            if parts and self._cluster.chance(FULL):
                break  # looked at by the next request
            question = inquiry.session.open[partition]
            answer = self._consult(node, partition, question, latest)
            if answer.news:
                parts[partition] = self._part(node, partition, question, answer)
            else:
                del inquiry.news[partition]
        if not parts and not final:
            return False
        inquiry.request = None
        serving = self._serving[node.id]
        for partition in parts:
            serving.overlook(inquiry, partition)
        inquiry.session.answer(parts)
        self._reply(node, request, inquiry.session.id, parts)
        return True

    def _consult(
        self, node: Node, partition: PartitionId, question: Question, request: Request
    ) -> fx.FetchAnswer:
        host = node.hosts.get(partition)
        if host is None or host.replica is None:
            return fx.FetchAnswer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, news=True)
        return self._cluster.ask(
            host,
            ev.Fetch(
                replica_id=request.link.follower.id,
                incarnation=request.incarnation,
                leader_epoch=question.leader_epoch,
                fetch_offset=question.fetch_offset,
                last_fetched_epoch=question.last_fetched_epoch,
                high_watermark=question.high_watermark,
                log_start_offset=question.log_start_offset,
                topic_id=question.topic_id,
            ),
        )

    def _part(self, node: Node, partition: PartitionId, question: Question, answer: fx.FetchAnswer) -> Part:
        batches: tuple[Stored, ...] = ()
        if answer.error == ErrorCode.NONE and answer.diverging is None:
            count = 1 + int(self._cluster.random.random() * 4)
            disk = node.hosts[partition].disk
            batches = disk.read(question.fetch_offset, answer.limit_offset, count)
        return Part(question, answer, batches)

    def _reply(
        self,
        node: Node,
        request: Request,
        session_id: int,
        parts: dict[PartitionId, Part],
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self._cluster.send(
            node.id, request.link.follower, partial(self._take, request, session_id, parts, error)
        )

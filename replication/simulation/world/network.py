"""The network under a broker: connections that are made, refused, cut and lost, and what travels over them.

A node's transport keeps order on a connection and never repeats anything. Here messages are also lost, doubled,
late and overtaken, because another transport may be worse; the machine must bear it. A peer's answer may also be
damaged in one partition, or be no answer at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
from msgspec import structs

from ...core import messages as m
from ...core.broker import effects as fx
from ...core.broker import events as ev
from ...core.broker.membership.registration import evict
from ...core.broker.producing.payloads import CONTROL, TRANSACTIONAL, MalformedBatchError, RefusedBatchError
from ...core.control.records import CONTROLLER_KEY, node_key
from ...core.errors import ErrorCode
from ...core.partition.effects import FetchNext
from ...core.store_transaction import Committed, Outcome
from ...core.types import BatchMeta, PartitionId, TransactionMarker
from ..errors import require
from .disk import LEFT_OUT, Stored
from .node import Node

if TYPE_CHECKING:
    from .cluster import Cluster

DAMAGED = 0.01
"""How often the batches of one partition arrive damaged."""
MALFORMED = 0.003
"""How often a whole answer cannot be read, and how often its sizes do not add up."""


@attrs.define(eq=False)
class Link:
    """A connection between two processes; `is_open` as far as the world knows, whatever its ends do."""

    dialler: Node
    dialler_process: int
    peer: Node
    peer_process: int
    is_open: bool = True
    is_reset: bool = False
    is_open_there: bool = True
    """Whether the peer still takes it for open. One that stands still first finds what came before the end."""
    """Ended by its peer, so that nothing that is in flight arrives."""


@attrs.frozen(eq=False)
class Question:
    """A request under way. `number` grows with every one that any node sends.

    `open`: of a fetch every question that it asks, by itself or because its session has it open.
    """

    link: Link
    asked: fx.Ask
    number: int
    open: Mapping[PartitionId, FetchNext]


@attrs.define(eq=False)
class Wires:
    """The work under way of a node's present process, and what is known of its pauses."""

    dials: dict[int, fx.Dial] = attrs.Factory(dict)
    questions: dict[int, Question] = attrs.Factory(dict)
    links: list[Link] = attrs.Factory(list)
    """Those that it has dialled."""
    heard: dict[int, list[float]] = attrs.Factory(dict)
    """When each peer's latest answers have arrived, and since when it is known at all."""


class Network:
    """See the module's text. Carries out what brokers ask for, and tells them what has become of it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._wires: dict[int, Wires] = {}
        self._obey: dict[type, Callable[[Node, Any], None]] = {
            fx.Dial: self._dial,
            fx.Ask: self._ask,
            fx.GiveUp: self._give_up,
            fx.HangUp: self._hang_up,
            fx.Suspect: self._suspect,
            fx.SuspicionWrong: self._note,
            fx.PeerFailing: self._note,
            fx.PartitionDamaged: self._note,
        }

    def obey(self, node: Node, effect: fx.Effect) -> None:
        """Carry out what the broker of a node asks for."""
        self._obey[type(effect)](node, effect)

    def process_began(self, node: Node) -> None:
        """It is registered: it may be dialled, and dials."""
        self._wires[node.id] = Wires()

    def process_ended(self, node: Node) -> None:
        """Its system ends its connections; what it had under way is nobody's any more."""
        cluster = self._cluster
        for number, wires in self._wires.items():
            for link in [each for each in wires.links if node in (each.dialler, each.peer)]:
                self._close(link)
                if number != node.id:
                    told = partial(self._tell_disconnected, link, "reset by peer")
                    cluster.send(node.id, link.dialler, told)
        self._wires[node.id] = Wires()

    # Connections

    def _dial(self, node: Node, effect: fx.Dial) -> None:
        cluster, wires = self._cluster, self._wires[node.id]
        peer = cluster.nodes[effect.peer]
        cluster.pauses.dialling(node, effect)
        wires.dials[effect.dial] = effect
        cluster.on(node, effect.timeout, partial(self._dial_failed, node, effect, "no answer", refused=False))
        if (node.id, peer.id) not in cluster.cuts:
            # Not by `send`: what a handshake loses the system sends again.
            cluster.later(cluster.delay(), partial(self._dialled, node, node.process, peer, effect))

    def _dialled(self, node: Node, process: int, peer: Node, effect: fx.Dial) -> None:
        """A node that is up accepts, even if it stands still and answers later; an unregistered one is not up."""
        cluster = self._cluster
        if not peer.up or peer.broker is None:
            refused = partial(self._dial_failed, node, effect, "connection refused", refused=True)
            if node.process == process and (peer.id, node.id) not in cluster.cuts:
                cluster.on(node, cluster.delay(), refused)
            return
        link = Link(node, process, peer, peer.process)
        cluster.on(peer, 0.0, lambda: cluster.send(peer.id, node, partial(self._connected, effect, link)))

    def _connected(self, effect: fx.Dial, link: Link) -> None:
        node = link.dialler
        wires = self._wires[node.id]
        # Each process counts its dials from 1: an answer to the process before it must not be taken for its own.
        if wires.dials.get(effect.dial) is effect:
            del wires.dials[effect.dial]
            wires.links.append(link)
            self._cluster.tell(node, ev.Connected(dial=effect.dial, connection=link))
            if not link.is_open:
                self._tell_disconnected(link, "reset by peer")

    def _dial_failed(self, node: Node, effect: fx.Dial, reason: str, *, refused: bool) -> None:
        dials = self._wires[node.id].dials
        if dials.get(effect.dial) is effect:
            del dials[effect.dial]
            self._cluster.pauses.dial_failed(node, effect)
            self._cluster.tell(node, ev.DialFailed(dial=effect.dial, reason=reason, refused=refused))

    def _hang_up(self, node: Node, effect: fx.HangUp) -> None:
        link = effect.connection
        assert isinstance(link, Link)
        self._forget(link)

    def _forget(self, link: Link) -> None:
        """The end that has dialled knows that it is over, and waits for nothing any more."""
        self._close(link)
        questions = self._wires[link.dialler.id].questions
        for number in [number for number, each in questions.items() if each.link is link]:
            del questions[number]

    def _close(self, link: Link) -> None:
        link.is_open = False
        links = self._wires[link.dialler.id].links
        if link in links:
            links.remove(link)
        if link.peer.process == link.peer_process and link.is_open_there:
            if link.peer.paused:
                self._cluster.on(link.peer, 0.0, partial(self._end_there, link))
            else:
                self._end_there(link)

    def _end_there(self, link: Link) -> None:
        if link.is_open_there:
            link.is_open_there = False
            self._cluster.tell(link.peer, ev.Disconnected(link))

    def reset(self, link: Link) -> None:
        """The peer ends a connection, with what is in flight on it."""
        link.is_reset = True
        self._close(link)
        told = partial(self._tell_disconnected, link, "reset by peer")
        self._cluster.on(link.dialler, self._cluster.delay(), told)

    def _tell_disconnected(self, link: Link, reason: str) -> None:
        node = link.dialler
        if node.process == link.dialler_process:
            self._forget(link)
            self._cluster.tell(node, ev.PeerDisconnected(connection=link, reason=reason))

    def _suspect(self, node: Node, effect: fx.Suspect) -> None:
        """Take a node that is gone out of the store, if it is the same process there still."""
        cluster, suspect = self._cluster, effect.node
        if effect.silent_to:
            self._check_silence(effect)
        transaction = evict(cluster.store.seen(node_key(suspect.node_id), CONTROLLER_KEY), suspect)
        if transaction is None:
            return

        def write() -> Outcome:
            outcome = cluster.commit(transaction, node.session, f"node {node.id}")
            if isinstance(outcome, Committed):
                cluster.note(f"node {node.id}: node {suspect.node_id} is gone: {effect.reason}")
                cluster.nodes[suspect.node_id].left = cluster.now
            return outcome

        cluster.transact(node, write, lambda result: None)

    def _check_silence(self, effect: fx.Suspect) -> None:
        """S27: two at least have agreed, and none of them has had an answer for the time that a node has for one.

        They may have had one since they were asked, which is no longer ago than that time.
        """
        suspect = effect.node.node_id
        silent = [each for each in effect.silent_to if self._was_silent(each, suspect)]
        agreed = list(effect.silent_to)
        require(len(agreed) >= 2, "S27", f"node {suspect} is silent to {agreed} alone")
        require(silent == agreed, "S27", f"node {suspect} is silent to {silent}, not to {agreed}")

    def _was_silent(self, watcher: int, peer: int) -> bool:
        cluster, timeout = self._cluster, self._cluster.settings.silence
        moments = [*self._wires[watcher].heard.get(peer, [0.0]), cluster.now]
        return any(
            later - earlier >= timeout and later >= cluster.now - timeout
            for earlier, later in pairwise(moments)
        )

    # Requests

    def _ask(self, node: Node, effect: fx.Ask) -> None:
        cluster, wires, link = self._cluster, self._wires[node.id], effect.connection
        assert isinstance(link, Link)
        under_way = (each.asked for each in wires.questions.values() if each.link.peer is link.peer)
        cluster.pauses.asking(node, link.peer, effect, under_way)
        assert node.broker is not None
        asked = node.broker.following.questions(link.peer.id)
        question = wires.questions[effect.question] = Question(link, effect, cluster.new_id(), asked)
        cluster.send(node.id, link.peer, partial(self._arrive, question))
        cluster.on(node, effect.timeout, partial(self._late, node, question))

    def _arrive(self, question: Question) -> None:
        link = question.link
        if link.peer.process != link.peer_process or not link.is_open_there:
            # The system knows of no such connection, and says so.
            told = partial(self._tell_disconnected, link, "reset by peer")
            self._cluster.send(link.peer.id, link.dialler, told)
        elif isinstance(question.asked.message, m.FetchRequest):
            self._cluster.fetches.serve(question)
        elif self._cluster.versions.is_unknown(question):
            told = partial(self._refused, question)
            self._cluster.send(link.peer.id, link.dialler, told)
        elif isinstance(question.asked.message, m.GetReplicaLogInfoRequest):
            self._tell_logs(question, question.asked.message)
        elif isinstance(question.asked.message, m.IsSilentRequest):
            self._tell_silence(question, question.asked.message)
        else:
            self._cluster.transactions.asked(question)

    def _tell_logs(self, question: Question, message: m.GetReplicaLogInfoRequest) -> None:
        """A node tells what its logs hold; S21 looks at the disks, where nothing is being written."""
        peer = question.link.peer
        if peer.broker is None:
            return
        for named in message.partitions:
            host = peer.hosts.get(PartitionId(named.topic, named.partition))
            if host is None or host.replica is None or host.replica.log.outstanding:
                continue
            info = host.replica.log_info()
            if info is not None:
                self._cluster.oracle.telling(host, info)
        self.answer(question, peer.broker.peers.tell_logs(message), ModelPayload())

    def _tell_silence(self, question: Question, message: m.IsSilentRequest) -> None:
        peer = question.link.peer
        if peer.broker is not None:
            self.answer(question, peer.broker.suspicion.tell(message), ModelPayload())

    def _refused(self, question: Question) -> None:
        """A node of an earlier version has said that it knows no such request."""
        node, number = question.link.dialler, question.asked.question
        if self.is_awaited(question):
            del self._wires[node.id].questions[number]
            self._cluster.tell(node, ev.AskFailed(question=number, reason="no request of this kind is known"))

    def _late(self, node: Node, question: Question) -> None:
        number = question.asked.question
        if self._wires[node.id].questions.get(number) is question:
            del self._wires[node.id].questions[number]
            self._cluster.tell(node, ev.AskFailed(question=number, reason="no answer in time"))

    def _give_up(self, node: Node, effect: fx.GiveUp) -> None:
        question = self._wires[node.id].questions.pop(effect.question, None)
        if question is not None:
            peer = question.link.peer
            told = partial(self._cluster.tell, peer, ev.Cancelled(question))
            self._cluster.send(node.id, peer, told)

    def is_awaited(self, question: Question) -> bool:
        """Whether the process that has asked still waits for the answer."""
        node = question.link.dialler
        waiting = self._wires[node.id].questions.get(question.asked.question)
        return node.process == question.link.dialler_process and waiting is question

    def answer(self, question: Question, message: object, payload: ModelPayload) -> None:
        """Send an answer; whoever asked may have given the question up."""
        link = question.link
        self._cluster.send(link.peer.id, link.dialler, partial(self._answered, question, message, payload))

    def _answered(self, question: Question, message: object, payload: ModelPayload) -> None:
        node, number = question.link.dialler, question.asked.question
        wires, cluster = self._wires[node.id], self._cluster
        if question.link.is_reset or question.link.dialler_process != node.process:
            return
        if wires.questions.get(number) is not question:
            # Nobody waits for it: a node's transport drops it, but the broker must not take it either.
            cluster.tell(node, ev.Answered(question=number, message=message, payload=payload))
            if isinstance(message, m.FetchResponse):
                cluster.fetches.overtaken(question, message, payload)
            return
        del wires.questions[number]
        if not cluster.calm and cluster.chance(MALFORMED):
            self._cluster.tell(node, ev.AskFailed(question=number, reason="no such field", malformed=True))
            return
        heard = wires.heard.setdefault(question.link.peer.id, [0.0])
        heard.append(cluster.now)
        del heard[:-_KEPT]
        if isinstance(message, m.FetchResponse) and not cluster.calm and cluster.chance(MALFORMED):
            message = structs.replace(
                message,
                partitions=[structs.replace(each, size=payload.size + 1) for each in message.partitions],
            )
        self._cluster.tell(node, ev.Answered(question=number, message=message, payload=payload))

    def _note(self, node: Node, effect: object) -> None:
        self._cluster.note(f"node {node.id}: {effect}")


_KEPT = 50
"""Answers of each peer whose moments are kept: more than come in twice the time after which a node is silent."""


class ModelInfo(NamedTuple):
    """A batch as a scan of its bytes would tell of it."""

    base_offset: int
    last_offset_delta: int
    leader_epoch: int
    size_bytes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    attributes: int = 0

    @classmethod
    def of(cls, meta: BatchMeta) -> ModelInfo:
        """That of a producer's batch."""
        return cls(
            meta.base_offset,
            meta.offset_count - 1,
            meta.leader_epoch,
            meta.size_bytes,
            meta.producer_id,
            meta.producer_epoch,
            meta.base_sequence,
            meta.offset_count,
            TRANSACTIONAL * meta.transactional | CONTROL * (meta.marker is not None),
        )


class ModelBatches(NamedTuple):
    """The handle of an append: the batches with their payloads, for the model disk."""

    stored: tuple[Stored, ...]

    @property
    def infos(self) -> tuple[ModelInfo, ...]:
        return tuple(ModelInfo.of(each.meta) for each in self.stored if each.state != LEFT_OUT)

    def marker(self, at: int) -> TransactionMarker | None:
        """See `core.broker.producing.payloads.Batches`."""
        return [each.meta.marker for each in self.stored if each.state != LEFT_OUT][at]


class ModelPayload:
    """Batches one after the other. Those that compaction left out take no bytes; the oracle wants them."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: dict[int, tuple[Stored, ...]] = {}
        self._damaged: set[int] = set()

    def add(self, batches: tuple[Stored, ...], size: int, *, damaged: bool) -> None:
        """One partition's part."""
        self._parts[self.size] = batches
        if damaged:
            self._damaged.add(self.size)
        self.size += size

    def batches(self, position: int, size: int) -> ModelBatches:
        """See `core.broker.producing.payloads.Payload`."""
        if position in self._damaged:
            raise MalformedBatchError("the checksum does not match")
        return ModelBatches(self._parts[position])

    def produced(self, position: int, size: int) -> ModelBatches:
        """See `core.broker.producing.payloads.Payload`."""
        if position in self._damaged:
            raise RefusedBatchError(ErrorCode.CORRUPT_MESSAGE, "the checksum does not match")
        return ModelBatches(self._parts[position])

"""Transactions of the simulated nodes: what their coordinators ask of others, and what is told to producers.

A run has them if its settings say so (`Settings.transactions`). Their shards are hosted as those of groups are (see
`coordinators`); here is what comes besides: requests between nodes, producer ids from the metadata store, and the
oracle of what producers and readers are told.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ...core.broker import effects as fx
from ...core.broker.events import CoordinationArrived, OutsideAnswered
from ...core.coordination.routing import TRANSACTION_TOPIC, partition_for_group
from ...core.errors import ErrorCode
from ...core.messages import FetchedTransactions
from ...core.messages import transactions as tm
from ...core.transactions.shard import (
    AllocateIds,
    IdsAllocated,
    ReadRevision,
    RevisionRead,
    TransactionCoordinator,
    TransactionSettings,
)
from ...core.types import BatchMeta, PartitionId
from ..clients.transactions import Transactor
from ..errors import require
from ..faults.traps import MARKER
from ..oracles.facts import PartitionFacts
from ..oracles.transactions import DecisionLog, Ids, Intent, Told, TransactionLog, left_out
from ..settings import INTERNAL, Settings
from ..world.disk import LEFT_OUT, Stored
from ..world.network import ModelPayload, Question
from ..world.node import Host, Node
from .coordinators import Asked, PeerAsked
from .requests import Sent

if TYPE_CHECKING:
    from ..world.cluster import Cluster

LATE = 0.2
"""How often, with faults at the end of transactions, a leader hears late whether its partition is in one."""
LATENESS = (0.2, 0.6, 1.5)
FIRST_ID = 100_000
"""Producer ids from here on are those of transactions; `facts.NAMED_FROM` is far above."""


def coordinator_settings(settings: Settings) -> TransactionSettings:
    """How the nodes of a run coordinate transactions."""
    found = TransactionSettings(abort_interval_ms=1_000, last_epoch=settings.last_epoch)
    if not settings.expires:
        return found
    return structs.replace(found, expiration_ms=round(1000 * settings.expires), expire_interval_ms=2_000)


class Transactions:
    """See the module's text."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.told = Told(cluster.settings.last_epoch)
        self.committed = self.aborted = self.reads = 0
        """Ends told, and batches in transactions that readers were given; they show that a run is about it."""
        self.transactors: list[Transactor] = []
        self._logs: dict[PartitionFacts, TransactionLog] = {}
        self._decisions: list[DecisionLog] = []
        self._next_id = FIRST_ID
        self._dice = random.Random(f"late answers {cluster.seed}")
        self._unrivalled: dict[str, Ids] = {}
        """The ids that were told last for a transactional id, if no later request may have taken it over."""

    def begin(self) -> None:
        """Producers begin."""
        for number in range(self._cluster.settings.transactions):
            transactor = Transactor(self._cluster, number)
            self.transactors.append(transactor)
            if transactor.shares_epochs:
                self.told.sharing.add(transactor.name)

    def look(self) -> None:
        """Ask for the offsets of all groups that take part."""
        for each in self.transactors:
            each.look()

    def watch(self, partition: PartitionId, facts: PartitionFacts) -> None:
        """A partition comes to be."""
        if not self._cluster.settings.transactions:
            return
        if partition.topic == TRANSACTION_TOPIC:
            self._decisions.append(DecisionLog(self.told, facts))
        else:
            log = self._logs[facts] = TransactionLog(self.told, facts)

            def take(meta: BatchMeta, payload: str, is_blind: bool) -> None:
                if not self.is_void:
                    self._read_decisions()
                    log.take(meta, payload, is_blind)

            facts.transactional = take

    def _read_decisions(self) -> None:
        """The decisions of coordinators up to now, and what they say is complete."""
        for each in self._decisions:
            each.read_on(self._cluster.coordinators.records, self._is_complete)

    def _is_complete(self, producer_id: int, partition: PartitionId) -> None:
        facts = self._cluster.oracle.partitions.get(partition)
        if facts is not None and not facts.unclean and not facts.gone:
            self._logs[facts].is_complete(producer_id)

    @property
    def is_void(self) -> bool:
        """Whether the topics that all of it rests on may have lost something: then nothing was promised."""
        known = self._cluster.oracle.known.items()
        return any(facts.unclean for (partition, _), facts in known if partition.topic in INTERNAL)

    # What coordinators ask

    def ask_store(self, node: Node, effect: fx.AskOutside) -> None:
        """Producer ids, of which none is given twice, or the store's revision."""
        cluster, asked = self._cluster, effect.message

        def write() -> object:
            if isinstance(asked, ReadRevision):
                return RevisionRead(cluster.store.revision)
            assert isinstance(asked, AllocateIds)
            first, self._next_id = self._next_id, self._next_id + asked.count
            return IdsAllocated(first, asked.count)

        def done(answer: object) -> None:
            if answer is None:
                answer = RevisionRead(None) if isinstance(asked, ReadRevision) else IdsAllocated(0, 0)
            cluster.tell(node, OutsideAnswered(effect.partition, effect.leader_epoch, answer))

        cluster.transact(node, write, done)

    def asked(self, question: Question) -> None:
        """A coordinator has markers written, or a leader has its partition added to a transaction."""
        message = question.asked.message
        assert isinstance(message, tm.AddPartitionsRequest | tm.WriteMarkersRequest)
        if self._is_too_late(question, message):
            return
        if isinstance(message, tm.WriteMarkersRequest):
            involved = question.link.dialler.id, question.link.peer.id
            for markers in message.markers:
                for at in markers.partitions:
                    self._cluster.traps.spring(MARKER, involved, PartitionId(at.topic, at.partition))
        self._cluster.tell(question.link.peer, CoordinationArrived(PeerAsked(question), message))

    def _is_too_late(
        self, question: Question, message: tm.AddPartitionsRequest | tm.WriteMarkersRequest
    ) -> bool:
        """Whether it may be about another transaction than was meant, of the same epoch.

        Such a one meets the next transaction. This is as in Kafka, and why each has an epoch of its own by now
        (KIP-890): it is not to be shown again.
        """
        about = message.markers if isinstance(message, tm.WriteMarkersRequest) else [message]
        shares = any(each.transactional_id in self.told.sharing for each in about)
        return shares and not self._cluster.network.is_awaited(question)

    def arrives(self, asked: Asked) -> bool:
        """Whether a request of a producer still arrives: nothing does of a connection that it has given up."""
        intent = asked.intent
        return intent is None or not intent.is_over or intent.name not in self.told.sharing

    def opened(self, name: str) -> None:
        """A request to take a transactional id over has arrived."""
        self._unrivalled.pop(name, None)

    def is_past(self, sent: Sent) -> bool:
        """Whether a batch comes so late that it may meet another transaction of its epoch."""
        if sent.transaction is None or sent.transaction.transactional_id not in self.told.sharing:
            return False
        intent = self.told.intents[sent.payload]
        return intent.is_over or intent.is_given_up

    def may_be_fenced(self, name: str, ids: Ids) -> bool:
        """Whether an id may be lost to who has begun with these ids."""
        if self.is_void:
            return True
        self._read_decisions()
        return name in self.told.expired or self._unrivalled.get(name) != ids

    def holds(self, intent: Intent) -> bool:
        """Whether the ids of a transaction are those that a coordinator has certainly committed last."""
        if self.is_void:
            return False
        self._read_decisions()
        value = self.told.values.get(intent.name)
        return value is not None and value.told == intent.ids

    def replied(self, node: Node, asked: PeerAsked, response: Any) -> None:
        """L5: each is answered once."""
        require(not asked.is_answered, "L5", f"{response} is a second answer")
        asked.is_answered = True
        adds = isinstance(asked.question.asked.message, tm.AddPartitionsRequest)
        is_exposed = "TE" in self._cluster.settings.faults and not self._cluster.calm
        answer = partial(self._answer, node, asked, response)
        if adds and is_exposed and self._dice.random() < LATE:
            self._cluster.later(self._dice.choice(LATENESS), answer)
        else:
            answer()

    def _answer(self, node: Node, asked: PeerAsked, response: Any) -> None:
        if node.process == asked.question.link.peer_process:
            self._cluster.network.answer(asked.question, response, ModelPayload())

    # What producers are told

    def partition_of(self, transactional_id: str) -> PartitionId | None:
        """The partition that keeps a transactional id, once the topic is there."""
        topic = self._cluster.store.topics.get(TRANSACTION_TOPIC)
        if topic is None:
            return None
        return PartitionId(TRANSACTION_TOPIC, partition_for_group(transactional_id, topic.partitions))

    def judge(self, node: Node, asked: Asked, response: tm.ProducerIdResponse) -> None:
        """S32, S35, and S29: the coordinator knows its whole log."""
        message, intent = asked.message, asked.intent
        if self.is_void:
            return
        if response.error == ErrorCode.TRANSACTION_ABORTED and intent is not None:
            self.told.ended(intent, False)
        if response.error:
            return
        self._read_decisions()
        partition = self.partition_of(message.transactional_id)
        assert partition is not None
        self._cluster.coordinators.is_loaded(node, partition)
        ids = response.producer_id, response.producer_epoch
        if intent is not None:
            self.told.ended(intent, message.committed, ids)
            self.committed += message.committed
            self.aborted += not message.committed
        name, goes_on = message.transactional_id, message.producer_id >= 0
        if intent is None and not self._cluster.coordinators.is_opening(name):
            latest = self.told.values.get(name)
            if latest is not None and latest.told == ids:
                self._unrivalled[name] = ids
        self.told.given(name, ids, asked.asker, is_first=intent is None, goes_on=goes_on)

    def read(self, host: Host, told: FetchedTransactions, batches: Sequence[Stored]) -> None:
        """S33: a reader of committed records takes those of committed transactions, all of them, and no others."""
        facts = host.facts
        if facts.unclean or facts.gone or self.is_void:
            return
        log = self._logs[facts]
        there = [(meta, payload) for meta, payload, state in batches if state != LEFT_OUT]
        aborted: dict[int, list[int]] = {}
        for each in told.aborted:
            aborted.setdefault(each.producer_id, []).append(each.first_offset)
        dropped = left_out(aborted, [meta for meta, _ in there])
        for (meta, payload), is_dropped in zip(there, dropped, strict=True):
            if meta.transactional and meta.marker is None:
                self.reads += 1
                outcome = log.ended.get(self.told.intents[payload])
                right = outcome is not None and outcome is not is_dropped
                require(
                    right, "S33", f"{host.name}: {meta} is dropped: {is_dropped}, is committed: {outcome}"
                )

    # Calm

    def check_health(self) -> None:
        """L17: every transaction has ended, and each producer has committed one more. S32: of those that were told
        to be committed each partition has the marker.
        """
        if self.is_void or not self._cluster.settings.transactions:
            return
        self._read_decisions()
        for facts, log in self._logs.items():
            if not facts.unclean and not facts.gone:
                require(not log.open, "L17", f"{facts.name}: transactions that nobody ends: {log.open}")
        self._check_leaders()
        require(not self.unfinished, "L17", self.unfinished)
        for intent in {*self.told.intents.values()}:
            for facts in intent.acknowledged if intent.told is not None else ():
                there = facts.unclean or facts.gone or self._logs[facts].ended.get(intent) is intent.told
                require(there, "S32", f"{facts.name}: no marker of {intent}, told: {intent.told}")

    @property
    def unfinished(self) -> list[str]:
        """The producers that have not committed in calm."""
        return [each.unfinished for each in self.transactors if each.unfinished]

    def _check_leaders(self) -> None:
        cluster = self._cluster
        for partition, versioned in cluster.store.partitions.items():
            node = cluster.nodes.get(versioned.record.leader)
            host = node.hosts.get(partition) if node is not None else None
            if node is None or node.broker is None or host is None or host.replica is None:
                continue
            log, held = host.replica.log, host.facts.unclean
            stable, end = log.last_stable_offset, log.high_watermark
            require(held or stable == end, "L17", f"{host.name} is stable up to {stable} of {end}")
            machine = node.broker.shards.machine(partition)
            if isinstance(machine, TransactionCoordinator):
                open_ones = [each for each in machine.transactions.items() if not each[1].status.is_idle]
                require(not open_ones, "L17", f"node {node.id} does not end {open_ones}")

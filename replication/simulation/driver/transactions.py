"""Transactions of the simulated nodes: what their coordinators ask of others, and what is told to producers.

A run has them if its settings say so (`Settings.transactions`). Their shards are hosted as those of groups are (see
`coordinators`); here is what comes besides: requests between nodes, producer ids from the metadata store, and the
oracle of what producers and readers are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
from ..oracles.transactions import DecisionLog, Ids, Told, TransactionLog, left_out
from ..settings import INTERNAL
from ..world.disk import LEFT_OUT, Stored
from ..world.network import ModelPayload, Question
from ..world.node import Host, Node
from .coordinators import Asked, PeerAsked

if TYPE_CHECKING:
    from ..world.cluster import Cluster

SETTINGS = TransactionSettings(abort_interval_ms=1_000)
FIRST_ID = 100_000
"""Producer ids from here on are those of transactions; `facts.NAMED_FROM` is far above."""


class Transactions:
    """See the module's text."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.told = Told()
        self.committed = self.aborted = self.reads = 0
        """Ends told, and batches in transactions that readers were given; they show that a run is about it."""
        self.transactors: list[Transactor] = []
        self._logs: dict[PartitionFacts, TransactionLog] = {}
        self._decisions: list[DecisionLog] = []
        self._next_id = FIRST_ID

    def begin(self) -> None:
        """Producers begin."""
        for number in range(self._cluster.settings.transactions):
            self.transactors.append(Transactor(self._cluster, number))

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

            def take(meta: BatchMeta, is_blind: bool) -> None:
                if self.is_void:
                    return
                if meta.marker is not None:
                    self._read_decisions()
                    ids = meta.producer_id, meta.producer_epoch - 1
                    self.told.marked(ids, meta.marker.committed, facts.name)
                log.take(meta, is_blind)

            facts.transactional = take

    def _read_decisions(self) -> None:
        """The decisions of coordinators up to now, and what they say is complete."""
        for each in self._decisions:
            each.read_on(self._cluster.coordinators.records, self._is_complete)

    def _is_complete(self, ids: Ids, partition: PartitionId) -> None:
        facts = self._cluster.oracle.partitions.get(partition)
        # The topic that had the name then may be another one.
        if facts is None or facts.unclean or facts.gone or self._cluster.settings.recreations:
            return
        self._logs[facts].is_complete(ids)

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
        if isinstance(message, tm.WriteMarkersRequest):
            involved = question.link.dialler.id, question.link.peer.id
            for markers in message.markers:
                for at in markers.partitions:
                    self._cluster.traps.spring(MARKER, involved, PartitionId(at.topic, at.partition))
        self._cluster.tell(question.link.peer, CoordinationArrived(PeerAsked(question), message))

    def replied(self, node: Node, asked: PeerAsked, response: Any) -> None:
        """L5: each is answered once."""
        require(not asked.is_answered, "L5", f"{response} is a second answer")
        asked.is_answered = True
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
        message = asked.message
        if self.is_void:
            return
        ends = isinstance(message, tm.EndTransactionRequest)
        if ends and response.error == ErrorCode.TRANSACTION_ABORTED:
            self.told.ended((message.producer_id, message.producer_epoch), False)
        if response.error:
            return
        partition = self.partition_of(message.transactional_id)
        assert partition is not None
        self._cluster.coordinators.is_loaded(node, partition)
        if ends:
            self.told.ended((message.producer_id, message.producer_epoch), message.committed)
            self.committed += message.committed
            self.aborted += not message.committed
        ids = response.producer_id, response.producer_epoch
        self.told.given(ids, asked.asker, is_first=not ends)

    def read(self, host: Host, told: FetchedTransactions, batches: Sequence[Stored]) -> None:
        """S33: a reader of committed records takes those of committed transactions, all of them, and no others."""
        facts = host.facts
        if facts.unclean or facts.gone or self.is_void:
            return
        log = self._logs[facts]
        metas = [meta for meta, _, state in batches if state != LEFT_OUT]
        aborted: dict[int, list[int]] = {}
        for each in told.aborted:
            aborted.setdefault(each.producer_id, []).append(each.first_offset)
        for meta, is_dropped in zip(metas, left_out(aborted, metas), strict=True):
            if meta.transactional and meta.marker is None:
                self.reads += 1
                outcome = log.ended.get((meta.producer_id, meta.producer_epoch))
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
        unfinished = [each.unfinished for each in self.transactors if each.unfinished]
        require(not unfinished, "L17", unfinished)
        for ids, places in self.told.acknowledged.items():
            for facts in places if self.told.ends.get(ids) is not None else ():
                there = facts.unclean or facts.gone or self._logs[facts].ended.get(ids) is self.told.ends[ids]
                require(there, "S32", f"{facts.name}: no marker of {ids}, told: {self.told.ends[ids]}")

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

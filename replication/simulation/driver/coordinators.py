"""Coordinators of the simulated nodes: shards that the production broker hosts, over model logs; and their oracle.

A run has them if its settings say so (`Settings.groups`). The model keeps the keys and values of what shards write,
reads their logs piece by piece, late or not at all, and carries requests of clients to nodes and answers back. The
oracle judges the answers by the committed log alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from ...core.broker import effects as fx
from ...core.broker.coordination.shards import ShardKind
from ...core.broker.events import CoordinationArrived, ShardRead
from ...core.control.internal_topics import InternalTopic
from ...core.coordination.routing import GROUP_TOPIC, partition_for_group
from ...core.coordination.shard_events import Entry, Marker, ProducerId
from ...core.groups import records as r
from ...core.groups.settings import GroupSettings
from ...core.messages import groups as gm
from ...core.messages import transactions as tm
from ...core.types import BatchMeta, PartitionId, TransactionMarker
from ..errors import require
from ..faults.traps import END
from ..oracles.groups.facts import ISOLATION, MAX_SIZE, NOTHING, OFFSETS_KEPT, SESSION, Topics, Written
from ..oracles.groups.log import GroupLog, Records
from ..oracles.groups.watched import WatchedShard
from ..oracles.transactions import Intent
from ..settings import INTERNAL, Topic
from ..world.disk import WHOLE, Disk, Stored
from ..world.network import ModelBatches, Question
from ..world.node import Host, Node
from .fetches import BATCH_SIZE

if TYPE_CHECKING:
    from ..world.cluster import Cluster

SETTINGS = GroupSettings(
    consumer_session_timeout_ms=int(1000 * SESSION),
    consumer_heartbeat_interval_ms=2_000,
    offsets_retention_ms=int(1000 * OFFSETS_KEPT),
    offsets_retention_check_interval_ms=3_000,
    max_size=MAX_SIZE,
    isolation_timeout_ms=int(1000 * ISOLATION),
)
WALL = 1_700_000_000.0
"""The time on the wall clock when a node's clock shows 0."""
READ_FAILS = 0.05
"""How often a piece of a log cannot be read."""
LATE_READ = 0.1
"""How often reading one takes `LONG_READ` seconds at most."""
LONG_READ = 4.0
ROUNDING = 1e-6
_ABOUT_ENDS = (tm.InitTransactionsRequest, tm.EndTransactionRequest)
COMPACTED = 0.8
"""How likely a cleaner takes out a record that it may."""
LOADS_WITHIN = 5.0
"""Seconds from the beginning of a leadership."""
LONG_LOAD = 100
"""Records that are left to read, two batches at a time, within so long."""
OVERDUE = 20.0
"""After so many seconds a request has certainly been answered, or its process is gone."""
WAITS_FOR_AN_END = 15.0
"""For so much longer one about a transaction may wait for the end of another."""


def internal_topics(topics: Sequence[Topic]) -> dict[str, InternalTopic]:
    """How controllers make the internal topics that a run has."""
    return {
        each.name: InternalTopic(
            name=each.name, partitions=each.partitions, replication_factor=each.replication_factor
        )
        for each in topics
        if each.name in INTERNAL
    }


class BatchMaker:
    """See `core.broker.ports.BatchPort`. A batch's payload is a name, by which its records are kept."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def build(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        producer: ProducerId | None,
        max_bytes: int,
    ) -> ModelBatches:
        payload = f"shard:{self._cluster.new_id()}"
        self._cluster.coordinators.built(payload, tuple(records))
        meta = BatchMeta(-1, len(records), -1, BATCH_SIZE)
        if producer is not None:
            meta = meta._replace(
                producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True
            )
            self._cluster.coordinators.ends[payload] = producer.producer_id, None
            told = self._cluster.transactions.told
            told.intents[payload] = told.latest[producer.producer_id, producer.producer_epoch]
        return ModelBatches((Stored(meta, payload),))

    def marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        timestamp_ms: int,
    ) -> ModelBatches:
        payload = f"marker:{producer_id}:{producer_epoch}:{self._cluster.new_id()}"
        self._cluster.coordinators.ends[payload] = producer_id, committed
        said = TransactionMarker(committed, coordinator_epoch)
        meta = BatchMeta(-1, 1, -1, BATCH_SIZE, producer_id, producer_epoch, -1, True, said)
        return ModelBatches((Stored(meta, payload),))


@attrs.define(eq=False)
class Asked:
    """One request to a node. `committed`: the length of its partition's committed log when it has arrived."""

    message: Any
    told: Callable[[Any], None]
    node: int = 0
    process: int = 0
    arrived: float = -1.0
    committed: int = 0
    asker: object = None
    """The transactional producer that asks."""
    intent: Intent | None = None
    """The transaction that is meant."""


@attrs.define(eq=False)
class PeerAsked:
    """A question of another node that a coordinator, or a partition's leader, is to answer."""

    question: Question
    is_answered: bool = False


class Coordinators:
    """See the module's text."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.records: dict[str, Records] = {}
        """The records of each batch of a shard, by its payload."""
        self.ends: dict[str, tuple[int, bool | None]] = {}
        """By payload, of batches in transactions: the producer id, and of a marker whether it commits."""
        self.commits = self.loads = self.reads = self.beats = 0
        """Good answers, and shards that were loaded; they show that a run is about something."""
        self._waiting: dict[Asked, None] = {}
        self.topics = Topics()
        self.writing: Written | None = None
        """The batch of a shard of groups that is being built."""
        self._written: dict[str, Written] = {}
        """The batches of shards of groups, by payload."""
        self._decoded: dict[str, list[tuple[Any, Any]]] = {}
        """The same as shards read them: each is read by many, and again and again."""
        self._shards: dict[tuple[int, PartitionId], WatchedShard] = {}
        """By node: the shard of each of its partitions of groups, or the last that it had."""
        self._calm_since: dict[int, float] = {}
        """Since when nothing arrives late any more, by the clock of each node."""
        self._logs: dict[PartitionId, GroupLog] = {}
        self._covered: dict[tuple[int, int, PartitionId, int], int] = {}
        """By node, process, partition and leader epoch: up to where its log was handed to its shard."""
        self._led: dict[PartitionId, dict[int, dict[int, float]]] = {}
        """By partition and leader epoch: what the clock of each node showed when that leadership began."""
        self._obey: dict[type, Callable[[Node, Any], None]] = {
            fx.CoordinatorReply: self._replied,
            fx.ReadShard: self._read,
            fx.ShardLoaded: self._loaded,
            fx.ShardUnreadable: self._unreadable,
            fx.ShardFaulty: self._faulty,
            fx.GroupNoted: self._noted,
            fx.CreateInternalTopic: self._create,
        }

    def obey(self, node: Node, effect: Any) -> None:
        """Carry out what the broker of a node asks for."""
        self._obey[type(effect)](node, effect)

    # Requests

    def ask(
        self,
        node: Node,
        message: Any,
        told: Callable[[Any], None],
        asker: object = None,
        intent: Intent | None = None,
    ) -> None:
        """Send a request to a node; `told` gets the answer, if it comes."""
        asked = Asked(message, told, asker=asker, intent=intent)
        self._cluster.send(0, node, partial(self._arrive, node, asked))

    def _arrive(self, node: Node, asked: Asked) -> None:
        if node.broker is None or asked.arrived >= 0:
            return  # a connection tells nothing twice
        if not self._cluster.transactions.arrives(asked):
            return
        asked.node, asked.process, asked.arrived = node.id, node.process, self._cluster.now
        log = self.log_of_group(asked.message.group) if hasattr(asked.message, "group") else None
        asked.committed = log.length if log is not None else 0
        self._waiting[asked] = None
        if isinstance(asked.message, tm.InitTransactionsRequest):
            self._cluster.transactions.opened(asked.message.transactional_id)
        if isinstance(asked.message, tm.EndTransactionRequest):
            partition = self._cluster.transactions.partition_of(asked.message.transactional_id)
            if partition is not None:  # a store that was put back may not know the topic
                self._cluster.traps.spring(END, (node.id,), partition)
        self._cluster.tell(node, CoordinationArrived(asked, asked.message))

    def _replied(self, node: Node, effect: fx.CoordinatorReply) -> None:
        """L5: each request is answered once."""
        asked = effect.request
        if isinstance(asked, PeerAsked):
            self._cluster.transactions.replied(node, asked, effect.response)
            return
        assert isinstance(asked, Asked)
        require(asked in self._waiting, "L5", "{} answers nothing that waits", effect.response)
        del self._waiting[asked]
        if isinstance(asked.message, _ABOUT_ENDS):
            assert isinstance(effect.response, tm.ProducerIdResponse)
            self._cluster.transactions.judge(node, asked, effect.response)
        elif not getattr(effect.response, "error", 0):
            self._judge(node, asked, effect.response)
        self._cluster.send(node.id, None, partial(asked.told, effect.response))

    def is_opening(self, name: str) -> bool:
        """Whether a request to take a transactional id over waits for its answer."""
        found = (each.message for each in self._waiting)
        return any(
            isinstance(each, tm.InitTransactionsRequest) and each.transactional_id == name for each in found
        )

    def overdue(self, *, without: int | None = None) -> list[Any]:
        """Requests that are not answered though there was time."""
        nodes, now = self._cluster.nodes, self._cluster.now
        return [
            asked.message
            for asked in self._waiting
            if asked.arrived < now - OVERDUE - WAITS_FOR_AN_END * isinstance(asked.message, _ABOUT_ENDS)
            and asked.node != without
            and nodes[asked.node].process == asked.process
            and nodes[asked.node].broker is not None
        ]

    # What an answer promises

    def partition_of(self, group: str) -> PartitionId | None:
        """The partition that keeps a group, once the topic is there."""
        topic = self._cluster.store.topics.get(GROUP_TOPIC)
        return (
            None if topic is None else PartitionId(GROUP_TOPIC, partition_for_group(group, topic.partitions))
        )

    def log_of_group(self, group: str) -> GroupLog | None:
        """The committed log that keeps a group."""
        partition = self.partition_of(group)
        return self.log_of(partition) if partition is not None else None

    def log_of(self, partition: PartitionId) -> GroupLog | None:
        """The committed log of a partition, all of it read; None where nothing is promised any more."""
        facts = self._cluster.oracle.partitions.get(partition)
        if facts is None or facts.unclean:
            return None
        log = self._logs.get(partition)
        if log is None:
            log = self._logs[partition] = GroupLog(facts, self.topics)
        log.read_on(self.records, self.ends, self._written)
        return log

    def _judge(self, node: Node, asked: Asked, response: Any) -> None:
        """Judge an answer without an error."""
        message = asked.message
        partition = self.partition_of(message.group) if hasattr(message, "group") else None
        log = self.log_of(partition) if partition is not None else None
        if log is None or partition is None:
            return
        self.is_loaded(node, partition)
        match response:
            case gm.CommitGroupOffsetsResponse():
                self._is_committed(message, response, log)
            case gm.GroupOffsetsResponse():
                self._is_current(node, asked, response, log)
            case gm.ConsumerGroupHeartbeatResponse() if message.member_epoch >= 0:
                self.beats += 1
                given = message.group, response.member_id, response.member_epoch
                require(given in log.given, "S28", "node {}: {} is told, and not committed", node.id, given)
                self._has_lease(node, partition)

    def is_loaded(self, node: Node, partition: PartitionId) -> None:
        """S29: its log was read up to where its leader epoch begins, and all of that is committed."""
        host = node.hosts.get(partition)
        role = host.replica.leader if host is not None and host.replica is not None else None
        if host is None or role is None:
            return  # what it tells yet is judged by what it says
        place = node.id, node.process, partition, role.epoch
        covered = self._covered.get(place, role.replica.log.log_start_offset)
        require(covered >= role.epoch_start, "S29", "{} serves, and was read up to {}", host.name, covered)
        high_watermark = role.replica.log.high_watermark
        decided = high_watermark >= role.epoch_start
        require(
            decided, "S29", "{} serves at {}, its epoch at {}", host.name, high_watermark, role.epoch_start
        )

    def _is_committed(
        self,
        message: gm.CommitGroupOffsetsRequest | gm.TxnOffsetCommitRequest,
        response: gm.CommitGroupOffsetsResponse,
        log: GroupLog,
    ) -> None:
        """S28: a commit that is told to be done is in the committed log, once; within a transaction also again."""
        may_repeat = isinstance(message, gm.TxnOffsetCommitRequest)
        done = {(each.topic, each.partition) for each in response.partitions if not each.error}
        for each in message.offsets:
            if (each.topic, each.partition) in done:
                self.commits += 1
                count, name = log.marks[each.metadata], log.facts.name
                right = count == 1 or (may_repeat and count > 1)
                require(right, "S28", "{}: {} is told, and committed {} times", name, each, count)

    def _is_current(self, node: Node, asked: Asked, response: gm.GroupOffsetsResponse, log: GroupLog) -> None:
        """S29: an offset that is told was the last one when its request came, or has become it since."""
        if self._cluster.settings.recreations:
            return  # what was committed to another topic of that name is told to nobody
        self.reads += 1
        group, right = asked.message.group, log.told_since(asked.committed)
        told = {r.OffsetKey(group, each.topic, each.partition): each for each in response.offsets}
        whole = asked.message.partitions is None
        for key in {*told, *(each for each in right if whole and each.group == group)}:
            each = told.get(key)
            if each is not None and each.error:
                continue
            found = (each.offset, each.metadata) if each is not None else (NOTHING.offset, NOTHING.metadata)
            allowed = right.get(key, [(NOTHING.offset, NOTHING.metadata)])
            invariant = "S34" if key in log.transactional else "S29"
            require(found in allowed, invariant, f"node {node.id} tells {found} of {key}, right is {allowed}")
            is_open = asked.message.require_stable and log.is_open(key, asked.committed)
            require(
                not is_open, "S34", f"node {node.id} tells {found} of {key} as stable, and it is undecided"
            )

    def _has_lease(self, node: Node, partition: PartitionId) -> None:
        """S30: nobody renews a member's lease for longer than the isolation timeout after another has begun."""
        assert node.broker is not None
        for each in node.broker.shards.facts():
            if each.partition != partition:
                continue
            for epoch, clocks in self._led.get(partition, {}).items():
                if epoch > each.leader_epoch:
                    late = node.clock(self._cluster.now) - clocks[node.id]
                    require(
                        late <= ISOLATION + ROUNDING,
                        "S30",
                        "node {} of epoch {} renews {:g} s after epoch {}",
                        node.id,
                        each.leader_epoch,
                        late,
                        epoch,
                    )

    # Logs

    def leads(self, host: Host, leader_epoch: int) -> None:
        """A replica has begun to lead."""
        if host.partition.topic in INTERNAL:
            clocks = {node.id: node.clock(self._cluster.now) for node in self._cluster.nodes.values()}
            self._led.setdefault(host.partition, {}).setdefault(leader_epoch, clocks)

    def _read(self, node: Node, effect: fx.ReadShard) -> None:
        """As it is when the reading begins; what comes late may have been cut off meanwhile."""
        cluster, host = self._cluster, node.hosts.get(effect.partition)
        assert host is not None and host.replica is not None and node.broker is not None
        covered = partial(self._cover, host, host.replica.leader_epoch)
        covered(effect.start, host.disk.start)
        decode = node.broker.shards.kinds[effect.partition.topic].decode
        disk, start = host.disk, max(effect.start, host.disk.start)
        is_slow = node.id % 2 and (not cluster.calm or effect.end - effect.start < LONG_LOAD)
        found = disk.read(start, effect.end, 2 if is_slow else 20)
        entries = tuple(
            entry
            for batch in found
            if batch.state == WHOLE
            for entry in self._entries(disk, batch, decode)
            if entry.offset >= start
        )
        next_offset = max(found[-1].meta.next_offset, start + 1) if found else effect.end
        read = ShardRead(effect.partition, effect.reading, entries, next_offset)
        fails = not cluster.calm and cluster.chance(READ_FAILS)
        if fails or disk.damage(found) is not None or disk.end < effect.end:
            read = read._replace(entries=None, next_offset=-1)
        delay = cluster.delay()
        if not cluster.calm and cluster.chance(LATE_READ):
            delay = LONG_READ * cluster.random.random()

        def done() -> None:
            if read.entries is not None:
                covered(effect.start, read.next_offset)
            cluster.tell(node, read)

        cluster.on(node, delay, done)

    def _entries(self, disk: Disk, batch: Stored, decode: Callable[..., Any]) -> list[Entry | Marker]:
        """The entries that a shard reads of one batch."""
        meta = batch.meta
        producer = ProducerId(meta.producer_id, meta.producer_epoch) if meta.transactional else None
        if meta.marker is not None:
            assert producer is not None
            return [Marker(meta.base_offset, producer, meta.marker.committed)]
        decoded = self._decoded.get(batch.payload)
        if decoded is None:
            decoded = [decode(key, value) for key, value in self.records[batch.payload]]
            self._decoded[batch.payload] = decoded
        return [
            Entry(meta.base_offset + at, key, value, producer)
            for at, (key, value) in enumerate(decoded)
            if meta.base_offset + at not in disk.compacted
        ]

    def _cover(self, host: Host, leader_epoch: int, start: int, end: int) -> None:
        """Of the log that is read for that leadership, [start, end) is handed to its shard."""
        place = host.node.id, host.node.process, host.partition, leader_epoch
        known = self._covered.setdefault(place, host.disk.start)
        if start <= known:
            self._covered[place] = max(known, end)

    def _loaded(self, node: Node, effect: fx.ShardLoaded) -> None:
        self.loads += 1
        self._cluster.note(f"node {node.id}: {effect}")

    def _unreadable(self, node: Node, effect: fx.ShardUnreadable) -> None:
        """The log is given up, as a node does: another replica leads, if there is one."""
        self._cluster.note(f"node {node.id}: {effect}")
        if effect.partition in node.hosts and effect.partition not in node.offline:
            self._cluster.members.take_offline(node, [effect.partition])
            if self._cluster.calm:
                # It has read before, and stood still until now; its operator, who has mended the others, starts it.
                self._cluster.restart(node)

    def _faulty(self, node: Node, effect: fx.ShardFaulty) -> None:
        require(False, "S28", f"node {node.id}: {effect.problem}")

    def _noted(self, node: Node, effect: fx.GroupNoted) -> None:
        if self._cluster.trace.keep:
            self._cluster.note(f"node {node.id}: {effect.group}: {effect.reason}")

    def _create(self, node: Node, effect: fx.CreateInternalTopic) -> None:
        """Run by run it is made as any other topic is, when all nodes are there to get replicas."""
        self._cluster.topics.look()

    def compact(self, host: Host, dice: random.Random) -> None:
        """Take records of groups out of a replica that a later one of their key replaces, as a cleaner does."""
        node, replica = host.node, host.replica
        if node.broker is None or node.paused or replica is None or host.partition in node.offline:
            return
        decided: dict[int, bool] = {}
        seen: set[Any] = set()
        gone: list[int] = []
        for each in reversed(self._all_entries(host, min(replica.log.high_watermark, host.disk.end))):
            producer_id = each.producer.producer_id if each.producer is not None else -1
            if isinstance(each, Marker):
                decided[producer_id] = each.committed
            elif producer_id >= 0 and producer_id not in decided:
                # From an open transaction on nothing replaces anything.
                seen, gone = set(), []
            elif not decided.get(producer_id, True) or each.key in seen:
                gone.append(each.offset)
            elif each.key is not None:
                seen.add(each.key)
        host.disk.compacted.update(each for each in gone if dice.random() < COMPACTED)

    def _all_entries(self, host: Host, end: int) -> list[Entry | Marker]:
        decode = host.node.broker.shards.kinds[host.partition.topic].decode  # type: ignore[union-attr]
        batches = [each for each in host.disk.batches if each.meta.next_offset <= end]
        return [entry for batch in batches for entry in self._entries(host.disk, batch, decode)]

    # Shards

    def built(self, payload: str, records: Records) -> None:
        """A shard's batch has got its bytes."""
        self.records[payload] = records
        if self.writing is not None:
            self._written[payload], self.writing.payload = self.writing, payload
            self.writing = None

    def watch(self, node: Node, partition: PartitionId, kind: ShardKind) -> WatchedShard:
        """The shard of a leadership of a node."""
        shard = self._shards[node.id, partition] = WatchedShard(self, partition, kind)
        return shard

    def stepped(self) -> None:
        """Count a step of a shard."""
        self._cluster.events += 1

    @property
    def now(self) -> float:
        """The virtual time."""
        return self._cluster.now

    def look(self) -> None:
        """G7 and GL1, once in a while: what shards hold is what their logs say, and in calm no member is silent."""
        cluster = self._cluster
        for (number, partition), shard in self._shards.items():
            node = cluster.nodes[number]
            if node.broker is None or node.paused or self.log_of(partition) is None:
                continue
            if not any(each.partition == partition and each.active for each in node.broker.shards.facts()):
                continue
            host = node.hosts[partition]
            if host.busy_since is None and not host.jobs:
                shard.check_replay(partial(self._all_entries, host, host.disk.end))
            if cluster.calm and self.can_commit(partition):
                now = node.clock(cluster.now)
                shard.check_silent(now, self._calm_since.setdefault(number, now))

    def leads_since(self, partition: PartitionId, node: Node) -> float:
        """Seconds for which a node has led a partition, by its own clock."""
        clocks = self._led.get(partition, {})
        return node.clock(self.now) - clocks[max(clocks)][node.id] if clocks else 0.0

    def can_commit(self, partition: PartitionId) -> bool:
        """Whether enough of its replicas are in sync."""
        record = self._cluster.store.partitions[partition].record
        return len(record.isr) >= record.min_isr

    def settled(self, node: Node) -> None:
        """S31: when a turn has ended, a node has a shard for each partition that it leads, and no others."""
        broker = node.broker
        assert broker is not None
        led = {
            partition: replica.leader_epoch
            for partition, replica in broker.context.replicas.items()
            if partition.topic in INTERNAL and replica.leader is not None
        }
        hosted = {each.partition: each.leader_epoch for each in broker.shards.facts()}
        require(hosted == led, "S31", "node {} has shards {}, and leads {}", node.id, hosted, led)

    def check_health(self, *, without: int | None = None) -> None:
        """L5, L16: every request was answered, and each leader coordinates."""
        overdue = self.overdue(without=without)
        require(not overdue, "L5", "never answered: {}", overdue[:1])
        for partition, versioned in self._cluster.store.partitions.items():
            node = self._cluster.nodes.get(versioned.record.leader)
            if partition.topic not in INTERNAL or node is None or node.id == without or node.broker is None:
                continue
            if not self.can_commit(partition) or self.leads_since(partition, node) < LOADS_WITHIN:
                continue
            active = {each.partition for each in node.broker.shards.facts() if each.active}
            require(
                partition in active, "L16", "node {} leads {}, and does not coordinate", node.id, partition
            )

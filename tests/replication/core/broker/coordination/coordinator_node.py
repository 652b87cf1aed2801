"""A node that coordinates groups and transactions: its log takes at once what it is given, its followers fetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from insync.replication.core.broker.context import BrokerSettings, Context
from insync.replication.core.broker.effects import (
    Answer,
    CoordinatorReply,
    Effect,
    ReadShard,
)
from insync.replication.core.broker.events import (
    CoordinationArrived,
    Event,
    FetchArrived,
    Report,
    ViewRead,
)
from insync.replication.core.broker.machine import Broker
from insync.replication.core.broker.ports import BatchTooLarge
from insync.replication.core.control.records import NodeRecord, PartitionRecord, TopicRecord, Versioned
from insync.replication.core.control.topics import TopicConfig
from insync.replication.core.control.view import ClusterView
from insync.replication.core.coordination.routing import GROUP_TOPIC
from insync.replication.core.groups.settings import GroupSettings
from insync.replication.core.messages import FetchPartition, FetchRequest
from insync.replication.core.messages import groups as gm
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.types import EpochEntry, PartitionId
from tests.replication.core.partition.test_isr_change import LIVE, A, B, C

from ..desk import Batches, Info
from ..fetching.test_serving import Peer
from ..test_broker import NoLogs

PARTITION = PartitionId(GROUP_TOPIC, 0)
SESSION_MS = 10_000
SETTINGS = GroupSettings(consumer_session_timeout_ms=SESSION_MS, consumer_heartbeat_interval_ms=2_000)
SIZE_OF_RECORD = 50
CONNECTIONS = {each: f"of {each}" for each in (B, C)}
"""Compared by identity."""


class Maker:
    """Batches without bytes; what they hold stands in `made`."""

    def __init__(self) -> None:
        self.made: list[Sequence[tuple[bytes, bytes | None]]] = []

    def build(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timestamp_ms: int,
        producer: object,
        max_bytes: int,
    ) -> Batches:
        size = SIZE_OF_RECORD * len(records)
        if size > max_bytes:
            raise BatchTooLarge
        self.made.append(records)
        return Batches([Info(base_offset=0, count=len(records), size_bytes=size, leader_epoch=-1)])


class Marking(Maker):
    """Makes markers, too."""

    def marker(self, producer_id: int, producer_epoch: int, **said: object) -> Batches:
        info = Info(
            base_offset=0,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            leader_epoch=-1,
            is_control=True,
            is_transactional=True,
        )
        return Batches([info])


class Node:
    """Node A, which leads the one partition of the internal topic; B and C follow if they are in `isr`."""

    def __init__(
        self,
        *isr: int,
        leader: int = A,
        log_end: int = 0,
        max_message_bytes: int = 16 << 20,
        is_open: bool = True,
    ) -> None:
        self.now = 100.0
        self.maker = Maker()
        settings = BrokerSettings(groups=SETTINGS)
        self.context = Context(A, LIVE[A], settings, NoLogs(), self.maker)
        self.broker = Broker(self.context, b"a seed")
        self.isr = isr or (A,)
        self.elr: tuple[int, ...] = ()
        self.min_isr = 1
        self.config = TopicConfig(cleanup_policy="compact", max_message_bytes=max_message_bytes)
        self.revision = self.version = 0
        self.epoch, self.leader = 1, leader
        self.log_end = log_end
        self.effects: list[Effect] = []
        self.reads: list[ReadShard] = []
        self.said: dict[str, Any] = {}
        self.sessions: dict[int, tuple[int, int]] = {}
        topic = TopicRecord(
            name="t", topic_id="a" * 32, partitions=4, replication_factor=1, config=TopicConfig()
        )
        self.topics = {"t": topic}
        self.look()
        if is_open:
            self.open()

    def open(self) -> None:
        """The log is made, or found."""
        epochs = (EpochEntry(0, 0),) if self.log_end else ()
        opened = ev.Opened(
            log_start_offset=0, log_end_offset=self.log_end, high_watermark=0, epochs=epochs, producers=()
        )
        self.tell(Report(PARTITION, opened))
        if self.leader == A:
            self.tell(Report(PARTITION, ev.EpochAssigned()))

    def look(self) -> None:
        """The store is read."""
        self.tell(ViewRead(self.view()))

    def view(self) -> ClusterView:
        """What the store says now."""
        self.revision += 1
        self.version += 1
        record = PartitionRecord(
            topic=GROUP_TOPIC,
            partition=0,
            topic_id="0" * 32,
            replicas=(A, B, C),
            isr=self.isr,
            elr=self.elr,
            leader=self.leader,
            leader_epoch=self.epoch,
            partition_epoch=self.version,
            min_insync_replicas=self.min_isr,
        )
        internal = TopicRecord(
            name=GROUP_TOPIC, topic_id="0" * 32, partitions=1, replication_factor=3, config=self.config
        )
        return ClusterView(
            revision=self.revision,
            nodes={
                each: NodeRecord(node_id=each, incarnation=LIVE[each], endpoints=(f"tcp://{each}:1",))
                for each in (A, B, C)
            },
            topics={**self.topics, GROUP_TOPIC: internal},
            partitions={PARTITION: Versioned(record, self.version)},
        )

    def tell(self, event: Event) -> list[Effect]:
        effects = self.broker.step(event, self.now)
        if self.context.is_unsettled:
            effects = effects + self.broker.settle(self.now)
        return self._obey(effects)

    def _obey(self, effects: list[Effect]) -> list[Effect]:
        """Appends are written at once."""
        found = list(effects)
        for effect in effects:
            if isinstance(effect, CoordinatorReply):
                assert isinstance(effect.request, str) and effect.request not in self.said
                self.said[effect.request] = effect.response
            elif isinstance(effect, ReadShard):
                self.reads.append(effect)
            elif isinstance(effect, fx.Append):
                self.log_end = effect.batches[-1].next_offset
                found += self.tell(Report(PARTITION, ev.Appended(log_end_offset=self.log_end)))
        self.effects = found
        return found

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, with a tick at each deadline."""
        end, found = self.now + seconds, []
        while self.broker.deadline <= end:
            self.now = max(self.now, self.broker.deadline)
            effects = self.broker.tick(self.now)
            if self.context.is_unsettled:
                effects += self.broker.settle(self.now)
            found += self._obey(effects)
        self.now = end
        return found

    def stand_still(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, name: str, message: Any) -> Any:
        """The reply, None if there is none yet."""
        self.tell(CoordinationArrived(name, message))
        return self.said.get(name)

    def fetch(self, node: int, *, old: bool = False, silent: bool = False) -> bool:
        """A follower asks for what follows all that there is; whether it is answered at once.

        old: it goes on from the answer before the last one, which it has not had.
        silent: it names no question, for none has changed.
        """
        session, answers = self.sessions.get(node, (0, 0))
        question = FetchPartition(
            topic=GROUP_TOPIC,
            partition=0,
            fetch_offset=self.log_end,
            max_bytes=1000,
            leader_epoch=self.epoch,
            last_fetched_epoch=self.epoch if self.log_end else -1,
            high_watermark=self.log_end,
            topic_id="0" * 32,
        )
        message = FetchRequest(
            replica_id=node,
            incarnation=LIVE[node],
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=1000,
            partitions=[] if silent else [question],
            session_id=session,
            session_epoch=answers - 1 if old else answers,
        )
        return self.answered(
            node, self.tell(FetchArrived(CONNECTIONS[node], f"by {node}", message, Peer(node)))
        )

    def answered(self, node: int, effects: list[Effect]) -> bool:
        """Whether a follower's request was answered among these."""
        for each in effects:
            if isinstance(each, Answer) and each.request == f"by {node}":
                _, answers = self.sessions.get(node, (0, 0))
                assert not each.response.error
                self.sessions[node] = each.response.session_id, answers + 1
                return True
        return False

    def follow(self, *nodes: int) -> None:
        """Followers go on as they do: each asks, waits its time, and asks again."""
        waiting = [each for each in nodes if not self.fetch(each)]
        effects = self.wait(0.5)
        assert all(self.answered(each, effects) for each in waiting)
        for each in nodes:
            assert not self.fetch(each)


def commit(offset: int = 1, group: str = "g") -> gm.CommitGroupOffsetsRequest:
    return gm.CommitGroupOffsetsRequest(
        group=group, offsets=[gm.GroupOffset(topic="t", partition=0, offset=offset)]
    )


def join(member: str = "m", **changes: Any) -> gm.ConsumerGroupHeartbeatRequest:
    said: dict[str, Any] = {
        "group": "g",
        "member_id": member,
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "topics": ["t"],
        "owned": [],
    }
    return gm.ConsumerGroupHeartbeatRequest(**said | changes)


READ = gm.GroupOffsetsRequest(group="g")

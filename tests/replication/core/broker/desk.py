"""One node's following side over real replicas: tells it what a driver would, and keeps what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
from msgspec import structs

from insync.replication.core import messages as m
from insync.replication.core.broker import effects as fx
from insync.replication.core.broker import events as ev
from insync.replication.core.broker.context import BrokerSettings, Context
from insync.replication.core.broker.fetching.channels import Channels
from insync.replication.core.broker.fetching.following import Following
from insync.replication.core.broker.ports import LogPort
from insync.replication.core.broker.producing.payloads import (
    CONTROL,
    TRANSACTIONAL,
    MalformedBatchError,
)
from insync.replication.core.control.records import NodeRecord, PartitionRecord, TopicRecord, Versioned
from insync.replication.core.control.topics import TopicConfig
from insync.replication.core.control.view import ClusterView
from insync.replication.core.partition import effects as partition_fx
from insync.replication.core.partition import events as partition_ev
from insync.replication.core.partition.parts import Parts
from insync.replication.core.types import PartitionId, TransactionMarker

ME = 1
E = TypeVar("E")
SETTINGS = BrokerSettings(replica_fetch_backoff=0.05)


@attrs.frozen(kw_only=True)
class Info:
    """A batch as a scan would tell of it."""

    base_offset: int
    count: int = 1
    leader_epoch: int = 1
    size_bytes: int = 10
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    is_control: bool = False
    is_transactional: bool = False

    @property
    def attributes(self) -> int:
        return TRANSACTIONAL * self.is_transactional | CONTROL * self.is_control

    @property
    def last_offset_delta(self) -> int:
        return self.count - 1

    @property
    def record_count(self) -> int:
        return self.count


@attrs.define(eq=False)
class Batches:
    infos: Sequence[Info]

    def marker(self, at: int) -> TransactionMarker | None:
        return None


@attrs.define(eq=False)
class Payload:
    """`parts`: by position, batches or what is wrong with them."""

    size: int = 0
    parts: dict[int, Sequence[Info] | str] = attrs.Factory(dict)

    def batches(self, position: int, size: int) -> Batches:
        found = self.parts[position]
        if isinstance(found, str):
            raise MalformedBatchError(found)
        assert sum(info.size_bytes for info in found) == size
        return Batches(found)


def node(node_id: int, incarnation: int = 1, port: int = 1) -> NodeRecord:
    return NodeRecord(node_id=node_id, incarnation=incarnation, endpoints=(f"tcp://{node_id}:{port}",))


def topic(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=name, partitions=10, replication_factor=2, config=TopicConfig())


def led_by(leader: int, partition: PartitionId, *, epoch: int = 1, version: int = 1) -> Versioned:
    replicas = (leader, ME) if leader != ME else (ME, 2)
    record = PartitionRecord(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=partition.topic,
        replicas=replicas,
        isr=replicas,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=version,
        min_insync_replicas=1,
    )
    return Versioned(record=record, version=version)


class Desk:
    """`effects`: what the last step came to. `jobs`: what logs were asked for and have not done."""

    def __init__(self, *leaders: int, settings: BrokerSettings = SETTINGS) -> None:
        self.ctx = Context(ME, 7, settings, NoLogs())
        self.ctx.view = ClusterView(
            nodes={each: node(each) for each in (ME, *leaders)}, topics={"t": topic("t")}
        )
        self.channels = Channels(self.ctx)
        self.following = Following(self.ctx, self.channels)
        # There are no other parts here.
        nobody = dict.fromkeys((each.name for each in structs.fields(Parts)), lambda *told: None)
        asking = {"emit": self.ctx.emit, "want": self.following.want, "stop": self.following.stop}
        self.ctx.parts = Parts(**nobody | asking)
        self.effects: list[fx.Effect] = []
        self.jobs: list[partition_fx.Append] = []
        self._on: dict[type, Callable[..., None]] = {
            ev.Connected: self.channels.on_connected,
            ev.DialFailed: self.channels.on_dial_failed,
            ev.PeerDisconnected: self.channels.on_disconnected,
            ev.Answered: self.channels.on_answered,
            ev.AskFailed: self.channels.on_ask_failed,
            ev.Report: lambda event: self.ctx.step_replica(event.partition, event.event),
        }

    def tell(self, *events: ev.Event) -> list[fx.Effect]:
        """One step for all of them."""
        for event in events:
            self._on[type(event)](event)
        return self._settled()

    def nodes(self, *nodes: NodeRecord) -> list[fx.Effect]:
        """The store has these nodes now."""
        self.ctx.view = attrs.evolve(self.ctx.view, nodes={each.node_id: each for each in nodes})
        self.channels.nodes_changed()
        return self._settled()

    def wait(self, seconds: float) -> list[fx.Effect]:
        """Let time pass; timers come at their times."""
        end, found = self.ctx.now + seconds, []
        while self.ctx.timers.deadline <= end:
            self.ctx.now = self.ctx.timers.deadline
            self.ctx.timers.run(self.ctx.now)
            found += self._settled()
        self.ctx.now = end
        self.effects = found
        return found

    def follow(self, leader: int, *partitions: PartitionId, log_end_offset: int = 0) -> list[fx.Effect]:
        """Replicas that come to follow a leader, all in one step."""
        for partition in partitions:
            self.ctx.new_replica(partition)
            self.ctx.step_replica(
                partition,
                partition_ev.Opened(
                    log_start_offset=0,
                    log_end_offset=log_end_offset,
                    high_watermark=0,
                    epochs=(),
                    producers=(),
                ),
            )
            self.ctx.step_replica(partition, partition_ev.RecordChanged(versioned=led_by(leader, partition)))
        return self._settled()

    def record(self, versioned: Versioned) -> list[fx.Effect]:
        self.ctx.step_replica(versioned.record.id, partition_ev.RecordChanged(versioned=versioned))
        return self._settled()

    def written(self, partition: PartitionId) -> list[fx.Effect]:
        """The oldest append of a partition is done."""
        job = next(job for job in self.jobs if job.partition == partition)
        self.jobs.remove(job)
        end = job.batches[-1].next_offset
        return self.tell(ev.Report(partition, partition_ev.Appended(log_end_offset=end)))

    def connect(self, connection: str = "c", *, hands_over_files: bool = False) -> m.FetchRequest:
        """Answer the dial of the last step; the fetch that goes out."""
        dial = self.one(fx.Dial)
        self.tell(ev.Connected(dial=dial.dial, connection=connection, hands_over_files=hands_over_files))
        return self.request

    def answer(
        self, ask: fx.Ask, *results: m.FetchResult, payload: Payload | None = None, session_id: int = 9
    ) -> list[fx.Effect]:
        message = m.FetchResponse(partitions=list(results), session_id=session_id)
        return self.tell(ev.Answered(question=ask.question, message=message, payload=payload or Payload()))

    def one(self, kind: type[E]) -> E:
        """The one effect of this kind in the last step."""
        (found,) = [each for each in self.effects if isinstance(each, kind)]
        return found

    def all(self, kind: type[E]) -> list[E]:
        return [each for each in self.effects if isinstance(each, kind)]

    @property
    def request(self) -> m.FetchRequest:
        """The fetch that went out in the last step."""
        message = self.one(fx.Ask).message
        assert isinstance(message, m.FetchRequest)
        return message

    def _settled(self) -> list[fx.Effect]:
        self.following.settle()
        self.effects = self.ctx.take_effects()
        self.jobs += [each for each in self.effects if isinstance(each, partition_fx.Append)]
        return self.effects


class NoLogs(LogPort):
    """Nothing is read here."""


def result(
    partition: PartitionId, *, size: int = 0, error: int = 0, high_watermark: int = 0
) -> m.FetchResult:
    return m.FetchResult(
        topic=partition.topic,
        partition=partition.partition,
        error=error,
        high_watermark=high_watermark,
        log_start_offset=0,
        log_end_offset=high_watermark,
        leader_epoch=1,
        leader=2,
        size=size,
    )


def named(request: m.FetchRequest) -> set[int]:
    """The partitions whose question a request has."""
    return {each.partition for each in request.partitions}

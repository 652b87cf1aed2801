"""A coordinator of transactions on a log and with nodes that do at once what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from insync.replication.core.coordination import shard_effects as fx
from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.coordination.shard import Shard
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import transactions as tm
from insync.replication.core.messages.admin import PartitionName
from insync.replication.core.transactions.marker_queue import MarkersAnswered, SendMarkers
from insync.replication.core.transactions.records import TransactionValue
from insync.replication.core.transactions.shard import (
    AllocateIds,
    IdsAllocated,
    ReadRevision,
    RevisionRead,
    TransactionCoordinator,
)

from ..coordination.shard_host import ShardHost

ID = "etl-1"


@attrs.frozen
class View:
    leaders: Mapping[tuple[str, int], int]
    revision: int = 1

    def leader(self, topic: str, partition: int) -> int | None:
        return self.leaders.get((topic, partition))


class Coordinator(ShardHost):
    """One partition of `__transaction_state`; nodes write markers at once."""

    def __init__(self, **leaders: int) -> None:
        self.answers = True
        self.outward: list[Any] = []
        self.markers: list[tuple[int, tm.TransactionMarkers]] = []
        self.next_id = 500
        self.revision = 1
        self.store_is_away = False
        led = {(topic, 0): node for topic, node in (leaders or {"a": 1, "b": 2}).items()}
        super().__init__(Shard(TransactionCoordinator), View(led))
        self.lead()

    def obey(self, effect: fx.Outward) -> None:
        match effect.message:
            case ReadRevision():
                known = None if self.store_is_away else self.revision
                self.hear(RevisionRead(known), effect.leader_epoch)
            case AllocateIds() if self.store_is_away:
                self.hear(IdsAllocated(-1, 0), effect.leader_epoch)
            case AllocateIds(count=count):
                first, self.next_id = self.next_id, self.next_id + count
                self.hear(IdsAllocated(first, count), effect.leader_epoch)
            case SendMarkers() as sent:
                assert sent.request.coordinator_epoch == effect.leader_epoch
                self.markers += [(sent.node, each) for each in sent.request.markers]
                self.outward.append(sent)
                if self.answers:
                    self.answer(sent)

    def hear(self, message: Any, epoch: int | None = None) -> None:
        self.tell(ev.Heard(leader_epoch=self.epoch if epoch is None else epoch, message=message))

    def answer(self, sent: SendMarkers, error: ErrorCode = ErrorCode.NONE) -> None:
        outcomes = [
            tm.MarkerOutcome(
                producer_id=each.producer_id, topic=at.topic, partition=at.partition, error=error
            )
            for each in sent.request.markers
            for at in each.partitions
        ]
        self.hear(MarkersAnswered(sent.attempt, tuple(outcomes)))

    def last_sent(self) -> SendMarkers:
        sent = self.outward[-1]
        assert isinstance(sent, SendMarkers)
        return sent

    def see(self, leaders: Mapping[str, int], revision: int) -> None:
        self.view = View({(topic, 0): node for topic, node in leaders.items()}, revision)
        self.tell(ev.ViewChanged(view=self.view))

    def init(self, *expected: int, timeout_ms: int = 60_000) -> tm.ProducerIdResponse:
        ids = dict(zip(("producer_id", "producer_epoch"), expected, strict=False))
        return self.ask(tm.InitTransactionsRequest(transactional_id=ID, timeout_ms=timeout_ms, **ids))

    def add(self, producer_id: int, epoch: int, *topics: str, **options: Any) -> ErrorCode:
        return ErrorCode(self.ask(adding(producer_id, epoch, *topics, **options)).error)

    def end(self, producer_id: int, epoch: int, *, committed: bool = True, version: int = 2) -> Any:
        return self.ask(
            tm.EndTransactionRequest(
                transactional_id=ID,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=committed,
                version=version,
            )
        )

    @property
    def value(self) -> TransactionValue:
        machine = self.shard.machine
        assert isinstance(machine, TransactionCoordinator)
        return machine.transactions[ID]


def adding(producer_id: int, epoch: int, *topics: str, **options: Any) -> tm.AddPartitionsRequest:
    """A request to add the first partition of each topic."""
    return tm.AddPartitionsRequest(
        transactional_id=ID,
        producer_id=producer_id,
        producer_epoch=epoch,
        partitions=[PartitionName(topic=topic, partition=0) for topic in topics],
        **options,
    )


def ids(answer: tm.ProducerIdResponse) -> tuple[int, int]:
    assert answer.error == ErrorCode.NONE, answer
    return answer.producer_id, answer.producer_epoch

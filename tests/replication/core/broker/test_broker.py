"""The frame of the machine: reports reach one replica, what it asks for goes to a part or to the driver."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.broker.context import BrokerSettings, Context
from insync.replication.core.broker.events import Report
from insync.replication.core.broker.machine import Broker
from insync.replication.core.broker.ports import COLD, Cold, LogRange
from insync.replication.core.control.records import Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.types import BatchMeta, PartitionId
from tests.replication.core.partition.test_isr_change import LIVE, A, B, record

PARTITION = PartitionId("x", 0)
OPENED = ev.Opened(log_start_offset=0, log_end_offset=0, high_watermark=0, epochs=(), producers=())


class NoLogs:
    """Nothing that is asked here reads a log."""

    def range_at(
        self, partition: PartitionId, offset: int, max_bytes: int, limit_offset: int
    ) -> LogRange | Cold:
        return COLD


@pytest.fixture
def broker() -> Broker:
    return Broker(Context(A, LIVE[A], BrokerSettings(), NoLogs()), b"a seed")


def lead(broker: Broker) -> None:
    broker.context.new_replica(PARTITION)
    broker.step(Report(PARTITION, OPENED), 1.0)
    broker.step(Report(PARTITION, ev.NodesChanged(live=LIVE)), 1.0)
    broker.step(Report(PARTITION, ev.RecordChanged(versioned=Versioned(record(isr=(A, B)), 1))), 1.0)
    broker.step(Report(PARTITION, ev.EpochAssigned()), 1.0)


def test_the_driver_has_what_logs_are_to_do_in_order(broker: Broker) -> None:
    broker.context.new_replica(PARTITION)
    broker.step(Report(PARTITION, OPENED), 1.0)
    effects = broker.step(Report(PARTITION, ev.RecordChanged(versioned=Versioned(record(), 1))), 2.0)
    assert [type(effect) for effect in effects] == [fx.AssignEpoch, fx.RoleChanged]
    assert {effect.partition for effect in effects} == {PARTITION}
    assert broker.context.now == 2.0
    assert broker.context.take_effects() == []


def test_a_replica_calls_the_parts_around_it(broker: Broker) -> None:
    woken: list[PartitionId] = []
    broker.context.parts = structs.replace(broker.context.parts, wake=woken.append)
    lead(broker)
    assert set(woken) == {PARTITION}


def test_a_report_of_a_replica_that_has_gone_is_ignored(broker: Broker) -> None:
    assert broker.step(Report(PARTITION, ev.Appended(log_end_offset=3)), 1.0) == []


def test_a_fetch_is_answered_by_value(broker: Broker) -> None:
    lead(broker)
    question = ev.Fetch(
        replica_id=B,
        incarnation=LIVE[B],
        leader_epoch=1,
        fetch_offset=0,
        last_fetched_epoch=-1,
        high_watermark=0,
    )
    answer = broker.context.ask_replica(PARTITION, question)
    assert (answer.error, answer.news, answer.leader) == (ErrorCode.NONE, False, A)
    stale = ev.Fetch(replica_id=B, incarnation=LIVE[B], leader_epoch=0, fetch_offset=0, last_fetched_epoch=-1)
    assert broker.context.ask_replica(PARTITION, stale).error == ErrorCode.FENCED_LEADER_EPOCH


def test_a_tick_runs_what_is_due(broker: Broker) -> None:
    assert broker.deadline == 0.0
    assert broker.tick(2.0) == []
    assert broker.deadline == 3.0, "replicas are told that time has passed once a second"
    broker.context.timers.call_at(2.5, lambda: broker.context.emit(fx.ReadRecord(partition=PARTITION)))
    assert broker.deadline == 2.5
    assert broker.tick(2.4) == []
    assert broker.tick(2.5) == [fx.ReadRecord(partition=PARTITION)]


def test_time_passes_for_every_replica(broker: Broker) -> None:
    replied: list[fx.ReplyProduce] = []
    broker.context.parts = structs.replace(
        broker.context.parts, replied=lambda _, reply: replied.append(reply)
    )
    lead(broker)
    broker.tick(2.0)
    now = 2.0
    produced = ev.Produce(
        request_id=1, acks=-1, batch=BatchMeta(0, 1, -1, 100), deadline=10.0, handle=None, leader_epoch=1
    )
    broker.step(Report(PARTITION, produced), now)
    while not replied and now < 20.0:
        now = broker.deadline
        broker.tick(now)
    assert [reply.error for reply in replied] == [ErrorCode.REQUEST_TIMED_OUT]
    assert now == 10.0


def test_the_end_of_a_turn_has_a_clock_reading_of_its_own(broker: Broker) -> None:
    lead(broker)
    broker.settle(7.0)
    assert broker.context.now == 7.0

"""Partitions that are to be in a transaction: those of a turn are one question, each has an answer of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from insync.replication.core import messages as m
from insync.replication.core.broker import events as ev
from insync.replication.core.broker.context import BrokerSettings, Context
from insync.replication.core.broker.machine import Broker
from insync.replication.core.control.internal_topics import TRANSACTIONS
from insync.replication.core.control.records import PartitionRecord, TopicRecord, Versioned
from insync.replication.core.control.topics import TopicConfig
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import transactions as tm
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition.events import AddAnswered
from insync.replication.core.types import PartitionId

from ..desk import ME, NoLogs, node

OTHER = 2
ZERO, ONE = PartitionId("t", 0), PartitionId("t", 1)
WHERE = PartitionId(TRANSACTIONS.name, 0)
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE


@attrs.define
class Asked:
    """A question to the coordinator, which another node is."""

    request: tm.AddPartitionsRequest
    answered: Callable[[object], None]

    @property
    def partitions(self) -> list[int]:
        return [each.partition for each in self.request.partitions]


class Leader:
    """A node that leads both partitions; `told`: what their replicas have heard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.context = Context(ME, 7, BrokerSettings(), NoLogs())  # type: ignore[abstract]
        self.broker = Broker(self.context, b"seed")
        record = PartitionRecord(
            topic=WHERE.topic, partition=0, topic_id="0" * 32, replicas=(OTHER,), isr=(OTHER,), leader=OTHER
        )
        topic = TopicRecord(
            name=WHERE.topic, topic_id="0" * 32, partitions=1, replication_factor=1, config=TopicConfig()
        )
        view = ClusterView(
            nodes={each: node(each) for each in (ME, OTHER)},
            topics={WHERE.topic: topic},
            partitions={WHERE: Versioned(record, 1)},
        )
        self.broker.step(ev.ViewRead(view), 1.0)
        self.asked: list[Asked] = []
        self.told: list[tuple[PartitionId, ErrorCode]] = []
        monkeypatch.setattr(self.broker.peers, "ask", self._ask)
        monkeypatch.setattr(self.context, "step_replica", self._tell)
        self.context.replicas.update(dict.fromkeys((ZERO, ONE)))  # type: ignore[arg-type]

    def _ask(self, leader: int, kind: m.Kind, request: Any, timeout: float, **then: Any) -> None:
        assert (leader, kind) == (OTHER, m.Kind.ADD_PARTITIONS_TO_TXN)
        self.asked.append(Asked(request, then["answered"]))

    def _tell(self, partition: PartitionId, event: AddAnswered) -> None:
        self.told.append((partition, event.error))

    def begin(self, partition: PartitionId, *, verify_only: bool = True) -> None:
        """The first batch of a transaction has come."""
        effect = fx.AddToTransaction(
            transactional_id="etl",
            producer_id=500,
            producer_epoch=0,
            leader_epoch=3,
            attempt=1,
            verify_only=verify_only,
            delay=0.0,
        )
        self.context.parts.add(partition, effect)

    def turn_ends(self) -> list[Asked]:
        """What is asked at the end of a turn."""
        self.broker.settle(1.0)
        asked, self.asked = self.asked, []
        return asked


@pytest.mark.parametrize("verify_only", [True, False])
def test_those_of_a_turn_are_one_question(monkeypatch: pytest.MonkeyPatch, verify_only: bool) -> None:
    leader = Leader(monkeypatch)
    leader.begin(ZERO, verify_only=verify_only)
    leader.begin(ONE, verify_only=verify_only)
    (asked,) = leader.turn_ends()
    assert (asked.partitions, asked.request.verify_only) == ([0, 1], verify_only)
    asked.answered(tm.AddPartitionsResponse())
    assert leader.turn_ends() == []
    assert leader.told == [(ZERO, ErrorCode.NONE), (ONE, ErrorCode.NONE)]


def test_what_is_to_be_added_is_not_asked_about_with_what_was_added(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch)
    leader.begin(ZERO, verify_only=True)
    leader.begin(ONE, verify_only=False)
    asked = leader.turn_ends()
    assert [(each.partitions, each.request.verify_only) for each in asked] == [([0], True), ([1], False)]


def test_a_partition_that_was_not_added_does_not_end_what_others_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = Leader(monkeypatch)
    leader.begin(ZERO)
    leader.begin(ONE)
    (both,) = leader.turn_ends()
    both.answered(tm.AddPartitionsResponse(error=ABORTABLE))
    zero, one = leader.turn_ends()
    assert (leader.told, zero.partitions, one.partitions) == ([], [0], [1])
    zero.answered(tm.AddPartitionsResponse())
    one.answered(tm.AddPartitionsResponse(error=ABORTABLE))
    assert leader.turn_ends() == []
    assert leader.told == [(ZERO, ErrorCode.NONE), (ONE, ABORTABLE)]


def test_an_error_of_the_transaction_is_that_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(monkeypatch)
    leader.begin(ZERO)
    leader.begin(ONE)
    (both,) = leader.turn_ends()
    both.answered(tm.AddPartitionsResponse(error=ErrorCode.PRODUCER_FENCED))
    assert leader.turn_ends() == []
    assert leader.told == [(ZERO, ErrorCode.PRODUCER_FENCED), (ONE, ErrorCode.PRODUCER_FENCED)]

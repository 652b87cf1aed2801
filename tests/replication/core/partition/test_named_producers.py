"""What a leader says of a producer, for its successor to go on from; how one that was followed is fenced."""

from __future__ import annotations

import pytest
from msgspec import structs

from insync.replication.core.control.records import Versioned
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import DescribeProducersResult
from insync.replication.core.partition import effects as fx
from insync.replication.core.partition import events as ev
from insync.replication.core.types import BatchMeta

from .test_isr_change import A, B, Lead, record

PRODUCER = 77


class Named(Lead):
    """Node A leads; batches of one producer are written at once, and committed when B has fetched them."""

    def produce(self, epoch: int, sequence: int, count: int) -> ErrorCode:
        """What acks=1 is answered."""
        batch = BatchMeta(-1, count, -1, 100, PRODUCER, epoch, sequence)
        log = self.replica.log
        end = log.next_offset + count
        effects = self.step(ev.Produce(request_id=5, acks=1, batch=batch, deadline=1e9, handle=None))
        if any(isinstance(effect, fx.Append) for effect in effects):
            effects += self.step(ev.Appended(log_end_offset=end))
        (reply,) = [effect for effect in effects if isinstance(effect, fx.ReplyProduce)]
        return reply.error

    def said(self, producer: int = PRODUCER) -> DescribeProducersResult:
        assert self.replica.leader is not None
        return self.replica.leader.describe_producer(producer)


def test_of_whom_nothing_is_known_that_is_said() -> None:
    lead = Named()
    said = lead.said()
    assert (said.topic, said.partition, said.error) == ("t", 0, ErrorCode.NONE)
    assert (said.producer_epoch, said.last_sequence, said.last_offset) == (-1, -1, -1)
    assert (said.leader, said.leader_epoch, said.high_watermark) == (A, 1, 0)
    assert said.settled


def test_what_is_written_is_settled_when_all_of_it_is_committed() -> None:
    lead = Named()
    lead.append(2)
    assert lead.produce(3, 1, 4) == ErrorCode.NONE
    assert lead.produce(3, 5, 2) == ErrorCode.NONE
    lead.fetch(B, 7)
    said = lead.said()
    assert (said.producer_epoch, said.last_sequence, said.last_offset) == (3, 6, 7)
    assert said.high_watermark == 7
    assert not said.settled, "the last of its records may vanish yet"
    lead.fetch(B, 8)
    assert lead.said() == structs.replace(said, high_watermark=8)
    assert lead.said().settled
    assert lead.said(PRODUCER + 1).last_sequence == -1


def test_a_leader_says_nothing_before_it_knows_what_is_committed() -> None:
    lead = Named()
    assert lead.produce(0, 1, 3) == ErrorCode.NONE
    for version, leader, epoch in ((5, B, 2), (6, A, 3)):
        lead.step(ev.RecordChanged(versioned=Versioned(record(leader=leader, epoch=epoch), version)))
    lead.step(ev.EpochAssigned())
    said = lead.said()
    assert said.error == ErrorCode.OFFSET_NOT_AVAILABLE
    assert (said.last_sequence, said.leader_epoch) == (-1, 3)
    assert not said.settled
    lead.fetch(B, 3)
    lead.step(ev.Tick())
    assert lead.high_watermark == 3
    assert lead.said().settled
    assert lead.said().last_sequence == 3


@pytest.mark.parametrize(
    ("sequence", "error"),
    [
        (4, ErrorCode.NONE),
        (0, ErrorCode.NONE),
        (3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
def test_a_successor_begins_where_its_predecessor_stopped_or_anew(sequence: int, error: ErrorCode) -> None:
    lead = Named()
    assert lead.produce(0, 1, 3) == ErrorCode.NONE
    assert lead.produce(1, sequence, 2) == error


def test_whom_another_has_followed_writes_nothing_any_more() -> None:
    lead = Named()
    assert lead.produce(0, 1, 3) == ErrorCode.NONE
    assert lead.produce(1, 4, 2) == ErrorCode.NONE
    for sequence in (1, 4, 6):
        assert lead.produce(0, sequence, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert lead.said().last_sequence == 5

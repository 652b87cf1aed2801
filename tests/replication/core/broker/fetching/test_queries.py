"""What a node tells of its logs at once."""

from __future__ import annotations

import pytest

from insync.replication.core.broker.ports import Found, LogReadError, LookUp, TimedOffset
from insync.replication.core.control.records import Versioned
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import (
    EARLIEST_TIMESTAMP,
    GREATEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MOST_PRODUCERS,
    ActiveProducer,
    EpochEndPartition,
    ListOffsetsPartition,
    ListOffsetsResult,
    PartitionName,
)
from insync.replication.core.partition import events as ev
from insync.replication.core.types import BatchMeta, PartitionId
from tests.replication.core.partition.test_isr_change import A, B, record

from .test_serving import Serve


def dated(serve: Serve, look_up: LookUp) -> Found:
    """Each of three records is as old as its offset says."""
    if look_up.partition in serve.logs.broken:
        return LogReadError(serve.logs.broken[look_up.partition], "it cannot be read")
    if look_up.timestamp_ms == GREATEST_TIMESTAMP:
        return TimedOffset(1, 1)
    return TimedOffset(look_up.timestamp_ms, look_up.timestamp_ms) if look_up.timestamp_ms < 3 else None


def written(producer_id: int, *, transactional: bool = False) -> BatchMeta:
    return BatchMeta(-1, 1, -1, 10, producer_id, 4, 0, transactional=transactional)


def test_all_producers_of_a_partition_are_told(serve: Serve) -> None:
    (partition,) = serve.partitions
    table = serve.context.replicas[partition].log.producers
    table.record(written(7)._replace(base_offset=3))
    table.record(written(9, transactional=True)._replace(base_offset=4))
    wanted = [PartitionName(topic="x", partition=0), PartitionName(topic="x", partition=9)]
    told, elsewhere = serve.broker.queries.describe_producers(wanted, lambda at: {7: 123})
    assert told.error == ErrorCode.NONE
    assert told.producers == [
        ActiveProducer(producer_id=9, producer_epoch=4, last_sequence=0, start_offset=4),
        ActiveProducer(producer_id=7, producer_epoch=4, last_sequence=0, last_timestamp_ms=123),
    ]
    assert (elsewhere.error, elsewhere.producers) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])


def test_a_follower_tells_its_producers_to_who_asks_any_replica(serve: Serve) -> None:
    """As Kafka's tools do, which ask one broker; whoever needs the leader's word is sent to it."""
    (partition,) = serve.partitions
    table = serve.context.replicas[partition].log.producers
    table.record(written(9, transactional=True)._replace(base_offset=4))
    serve.report(partition, ev.RecordChanged(versioned=Versioned(record(leader=B, epoch=2), 2)))
    wanted = [PartitionName(topic="x", partition=0), PartitionName(topic="x", partition=9)]
    refused, _ = serve.broker.queries.describe_producers(wanted, lambda at: {})
    assert (refused.error, refused.leader, refused.producers) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, B, [])
    told, elsewhere = serve.broker.queries.describe_producers(wanted, lambda at: {9: 123}, any_replica=True)
    assert (told.error, told.leader, told.leader_epoch) == (ErrorCode.NONE, B, 2)
    (producer,) = told.producers
    assert (producer.producer_id, producer.start_offset, producer.last_timestamp_ms) == (9, 4, 123)
    assert elsewhere.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_answer_has_room_for_so_many_producers(serve: Serve) -> None:
    (partition,) = serve.partitions
    table = serve.context.replicas[partition].log.producers
    for producer_id in range(MOST_PRODUCERS):
        table.record(written(producer_id)._replace(base_offset=3 + producer_id))
    table.record(written(MOST_PRODUCERS, transactional=True)._replace(base_offset=3 + MOST_PRODUCERS))
    wanted = [PartitionName(topic="x", partition=0)] * 2
    (told,) = serve.broker.queries.describe_producers(wanted, lambda at: {})
    assert len(told.producers) == MOST_PRODUCERS
    assert told.producers[0].producer_id == MOST_PRODUCERS, "what is open is told before all others"
    elsewhere = [PartitionName(topic="x", partition=9)] * (MOST_PRODUCERS + 1)
    assert len(serve.broker.queries.describe_producers(elsewhere, lambda at: {})) == MOST_PRODUCERS


@pytest.fixture
def serve() -> Serve:
    """Three records, of which B has two."""
    serve = Serve()
    (partition,) = serve.partitions
    serve.append(partition, partition, partition)
    serve.fetch(serve.question(partition, 2))
    assert serve.context.replicas[partition].log.high_watermark == 2
    return serve


def offset(serve: Serve, timestamp: int, topic: str = "x") -> ListOffsetsResult:
    wanted = ListOffsetsPartition(topic=topic, partition=0, timestamp=timestamp)
    queries, found = serve.broker.queries, {}
    for each in queries.look_ups([wanted, wanted]):
        assert each not in found
        found[each] = dated(serve, each)
    return queries.list_offset(wanted, found)


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        (0, 0),
        (1, 1),
        (2, -1),
        (3, -1),
        (GREATEST_TIMESTAMP, 1),
        (EARLIEST_TIMESTAMP, 0),
        (LATEST_TIMESTAMP, 2),
    ],
)
def test_only_committed_records_are_told_of(serve: Serve, timestamp: int, found: int) -> None:
    told = offset(serve, timestamp)
    assert (told.error, told.offset, told.leader, told.leader_epoch) == (ErrorCode.NONE, found, A, 1)
    looked_for = timestamp >= 0 or timestamp == GREATEST_TIMESTAMP
    assert told.timestamp == (found if looked_for else -1), "of a record that was found, its own"


def test_nobody_is_told_that_no_record_is_that_young_before_the_high_watermark_may_be_trusted() -> None:
    serve = Serve()
    (partition,) = serve.partitions
    serve.append(partition, partition, partition)
    serve.report(partition, ev.RecordChanged(versioned=Versioned(record(leader=B, epoch=2), 2)))
    serve.report(partition, ev.RecordChanged(versioned=Versioned(record(leader=A, epoch=3), 3)))
    serve.report(partition, ev.EpochAssigned())
    told = offset(serve, 1)
    assert (told.error, told.offset) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert offset(serve, LATEST_TIMESTAMP).error == ErrorCode.OFFSET_NOT_AVAILABLE


def test_who_does_not_lead_says_who_does(serve: Serve) -> None:
    (partition,) = serve.partitions
    serve.report(partition, ev.RecordChanged(versioned=Versioned(record(leader=B, epoch=2), 2)))
    for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, 1):
        told = offset(serve, timestamp)
        assert (told.error, told.offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert (told.leader, told.leader_epoch) == (B, 2)
    named = PartitionName(topic="x", partition=0)
    described = serve.broker.queries.describe_producer(named, 7)
    assert (described.error, described.leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, B)


def epoch_end(serve: Serve, epoch: int, current: int = -1, topic: str = "x") -> tuple[int, int, int]:
    wanted = EpochEndPartition(topic=topic, partition=0, leader_epoch=epoch, current_leader_epoch=current)
    told = serve.broker.queries.epoch_end(wanted)
    return told.error, told.epoch, told.end_offset


def test_where_an_epoch_ends(serve: Serve) -> None:
    """The log has three records of epoch 1, in which the partition is."""
    end = serve.broker.context.replicas[serve.partitions[0]].log.log_end_offset
    assert end > 0
    assert epoch_end(serve, 1) == epoch_end(serve, 1, 1) == (ErrorCode.NONE, 1, end)
    assert epoch_end(serve, 0) == (ErrorCode.NONE, 0, 0), "it ended where the first that is known began"
    assert epoch_end(serve, 2) == epoch_end(serve, -1) == (ErrorCode.NONE, -1, -1)
    assert epoch_end(serve, 1, 0) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert epoch_end(serve, 1, 2) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert epoch_end(serve, 1, topic="y") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    serve.report(serve.partitions[0], ev.RecordChanged(versioned=Versioned(record(leader=B, epoch=2), 2)))
    assert epoch_end(serve, 1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)


def test_an_offset_is_told_with_the_epoch_that_wrote_it(serve: Serve) -> None:
    (partition,) = serve.partitions
    serve.report(partition, ev.RecordChanged(versioned=Versioned(record(leader=B, epoch=2), 2)))
    serve.report(partition, ev.RecordChanged(versioned=Versioned(record(leader=A, epoch=3), 3)))
    serve.report(partition, ev.EpochAssigned())
    first = offset(serve, EARLIEST_TIMESTAMP)
    assert (first.offset, first.offset_epoch, first.leader_epoch) == (0, 1, 3)
    assert offset(serve, 9, "y").offset_epoch == -1
    epochs = serve.context.replicas[partition].log.epochs
    assert [epochs.epoch_at(each) for each in (-1, 0, 2, 3, 9)] == [-1, 1, 1, 3, 3]


def test_a_partition_that_is_not_here_is_unknown_or_elsewhere(serve: Serve) -> None:
    named = PartitionName(topic="y", partition=0)
    assert offset(serve, 0, "y").error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert serve.broker.queries.describe_producer(named, 7).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    serve.context.view = ClusterView(partitions={PartitionId("y", 0): Versioned(record(), 1)})
    assert offset(serve, 0, "y").error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_timestamp_that_is_none_and_a_log_that_fails_are_told(serve: Serve) -> None:
    assert offset(serve, -7).error == ErrorCode.INVALID_REQUEST
    serve.logs.broken[serve.partitions[0]] = ErrorCode.KAFKA_STORAGE_ERROR
    assert offset(serve, 1).error == ErrorCode.KAFKA_STORAGE_ERROR

"""Questions about logs that are answered at once, by value: where they begin and end, and what a producer wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ...errors import ErrorCode
from ...messages import (
    EARLIEST_TIMESTAMP,
    GREATEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MOST_PRODUCERS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    DescribeProducersResult,
    EpochEndPartition,
    EpochEndResult,
    ListOffsetsPartition,
    ListOffsetsResult,
    PartitionName,
)
from ...partition.leader import LeaderRole, active_producers
from ...partition.replica import Replica
from ...types import NO_EPOCH, PartitionId
from ..context import Context
from ..ports import Found, LogReadError, LookUp, TimedOffset


class Queries:
    """Answers about the partitions that this node leads; for others it names their leaders."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def look_ups(self, wanted: Iterable[ListOffsetsPartition]) -> list[LookUp]:
        """The look-ups that the driver must do before it asks `list_offset`, where that may wait for the device.

        Each once, however often it is asked for, and only in partitions that are led here.
        """
        asked = {
            (PartitionId(each.topic, each.partition), each.timestamp): None
            for each in wanted
            if _is_looked_for(each.timestamp)
        }
        return [
            LookUp(partition, timestamp, replica.hint()[1])
            for partition, timestamp in asked
            if (replica := self._context.replicas.get(partition)) is not None and replica.leader is not None
        ]

    def list_offset(
        self,
        wanted: ListOffsetsPartition,
        found: Mapping[LookUp, Found],
        isolation_level: int = READ_UNCOMMITTED,
    ) -> ListOffsetsResult:
        """The offset that a timestamp stands for; -1 if no committed record is that young.

        `found`: what came of the look-ups. One that is missing was not done in time, or in another leader epoch,
        when the log may have held something else: the client may ask again.
        """
        partition = PartitionId(wanted.topic, wanted.partition)
        replica, offset, timestamp = self._context.replicas.get(partition), -1, -1
        stable = isolation_level == READ_COMMITTED
        if replica is None:
            error = self._context.missing_error(partition)
            hinted = epoch = -1
        else:
            hinted, epoch = replica.hint()
            if replica.leader is None:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif wanted.timestamp == EARLIEST_TIMESTAMP:
                error, offset = ErrorCode.NONE, replica.log.log_start_offset
            elif wanted.timestamp == LATEST_TIMESTAMP:
                error, offset = replica.leader.latest_offset(read_committed=stable)
            elif _is_looked_for(wanted.timestamp):
                look_up = LookUp(partition, wanted.timestamp, epoch)
                error, (offset, timestamp) = _offset_at(replica.leader, look_up, found, stable)
            else:
                error = ErrorCode.INVALID_REQUEST
        return ListOffsetsResult(
            topic=wanted.topic,
            partition=wanted.partition,
            error=error,
            offset=offset,
            leader_epoch=epoch,
            leader=hinted,
            offset_epoch=replica.log.epochs.epoch_at(offset)
            if replica is not None and offset >= 0
            else NO_EPOCH,
            timestamp=timestamp,
        )

    def epoch_end(self, wanted: EpochEndPartition) -> EpochEndResult:
        """Where a leader epoch ends in the log of a partition that is led here (KIP-320)."""
        partition = PartitionId(wanted.topic, wanted.partition)
        replica, asked = self._context.replicas.get(partition), wanted.current_leader_epoch
        hinted = epoch = NO_EPOCH
        error, end = ErrorCode.NONE, None
        if replica is None:
            error = self._context.missing_error(partition)
        else:
            hinted, epoch = replica.hint()
            if replica.leader is None:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif NO_EPOCH < asked < epoch:
                error = ErrorCode.FENCED_LEADER_EPOCH
            elif asked > epoch:
                error = ErrorCode.UNKNOWN_LEADER_EPOCH
            else:
                end = replica.leader.end_of_epoch(wanted.leader_epoch)
        return EpochEndResult(
            topic=wanted.topic,
            partition=wanted.partition,
            error=error,
            epoch=NO_EPOCH if end is None else end.epoch,
            end_offset=-1 if end is None else end.end_offset,
            leader=hinted,
            leader_epoch=epoch,
        )

    def describe_producer(self, wanted: PartitionName, producer_id: int) -> DescribeProducersResult:
        """The last write of a producer to a partition (KIP-664)."""
        partition = PartitionId(wanted.topic, wanted.partition)
        replica = self._context.replicas.get(partition)
        if replica is not None and replica.leader is not None:
            return replica.leader.describe_producer(producer_id)
        return self._elsewhere(wanted, partition, replica)

    def describe_producers(
        self,
        wanted: Iterable[PartitionName],
        timestamps: Callable[[PartitionId], Mapping[int, int]],
        *,
        any_replica: bool = False,
    ) -> list[DescribeProducersResult]:
        """All producers of each partition (KIP-664), until the answer is full.

        timestamps: Of the last batch of each producer in a partition's log. any_replica: Of those that follow here,
        too, as their logs have them.
        """
        found: list[DescribeProducersResult] = []
        room = MOST_PRODUCERS
        for each in wanted:
            if room <= 0:
                break
            partition = PartitionId(each.topic, each.partition)
            replica = self._context.replicas.get(partition)
            if replica is not None and replica.leader is not None:
                found.append(replica.leader.describe_producers(timestamps(partition)))
            elif replica is not None and replica.role == "follower" and any_replica:
                producers = active_producers(replica.log.producers, timestamps(partition))
                leader, epoch = replica.hint()
                found.append(
                    DescribeProducersResult(
                        topic=each.topic,
                        partition=each.partition,
                        error=ErrorCode.NONE,
                        leader=leader,
                        leader_epoch=epoch,
                        producers=producers,
                    )
                )
            else:
                found.append(self._elsewhere(each, partition, replica))
            # One without producers takes room, too.
            room -= len(found[-1].producers) + 1
        return found

    def _elsewhere(
        self, wanted: PartitionName, partition: PartitionId, replica: Replica | None
    ) -> DescribeProducersResult:
        if replica is None:
            error = self._context.missing_error(partition)
            return DescribeProducersResult(topic=wanted.topic, partition=wanted.partition, error=error)
        hinted, epoch = replica.hint()
        return DescribeProducersResult(
            topic=wanted.topic,
            partition=wanted.partition,
            error=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            leader=hinted,
            leader_epoch=epoch,
        )


_NOWHERE = TimedOffset(-1, -1)


def _is_looked_for(timestamp: int) -> bool:
    return timestamp >= 0 or timestamp == GREATEST_TIMESTAMP


def _offset_at(
    leader: LeaderRole, look_up: LookUp, found: Mapping[LookUp, Found], stable: bool
) -> tuple[ErrorCode, TimedOffset]:
    """The first committed record with at least that timestamp."""
    if look_up not in found:
        return ErrorCode.OFFSET_NOT_AVAILABLE, _NOWHERE
    record = found[look_up]
    if isinstance(record, LogReadError):
        return record.code, _NOWHERE
    if record is not None and leader.is_committed(record.offset, read_committed=stable):
        return ErrorCode.NONE, record
    # "None is that young" is an answer too, and is to be trusted no sooner than the latest offset is.
    return leader.latest_offset(read_committed=stable)[0], _NOWHERE

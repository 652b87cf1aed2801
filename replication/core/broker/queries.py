"""Questions about logs that are answered at once, by value: where they begin and end, and what a producer wrote."""

from __future__ import annotations

from ..errors import ErrorCode
from ..messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    DescribeProducersResult,
    ListOffsetsPartition,
    ListOffsetsResult,
    PartitionName,
)
from ..partition.leader import LeaderRole
from ..types import PartitionId
from .context import Context
from .ports import LogReadError


class Queries:
    """What this node tells of the partitions that it leads; of others it tells who leads them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def list_offset(self, wanted: ListOffsetsPartition) -> ListOffsetsResult:
        """The offset that a timestamp stands for; -1 if no committed record is that young.

        A timestamp of records is looked for in the log: whoever must not wait for a device has that done before.
        """
        partition = PartitionId(wanted.topic, wanted.partition)
        replica, offset = self._context.replicas.get(partition), -1
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
                error, offset = replica.leader.latest_offset()
            elif wanted.timestamp >= 0:
                error, offset = self._offset_at(partition, replica.leader, wanted.timestamp)
            else:
                error = ErrorCode.INVALID_REQUEST
        return ListOffsetsResult(
            topic=wanted.topic,
            partition=wanted.partition,
            error=error,
            offset=offset,
            leader_epoch=epoch,
            leader=hinted,
        )

    def _offset_at(
        self, partition: PartitionId, leader: LeaderRole, timestamp_ms: int
    ) -> tuple[ErrorCode, int]:
        """The first committed record with at least that timestamp."""
        try:
            found = self._context.logs.offset_for_timestamp(partition, timestamp_ms)
        except LogReadError as failure:
            return failure.code, -1
        if found is not None and leader.is_committed(found):
            return ErrorCode.NONE, found
        # "None is that young" is an answer too, and is to be trusted no sooner than the latest offset is.
        return leader.latest_offset()[0], -1

    def describe_producer(self, wanted: PartitionName, producer_id: int) -> DescribeProducersResult:
        """What a producer has last written to a partition (KIP-664)."""
        partition = PartitionId(wanted.topic, wanted.partition)
        replica = self._context.replicas.get(partition)
        if replica is not None and replica.leader is not None:
            return replica.leader.describe_producer(producer_id)
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

"""Deleting the oldest records: asked of each partition's leader until all have answered."""

from __future__ import annotations

from collections.abc import Mapping

from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.types import PartitionId
from ..connection._cluster import Cluster
from ..connection._per_leader import PATIENCE, PerLeader
from ..errors import ClientError, error_for


async def delete_records(
    cluster: Cluster, offsets: Mapping[PartitionId, int], *, timeout: float
) -> dict[PartitionId, int]:
    """Delete what lies below an offset of each partition; the low watermark of each.

    Raises:
      UnknownTopicError, OffsetOutOfRangeError, PolicyViolationError: A leader refuses; others may have deleted.
      RequestTimeoutError: Not all replicas have deleted within `timeout` seconds; names one partition.
    """
    # A leader answers when its followers have deleted, or after `PATIENCE`: the client waits for longer.
    return await _Deletion(cluster, offsets, timeout).answers(timeout, patience=timeout)


class _Deletion(PerLeader[int]):
    kind = m.Kind.DELETE_RECORDS
    leads = (ErrorCode.REQUEST_TIMED_OUT,)

    def __init__(self, cluster: Cluster, offsets: Mapping[PartitionId, int], timeout: float) -> None:
        super().__init__(cluster, offsets)
        self._offsets = offsets
        self._within_ms = int(min(timeout, PATIENCE) * 1000)

    def _request(self, asked: list[PartitionId]) -> object:
        return m.DeleteRecordsRequest(
            timeout_ms=self._within_ms,
            partitions=[
                m.DeleteRecordsPartition(topic=at.topic, partition=at.partition, offset=self._offsets[at])
                for at in asked
            ],
        )

    def _value(self, result: m.DeleteRecordsResult) -> int:
        return result.low_watermark

    def _failure(self, result: m.DeleteRecordsResult) -> ClientError | None:
        at = PartitionId(result.topic, result.partition)
        return error_for(result.error, str(at), result.message) if result.error != ErrorCode.NONE else None

    def _overdue(self, timeout: float) -> str:
        return f"not every replica has deleted the records within {timeout:g} s"

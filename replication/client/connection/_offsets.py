"""Questions for offsets: where logs begin and end, asked of their leaders until all have answered."""

from __future__ import annotations

from collections.abc import Iterable

from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.types import PartitionId
from ._cluster import Cluster
from ._per_leader import PATIENCE, PerLeader


async def list_offsets(
    cluster: Cluster,
    partitions: Iterable[PartitionId],
    timestamp: int,
    *,
    timeout: float,
    isolation_level: int = m.READ_UNCOMMITTED,
) -> dict[PartitionId, int]:
    """The offset of each partition for `timestamp`, a time or a mark of `ListOffsetsPartition`.

    Raises:
      UnknownTopicError: A topic or partition does not exist.
      RequestTimeoutError: Not all leaders answered within `timeout` seconds; names one and the last trouble.
    """
    return await _Offsets(cluster, partitions, timestamp, isolation_level).answers(timeout)


async def read_index(
    cluster: Cluster, partitions: Iterable[PartitionId], *, timeout: float
) -> dict[PartitionId, int]:
    """Offsets behind all that was acknowledged before this was called; raises what `list_offsets` raises."""
    return await _ReadIndex(cluster, partitions).answers(timeout)


class _OffsetQuestion(PerLeader[int]):
    leads = (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS)
    at_once = m.MOST_LOOK_UPS

    def _value(self, result: m.ListOffsetsResult | m.ReadIndexResult) -> int:
        return result.offset

    def _overdue(self, timeout: float) -> str:
        return f"no offset from its leader within {timeout:g} s"


class _Offsets(_OffsetQuestion):
    kind = m.Kind.LIST_OFFSETS

    def __init__(
        self, cluster: Cluster, partitions: Iterable[PartitionId], timestamp: int, isolation_level: int
    ) -> None:
        super().__init__(cluster, partitions)
        self._timestamp = timestamp
        self._isolation_level = isolation_level

    def _request(self, asked: list[PartitionId]) -> object:
        return m.ListOffsetsRequest(
            partitions=[
                m.ListOffsetsPartition(topic=at.topic, partition=at.partition, timestamp=self._timestamp)
                for at in asked
            ],
            isolation_level=self._isolation_level,
        )


class _ReadIndex(_OffsetQuestion):
    kind = m.Kind.READ_INDEX

    def _request(self, asked: list[PartitionId]) -> object:
        names = [m.PartitionName(topic=at.topic, partition=at.partition) for at in asked]
        # The node gives up before the client does: then it says so, and the connection is not suspected.
        return m.ReadIndexRequest(timeout_ms=round(900 * PATIENCE), partitions=names)

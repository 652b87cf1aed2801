"""Questions for offsets: where logs begin and end, asked of their leaders until all have answered."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ...transport import TransportError
from ..core import messages as m
from ..core.errors import ErrorCode
from ..core.types import PartitionId
from ._cluster import Cluster, Leader
from .errors import AuthorizationError, ClientError, RequestTimeoutError, ServerError, error_for


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
    return await _until_told(_Query(cluster, timestamp, set(partitions), isolation_level), timeout)


async def read_index(
    cluster: Cluster, partitions: Iterable[PartitionId], *, timeout: float
) -> dict[PartitionId, int]:
    """Offsets behind all that was acknowledged before this was called; raises what `list_offsets` raises."""
    return await _until_told(_CurrentQuery(cluster, 0, set(partitions)), timeout)


async def _until_told(query: _Query, timeout: float) -> dict[PartitionId, int]:
    with trio.move_on_after(timeout):
        await query.run()
    if query.refusal is not None:
        raise query.refusal
    if query.missing:
        one = sorted(query.missing)[0]
        why = f": {query.error}" if query.error is not None else ""
        raise RequestTimeoutError(
            f"{one}: no offset from its leader within {timeout:g} s{why}"
        ) from query.error
    return query.found


_PATIENCE = 5.0
"""Seconds for which one answer is waited for before another node is looked for."""
_LEADS = (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS)
"""What only the leader says."""


class _Query:
    _kind = m.Kind.LIST_OFFSETS

    def __init__(
        self,
        cluster: Cluster,
        timestamp: int,
        missing: set[PartitionId],
        isolation_level: int = m.READ_UNCOMMITTED,
    ) -> None:
        self._isolation_level = isolation_level
        self.missing = missing
        self.found: dict[PartitionId, int] = {}
        self.error: Exception | None = None
        self.refusal: ClientError | None = None
        self._cluster = cluster
        self._timestamp = timestamp

    async def run(self) -> None:
        for topic in sorted({at.topic for at in self.missing}):
            await self._cluster.topic(topic, timeout=float("inf"))
        attempt = 0
        while self.missing and self.refusal is None:
            # Each time: a topic that is deleted meanwhile has no leader who could ever tell.
            for at in self.missing:
                await self._cluster.check_partition(at)
            by_leader = self._by_leader()
            async with trio.open_nursery() as nursery:
                for node_id, asked in by_leader.items():
                    for first in range(0, len(asked), m.MOST_LOOK_UPS):
                        nursery.start_soon(self._ask, node_id, asked[first : first + m.MOST_LOOK_UPS])
            if self.missing and self.refusal is None:
                attempt += 1
                await trio.sleep(self._cluster.quick_backoff(attempt))

    def _by_leader(self) -> dict[int, list[PartitionId]]:
        by_leader: dict[int, list[PartitionId]] = {}
        for at in self.missing:
            leader = self._cluster.leader(*at)
            if leader.node_id < 0:
                self.error = error_for(ErrorCode.LEADER_NOT_AVAILABLE, str(at))
                self._cluster.suspect(at.topic, at.partition, leader)
            else:
                by_leader.setdefault(leader.node_id, []).append(at)
        return by_leader

    async def _ask(self, node_id: int, asked: list[PartitionId]) -> None:
        leaders = {at: self._cluster.leader(*at) for at in asked}
        try:
            answer = await self._cluster.ask(
                self._kind, self._request(asked), timeout=_PATIENCE, node_id=node_id
            )
        except AuthorizationError as error:
            self.refusal = error
            return
        except TransportError as error:
            self.error = error
            for at, leader in leaders.items():
                self._cluster.suspect(at.topic, at.partition, leader)
            return
        for result in answer.partitions:
            self._result(result, leaders)

    def _request(self, asked: list[PartitionId]) -> object:
        return m.ListOffsetsRequest(
            partitions=[
                m.ListOffsetsPartition(topic=at.topic, partition=at.partition, timestamp=self._timestamp)
                for at in asked
            ],
            isolation_level=self._isolation_level,
        )

    def _result(
        self, result: m.ListOffsetsResult | m.ReadIndexResult, leaders: dict[PartitionId, Leader]
    ) -> None:
        at = PartitionId(result.topic, result.partition)
        if result.error == ErrorCode.NONE:
            self.missing.discard(at)
            self.found[at] = result.offset
            self._cluster.trust(*at)
            return
        error: ServerError = error_for(result.error, str(at))
        if not error.retriable:
            self.refusal = error
            return
        self.error = error
        self._cluster.hint(at.topic, at.partition, Leader(result.leader, result.leader_epoch))
        if result.error not in _LEADS and at in leaders:
            self._cluster.suspect(at.topic, at.partition, leaders[at])


class _CurrentQuery(_Query):
    _kind = m.Kind.READ_INDEX

    def _request(self, asked: list[PartitionId]) -> object:
        names = [m.PartitionName(topic=at.topic, partition=at.partition) for at in asked]
        # The node gives up before the client does: then it says so, and the connection is not suspected.
        return m.ReadIndexRequest(timeout_ms=round(900 * _PATIENCE), partitions=names)

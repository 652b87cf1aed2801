"""Deleting the oldest records: asked of each partition's leader until all have answered."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from ...transport import TransportError
from ..core import messages as m
from ..core.errors import ErrorCode
from ..core.types import PartitionId
from ._cluster import Cluster, Leader
from .errors import AuthorizationError, ClientError, RequestTimeoutError, ServerError, error_for


async def delete_records(
    cluster: Cluster, offsets: Mapping[PartitionId, int], *, timeout: float
) -> dict[PartitionId, int]:
    """Delete what lies below an offset of each partition; the low watermark of each.

    Raises:
      UnknownTopicError, OffsetOutOfRangeError, PolicyViolationError: A leader refuses; others may have deleted.
      RequestTimeoutError: Not all replicas have deleted within `timeout` seconds; names one partition.
    """
    deletion = _Deletion(cluster, dict(offsets), timeout)
    with trio.move_on_after(timeout):
        await deletion.run()
    if deletion.refusal is not None:
        raise deletion.refusal
    if deletion.missing:
        one = sorted(deletion.missing)[0]
        why = f": {deletion.error}" if deletion.error is not None else ""
        raise RequestTimeoutError(
            f"{one}: not every replica has deleted the records within {timeout:g} s{why}"
        ) from deletion.error
    return deletion.done


PATIENCE = 5.0
"""Seconds after which a leader is asked again, by then perhaps another one."""


class _Deletion:
    """Repeated after every failure that may pass: deleting twice is deleting once."""

    def __init__(self, cluster: Cluster, missing: dict[PartitionId, int], timeout: float) -> None:
        self.missing = missing
        self.done: dict[PartitionId, int] = {}
        self.error: Exception | None = None
        self.refusal: ClientError | None = None
        self._cluster = cluster
        self._timeout = timeout

    async def run(self) -> None:
        for topic in sorted({at.topic for at in self.missing}):
            await self._cluster.topic(topic, timeout=float("inf"))
        attempt = 0
        while self.missing and self.refusal is None:
            # Each time: a topic that is deleted meanwhile has no leader who could ever tell.
            for at in self.missing:
                await self._cluster.check_partition(at)
            by_leader: dict[int, list[PartitionId]] = {}
            for at in self.missing:
                by_leader.setdefault(self._cluster.leader(*at).node_id, []).append(at)
            async with trio.open_nursery() as nursery:
                for node_id, asked in by_leader.items():
                    nursery.start_soon(self._ask, node_id, asked)
            if self.missing and self.refusal is None:
                attempt += 1
                await trio.sleep(self._cluster.quick_backoff(attempt))

    async def _ask(self, node_id: int, asked: list[PartitionId]) -> None:
        leaders = {at: self._cluster.leader(*at) for at in asked}
        request = m.DeleteRecordsRequest(
            timeout_ms=int(min(self._timeout, PATIENCE) * 1000),
            partitions=[
                m.DeleteRecordsPartition(topic=at.topic, partition=at.partition, offset=self.missing[at])
                for at in asked
            ],
        )
        try:
            if node_id < 0:
                raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, str(asked[0]))
            answer = await self._cluster.ask(
                m.Kind.DELETE_RECORDS, request, timeout=self._timeout, node_id=node_id
            )
        except AuthorizationError as error:
            self.refusal = error
            return
        except (TransportError, ServerError) as error:
            self.error = error
            for at, leader in leaders.items():
                self._cluster.suspect(*at, leader)
            return
        for result in answer.partitions:
            self._result(result, leaders)

    def _result(self, result: m.DeleteRecordsResult, leaders: dict[PartitionId, Leader]) -> None:
        at = PartitionId(result.topic, result.partition)
        if result.error == ErrorCode.NONE:
            self.missing.pop(at, None)
            self.done[at] = result.low_watermark
            self._cluster.trust(*at)
            return
        error = error_for(result.error, str(at), result.message)
        if not error.retriable:
            self.refusal = error
            return
        self.error = error
        self._cluster.hint(*at, Leader(result.leader, result.leader_epoch))
        if at in leaders and result.error != ErrorCode.REQUEST_TIMED_OUT:
            self._cluster.suspect(*at, leaders[at])

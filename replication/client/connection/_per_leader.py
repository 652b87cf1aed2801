"""Questions about partitions, asked of their leaders until all have answered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

import trio

from ....transport import TransportError
from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.types import PartitionId
from ..errors import ClientError, RequestTimeoutError, error_for
from ._cluster import Cluster, Leader

V = TypeVar("V")

PATIENCE = 5.0
"""Seconds for which one answer is waited for before another node is looked for."""


class PerLeader(ABC, Generic[V]):
    """One question, repeated after every failure that may pass: it must be harmless to ask twice.

    kind: The kind of the request.
    leads: Errors that only a leader returns: the same node is asked again.
    at_once: The greatest number of partitions in one request, which must fit into a frame (1 MiB).
    """

    kind: ClassVar[m.Kind]
    leads: ClassVar[tuple[ErrorCode, ...]]
    at_once: ClassVar[int] = 1_000

    def __init__(self, cluster: Cluster, partitions: Iterable[PartitionId]) -> None:
        self._missing = set(partitions)
        self._found: dict[PartitionId, V] = {}
        self._error: Exception | None = None
        self._refusal: ClientError | None = None
        self._cluster = cluster

    @abstractmethod
    def _request(self, asked: list[PartitionId]) -> object:
        """The request about some partitions of one leader."""

    @abstractmethod
    def _value(self, result: Any) -> V:
        """The value in a result without an error."""

    @abstractmethod
    def _overdue(self, timeout: float) -> str:
        """The text that says what has not happened to a partition within `timeout` seconds."""

    def _failure(self, result: Any) -> ClientError | None:
        """The error in a result, if there is one."""
        at = PartitionId(result.topic, result.partition)
        return error_for(result.error, str(at)) if result.error != ErrorCode.NONE else None

    async def answers(self, timeout: float, patience: float = PATIENCE) -> dict[PartitionId, V]:
        """The value of each partition.

        Args:
          timeout: Seconds for all of them.
          patience: Seconds for one answer.

        Raises:
          ClientError: What a leader refuses for good; others may have done what was asked.
          RequestTimeoutError: Not all leaders answered; names one partition and the last error.
        """
        with trio.move_on_after(timeout):
            await self._run(patience)
        if self._refusal is not None:
            raise self._refusal
        if self._missing:
            why = f": {self._error}" if self._error is not None else ""
            raise RequestTimeoutError(f"{min(self._missing)}: {self._overdue(timeout)}{why}") from self._error
        return self._found

    async def _run(self, patience: float) -> None:
        for topic in sorted({at.topic for at in self._missing}):
            await self._cluster.topic(topic, timeout=float("inf"))
        attempt = 0
        while self._missing and self._refusal is None:
            # Each time: a topic that is deleted meanwhile has no leader who could ever tell.
            for at in self._missing:
                await self._cluster.check_partition(at)
            by_leader = self._by_leader()
            async with trio.open_nursery() as nursery:
                for node_id, asked in by_leader.items():
                    for first in range(0, len(asked), self.at_once):
                        nursery.start_soon(self._ask, node_id, asked[first : first + self.at_once], patience)
            if self._missing and self._refusal is None:
                attempt += 1
                await trio.sleep(self._cluster.quick_backoff(attempt))

    def _by_leader(self) -> dict[int, list[PartitionId]]:
        by_leader: dict[int, list[PartitionId]] = {}
        for at in self._missing:
            leader = self._cluster.leader(*at)
            if leader.node_id < 0:
                self._error = error_for(ErrorCode.LEADER_NOT_AVAILABLE, str(at))
                self._cluster.suspect(*at, leader)
            else:
                by_leader.setdefault(leader.node_id, []).append(at)
        return by_leader

    async def _ask(self, node_id: int, asked: list[PartitionId], patience: float) -> None:
        leaders = {at: self._cluster.leader(*at) for at in asked}
        try:
            answer = await self._cluster.ask(
                self.kind, self._request(asked), timeout=patience, node_id=node_id
            )
        except (TransportError, ClientError) as error:
            if isinstance(error, ClientError) and not error.retriable:
                self._refusal = error
                return
            self._error = error
            for at, leader in leaders.items():
                self._cluster.suspect(*at, leader)
            return
        for result in answer.partitions:
            self._take(result, leaders)

    def _take(self, result: Any, leaders: dict[PartitionId, Leader]) -> None:
        at = PartitionId(result.topic, result.partition)
        error = self._failure(result)
        if error is None:
            self._missing.discard(at)
            self._found[at] = self._value(result)
            self._cluster.trust(*at)
            return
        if not error.retriable:
            self._refusal = error
            return
        self._error = error
        if result.error != ErrorCode.NONE:
            self._cluster.hint(*at, Leader(result.leader, result.leader_epoch))
        if result.error not in (ErrorCode.NONE, *self.leads) and at in leaders:
            self._cluster.suspect(*at, leaders[at])

"""Waiting for new partitions until they accept acks=all writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from ....transport import TransportError
from ...core import messages as m
from ...core.errors import ErrorCode
from ...core.types import NO_LEADER
from ..connection._cluster import Cluster
from ..errors import ClientError
from ._pages import whole_description, whole_metadata

_PAUSES = 3.0
"""The pause after a look takes so many times as long as the look: topics of thousands of partitions cost nodes some
time."""


class Readiness:
    """How many partitions of a topic can be written to. `first`: those below it are not waited for."""

    def __init__(self, cluster: Cluster, topic: str, first: int, partitions: int, timeout: float) -> None:
        self.writable = 0
        self._cluster = cluster
        self._topic = topic
        self._numbers = range(first, partitions)
        self._timeout = timeout

    async def wait(self) -> None:
        """Until all can be. Cancel it to stop waiting."""
        attempt = 0
        while True:
            attempt += 1
            began = trio.current_time()
            self.writable = await self._look()
            if self.writable >= len(self._numbers):
                return
            took = trio.current_time() - began
            await trio.sleep(max(_PAUSES * took, self._cluster.quick_backoff(min(attempt, 20))))

    async def _look(self) -> int:
        request = m.MetadataRequest(topics=[self._topic])
        try:
            ask = partial(self._cluster.ask, m.Kind.METADATA, timeout=self._timeout)
            answer = await whole_metadata(ask, request)
        except ClientError:
            return 0
        if any(topic.error != ErrorCode.NONE for topic in answer.topics):
            return 0
        parts = [part for topic in answer.topics for part in topic.partitions]
        leaders = {part.leader for part in parts if part.partition in self._numbers} - {NO_LEADER}
        self._cluster.nodes = {node.node_id: node for node in answer.nodes}
        writable: set[int] = set()

        async def count(node_id: int) -> None:
            writable.update(await self._led_by(node_id))

        async with trio.open_nursery() as nursery:
            for node_id in leaders:
                nursery.start_soon(count, node_id)
        return len(writable)

    async def _led_by(self, node_id: int) -> Sequence[int]:
        """Those that a node leads, and whose in-sync replicas all have made their logs and follow."""
        request = m.DescribePartitionsRequest(topics=[self._topic])
        ask = partial(self._cluster.ask, m.Kind.DESCRIBE_PARTITIONS, timeout=self._timeout, node_id=node_id)
        try:
            answer = await whole_description(ask, request)
        except (TransportError, ClientError):
            return ()
        return [
            replica.partition
            for replica in answer.partitions
            if replica.topic == self._topic
            and replica.partition in self._numbers
            and replica.role == "leader"
            and not replica.error
            and all(each.log_end_offset >= 0 for each in replica.followers if each.in_sync)
        ]

"""Keeps the scene up to date with what the cluster says of itself, and waits for states of it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from ...client import Admin, ClientError, NodeReport
from ...core.messages import TopicInfo
from ..errors import CommandError
from ..processes import NodeProcess
from .scene import NodeRow, PartitionRow, Scene

POLL_SECONDS = 0.25
_WAIT_POLL_SECONDS = 0.01


class NotInTimeError(CommandError):
    """The cluster did not come to a state that it should have come to."""


@attrs.define(eq=False)
class Observer:
    """Polls one topic of a cluster. Only what is shown depends on it; figures come from the waits below."""

    admin: Admin
    topic: str
    nodes: Sequence[NodeProcess]
    scene: Scene

    async def run(self) -> None:
        """Poll until cancelled; a poll that fails is simply not shown."""
        while True:
            self._show_nodes()
            try:
                reports = await self.admin.describe_replicas([self.topic], timeout_ms=1000)
                (topic,) = await self.admin.describe_topics([self.topic])
            except ClientError:
                await trio.sleep(POLL_SECONDS)
                continue
            self._show_partitions(topic, reports)
            await trio.sleep(POLL_SECONDS)

    async def leaders(self) -> dict[int, int]:
        """Partition -> node id of its leader, asked now."""
        (topic,) = await self.admin.describe_topics([self.topic])
        return {each.partition: each.leader for each in topic.partitions}

    async def wait_until_full(self, timeout: float) -> None:
        """Wait until every partition has a leader and all its replicas are in sync.

        Raises `NotInTimeError` naming the partitions that lack something after `timeout` seconds.
        """
        lacking: list[str] = ["nobody answers"]
        with trio.move_on_after(timeout):
            while lacking:
                lacking = await self._lacking()
                await trio.sleep(_WAIT_POLL_SECONDS if lacking else 0)
        if lacking:
            raise NotInTimeError(f"not all replicas were in sync after {timeout:.0f} s: {'; '.join(lacking)}")

    async def _lacking(self) -> list[str]:
        try:
            (topic,) = await self.admin.describe_topics([self.topic])
        except ClientError as error:
            return [str(error)]
        return [
            f"partition {each.partition} has leader {each.leader} and ISR {each.isr} of {each.replicas}"
            for each in topic.partitions
            if each.leader < 0 or set(each.isr) != set(each.replicas)
        ]

    def _show_nodes(self) -> None:
        for node in self.nodes:
            node.sample_memory()
            row = self.scene.nodes.setdefault(node.node_id, NodeRow(node.node_id))
            row.state, row.rss_bytes = node.state, node.peak_rss_bytes
            row.endpoint = node.endpoints[0] if node.endpoints else ""

    def _show_partitions(self, topic: TopicInfo, reports: Sequence[NodeReport]) -> None:
        told = {
            (report.node_id, replica.partition): replica for report in reports for replica in report.replicas
        }
        for info in topic.partitions:
            row = self.scene.partitions.setdefault(info.partition, PartitionRow(info.partition))
            row.leader, row.leader_epoch = info.leader, info.leader_epoch
            row.isr, row.replicas = tuple(info.isr), tuple(info.replicas)
            leader = told.get((info.leader, info.partition))
            if leader is not None:
                row.high_watermark, row.log_end_offset = leader.high_watermark, leader.log_end_offset
        for node in self.scene.nodes.values():
            node.leads = sum(each.leader == node.node_id for each in topic.partitions)

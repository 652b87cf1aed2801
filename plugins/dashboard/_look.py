"""One reading of a cluster: what its nodes say of topics, replicas and themselves at about the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from ...replication.cli.watching.status import summarise
from ...replication.client import ClusterInfo, NodeHealth, NodeReport
from ...replication.client.admin import PartitionInfo, ReplicaInfo, TopicInfo

if TYPE_CHECKING:
    from ...replication.client import NodeChanges

At = tuple[str, int]
"""A topic's name and the number of a partition."""


class Told(Protocol):
    """The methods of `insync.replication.asyncio.Admin` that a look at a cluster uses."""

    async def describe_cluster(self) -> ClusterInfo: ...

    async def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]: ...

    async def describe_replicas(
        self, topics: Sequence[str] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeReport]: ...

    async def describe_nodes(self, *, timeout_ms: int = 5000) -> list[NodeHealth]: ...

    async def describe_changes(
        self, since: Mapping[int, NodeChanges] | None = None, *, timeout_ms: int = 5000
    ) -> list[NodeChanges]: ...


@attrs.frozen(kw_only=True)
class Look:
    """at: when it was taken, in seconds since 1970. took: how long that was, in seconds.

    seen: the summary of `insync status`. leading: of each partition that is led, what its leader says.
    replicas: of each partition by node, what that node says of its replica.
    """

    at: float
    took: float
    cluster: ClusterInfo
    topics: dict[str, TopicInfo]
    reports: dict[int, NodeReport]
    health: dict[int, NodeHealth]
    seen: dict[str, Any]
    leading: dict[At, ReplicaInfo]
    replicas: dict[At, dict[int, ReplicaInfo]]

    @classmethod
    def of(
        cls,
        at: float,
        took: float,
        cluster: ClusterInfo,
        topics: Sequence[TopicInfo],
        reports: Sequence[NodeReport],
        health: Sequence[NodeHealth],
    ) -> Look:
        replicas: dict[At, dict[int, ReplicaInfo]] = {}
        for report in reports:
            for replica in report.replicas:
                replicas.setdefault((replica.topic, replica.partition), {})[report.node_id] = replica
        return cls(
            replicas=replicas,
            at=at,
            took=took,
            cluster=cluster,
            topics={topic.name: topic for topic in sorted(topics, key=lambda each: each.name)},
            reports={report.node_id: report for report in reports},
            health={each.node_id: each for each in health},
            seen=summarise(cluster, topics, reports),
            leading={
                (replica.topic, replica.partition): replica
                for report in reports
                for replica in report.replicas
                if replica.role == "leader"
            },
        )

    def partition(self, at: At) -> PartitionInfo | None:
        """One partition as the cluster describes it; None if there is no such."""
        topic = self.topics.get(at[0])
        return next((each for each in topic.partitions if each.partition == at[1]), None) if topic else None

    def may_lead(self, partition: PartitionInfo) -> bool:
        """Whether the preferred replica is in sync on a node that answers."""
        node = partition.replicas[0]
        return node in partition.isr and node in self.reports and not self.reports[node].error

    def size_bytes(self, topic: str) -> int:
        """Of all partitions, each once, as their leaders say."""
        return sum(replica.size_bytes for at, replica in self.leading.items() if at[0] == topic)

    def records(self, topic: str) -> int:
        """Offsets between the start and the end of all partitions: what compaction took away is counted as well."""
        return sum(
            replica.log_end_offset - replica.log_start_offset
            for at, replica in self.leading.items()
            if at[0] == topic
        )

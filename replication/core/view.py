"""The cluster as one reading of the metadata store shows it: a cache that names the revision it was read at."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .records import ControllerRecord, NodeRecord, TopicRecord, Versioned
from .types import PartitionId


@attrs.frozen(kw_only=True)
class ClusterView:
    """All records at one store revision. `controller_epoch_version` 0: there has been no controller yet."""

    revision: int = 0
    cluster_id: str = ""
    nodes: Mapping[int, NodeRecord] = attrs.Factory(dict)
    topics: Mapping[str, TopicRecord] = attrs.Factory(dict)
    topic_versions: Mapping[str, int] = attrs.Factory(dict)
    partitions: Mapping[PartitionId, Versioned] = attrs.Factory(dict)
    controller: ControllerRecord | None = None
    controller_epoch: int = 0
    controller_epoch_version: int = 0
    unreadable: frozenset[str] = frozenset()
    """Keys whose values are no records. What they were before stands in this view, if it is known; nothing is made
    of it, because nobody knows what has been meanwhile."""

    @property
    def live(self) -> dict[int, int]:
        """Incarnation of each living node, whatever is wrong with its log directories."""
        return {node_id: record.incarnation for node_id, record in self.nodes.items()}

    def live_for(self, partition: PartitionId) -> dict[int, int]:
        """Incarnation of each living node that can use what it has of the partition, if it has any."""
        return {
            node_id: record.incarnation
            for node_id, record in self.nodes.items()
            if partition not in record.offline
        }

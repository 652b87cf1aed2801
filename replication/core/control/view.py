"""The cluster as one reading of the metadata store shows it: a cache that names the revision it was read at."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from ..types import PartitionId
from .records import (
    ControllerRecord,
    DeletedTopicRecord,
    NodeRecord,
    QuotaRecord,
    TopicConfig,
    TopicRecord,
    UserRecord,
    Versioned,
)

_DEFAULTS = TopicConfig()


class Standing(Enum):
    """The store's knowledge of a topic id: of a present topic, of a deleted one, or none."""

    PRESENT = "present"
    DELETED = "deleted"
    UNKNOWN = "unknown"


@attrs.frozen(kw_only=True)
class ClusterView:
    """All records at one store revision. `controller_epoch_version` 0: there has been no controller yet."""

    revision: int = 0
    since: int = -1
    changed: frozenset[PartitionId] | None = None
    """Partitions that differ from the view at revision `since`; None: unknown, any of them may."""
    cluster_id: str = ""
    nodes: Mapping[int, NodeRecord] = attrs.Factory(dict)
    topics: Mapping[str, TopicRecord] = attrs.Factory(dict)
    topic_versions: Mapping[str, int] = attrs.Factory(dict)
    partitions: Mapping[PartitionId, Versioned] = attrs.Factory(dict)
    deleted: Mapping[str, tuple[DeletedTopicRecord, int]] = attrs.Factory(dict)
    """Deleted topics by id, with the versions of the keys."""
    controller: ControllerRecord | None = None
    controller_epoch: int = 0
    controller_epoch_version: int = 0
    quotas: Mapping[str, tuple[QuotaRecord, int]] = attrs.Factory(dict)
    """By key, with the versions of the keys."""
    users: Mapping[str, tuple[UserRecord, int]] = attrs.Factory(dict)
    """By name, with the versions of the keys."""
    secret: str = attrs.field(default="", repr=False)
    """See `ClusterRecord`."""
    unreadable: frozenset[str] = frozenset()
    """Keys whose values are no records. Their former records stand in this view, if they are known; nothing is made
    of them, because nobody knows what has been meanwhile."""
    _for_all: dict[bool, Mapping[int, int] | None] = attrs.field(
        factory=dict, init=False, eq=False, repr=False
    )
    """The `live_for` of all partitions alike, made when first asked; None: it depends on the partition."""

    def config_of(self, topic: str) -> TopicConfig:
        """The defaults for a topic that is not known (any more): its requests are refused elsewhere."""
        record = self.topics.get(topic)
        return record.config if record is not None else _DEFAULTS

    def differs_from(self, other: ClusterView) -> frozenset[PartitionId] | None:
        """The partitions whose records may differ from those of an earlier view; None: any of them."""
        return self.changed if self.since == other.revision else None

    @property
    def live(self) -> dict[int, int]:
        """Incarnation of each node that is alive and stays so, whatever is wrong with its log directories."""
        return {node_id: record.incarnation for node_id, record in self.staying.items()}

    @property
    def staying(self) -> dict[int, NodeRecord]:
        """The living nodes but for those that are about to stop."""
        return {node_id: record for node_id, record in self.nodes.items() if not record.leaving}

    def live_for(self, partition: PartitionId, *, leaving: bool = False) -> Mapping[int, int]:
        """Incarnation of each living node that can use what it has of the partition, if it has any.

        leaving: also of those that are about to stop.
        """
        if leaving not in self._for_all:
            self._for_all[leaving] = (
                None
                if any(record.offline for record in self.nodes.values())
                else {
                    node_id: record.incarnation
                    for node_id, record in self.nodes.items()
                    if leaving or not record.leaving
                }
            )
        shared = self._for_all[leaving]
        if shared is not None:
            return shared
        return {
            node_id: record.incarnation
            for node_id, record in self.nodes.items()
            if partition not in record.offline and (leaving or not record.leaving)
        }

    def standing_of(self, topic_id: str) -> Standing:
        """Absence is no evidence: an unknown id may be a forgotten or a damaged one."""
        if any(topic.topic_id == topic_id for topic in self.topics.values()):
            return Standing.PRESENT
        return Standing.DELETED if topic_id in self.deleted else Standing.UNKNOWN

    def is_relieved(self, node_id: int) -> bool:
        """Whether nothing is lost to anybody when a node stops: wherever another replica lives and stays, the node
        neither leads nor is in sync.
        """
        for partition, versioned in self.partitions.items():
            record = versioned.record
            if node_id in record.isr or node_id == record.leader:
                stay = self.live_for(partition)
                if any(other in stay for other in record.replicas if other != node_id):
                    return False
        return True

"""The metadata store as a dictionary with versions: sessions, transactions, and readings of any age."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..core.control.records import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    ControllerRecord,
    NodeRecord,
    PartitionRecord,
    QuotaRecord,
    TopicRecord,
    Versioned,
    partition_key,
    topic_key,
)
from ..core.control.view import ClusterView
from ..core.types import PartitionId

RACKS = 3
"""The fourth node shares one with the first."""


@attrs.frozen
class Reading:
    """Everything in the store at one revision. `live` is the view's, worked out once."""

    view: ClusterView
    live: Mapping[int, int]

    def live_for(self, partition: PartitionId) -> Mapping[int, int]:
        """As the view has it; most often everybody who lives."""
        some_offline = any(node.offline for node in self.view.nodes.values())
        return self.view.live_for(partition) if some_offline else self.live


class Store:
    """Partition records with versions, the living nodes, their incarnations, and the controller's office."""

    def __init__(self) -> None:
        self.revision = 0
        self.reachable = True
        self.topics: dict[str, TopicRecord] = {}
        self.topic_versions: dict[str, int] = {}
        self.partitions: dict[PartitionId, Versioned] = {}
        self.quotas: dict[str, tuple[QuotaRecord, int]] = {}
        self.live: dict[int, int] = {}
        self.leaving: set[int] = set()
        self.offline: dict[int, frozenset[PartitionId]] = {}
        """What each living node says that it cannot use."""
        self.incarnations: dict[int, int] = {}
        self.controller: ControllerRecord | None = None
        self.controller_epoch = 0
        self.controller_epoch_version = 0
        self._reading: Reading | None = None

    def reading(self) -> Reading:
        if self._reading is None or self._reading.view.revision != self.revision:
            view = ClusterView(
                revision=self.revision,
                nodes={
                    node: NodeRecord(
                        node_id=node,
                        incarnation=incarnation,
                        endpoints=(),
                        rack=f"rack {node % RACKS}",
                        offline=self.offline.get(node, frozenset()),
                        leaving=node in self.leaving,
                    )
                    for node, incarnation in self.live.items()
                },
                topics=dict(self.topics),
                topic_versions=dict(self.topic_versions),
                partitions=dict(self.partitions),
                quotas=dict(self.quotas),
                controller=self.controller,
                controller_epoch=self.controller_epoch,
                controller_epoch_version=self.controller_epoch_version,
            )
            self._reading = Reading(view, view.live)
        return self._reading

    def version(self, key: str) -> int:
        """The version of a key that the controller may check; 0 if there is nothing."""
        if key == CONTROLLER_EPOCH_KEY:
            return self.controller_epoch_version
        if key == CONTROLLER_KEY:
            return 0 if self.controller is None else 1
        if key in self.quotas:
            return self.quotas[key][1]
        for partition, versioned in self.partitions.items():
            if partition_key(partition) == key:
                return versioned.version
        return next((v for name, v in self.topic_versions.items() if topic_key(name) == key), 0)

    def put_topic(self, record: TopicRecord) -> None:
        self.topics[record.name] = record
        self.topic_versions[record.name] = self.topic_versions.get(record.name, 0) + 1

    def drop_topic(self, name: str) -> None:
        del self.topics[name], self.topic_versions[name]

    def drop_partition(self, partition: PartitionId) -> None:
        """A record of the same key that comes later begins with version 1 again, as in the weakest of stores."""
        self.revision += 1
        del self.partitions[partition]

    def named(self, key: str) -> str | PartitionId | None:
        """The topic or the partition that a key is of, if there is one."""
        found = next((partition for partition in self.partitions if partition_key(partition) == key), None)
        return found or next((name for name in self.topics if topic_key(name) == key), None)

    def put_partition(self, record: PartitionRecord) -> int:
        known = self.partitions.get(record.id)
        version = known.version + 1 if known is not None else 1
        self.revision += 1
        self.partitions[record.id] = Versioned(record, version)
        return version

    def register(self, node: int, incarnation: int) -> None:
        self.revision += 1
        self.incarnations[node] = incarnation
        self.live[node] = incarnation
        self.leaving.discard(node)
        self.offline.pop(node, None)
        self._vacate(node)

    def renew(
        self,
        node: int,
        incarnation: int,
        offline: frozenset[PartitionId] = frozenset(),
        *,
        leaving: bool = False,
    ) -> None:
        """The same process holds a session again, or has something else to say of itself."""
        self.revision += 1
        self.live[node] = incarnation
        self.offline[node] = offline
        if leaving:
            self.leaving.add(node)

    def expire(self, node: int) -> None:
        """The node's session ends, and with it what it held."""
        self.live.pop(node, None)
        self.leaving.discard(node)
        self.offline.pop(node, None)
        self._vacate(node)
        self.revision += 1

    def _vacate(self, node: int) -> None:
        if self.controller is not None and self.controller.node_id == node:
            self.controller = None

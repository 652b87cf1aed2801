"""The topics of a run: made when all nodes are there, and made again under the same name when they were deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import messages as m
from ...core.control.records import TopicConfig
from ...core.types import Value
from ..settings import Topic

if TYPE_CHECKING:
    from .cluster import Cluster

LOOK_EVERY = 2.0


class Topics:
    """Keeps asking the controller for each topic that is missing, under an id that no earlier one had."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin_requests = 0
        self._asked_for: set[str] = set()
        self._unwanted: set[str] = set()
        """Ids of topics that somebody has asked to be deleted, and names of which any may be."""

    def begin(self) -> None:
        self._cluster.later(1.0, self._keep_looking)

    def may_go(self, name: str, topic_id: str) -> bool:
        """Whether somebody has asked for it to be deleted."""
        return name in self._unwanted or topic_id in self._unwanted

    def delete(self, name: str, *, by_name: bool) -> bool:
        """Have the controller delete a topic: this one, or whichever has its name when it comes to that."""
        cluster = self._cluster
        topic = cluster.store.topics.get(name)
        if topic is None:
            return False
        named = "" if by_name else topic.topic_id
        asked = cluster.admin_request(m.DeleteTopicRequest(name=name, topic_id=named)) is not None
        if asked:
            self._unwanted.add(name if by_name else f"{topic.topic_id}")
        return asked

    def grow(self, name: str, most: int) -> bool:
        """Have the controller add a partition to a topic that has fewer than `most`; whether it was asked."""
        topic = self._cluster.store.topics.get(name)
        if topic is None or topic.partitions >= most:
            return False
        request = m.CreatePartitionsRequest(name=name, partitions=topic.partitions + 1)
        return self._cluster.admin_request(request) is not None

    def look(self) -> None:
        """Ask for what is missing; the first time only when every node is there to get replicas."""
        cluster = self._cluster
        for topic in cluster.settings.topics:
            wanted = topic.name not in cluster.store.topics
            everybody = len(cluster.store.live) == len(cluster.nodes)
            if wanted and (everybody or topic.name in self._asked_for):
                self._ask_for(topic)

    def _keep_looking(self) -> None:
        self.look()
        self._cluster.later(LOOK_EVERY, self._keep_looking)

    def _ask_for(self, topic: Topic) -> None:
        config: dict[str, Value] = {"unclean_leader_election": topic.unclean_leader_election}
        if topic.durability != TopicConfig().durability:
            config["durability"] = topic.durability
        if self._cluster.settings.compactions:
            config["cleanup_policy"] = "compact,delete"
        if topic.min_insync_replicas != min(TopicConfig().min_insync_replicas, topic.replication_factor):
            config["min_insync_replicas"] = topic.min_insync_replicas
        request = m.CreateTopicRequest(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            config=config,
        )
        self._admin_requests += 1
        first = topic.name not in self._asked_for
        if (
            self._cluster.admin_request(
                request, topic.name if first else f"{topic.name}~{self._admin_requests}"
            )
            is not None
        ):
            self._asked_for.add(topic.name)

"""What people ask of a controller besides moves: topics that grow and change, and much that must be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import messages as m
from ..core.types import PartitionId, Value
from ..core.wishes import Request

if TYPE_CHECKING:
    from .cluster import Cluster

MOST_PARTITIONS = 4
_BAD_SETTINGS: tuple[dict[str, Value], ...] = (
    {"no_such_setting": 1},
    {"unclean_leader_election": "perhaps"},
    {"cleanup_policy": "keep"},
    {"min_insync_replicas": 9},
    {"max_message_bytes": 1},
    {"min_compaction_lag_ms": 10, "max_compaction_lag_ms": 5},
)


class Visitor:
    """Asks for something at a time, possible or not; what is refused must change nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def turn(self) -> None:
        cluster = self._cluster
        if cluster.calm:
            return
        request = self._request()
        if isinstance(request, m.ElectLeadersRequest) and request.unclean:
            # Those that are led now may not be when the wish is granted.
            asked = [PartitionId(each.topic, each.partition) for each in request.partitions or ()]
            cluster.oracle.asked_unclean.update(asked)
        cluster.wish(request, fresh_id=f"unwanted {cluster.new_id()}")
        cluster.later((0.5 + 4 * cluster.random.random()) / cluster.settings.wishes, self.turn)

    def _request(self) -> Request:
        dice, topics = self._cluster.random, sorted(self._cluster.store.topics.values(), key=lambda t: t.name)
        if not topics:
            return m.ElectLeadersRequest(partitions=None)
        topic = topics[int(dice.random() * len(topics))]
        bad = _BAD_SETTINGS[int(dice.random() * len(_BAD_SETTINGS))]
        nobody = m.PartitionName(topic=topic.name, partition=99)
        leaderless = [
            m.PartitionName(topic=held.topic, partition=held.partition)
            for held in self._cluster.store.partitions
        ]
        grown = min(topic.partitions + 1, MOST_PARTITIONS)
        impossible = [[], [1, 1], [1, 99]][int(dice.random() * 3)]
        choices: tuple[Request, ...] = (
            m.CreateTopicRequest(name=topic.name, partitions=1, replication_factor=1),
            m.CreateTopicRequest(name="no/name", partitions=1, replication_factor=1),
            m.CreateTopicRequest(name="none", partitions=0, replication_factor=1),
            m.CreateTopicRequest(name="wide", partitions=1, replication_factor=9),
            m.CreateTopicRequest(name="odd", partitions=1, replication_factor=1, config=bad),
            m.CreatePartitionsRequest(name="nowhere", partitions=3),
            m.CreatePartitionsRequest(name=topic.name, partitions=topic.partitions),
            m.CreatePartitionsRequest(name=topic.name, partitions=0),
            m.CreatePartitionsRequest(name=topic.name, partitions=grown),
            m.AlterConfigRequest(name=topic.name, config=bad),
            m.AlterConfigRequest(name=topic.name, reset=["no_such_setting"]),
            m.AlterConfigRequest(name=topic.name, reset=["retention_ms"]),
            m.AlterConfigRequest(name=topic.name, config={"retention_ms": int(dice.random() * 1e6)}),
            m.DeleteTopicRequest(name="nowhere"),
            m.DeleteTopicRequest(name=topic.name, topic_id="another"),
            m.ElectLeadersRequest(partitions=None),
            m.ElectLeadersRequest(partitions=[nobody]),
            m.ElectLeadersRequest(partitions=[nobody], unclean=True),
            m.ElectLeadersRequest(partitions=self._led(leaderless), unclean=True),
            m.AlterReassignmentsRequest(
                partitions=[m.PartitionReassignment(topic=topic.name, partition=0, replicas=impossible)]
            ),
            m.AlterReassignmentsRequest(
                partitions=[m.PartitionReassignment(topic="nowhere", partition=0, replicas=[1])]
            ),
        )
        return choices[int(dice.random() * len(choices))]

    def _led(self, named: list[m.PartitionName]) -> list[m.PartitionName]:
        """Those that have a leader: an unclean election of another would be one that somebody asked for."""
        partitions = self._cluster.store.partitions
        led = {(p.topic, p.partition) for p, held in partitions.items() if held.record.leader >= 0}
        return [name for name in named if (name.topic, name.partition) in led]

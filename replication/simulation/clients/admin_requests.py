"""People's requests to a controller besides moves: topics that grow and change, and much that must be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import messages as m
from ...core.control import quotas
from ...core.control.admin_requests import Request
from ...core.types import NO_LEADER, PartitionId, Value
from ..driver.fetches import BATCH_SIZE
from ..errors import require

if TYPE_CHECKING:
    from ..world.cluster import Cluster

MOST_PARTITIONS = 4
LOSES_PATIENCE = 0.5
"""How often who sees that nobody leads a partition wants somebody to, whatever is lost by it."""
_BAD_SETTINGS: tuple[dict[str, Value], ...] = (
    {"no_such_setting": 1},
    {"unclean_leader_election": "perhaps"},
    {"cleanup_policy": "keep"},
    {"min_insync_replicas": 9},
    {"max_message_bytes": 1},
    {"min_compaction_lag_ms": 10, "max_compaction_lag_ms": 5},
)


_NAMES = ("", "1", "etl")
LEAST_LIMIT = 10 * BATCH_SIZE
"""Bytes a second: nodes go by these limits, and what a reassignment adds must have caught up before the end."""
_RATES = (quotas.PRODUCER, quotas.CONSUMER, quotas.LEADER_THROTTLE, quotas.FOLLOWER_THROTTLE)


class AdminTraffic:
    """Asks for something at a time, possible or not; what is refused must change nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def turn(self) -> None:
        cluster = self._cluster
        if cluster.calm:
            return
        request = self._request()
        if isinstance(request, m.ElectLeadersRequest) and request.unclean:
            # Those that are led now may not be when the request is granted.
            asked = [PartitionId(each.topic, each.partition) for each in request.partitions or ()]
            cluster.oracle.asked_unclean.update(asked)
        cluster.admin_request(request, fresh_id=f"unwanted {cluster.new_id()}")
        self._look_up_limits()
        cluster.later((0.5 + 4 * cluster.random.random()) / cluster.settings.admin_requests, self.turn)

    def _request(self) -> Request:
        dice, topics = self._cluster.random, sorted(self._cluster.store.topics.values(), key=lambda t: t.name)
        if not topics:
            return m.ElectLeadersRequest(partitions=None)
        stuck = [p for p, held in self._cluster.store.partitions.items() if held.record.leader == NO_LEADER]
        if stuck and dice.random() < LOSES_PATIENCE:
            named = [m.PartitionName(topic=each.topic, partition=each.partition) for each in stuck]
            return m.ElectLeadersRequest(partitions=named, unclean=True)
        topic = topics[int(dice.random() * len(topics))]
        bad = _BAD_SETTINGS[int(dice.random() * len(_BAD_SETTINGS))]
        nobody = m.PartitionName(topic=topic.name, partition=99)
        every = [
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
            m.ElectLeadersRequest(
                partitions=every if dice.random() < 0.3 else self._led(every), unclean=True
            ),
            *self._limits(),
            m.AlterReassignmentsRequest(
                partitions=[m.PartitionReassignment(topic=topic.name, partition=0, replicas=impossible)]
            ),
            m.AlterReassignmentsRequest(
                partitions=[m.PartitionReassignment(topic="nowhere", partition=0, replicas=[1])]
            ),
        )
        return choices[int(dice.random() * len(choices))]

    def _limits(self) -> tuple[Request, ...]:
        """Limits that are set, raised, taken away again, and such as cannot be."""
        dice = self._cluster.random
        kind = (*quotas.LIMITS, "nobody")[int(dice.random() * 4)]
        name = (*_NAMES, "not\nprintable")[int(dice.random() * 4)]
        rate = _RATES[int(dice.random() * 4)]
        value = LEAST_LIMIT * int(dice.random() * 3)
        right = quotas.LIMITS.get(kind, _RATES)[int(dice.random() * 2)]
        return (
            m.AlterQuotasRequest(entity_type=kind, name=name, limits={rate: value}),
            m.AlterQuotasRequest(entity_type=kind, name=name, limits={right: LEAST_LIMIT + value}),
            m.AlterQuotasRequest(entity_type=kind, name=name, remove=[right]),
            m.AlterQuotasRequest(entity_type=kind, name=name, remove=list(quotas.LIMITS.get(kind, ()))),
        )

    def _look_up_limits(self) -> None:
        """S6: nobody is given another limit than the store has, nor one that cannot be."""
        held = {
            quotas.Entity(record.entity_type, record.name): record
            for record, _ in self._cluster.store.quotas.values()
        }
        for entity, record in held.items():
            right = (
                set(record.limits) <= set(quotas.LIMITS[entity.entity_type])
                and min(record.limits.values()) > 0
            )
            require(right, "S6", f"limits that cannot be: {record}")
        dice = self._cluster.random
        user, client = _NAMES[int(dice.random() * 3)], _NAMES[int(dice.random() * 3)]
        order = [(quotas.USER, user), (quotas.CLIENT_ID, client), (quotas.USER, ""), (quotas.CLIENT_ID, "")]
        asked = order if user else [entity for entity in order if entity[0] != quotas.USER]
        self._expect(held, asked, quotas.PRODUCER, quotas.limit_of(held, user, client, quotas.PRODUCER))
        throttle = quotas.throttle_of(held, 1, quotas.LEADER_THROTTLE)
        nodes = [(quotas.NODE, "1"), (quotas.NODE, "")]
        self._expect(held, nodes, quotas.LEADER_THROTTLE, throttle)

    @staticmethod
    def _expect(
        held: quotas.Quotas,
        order: list[tuple[str, str]],
        rate: str,
        found: tuple[quotas.Entity, int] | int | None,
    ) -> None:
        limits = [held[quotas.Entity(*each)].limits for each in order if quotas.Entity(*each) in held]
        right = next((limit[rate] for limit in limits if rate in limit), None)
        value = found[1] if isinstance(found, tuple) else found
        require(value == right, "S6", f"{rate} of {order} is {found}, not {right}")

    def _led(self, named: list[m.PartitionName]) -> list[m.PartitionName]:
        """Those that have a leader: an unclean election of another would be one that somebody asked for."""
        partitions = self._cluster.store.partitions
        led = {(p.topic, p.partition) for p, held in partitions.items() if held.record.leader >= 0}
        return [name for name in named if (name.topic, name.partition) in led]

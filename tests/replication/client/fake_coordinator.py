"""A coordinator for the fake cluster: the real machine of groups on a log in memory, and a clock that runs."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from msgspec import structs

from insync.replication import wire
from insync.replication.core import messages as m
from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.coordination.topics_view import TopicInfo, TopicsView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups.settings import GroupSettings
from insync.replication.core.messages import groups as gm
from tests.replication.core.groups.harness import GroupHost

from .fake_cluster import FakeCluster, FakeNode, fake_cluster

_KINDS = frozenset(
    {
        m.Kind.CONSUMER_GROUP_HEARTBEAT,
        m.Kind.JOIN_GROUP,
        m.Kind.SYNC_GROUP,
        m.Kind.HEARTBEAT,
        m.Kind.LEAVE_GROUP,
        m.Kind.COMMIT_GROUP_OFFSETS,
        m.Kind.GROUP_OFFSETS,
        m.Kind.DESCRIBE_GROUPS,
        m.Kind.LIST_GROUPS,
        m.Kind.DELETE_GROUPS,
        m.Kind.OFFSET_DELETE,
    }
)
SETTINGS = GroupSettings(
    consumer_heartbeat_interval_ms=500,
    consumer_session_timeout_ms=3_000,
    initial_rebalance_delay_ms=20,
    min_session_timeout_ms=100,
)
PACE = 0.005


class FakeCoordinator:
    """Serves every group on one node at a time."""

    def __init__(self, cluster: FakeCluster, settings: GroupSettings) -> None:
        self.cluster = cluster
        self.host = GroupHost(settings)
        self.node_id = 0
        self.seen: list[Any] = []
        """All requests about groups, in order."""
        self.deaf = False
        """Whether requests are left without an answer, from now on."""
        self._asked: dict[int, Any] = {}
        cluster.chaos = self.handle

    async def run(self) -> None:
        while True:
            self._look()
            await trio.sleep(PACE)

    def _look(self) -> None:
        host = self.host
        host.now = time.monotonic()
        topics = {
            name: TopicInfo(self.cluster.topic_id(name), len(logs))
            for name, logs in self.cluster.topics.items()
        }
        host.tell(ev.Contacted(since=host.now))
        if topics != dict(host.view.topics):
            host.view = TopicsView(topics)
            host.tell(ev.ViewChanged(view=host.view))
        due = host.shard.deadline
        if due is not None and due <= host.now:
            host.tell(ev.Tick())
        for number in [each for each in self._asked if each in host.said]:
            request = self._asked.pop(number)
            if not request.connection.closed.is_set():
                request.reply(wire.encode(host.said[number]))

    def move(self, node_id: int) -> None:
        """Another node coordinates from now on."""
        self.host.now = time.monotonic()
        self.host.tell(ev.ShardEnded())
        self._look()
        self.node_id = node_id
        self.host.lead()

    def handle(self, node: FakeNode, request: Any) -> bool:
        kind = m.Kind(request.kind)
        if kind is m.Kind.FIND_COORDINATOR:
            asked = wire.decode_request(kind, request.body)
            found = [
                gm.Coordinator(key=key, node_id=self.node_id, leader_epoch=self.host.epoch)
                for key in asked.keys
            ]
            request.reply(wire.encode(gm.FindCoordinatorResponse(coordinators=found)))
            return True
        if kind not in _KINDS:
            return False
        message = wire.decode_request(kind, request.body)
        self.seen.append(message)
        if self.deaf:
            return True
        if node.node_id != self.node_id:
            reply = gm.RESPONSES[type(message)]
            request.reply(wire.encode(reply(error=ErrorCode.NOT_COORDINATOR)))
            return True
        if isinstance(message, gm.JoinGroupRequest):
            message = structs.replace(message, fresh_id=f"{message.client_id}-{uuid.uuid4()}")
        self._look()
        self._asked[self.host.send(message)] = request
        self._look()
        return True

    def members(self, group: str = "g") -> list[str]:
        """Ids of the members that the coordinator counts."""
        state = self.host.machine.groups.get(group)
        return sorted(state.members) if state is not None else []

    def committed(self, topic: str = "t", group: str = "g") -> dict[int, int]:
        """Offsets by partition."""
        state = self.host.machine.groups.get(group)
        if state is None:
            return {}
        return {
            number: found.value.offset
            for (name, number), found in sorted(state.offsets.items())
            if name == topic
        }


@asynccontextmanager
async def group_cluster(
    nodes: int = 2, *, scheme: str = "mem", settings: GroupSettings = SETTINGS, **topics: int
) -> AsyncIterator[tuple[FakeCluster, FakeCoordinator]]:
    """A fake cluster with topics (name=partitions) that coordinates groups."""
    async with fake_cluster(nodes, scheme=scheme, **topics) as cluster:
        coordinator = FakeCoordinator(cluster, settings)
        cluster.nursery.start_soon(coordinator.run)
        yield cluster, coordinator

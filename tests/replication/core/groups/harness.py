"""A shard of groups on a log in memory that commits at once, and members that speak to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from insync.replication.core.coordination import shard_events as ev
from insync.replication.core.coordination.shard import Shard
from insync.replication.core.coordination.topics_view import TopicInfo, TopicsView
from insync.replication.core.errors import ErrorCode
from insync.replication.core.groups import records as r
from insync.replication.core.groups.settings import GroupSettings
from insync.replication.core.groups.shard import GroupCoordinator
from insync.replication.core.messages import groups as gm

from ..coordination.shard_host import ShardHost


def topic_id(name: str, made: int = 0) -> str:
    return f"{sum(name.encode()) + 1000 * made:032x}"


def view(made: Mapping[str, int] | None = None, **counts: int) -> TopicsView:
    """Topics by name; `made`: how often each was made again."""
    again = made or {}
    return TopicsView({name: TopicInfo(topic_id(name, again.get(name, 0)), n) for name, n in counts.items()})


KAFKAS = GroupSettings(consumer_session_timeout_ms=45_000, consumer_heartbeat_interval_ms=5_000)
"""Times as tests count with them."""


class GroupHost(ShardHost):
    """One partition of `__consumer_offsets`."""

    def __init__(self, settings: GroupSettings | None = None, **counts: int) -> None:
        self.settings = settings if settings is not None else KAFKAS
        super().__init__(Shard(lambda: GroupCoordinator(self.settings)), view(**(counts or {"t": 4})))
        self.lead()

    def send(self, message: Any, within: float = 3600) -> int:
        self.tell(ev.Contacted(since=self.now))
        return super().send(message, within)

    def waits(self, request_id: int) -> bool:
        return request_id not in self.said

    def see(self, made: Mapping[str, int] | None = None, **counts: int) -> None:
        self.view = view(made, **counts)
        self.tell(ev.Contacted(since=self.now))
        self.tell(ev.ViewChanged(view=self.view))

    def mark(self, producer_id: int, producer_epoch: int = 0, *, committed: bool = True) -> None:
        marker = ev.Marker(len(self.log), ev.ProducerId(producer_id, producer_epoch), committed)
        self.log.append(marker)
        self.tell(ev.MarkerWritten(marker=marker))
        self.commit()

    @property
    def machine(self) -> GroupCoordinator:
        machine = self.shard.machine
        assert isinstance(machine, GroupCoordinator)
        return machine

    def replayed(self) -> GroupCoordinator:
        """The state that the log alone gives."""
        other = GroupCoordinator(self.settings)
        for entry in self.log:
            if isinstance(entry, ev.Marker):
                other.mark(entry)
            else:
                other.apply(entry)
        return other


@attrs.define
class Member:
    """A client of the consumer protocol that does what it is told, and says so."""

    host: GroupHost
    member_id: str
    topics: list[str] = attrs.Factory(lambda: ["t"])
    group: str = "g"
    instance_id: str | None = None
    epoch: int = 0
    owned: set[r.TopicPartition] = attrs.Factory(set)
    rebalance_timeout_ms: int = 60_000
    last: gm.ConsumerGroupHeartbeatResponse = attrs.field(factory=gm.ConsumerGroupHeartbeatResponse)

    def request(self, **changes: Any) -> gm.ConsumerGroupHeartbeatRequest:
        said: dict[str, Any] = {
            "group": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "owned": lists(self.owned),
            "topics": self.topics,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
        }
        return gm.ConsumerGroupHeartbeatRequest(**said | changes)

    def beat(self, **changes: Any) -> ErrorCode:
        """One heartbeat, and what it is told is done."""
        return self.heard(self.host.ask(self.request(**changes)))

    def heard(self, reply: gm.ConsumerGroupHeartbeatResponse) -> ErrorCode:
        self.last = reply
        if reply.error == 0:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.owned = given(reply)
        return ErrorCode(reply.error)

    def park(self, **changes: Any) -> int:
        """A heartbeat that waits for news, and says only what is needed."""
        bare = {"owned": None, "topics": None, "rebalance_timeout_ms": -1, "max_wait_ms": 5000}
        return self.host.send(self.request(**bare | changes))

    def short(self) -> str:
        """What it owns, as `t0 t1`."""
        names = self.host.view.names
        return " ".join(f"{names[each.topic_id]}{each.partition}" for each in sorted(self.owned))


def lists(partitions: set[r.TopicPartition]) -> list[gm.TopicPartitionList]:
    return [
        gm.TopicPartitionList(topic_id=each.topic_id, partitions=list(each.partitions))
        for each in r.target_topics(partitions)
    ]


def given(reply: gm.ConsumerGroupHeartbeatResponse) -> set[r.TopicPartition]:
    return {
        r.TopicPartition(each.topic_id, number)
        for each in reply.assignment or ()
        for number in each.partitions
    }


def settle(*members: Member) -> int:
    """Heartbeats in turn until nothing changes; how many rounds that took."""
    for rounds in range(20):
        before = [(member.epoch, set(member.owned)) for member in members]
        for member in members:
            assert member.beat() == ErrorCode.NONE
        if before == [(member.epoch, member.owned) for member in members]:
            return rounds
    raise AssertionError("it does not settle")

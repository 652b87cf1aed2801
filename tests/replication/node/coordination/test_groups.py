"""Real nodes coordinate groups: joins, offsets, rebalances, coordinators that go, and what nobody else may do."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from insync.replication import Admin, Node, NodeSettings, Producer, ReplicationError
from insync.replication.core.coordination.routing import GROUP_TOPIC
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm
from insync.replication.node.log_lines import Event

from ..operations.scraping import scrape
from ..test_cluster import settings
from .group_clients import Caller, Member, calling, settle


@attrs.define(eq=False)
class Nodes:
    """Nodes of one cluster by their ids, each in a task of its own."""

    nursery: trio.Nursery
    running: dict[int, Node] = attrs.Factory(dict)
    _stopping: dict[int, tuple[trio.Event, trio.Event]] = attrs.Factory(dict)

    @property
    def servers(self) -> list[str]:
        return [each.endpoints[0] for each in self.running.values()]

    async def start(self, given: NodeSettings) -> None:
        asked, stopped = self._stopping[given.node_id] = trio.Event(), trio.Event()

        async def run(task_status: trio.TaskStatus[Node] = trio.TASK_STATUS_IGNORED) -> None:
            async with Node(given) as node:
                task_status.started(node)
                await asked.wait()
            stopped.set()

        self.running[given.node_id] = await self.nursery.start(run)

    async def stop(self, node_id: int) -> None:
        del self.running[node_id]
        asked, stopped = self._stopping[node_id]
        asked.set()
        await stopped.wait()


FAST = {
    # A machine that stands still for seconds must not cost a node its place; no test here waits for that.
    "session_timeout_ms": 30_000,
    "offsets_topic_num_partitions": 4,
    "group_consumer_heartbeat_interval_ms": 1000,
    "controlled_shutdown_timeout_ms": 1000,
}


@asynccontextmanager
async def cluster(folder: Path, count: int, **options: object) -> AsyncIterator[tuple[Nodes, Caller, Admin]]:
    async with trio.open_nursery() as outer:
        nodes = Nodes(outer)
        for node_id in range(1, count + 1):
            await nodes.start(settings(folder, node_id, **{**FAST, **options}))
        async with trio.open_nursery() as nursery:
            with calling(nodes.servers, nursery) as caller:
                async with Admin(nodes.servers) as admin:
                    yield nodes, caller, admin
            nursery.cancel_scope.cancel()
        for node_id in list(nodes.running):
            await nodes.stop(node_id)


def commit(group: str, offset: int, **changes: object) -> gm.CommitGroupOffsetsRequest:
    return gm.CommitGroupOffsetsRequest(
        group=group,
        offsets=[gm.GroupOffset(topic="t", partition=0, offset=offset)],
        **changes,  # type: ignore[arg-type]
    )


def committed(group: str) -> gm.GroupOffsetsRequest:
    return gm.GroupOffsetsRequest(group=group)


async def test_members_share_partitions_commit_and_leave(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as (_, caller, admin):
        await admin.create_topic("t", partitions=6, replication_factor=3)
        first, second = Member(caller, "g", ["t"]), Member(caller, "g", ["t"])
        await settle(first, partitions=6)
        topics = {each.name: each for each in await admin.describe_topics([GROUP_TOPIC])}
        made = topics[GROUP_TOPIC]
        assert len(made.partitions) == 4 and all(len(each.replicas) == 3 for each in made.partitions)
        assert made.config["cleanup_policy"] == "compact" and made.config["min_insync_replicas"] == 2
        await settle(first, second, partitions=6)
        assert first.count == second.count == 3
        # One owns what it commits, the other does not.
        topic_id = next(iter(first.owned))
        number = min(first.owned[topic_id])
        offsets = [gm.GroupOffset(topic="t", partition=number, offset=7)]
        for member, error in ((first, ErrorCode.NONE), (second, ErrorCode.NONE)):
            reply = await caller.ask(
                gm.CommitGroupOffsetsRequest(
                    group="g", member_id=member.member_id, epoch=member.epoch, offsets=offsets
                )
            )
            assert [each.error for each in reply.partitions] == [error]
        told = await caller.ask(committed("g"))
        assert [(each.partition, each.offset) for each in told.offsets] == [(number, 7)]
        # One that leaves gives its partitions to the other at once.
        await second.beat(member_epoch=-1)
        await settle(first, partitions=6)
        # A stranger commits nothing while the group has members.
        refused = await caller.ask(commit("g", 9))
        assert refused.error == ErrorCode.UNKNOWN_MEMBER_ID and "no member" in refused.message


async def test_a_parked_heartbeat_is_answered_as_soon_as_there_is_news(tmp_path: Path) -> None:
    slow = {"group_consumer_session_timeout_ms": 45_000, "group_consumer_heartbeat_interval_ms": 20_000}
    async with cluster(tmp_path, 1, **slow) as (_, caller, admin):
        await admin.create_topic("t", partitions=2, replication_factor=1)
        first, second = Member(caller, "g", ["t"]), Member(caller, "g", ["t"])
        await settle(first, partitions=2)
        news: list[gm.ConsumerGroupHeartbeatResponse] = []

        async def wait_for_news() -> None:
            silent = {"topics": None, "owned": None, "rebalance_timeout_ms": -1, "max_wait_ms": 15_000}
            news.append(await first.beat(**silent))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_news)
                # On the same connection others are served meanwhile.
                assert not (await caller.ask(committed("g"))).error
                await second.beat()
        assert news[0].assignment is not None and first.count == 1


async def test_offsets_and_members_survive_their_coordinator(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as (nodes, caller, admin):
        await admin.create_topic("t", partitions=4, replication_factor=3)
        member = Member(caller, "g", ["t"])
        await settle(member, partitions=4)
        held = {topic: set(numbers) for topic, numbers in member.owned.items()}
        assert not (await caller.ask(commit("g", 42, member_id=member.member_id, epoch=member.epoch))).error
        first = await caller.find("g")
        caller.servers.remove(nodes.running[first.node_id].endpoints[0])
        await nodes.stop(first.node_id)
        with trio.fail_after(60):
            told = await caller.ask(committed("g"))
            assert [each.offset for each in told.offsets] == [42]
            second = await caller.find("g")
            assert second.node_id != first.node_id and second.leader_epoch > first.leader_epoch
            silent = {"topics": None, "owned": None, "rebalance_timeout_ms": -1}
            reply = await member.beat(**silent)
            assert not reply.error and member.owned == held
            done = await caller.ask(commit("g", 43, member_id=member.member_id, epoch=member.epoch))
            assert [each.error for each in done.partitions] == [0]
            told = await caller.ask(committed("g"))
        assert [each.offset for each in told.offsets] == [43]


async def test_offsets_are_there_after_all_nodes_have_stopped(tmp_path: Path) -> None:
    for offset in (5, 6):
        async with cluster(tmp_path, 1) as (_, caller, admin):
            if offset == 5:
                await admin.create_topic("t", partitions=1, replication_factor=1)
            else:
                told = await caller.ask(committed("g"))
                assert [each.offset for each in told.offsets] == [5]
            assert not (await caller.ask(commit("g", offset))).error


async def test_a_silent_member_is_put_out(tmp_path: Path) -> None:
    options = {"group_consumer_session_timeout_ms": 3000}
    async with cluster(tmp_path, 1, **options) as (_, caller, admin):
        await admin.create_topic("t", partitions=2, replication_factor=1)
        silent, alive = Member(caller, "g", ["t"]), Member(caller, "g", ["t"])
        await settle(silent, alive, partitions=2)
        with trio.fail_after(60):
            while alive.count < 2:
                await alive.beat(owned=None, topics=None, rebalance_timeout_ms=-1, max_wait_ms=900)
        reply = await silent.beat()
        assert reply.error == ErrorCode.UNKNOWN_MEMBER_ID


async def test_groups_are_listed_described_and_deleted(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as (nodes, caller, admin):
        await admin.create_topic("t", partitions=1, replication_factor=1)
        url = nodes.servers[0]
        assert (await caller.at(url, gm.ListGroupsRequest())).groups == []
        names = [f"group-{number}" for number in range(6)]
        for name in names:
            assert not (await caller.ask(commit(name, 1))).error
        member = Member(caller, "members", ["t"])
        await settle(member, partitions=1)
        listed = (await caller.at(url, gm.ListGroupsRequest())).groups
        assert [each.group for each in listed] == [*names, "members"]
        assert {each.type for each in listed} == {"simple", "consumer"}
        asked = gm.DescribeGroupsRequest(groups=["members", "none", names[0]])
        found = (await caller.at(url, asked)).groups
        assert [each.group for each in found] == asked.groups
        assert [each.error for each in found] == [0, ErrorCode.GROUP_ID_NOT_FOUND, 0]
        (described,) = found[0].members
        assert described.member_id == member.member_id and "client" in described.client_host
        refused = await caller.ask(gm.DeleteGroupRequest(group="members"))
        assert refused.error == ErrorCode.NON_EMPTY_GROUP and "has 1 member" in refused.message
        assert not (await caller.ask(gm.DeleteGroupRequest(group=names[0]))).error
        listed = (await caller.at(url, gm.ListGroupsRequest(types=["simple"]))).groups
        assert [each.group for each in listed] == names[1:]


async def test_each_rebalance_is_told_with_its_reason_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="insync.node")
    async with cluster(tmp_path, 1, metrics_port=0) as (nodes, caller, admin):
        await admin.create_topic("t", partitions=2, replication_factor=1)
        first, second = Member(caller, "g", ["t"]), Member(caller, "g", ["t"])
        await settle(first, partitions=2)
        await settle(first, second, partitions=2)
        await second.beat(member_epoch=-1)
        await settle(first, partitions=2)
        async with Producer(nodes.servers) as producer:
            for _ in range(3):
                await (await producer.send("t", b"r", partition=0)).wait()
        assert not (await caller.ask(commit("s", 1))).error
        found = await scrape(nodes.running[1].metrics_address)
    events = [
        each.msg.facts
        for each in caplog.records
        if isinstance(each.msg, Event) and each.msg.name == "group_changed"
    ]
    assert [(each["group"], each["epoch"], each["why"]) for each in events] == [
        ("g", 1, f"member {first.member_id} has joined"),
        ("g", 2, f"member {second.member_id} has joined"),
        ("g", 3, f"member {second.member_id} has left"),
    ]
    place = {"group": "s", "topic": "t", "partition": "0"}
    assert found.value("insync_group_committed_offset", **place) == 1
    assert found.value("insync_group_lag", **place) == 2
    assert found.value("insync_group_offsets_left_out") == 0
    assert found.value("insync_group_rebalances_total") == 3
    assert found.value("insync_groups", type="consumer") == found.value("insync_groups", type="simple") == 1
    assert found.value("insync_group_members", type="consumer") == 1
    assert found.value("insync_coordinated_partitions", state="active") == 4


async def test_nobody_else_changes_an_internal_topic(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1) as (nodes, caller, admin):
        await admin.create_topic("t", partitions=1, replication_factor=1)
        assert not (await caller.ask(commit("g", 3))).error
        for refused in (
            lambda: admin.delete_topic(GROUP_TOPIC),
            lambda: admin.create_partitions(GROUP_TOPIC, 60),
            lambda: admin.alter_config(GROUP_TOPIC, {"cleanup_policy": "delete"}),
            lambda: admin.delete_records({(GROUP_TOPIC, 0): -1}),
        ):
            with pytest.raises(ReplicationError, match="is internal"):
                await refused()
        async with Producer(nodes.servers) as producer:
            delivery = await producer.send(GROUP_TOPIC, b"v", key=b"k", partition=0)
            with pytest.raises(ReplicationError, match="send records to another topic"):
                await delivery.wait()
        told = await caller.ask(committed("g"))
        assert [each.offset for each in told.offsets] == [3]

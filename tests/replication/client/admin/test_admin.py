from __future__ import annotations

from typing import Any

import pytest
import trio

from insync.replication import wire
from insync.replication.client import (
    Admin,
    BootstrapError,
    InvalidArgumentError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    OffsetOutOfRangeError,
    Producer,
    RequestTimeoutError,
    TopicExistsError,
    TopicNotReadyError,
    UnknownTopicError,
)
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import Kind
from insync.replication.core.messages import groups as gm

from ..fake_cluster import FakeNode, fake_cluster
from ..faults import disconnect, drop


async def test_create_list_and_describe():
    async with fake_cluster(old=2) as cluster, Admin(cluster.urls) as admin:
        assert await admin.create_topic("new", 3, 2) == "id-new"
        assert await admin.list_topics() == ["new", "old"]
        (topic,) = await admin.describe_topics(["old"])
        assert [(p.leader, p.isr) for p in topic.partitions] == [(0, [0, 1, 2]), (1, [0, 1, 2])]
        info = await admin.describe_cluster()
        assert (info.cluster_id, [n.node_id for n in info.nodes]) == ("fake-cluster", [0, 1, 2])


async def test_refusals_have_their_classes_and_the_nodes_words():
    async with fake_cluster(t=1) as cluster, Admin(cluster.urls) as admin:
        with pytest.raises(TopicExistsError, match=r"'t'.*as scripted"):
            await admin.create_topic("t")
        with pytest.raises(InvalidReplicationFactorError):
            await admin.create_topic("u", 1, 9)
        with pytest.raises(UnknownTopicError, match="'nope'"):
            await admin.describe_topics(["nope"])
        with pytest.raises(InvalidReplicationFactorError, match=r"'t'.*4 replicas.* nodes \[0, 1\]"):
            await admin.plan_reassignment("t", [0, 1], replication_factor=4)
        with pytest.raises(UnknownTopicError, match="'nope'"):
            await admin.plan_reassignment("nope", [0, 1])


def no_controller(node: FakeNode, request: Any) -> bool:
    request.reply(wire.encode(m.CreateTopicResponse(error=ErrorCode.NOT_CONTROLLER)))
    return True


def still_loading(node: FakeNode, request: Any) -> bool:
    if request.kind != Kind.LIST_GROUPS:
        return False
    request.reply(wire.encode(gm.ListGroupsResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)))
    return True


async def test_nodes_that_load_for_long_are_asked_for_their_groups_less_and_less_often(autojump_clock):
    async with fake_cluster(nodes=1) as cluster:
        cluster.chaos = still_loading
        async with Admin(cluster.urls, request_timeout_ms=60_000, retry_backoff_max_ms=10_000) as admin:
            began = trio.current_time()
            with pytest.raises(RequestTimeoutError, match="not every node answered within 60 s"):
                await admin.list_groups()
            assert trio.current_time() - began == pytest.approx(60, abs=0.01)
        assert 20 < cluster.nodes[0].seen[Kind.LIST_GROUPS] <= 40


def refused(node: FakeNode, request: Any) -> bool:
    request.reply(wire.encode(m.AlterReassignmentsResponse(error=ErrorCode.INVALID_REPLICA_ASSIGNMENT)))
    return True


async def test_a_change_that_is_refused_is_not_asked_for_again(autojump_clock):
    async with fake_cluster(nodes=1) as cluster, Admin(cluster.urls) as admin:
        cluster.nodes[0].script(Kind.ALTER_PARTITION_REASSIGNMENTS, refused)
        with pytest.raises(InvalidReplicaAssignmentError):
            await admin.reassign_partitions({})


async def test_what_is_no_node_no_offset_and_no_assignment_is_refused_by_name():
    async with fake_cluster(t=1) as cluster, Admin(cluster.urls) as admin:
        with pytest.raises(InvalidArgumentError, match="node is 'x'; it must be a whole number"):
            await admin.plan_drain("x")
        with pytest.raises(InvalidArgumentError, match=r"^topics is 5"):
            await admin.list_partition_reassignments(5)
        with pytest.raises(InvalidArgumentError, match=r"offset.* -2"):
            await admin.delete_records({("t", 0): -2})
        with pytest.raises(InvalidArgumentError, match="a list of node ids for each partition"):
            await admin.create_topic("new", assignments=[[0], []])


async def test_offsets_under_a_name_are_asked_for_by_that_name():
    asked = []

    def answer(node: FakeNode, request: Any) -> bool:
        if request.kind != Kind.OFFSET_FETCH:
            return False
        asked.append(wire.decode_request(request.kind, request.body).group)
        kept = m.CommittedOffset(topic="t", partition=2, offset=7)
        request.reply(wire.encode(m.OffsetsResponse(error=0, offsets=[kept])))
        return True

    async with fake_cluster(nodes=1) as cluster, Admin(cluster.urls) as admin:
        cluster.chaos = answer
        assert await admin.committed_offsets("job") == {("t", 2): 7}
    assert asked == ["job"]


async def test_a_node_is_drained_to_those_that_have_no_replica_yet():
    """Of two partitions one has a replica on each node."""

    def metadata(node: FakeNode, request: Any) -> bool:
        if request.kind != Kind.METADATA:
            return False
        nodes = [
            m.NodeInfo(node_id=each.node_id, incarnation=1, endpoints=[each.url])
            for each in node.cluster.nodes
        ]
        topics = [
            m.TopicInfo(
                name=name,
                error=0,
                topic_id=f"id-{name}",
                replication_factor=len(replicas),
                partitions=[
                    m.PartitionInfo(
                        partition=0,
                        leader=0,
                        leader_epoch=0,
                        partition_epoch=0,
                        replicas=replicas,
                        isr=replicas,
                        elr=[],
                    )
                ],
            )
            for name, replicas in placed.items()
        ]
        answer = m.MetadataResponse(
            cluster_id="fake-cluster", revision=9, controller_id=0, nodes=nodes, topics=topics
        )
        request.reply(wire.encode(answer))
        return True

    placed = {"t": [0, 1], "u": [2, 0]}
    async with fake_cluster(nodes=3) as cluster, Admin(cluster.urls) as admin:
        cluster.chaos = metadata
        assert await admin.plan_drain(1) == {("t", 0): [0, 2]}
        assert await admin.plan_drain(0) == {("t", 0): [2, 1], ("u", 0): [2, 1]}
        placed["v"] = [0, 1, 2]
        with pytest.raises(InvalidReplicationFactorError, match=r"1 of its partitions .* v-0 for one"):
            await admin.plan_drain(1)


async def test_numbers_beside_an_assignment_are_sent_as_they_are_given():
    """A cluster refuses those that contradict it; here, too, nobody takes one for the other."""
    asked = []

    def remember(node: FakeNode, request: Any) -> bool:
        asked.append(wire.decode_request(request.kind, request.body))
        return False

    async with fake_cluster(nodes=2) as cluster, Admin(cluster.urls) as admin:
        for name, numbers in (("a", {}), ("b", {"partitions": 3}), ("c", {"replication_factor": 2})):
            cluster.nodes[0].script(Kind.CREATE_TOPIC, remember)
            await admin.create_topic(name, assignments=[[0], [0]], validate_only=True, **numbers)
    assert [(each.partitions, each.replication_factor) for each in asked] == [(2, 1), (3, 1), (2, 2)]


async def test_a_topic_whose_partitions_accept_no_writes_is_told_as_made(autojump_clock):
    async with fake_cluster(nodes=1) as cluster, Admin(cluster.urls, request_timeout_ms=3_000) as admin:
        cluster.chaos = lambda node, request: request.kind == Kind.DESCRIBE_PARTITIONS
        with pytest.raises(TopicNotReadyError, match="'new'"):
            await admin.create_topic("new", 2, 1)


async def test_a_growth_that_is_only_checked_is_not_waited_for(autojump_clock):
    def grown(node: FakeNode, request: Any) -> bool:
        if request.kind != Kind.CREATE_PARTITIONS:
            return False
        request.reply(wire.encode(m.TopicChanged(error=ErrorCode.NONE)))
        return True

    async with fake_cluster(nodes=1, t=1) as cluster, Admin(cluster.urls) as admin:
        cluster.chaos = grown
        began = trio.current_time()
        await admin.create_partitions("t", 3, validate_only=True)
        assert trio.current_time() - began < 1


async def test_a_leader_that_refuses_to_delete_records_is_quoted():
    def refuse(node: FakeNode, request: Any) -> bool:
        why = m.DeleteRecordsResult(
            topic="t", partition=0, error=ErrorCode.OFFSET_OUT_OF_RANGE, message="the log ends at 3"
        )
        request.reply(wire.encode(m.DeleteRecordsResponse(partitions=[why])))
        return True

    async with fake_cluster(nodes=1, t=1) as cluster, Admin(cluster.urls) as admin:
        cluster.chaos = lambda node, request: request.kind == Kind.DELETE_RECORDS and refuse(node, request)
        with pytest.raises(OffsetOutOfRangeError, match=r"^t-0: OFFSET_OUT_OF_RANGE: the log ends at 3"):
            await admin.delete_records({("t", 0): 5})


async def test_records_of_a_partition_without_a_leader_are_deleted_when_it_has_one(autojump_clock):
    asked: list[m.DeleteRecordsPartition] = []

    def delete(node: FakeNode, request: Any) -> bool:
        if request.kind != Kind.DELETE_RECORDS:
            return False
        (wanted,) = wire.decode_request(request.kind, request.body).partitions
        asked.append(wanted)
        done = m.DeleteRecordsResult(topic="t", partition=0, error=0, low_watermark=wanted.offset)
        request.reply(wire.encode(m.DeleteRecordsResponse(partitions=[done])))
        return True

    async def have_a_leader() -> None:
        await trio.sleep(1)
        assert not asked
        cluster.move("t", 0, 0)

    async with fake_cluster(nodes=1, t=1) as cluster, Admin(cluster.urls) as admin:
        cluster.chaos = delete
        cluster.move("t", 0, -1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(have_a_leader)
            assert await admin.delete_records({("t", 0): 5}) == {("t", 0): 5}
        assert len(asked) == 1


def created_but_cut_off(node: FakeNode, request: Any) -> bool:
    asked = wire.decode_request(request.kind, request.body)
    node.cluster.create("t", 2)
    node.cluster.made_by["t"] = asked.creation_id
    return disconnect(node, request)


def cut_off_while_another_creates(node: FakeNode, request: Any) -> bool:
    node.cluster.create("t", 2)
    node.cluster.made_by["t"] = "somebody else's"
    return disconnect(node, request)


async def test_creation_waits_for_a_controller(autojump_clock):
    async with fake_cluster(nodes=1) as cluster, Admin(cluster.urls) as admin:
        cluster.nodes[0].script(Kind.CREATE_TOPIC, no_controller, no_controller)
        with trio.fail_after(3):
            assert await admin.create_topic("t", 1, 1) == "id-t"


async def test_creation_whose_answer_was_lost_is_recognised(autojump_clock):
    async with fake_cluster(nodes=1) as cluster, Admin(cluster.urls) as admin:
        cluster.nodes[0].script(Kind.CREATE_TOPIC, created_but_cut_off)
        with trio.fail_after(3):
            assert await admin.create_topic("t", 2, 1) == "id-t"


async def test_what_another_has_created_meanwhile_is_not_taken_for_ours(autojump_clock):
    """Though it looks the same, and our own attempt had no answer."""
    async with fake_cluster(nodes=1) as cluster, Admin(cluster.urls) as admin:
        cluster.nodes[0].script(Kind.CREATE_TOPIC, cut_off_while_another_creates)
        with trio.fail_after(3), pytest.raises(TopicExistsError):
            await admin.create_topic("t", 2, 1)


async def test_creation_that_nobody_answers_ends(autojump_clock):
    async with fake_cluster(nodes=1) as cluster, Admin(cluster.urls, request_timeout_ms=200) as admin:
        cluster.nodes[0].script(Kind.CREATE_TOPIC, *[drop] * 9)
        with pytest.raises(RequestTimeoutError, match="'t'") as caught:
            await admin.create_topic("t", 2, 1)
        assert caught.value.outcome == "unknown"


def noted_at_revision_7(node: FakeNode, request: Any) -> bool:
    request.reply(wire.encode(m.AlterReassignmentsResponse(error=ErrorCode.NONE, revision=7)))
    return True


async def test_a_node_that_is_behind_is_not_believed(autojump_clock):
    """Whoever was told that a move is noted must not be told by the next node that there is none."""
    async with fake_cluster(t=1) as cluster, Admin(cluster.urls) as admin:
        for node in cluster.nodes:
            node.script(Kind.ALTER_PARTITION_REASSIGNMENTS, noted_at_revision_7)
        await admin.reassign_partitions({})
        cluster.nodes[1].revision = 7
        with trio.fail_after(5):
            assert [(await admin.describe_cluster()).revision for _ in range(6)] == [7] * 6
        for node in cluster.nodes:
            node.revision = 9
        assert (await admin.describe_cluster()).revision == 9
        cluster.nodes[0].revision = cluster.nodes[1].revision = 8
        with trio.fail_after(5):
            assert [(await admin.describe_cluster()).revision for _ in range(6)] == [9] * 6


async def test_that_all_nodes_are_behind_is_told(autojump_clock):
    async with fake_cluster(t=1) as cluster, Admin(cluster.urls, request_timeout_ms=300) as admin:
        for node in cluster.nodes:
            node.script(Kind.ALTER_PARTITION_REASSIGNMENTS, noted_at_revision_7)
        await admin.reassign_partitions({})
        with trio.fail_after(5), pytest.raises(RequestTimeoutError, match="revision 7"):
            await admin.wait_for_reassignments()


async def test_replicas_of_every_node_also_of_dead_ones():
    async with fake_cluster(t=2) as cluster, Admin(cluster.urls) as admin:
        await cluster.nodes[1].stop()
        reports = await admin.describe_replicas(["t"])
        assert [(r.node_id, r.alive) for r in reports] == [(0, True), (1, False), (2, True)]
        assert "down" in reports[1].error
        assert [(r.topic, r.partition, r.role) for r in reports[0].replicas] == [
            ("t", 0, "leader"),
            ("t", 1, "follower"),
        ]


async def test_a_node_that_hangs_is_reported_not_waited_for(autojump_clock):
    async with fake_cluster(t=1) as cluster, Admin(cluster.urls) as admin:
        cluster.nodes[2].script(Kind.DESCRIBE_PARTITIONS, drop)
        with trio.fail_after(3):
            reports = await admin.describe_replicas(timeout_ms=200)
        assert [r.alive for r in reports] == [True, True, False]


async def test_bootstrap_tries_all_and_names_each():
    async with (
        fake_cluster(nodes=1, t=1) as cluster,
        Producer(["mem://client-test-none/a", *cluster.urls]) as producer,
    ):
        assert await producer.prepare("t") == 1
    with pytest.raises(BootstrapError, match=r"client-test-none/a.*client-test-none/b"):
        async with Admin("mem://client-test-none/a,mem://client-test-none/b"):
            pass


async def test_a_topic_that_exists_may_be_taken_as_it_is():
    async with fake_cluster(t=2) as cluster, Admin(cluster.urls) as admin:
        with pytest.raises(TopicExistsError):
            await admin.create_topic("t", 1, 1)
        assert await admin.create_topic("t", 1, 1, exist_ok=True) == cluster.topic_id("t")
        assert len(cluster.topics["t"]) == 2
        assert await admin.create_topic("u", 1, 1, exist_ok=True) == cluster.topic_id("u")


async def test_nodes_are_waited_for(autojump_clock):
    async with fake_cluster(nodes=3, t=1) as cluster, Admin(cluster.urls) as admin:
        assert len(await admin.wait_for_nodes(3)) == 3
        await cluster.nodes[2].stop()
        with trio.move_on_after(5) as waiting:
            await admin.wait_for_nodes(3)
        assert waiting.cancelled_caught
        async with trio.open_nursery() as nursery:

            async def start() -> None:
                await trio.sleep(1)
                await cluster.nodes[2].start()

            nursery.start_soon(start)
            with trio.fail_after(5):
                assert [node.node_id for node in await admin.wait_for_nodes(3)] == [0, 1, 2]

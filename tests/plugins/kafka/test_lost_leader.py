"""What clients are told that have just lost a leader: librdkafka and others decide by it when they ask again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from insync.plugins.kafka.core.directory import LISTED, Directory
from insync.plugins.kafka.protocol import Struct, message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core.control.records import NodeRecord
from insync.replication.core.control.view import ClusterView
from insync.replication.core.errors import ErrorCode

from .conftest import Cluster, running_cluster
from .test_listener import client_of, make, node_at
from .wire_client import WireClient

Asked, Creating = message("MetadataRequest"), message("CreateTopicsRequest")
VERSION = 9


def view_of(*nodes: int, leaving: int = 0, port: int = 9000) -> ClusterView:
    return ClusterView(
        nodes={
            each: NodeRecord(
                node_id=each,
                incarnation=1,
                endpoints=(f"kafka://h:{port + each}",),
                leaving=each == leaving,
            )
            for each in nodes
        }
    )


def listed(directory: Directory, view: ClusterView) -> list[int]:
    return [each.node_id for each in directory.listed(view)]


@attrs.define
class Clock:
    now: float = 5.0

    def __call__(self) -> float:
        return self.now


def test_a_node_that_died_is_listed_for_a_while_and_leads_nothing() -> None:
    clock = Clock()
    directory = Directory("kafka", clock)
    assert listed(directory, view_of(1, 2, 3)) == [1, 2, 3]
    without = view_of(2, 3)
    assert listed(directory, without) == [1, 2, 3]
    assert list(directory.brokers(without)) == [2, 3]
    assert directory.controller(without, 3) == 3
    clock.now += LISTED - 0.1
    fewer = view_of(2)
    assert listed(directory, fewer) == [1, 2, 3]
    clock.now += 0.2
    assert listed(directory, fewer) == [2, 3]
    clock.now += LISTED
    assert listed(directory, fewer) == [2]


def test_a_node_that_is_back_is_listed_once_where_it_listens_now() -> None:
    directory = Directory("kafka", Clock())
    for view in (view_of(1, 2), view_of(2), view_of(1, 2, port=9500)):
        directory.brokers(view)
    assert [(each.node_id, each.port) for each in directory.listed(view)] == [(1, 9501), (2, 9502)]


def test_a_node_that_said_that_it_leaves_is_not_listed_any_more() -> None:
    directory = Directory("kafka", Clock())
    for view in (view_of(1, 2), view_of(1, 2, leaving=1), view_of(2)):
        directory.brokers(view)
    assert listed(directory, view) == [2]


async def test_a_leader_that_has_just_gone_silent_is_told_as_no_leader(tmp_path: Path) -> None:
    """Named or not, with what a client may do or without; and what is told so is not kept for later."""
    asked = [
        Asked(topics=topics, include_topic_authorized_operations=operations)
        for topics in (None, [Asked.MetadataRequestTopic(name="t")])
        for operations in (False, True)
    ]
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        assert node._driver is not None
        following = node._driver.broker.following
        with pytest.MonkeyPatch.context() as patch:
            for doubted, expected in (
                (frozenset[int](), (1, 0)),
                (frozenset({1}), (-1, ErrorCode.LEADER_NOT_AVAILABLE)),
                (frozenset({2}), (1, 0)),
            ):
                patch.setattr(following, "doubted", lambda now, told=doubted: told)
                for each in asked:
                    (topic,) = (await client.ask(Api.METADATA, VERSION, each)).topics
                    (part,) = topic.partitions
                    assert (part.leader_id, part.error_code) == expected
                    assert part.isr_nodes == [1]


@pytest.fixture
def alone() -> Iterator[Cluster]:
    with running_cluster(steady=False) as made:
        yield made


@pytest.mark.slow
async def test_the_answer_that_names_a_new_leader_lists_the_one_that_was_killed(alone: Cluster) -> None:
    servers = [f"kafka://{each}" for each in alone.servers.split(",")]
    with trio.fail_after(60):
        client = await WireClient.connect(servers[1])
        async with client.stream:
            parts = [Creating.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2, 3])]
            topic = Creating.CreatableTopic(
                name="t", num_partitions=-1, replication_factor=-1, assignments=parts
            )
            await client.ask(Api.CREATE_TOPICS, 5, Creating(topics=[topic], timeout_ms=30_000))
            told = await _led(client, {1})
            os.kill(alone.pids[0], signal.SIGKILL)
            told = await _led(client, {2, 3})
    assert [each.node_id for each in told.brokers] == [1, 2, 3]


async def _led(client: WireClient, leaders: set[int]) -> Struct:
    """The first answer by which one of these leads."""
    while True:
        told = await client.ask(Api.METADATA, VERSION, Asked(topics=[Asked.MetadataRequestTopic(name="t")]))
        if {part.leader_id for topic in told.topics for part in topic.partitions} & leaders:
            return told
        await trio.sleep(0.01)

"""Opening replicated state while there are fewer nodes than its topics shall have replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from insync.replication import Admin, Node
from insync.replication.client import (
    ClusterInfo,
    InvalidReplicationFactorError,
    RequestTimeoutError,
    TopicNotReadyError,
)
from insync.replication.state import ReplicatedDict
from tests.replication.node.test_cluster import settings


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Set once a topic could not be created for lack of nodes."""
    event, create = trio.Event(), Admin.create_topic

    async def noting(self: Admin, *arguments: Any, **options: Any) -> str:
        try:
            return await create(self, *arguments, **options)
        except InvalidReplicationFactorError:
            event.set()
            raise

    monkeypatch.setattr(Admin, "create_topic", noting)
    return event


def node(folder: Path, number: int) -> Node:
    return Node(settings(folder, number, session_timeout_ms=60_000))


async def test_it_waits_for_nodes(tmp_path: Path, refused: trio.Event) -> None:
    async with node(tmp_path, 1) as first, trio.open_nursery() as nursery:
        opened = trio.Event()

        async def use() -> None:
            async with ReplicatedDict.open(first.endpoints, "d", replication_factor=2) as state:
                await state.put("a", 1)
                assert await state.get("a") == 1
                (topic,) = await admin.describe_topics(["d"])
                assert topic.replication_factor == 2
                opened.set()

        with trio.fail_after(60):
            async with Admin(first.endpoints) as admin:
                nursery.start_soon(use)
                await refused.wait()
                async with node(tmp_path, 2):
                    await opened.wait()


async def test_it_says_how_many_there_are_and_how_many_it_wants(tmp_path: Path) -> None:
    async with node(tmp_path, 1) as only:
        with pytest.raises(RequestTimeoutError, match="not opened within open_timeout_ms=300") as told:
            async with ReplicatedDict.open(
                only.endpoints, "d", replication_factor=2, open_timeout_ms=300, request_timeout_ms=30_000
            ):
                pytest.fail("there is one node")
    said = str(told.value)
    assert "asks for 2 replicas, but 1 node is alive (1)" in said
    assert isinstance(told.value.__cause__, InvalidReplicationFactorError)


async def test_nodes_are_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: trio.Event
) -> None:
    """One that was there when they were counted is not when the topic is created."""
    describe = Admin.describe_cluster

    async def with_one_that_has_died(self: Admin) -> ClusterInfo:
        found = await describe(self)
        return found if refused.is_set() else attrs.evolve(found, nodes=found.nodes * 2)

    monkeypatch.setattr(Admin, "describe_cluster", with_one_that_has_died)
    async with node(tmp_path, 1) as only:
        with trio.fail_after(60):
            async with ReplicatedDict.open(only.endpoints, "d") as state:
                await state.put("a", 1)
    assert refused.is_set()


async def test_it_waits_for_topics_that_accept_no_writes_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own time limit counts, not that of one request."""
    create, late = Admin.create_topic, []

    async def slow(self: Admin, name: str, *arguments: Any, **options: Any) -> str:
        topic_id = await create(self, name, *arguments, **options)
        if name not in late:
            late.append(name)
            raise TopicNotReadyError(name, topic_id, 0, 1, 30_000)
        return topic_id

    monkeypatch.setattr(Admin, "create_topic", slow)
    async with node(tmp_path, 1) as only:
        with trio.fail_after(60):
            async with ReplicatedDict.open(only.endpoints, "d") as state:
                await state.put("a", 1)
    assert late == ["d", "d.snapshots"]


async def test_it_asks_again_where_its_log_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition without a leader costs one request its time, not the opening."""
    read_index, asked = Admin.read_index, []

    async def late(self: Admin, partitions: Any) -> Any:
        asked.append(partitions)
        if len(asked) == 1:
            raise RequestTimeoutError("d-0: no offset from its leader within 2 s: LEADER_NOT_AVAILABLE")
        return await read_index(self, partitions)

    monkeypatch.setattr(Admin, "read_index", late)
    async with node(tmp_path, 1) as only:
        with trio.fail_after(60):
            async with ReplicatedDict.open(only.endpoints, "d") as state:
                await state.put("a", 1)
    assert len(asked) > 1

"""What must not break a node: outages of the store, failed starts, unlucky moments of a stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from insync.replication import Admin, Node, NodeSettings
from insync.replication.core.broker.membership.registration import Membership
from insync.replication.metadata import MemoryHub
from insync.replication.node import DuplicateNodeError, NodeError, NodeStartError
from insync.replication.node.store import _registration
from insync.replication.node.store._registration import Registration
from insync.storage import StorageBrokenError, StorageError
from insync.storage.folder._checkpoints import Checkpoints

from .test_cluster import produce, until


class Cluster:
    """Settings of nodes on one memory store, whose faults a test may inject."""

    def __init__(self, folder: Path) -> None:
        self.name = uuid4().hex
        self.hub = MemoryHub.named(self.name)
        self.folder = folder

    def settings(self, node_id: int, **options: Any) -> NodeSettings:
        values = {"listeners": (f"mem://{self.name}/{node_id}",), **options}
        return NodeSettings(
            node_id=node_id,
            data_dir=self.folder / f"node-{node_id}",
            store=f"memory://{self.name}",
            **values,
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def refuse(*arguments: object, **named: object) -> None:
    """In place of the registration: the start fails just before it."""
    raise DuplicateNodeError("the start fails here")


async def crash(node: Node) -> None:
    """Make the node stop as after a failed log, that is without a proof of what it holds."""
    assert node._driver is not None
    node._driver.log_failed(next(iter(node._driver.hosts)), StorageBrokenError("a test breaks it"))
    await trio.sleep_forever()


@asynccontextmanager
async def one_topic(cluster: Cluster) -> AsyncIterator[Node]:
    async with Node(cluster.settings(1)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"x"])
        yield node


def proofs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each start from now on counts as after a clean stop; each is in another boot."""
    found: list[bool] = []
    original = Membership._whole_directories

    def whole_directories(self: Membership, former: Any) -> frozenset[str]:
        whole = original(self, former)
        if former is not None:
            found.append(bool(whole))
        return whole

    monkeypatch.setattr(Membership, "_whole_directories", whole_directories)
    monkeypatch.setattr(_registration, "boot_id", lambda: uuid4().hex)
    return found


async def test_a_failed_start_after_a_crash_proves_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = proofs(monkeypatch)
    with pytest.raises(Exception, match="a test breaks it"):
        async with one_topic(cluster) as node:
            await crash(node)
    with monkeypatch.context() as patch:
        patch.setattr(Registration, "enter", refuse)
        with pytest.raises(DuplicateNodeError, match="fails here"):
            async with Node(cluster.settings(1)):
                pytest.fail("it must not start")
    async with Node(cluster.settings(1)):
        assert found == [False]


async def test_a_failed_start_leaves_the_proof_of_a_clean_stop(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = proofs(monkeypatch)
    async with one_topic(cluster):
        pass
    for failing in ("enter", "prepare"):
        with monkeypatch.context() as patch:
            patch.setattr(Registration, failing, refuse)
            with pytest.raises(DuplicateNodeError, match="fails here"):
                async with Node(cluster.settings(1)):
                    pytest.fail("it must not start")
    async with Node(cluster.settings(1)):
        assert found == [True]


async def test_a_clean_stop_of_an_earlier_process_proves_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = proofs(monkeypatch)
    async with one_topic(cluster):
        pass
    marker = tmp_path / "node-1" / ".kafka_cleanshutdown"
    old = marker.read_bytes()
    async with Node(cluster.settings(1)):
        assert found == [True]
    marker.write_bytes(old)
    async with Node(cluster.settings(1)):
        assert found == [True, False]


async def test_a_node_stops_during_an_outage_of_the_store(cluster: Cluster) -> None:
    async with one_topic(cluster) as node:
        cluster.hub.start_outage()
    assert node.incarnation == 1
    cluster.hub.end_outage()
    async with Node(cluster.settings(1)) as again:
        assert again.incarnation == 2


@pytest.mark.parametrize("how", ["applied", "dropped"])
async def test_a_node_registers_though_the_outcome_was_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    original = Registration._entry

    def entry(self: Registration, *arguments: Any) -> Any:
        if not lost:
            lost.append(how)
            cluster.hub.lose_next_outcome(how)
        return original(self, *arguments)

    lost: list[str] = []
    monkeypatch.setattr(Registration, "_entry", entry)
    async with Node(cluster.settings(1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"x"])
    assert lost == [how]


@pytest.mark.parametrize("ends", [2, 99])
async def test_a_session_that_ends_before_the_node_is_registered_is_replaced(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, ends: int
) -> None:
    original = Registration.enter
    ended: list[int] = []

    async def enter(self: Registration, session: Any, *arguments: Any) -> int:
        if len(ended) < ends:
            await session.close()
            ended.append(session.id)
        return await original(self, session, *arguments)

    monkeypatch.setattr(Registration, "enter", enter)
    if ends > 10:
        with pytest.raises(NodeStartError, match="is over"):
            await Node(cluster.settings(1)).__aenter__()
        assert len(ended) == 10
        return
    async with Node(cluster.settings(1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"x"])
    assert len(set(ended)) == ends


@pytest.mark.slow
async def test_a_node_outlives_an_outage_longer_than_its_session(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(Node(cluster.settings(n, session_timeout_ms=200))) for n in (1, 2)
        ]
        async with Admin(nodes[0].endpoints) as admin:
            await admin.create_topic("t", 2, 2)
            cluster.hub.start_outage()
            sessions = list(cluster.hub._sessions.values())
            with trio.fail_after(60):
                for session in sessions:
                    await session.expired.wait()
            cluster.hub.end_outage()

            async def all_in_sync() -> bool:
                (info,) = await admin.describe_topics(["t"])
                return all(len(part.isr) == 2 and part.leader > 0 for part in info.partitions)

            await until(all_in_sync)
            await produce(nodes[0].endpoints, "t", [b"after"] * 10)


@pytest.mark.parametrize("url", ["tcp://203.0.113.1:0", "tcp://127.0.0.1:notaport"])
async def test_a_listener_that_cannot_be_opened_is_named(cluster: Cluster, url: str) -> None:
    with pytest.raises(NodeStartError, match=r"203\.0|notaport"):
        async with Node(cluster.settings(1, listeners=(url,), allow_insecure=True)):
            pytest.fail("it cannot listen there")


async def test_a_folder_is_let_go_though_its_checkpoints_cannot_be_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, *names: str, high_watermarks: object = None) -> None:
        raise StorageError("the device is full")

    with monkeypatch.context() as patch, pytest.raises(NodeError, match="the device is full"):
        async with one_topic(cluster):
            patch.setattr(Checkpoints, "write", full)
    async with Node(cluster.settings(1)) as node:
        assert node.incarnation == 2


async def test_a_node_may_be_entered_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    found = proofs(monkeypatch)
    node = Node(cluster.settings(1))
    for round_ in range(2):
        async with node:
            assert node.incarnation == round_ + 1
            assert len(node.endpoints) == 1
    with monkeypatch.context() as patch, pytest.raises(DuplicateNodeError, match="fails here"):
        patch.setattr(Registration, "prepare", refuse)
        async with node:
            pytest.fail("it must not start")
    async with node:
        assert found == [True, True]

"""Nodes inside programs without trio: asyncio and plain threads."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from insync.replication import (
    BlockingAdmin,
    BlockingConsumer,
    BlockingNode,
    BlockingProducer,
    Node,
    NodeSettings,
)
from insync.replication import asyncio as bridge
from insync.replication.node import DuplicateNodeError, LogDirectoryFailedError, NodeError, NodeStartError
from insync.storage import StorageBrokenError


def settings(folder: Path, node_id: int = 1) -> NodeSettings:
    return NodeSettings(
        node_id=node_id,
        data_dir=folder / f"node-{node_id}",
        store=f"sqlite://{folder / 'meta.db'}",
        session_timeout_ms=20_000,
    )


def was_clean(folder: Path, node_id: int = 1) -> bool:
    """The marker that is written last of all, when all logs are closed."""
    return (folder / f"node-{node_id}" / ".kafka_cleanshutdown").exists()


def fail_log(node: object) -> None:
    """As when the node's only device breaks."""
    held = node._held  # type: ignore[attr-defined]
    partition = next(iter(held._driver.hosts))
    node._portal.post(  # type: ignore[attr-defined]
        lambda: held._driver.log_failed(partition, StorageBrokenError("a test breaks it"))
    )


def test_three_nodes_in_a_program_on_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            bridge.Node(settings(tmp_path, 1)) as first,
            bridge.Node(settings(tmp_path, 2)) as second,
            bridge.Node(settings(tmp_path, 3)) as third,
        ):
            servers = [*first.endpoints, *second.endpoints, *third.endpoints]
            assert first.cluster_id == third.cluster_id and first.incarnation == 1
            async with bridge.Admin(servers) as admin:
                await admin.create_topic("t", 2, 3)
            async with bridge.Producer(servers) as producer:
                await producer.send("t", b"x", partition=1)
            await second.close()
            async with bridge.Consumer(servers, auto_offset_reset="earliest") as consumer:
                await consumer.assign([("t", 1)])
                assert [each.value for each in await consumer.poll(10_000)] == [b"x"]

    asyncio.run(asyncio.wait_for(main(), 60))
    assert all(was_clean(tmp_path, number) for number in (1, 2, 3))


def test_a_node_in_a_thread(tmp_path: Path) -> None:
    with BlockingNode(settings(tmp_path)) as node:
        with BlockingAdmin(node.endpoints) as admin:
            admin.create_topic("t", 1, 1, {"min_insync_replicas": 1})
        with BlockingProducer(node.endpoints) as producer:
            workers = [
                threading.Thread(target=lambda n=n: producer.send("t", b"%d" % n).result(10))
                for n in range(4)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        with BlockingConsumer(node.endpoints, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            found: list[bytes] = []
            while len(found) < 4:
                found += [each.value for each in consumer.poll(5000)]
        assert sorted(found) == [b"0", b"1", b"2", b"3"]
        with pytest.raises(TimeoutError):
            node.wait(0.01)
        with pytest.raises(DuplicateNodeError):
            BlockingNode(
                NodeSettings(node_id=1, data_dir=tmp_path / "other", store=f"sqlite://{tmp_path / 'meta.db'}")
            )
    node.wait(0)
    assert was_clean(tmp_path)


def test_a_node_that_fails_tells_those_who_wait(tmp_path: Path) -> None:
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    node = BlockingNode(settings(tmp_path))
    node.when_ended(ended.put)
    with BlockingAdmin(node.endpoints) as admin:
        admin.create_topic("t", 1, 1, {"min_insync_replicas": 1})
    fail_log(node)
    with pytest.raises(LogDirectoryFailedError):
        node.wait(20)
    # The node's thread calls after it has let those go who wait.
    assert type(ended.get(timeout=20)) is LogDirectoryFailedError
    with pytest.raises(LogDirectoryFailedError):
        node.close()
    assert ended.empty()
    with pytest.raises(ValueError, match="of the block"), node:
        raise ValueError("of the block")


def test_a_node_that_fails_in_a_program_on_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with bridge.Node(settings(tmp_path)) as node:
            async with bridge.Admin(node.endpoints) as admin:
                await admin.create_topic("t", 1, 1, {"min_insync_replicas": 1})
            fail_log(node)
            with pytest.raises(NodeError):
                await node.wait()

    with pytest.raises(LogDirectoryFailedError):
        asyncio.run(asyncio.wait_for(main(), 30))


def test_a_service_that_is_cancelled_leaves_no_node_behind(tmp_path: Path) -> None:
    async def service(up: asyncio.Event) -> None:
        async with bridge.Node(settings(tmp_path)):
            up.set()
            await asyncio.sleep(60)

    async def main() -> None:
        up = asyncio.Event()
        task = asyncio.create_task(service(up))
        await up.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with bridge.Node(settings(tmp_path)) as node:
            assert node.incarnation == 2

    asyncio.run(asyncio.wait_for(main(), 60))


LEFT_OPEN = """
import sys
from pathlib import Path
from insync.replication import BlockingNode, NodeSettings
folder = Path(sys.argv[1])
BlockingNode(NodeSettings(node_id=1, data_dir=folder / "node-1", store=f"sqlite://{folder / 'meta.db'}"))
"""


def test_a_node_left_open_is_stopped_cleanly_when_the_interpreter_exits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert was_clean(tmp_path)


def test_a_node_for_trio_says_what_to_use_elsewhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with Node(settings(tmp_path)):
            raise AssertionError("it has started")

    with pytest.raises(NodeStartError, match=r"needs trio, .*asyncio\.Node.* on asyncio, and `BlockingNode`"):
        asyncio.run(main())
    with pytest.raises(NodeStartError, match="needs trio"):
        Node(settings(tmp_path)).__aenter__().send(None)

"""A node whose store fails in ways that nobody foresaw goes on acknowledging, and says little."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from insync.replication import Admin, Node
from insync.replication.metadata import MemoryHub, MemoryStore, Put, StoreCorruptError

from ..test_cluster import produce
from ..test_faults import Cluster

SECONDS = 3.0


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def foreign() -> Exception:
    return KeyError("a client library's own")


def damaged() -> Exception:
    return StoreCorruptError("database disk image is malformed")


@pytest.mark.parametrize("error", [foreign, damaged])
async def test_node_outlives_a_store_that_fails(
    cluster: Cluster,
    error: Callable[[], Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(self: MemoryStore, *arguments: Any, **named: Any) -> Any:
        await trio.lowlevel.checkpoint()
        raise error()

    async with Node(cluster.settings(1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"before"])
        caplog.clear()
        with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
            for name in ("get", "list", "changes", "commit"):
                patch.setattr(MemoryStore, name, fail)
            began = trio.current_time()
            async with MemoryHub.named(cluster.name).store() as other:
                while (
                    trio.current_time() - began < SECONDS
                ):  # watches fire, so that the node reads all the time
                    other.hub.commit([], [Put(f"/elsewhere/{uuid4().hex}", b"")], None)
                    await trio.sleep(0.02)
            lines = [record for record in caplog.records if record.name.startswith("insync")]
            await produce(node.endpoints, "t", [b"meanwhile"])
        assert len(lines) <= 10 * SECONDS, [record.getMessage() for record in lines][:20]
        with trio.fail_after(60):
            await admin.create_topic("u", 1, 1)
            await produce(node.endpoints, "u", [b"after"])

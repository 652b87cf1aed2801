"""Created means that it can be written to; or the error tells how far it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication import Admin, BlockingAdmin, Node
from insync.replication.client import TopicNotReadyError
from insync.storage import LogDirectory

from .test_cluster import produce, settings, until


class Held:
    """Logs of some nodes' partitions are not made before `let_go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go = threading.Event()
        self.asked = threading.Event()
        self.nodes: set[str] = set()
        real = LogDirectory.open_log

        def open_log(directory: LogDirectory, topic: str, partition: int, **options: Any) -> Any:
            if directory.path.name in self.nodes:
                self.asked.set()
                assert self.let_go.wait(30)
            return real(directory, topic, partition, **options)

        monkeypatch.setattr(LogDirectory, "open_log", open_log)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.let_go.set()


@pytest.mark.parametrize("what", ["topic", "partitions"])
async def test_what_cannot_be_written_to_in_time_is_told(tmp_path: Path, held: Held, what: str) -> None:
    """Two of four partitions are led by a node that does not get done with their logs."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, number))) for number in (1, 2)]
        servers = [url for node in nodes for url in node.endpoints]
        impatient = await stack.enter_async_context(Admin(servers, request_timeout_ms=4_000))
        admin = await stack.enter_async_context(Admin(servers))
        if what == "partitions":
            await admin.create_topic("t", 4, 1)
        held.nodes.add("node-2")
        with pytest.raises(
            TopicNotReadyError, match=r"created, but after .*4000 .* of its 4 new partitions"
        ) as e:
            if what == "topic":
                await impatient.create_topic("t", 4, 1)
            else:
                await impatient.create_partitions("t", 8)
        assert (e.value.writable, e.value.partitions) == (2, 4)
        (info,) = await admin.describe_topics(["t"])
        assert e.value.topic_id == info.topic_id and not e.value.retriable
        held.let_go.set()
        await produce(servers, "t", [b"x"] * 20)


async def test_creation_waits_for_followers(tmp_path: Path, held: Held) -> None:
    """What a leader takes is not acknowledged before its followers have it."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, number))) for number in (1, 2)]
        admin = await stack.enter_async_context(Admin([url for node in nodes for url in node.endpoints]))
        held.nodes.add("node-2")
        made: list[str] = []

        async def make() -> None:
            made.append(await admin.create_topic("t", 1, 2))

        async def roles() -> list[str]:
            reports = await admin.describe_replicas(["t"])
            return sorted(replica.role for report in reports for replica in report.replicas)

        async def leads() -> bool:
            return "leader" in await roles()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make)
            await trio.to_thread.run_sync(held.asked.wait)
            await until(leads)
            for _ in range(30):
                await roles()
            assert not made
            held.let_go.set()
        assert await roles() == ["follower", "leader"]


async def test_other_faces_say_so_too(tmp_path: Path, held: Held) -> None:
    async with Node(settings(tmp_path, 1)) as node:
        held.nodes.add("node-1")

        def create() -> int:
            with BlockingAdmin(node.endpoints, request_timeout_ms=4_000) as admin:
                with pytest.raises(TopicNotReadyError) as e:
                    admin.create_topic("t", 1, 1)
                return e.value.writable

        assert await trio.to_thread.run_sync(create) == 0
        held.let_go.set()

"""A node with a topic for listeners, and what tests ask of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from insync.replication import Admin, Node, Producer
from tests.replication.node.test_cluster import settings

COUNT = 12


@asynccontextmanager
async def filled(folder: Path, other: str) -> AsyncIterator[list[str]]:
    """Servers with `COUNT` records of three keys in the two partitions of "t", in turn, and an empty topic."""
    async with Node(settings(folder, 1, session_timeout_ms=60_000)) as node:
        async with Admin(node.endpoints) as admin, Producer(node.endpoints) as producer:
            await admin.create_topic("t", 2, 1)
            await admin.create_topic(other, 1, 1)
            for n in range(COUNT):
                await producer.send_and_wait("t", b"%d" % n, key=b"k%d" % (n % 3), partition=n % 2)
        yield list(node.endpoints)


async def committed(servers: list[str], group: str) -> dict[int, int]:
    """Offsets by partition."""
    async with Admin(servers) as admin:
        return {at.partition: offset for at, offset in (await admin.group_offsets(group)).items()}


async def until(condition: Callable[[], bool]) -> None:
    """The test's timeout ends it."""
    while not condition():  # noqa: ASYNC110 - what listeners do by themselves
        await trio.sleep(0.01)

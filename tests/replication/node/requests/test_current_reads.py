"""Current offsets of real nodes: every acknowledged write lies below them, through a change of leader."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Consumer, Node, Producer
from insync.replication.asyncio import Admin as AsyncioAdmin
from insync.replication.asyncio import Consumer as AsyncioConsumer
from insync.replication.client.errors import InvalidArgumentError, RequestTimeoutError, UnknownTopicError
from insync.replication.client.threads.blocking import BlockingAdmin, BlockingConsumer
from tests.replication.node.test_cluster import settings


async def test_every_acknowledged_write_lies_below_a_current_offset(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2, 3)]
        servers = [node.endpoints[0] for node in nodes]
        admin = await stack.enter_async_context(Admin(servers))
        await admin.create_topic("t", partitions=2, replication_factor=3)
        producer = await stack.enter_async_context(Producer(servers, linger_ms=0))
        asked = [("t", 0), ("t", 1)]
        for moved in (False, True):
            if moved:
                (topic,) = await admin.describe_topics(["t"])
                leader = topic.partitions[0].leader
                others = [node for node in topic.partitions[0].replicas if node != leader]
                await admin.reassign_partitions({("t", 0): [*others, leader]})
                await admin.elect_leaders([("t", 0)])
            for _ in range(20):
                written = await producer.send_and_wait("t", b"x", partition=0)
                # Questions of one moment share a round.
                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(partial(_reaches, admin, asked, written.offset))
        async with Consumer(servers) as consumer:
            current = await consumer.end_offsets(asked, isolation="current")
            assert current == await admin.read_index(asked) == {("t", 0): 40, ("t", 1): 0}
            with pytest.raises(InvalidArgumentError, match="isolation"):
                await consumer.end_offsets(asked, isolation="newest")
        with pytest.raises(UnknownTopicError):
            await admin.read_index([("nowhere", 0)])
        await trio.to_thread.run_sync(_in_threads, servers, current)
        await trio.to_thread.run_sync(asyncio.run, _in_asyncio(servers, current))


async def _reaches(admin: Admin, asked: list[tuple[str, int]], offset: int) -> None:
    assert (await admin.read_index(asked))["t", 0] > offset  # type: ignore[index]


def _in_threads(servers: list[str], expected: object) -> None:
    asked = [("t", 0), ("t", 1)]
    with BlockingAdmin(servers) as admin, BlockingConsumer(servers) as consumer:
        assert admin.read_index(asked) == expected
        assert consumer.end_offsets(asked, isolation="current") == expected


async def _in_asyncio(servers: list[str], expected: object) -> None:
    asked = [("t", 0), ("t", 1)]
    async with AsyncioAdmin(servers) as admin, AsyncioConsumer(servers) as consumer:
        assert await admin.read_index(asked) == expected
        assert await consumer.end_offsets(asked, isolation="current") == expected


async def test_without_a_minimum_nobody_is_told(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(Node(settings(tmp_path, 1)))
        async with Node(settings(tmp_path, 2)), Admin(node.endpoints) as admin:
            await admin.create_topic(
                "t",
                replication_factor=2,
                config={"min_insync_replicas": 2, "unclean_leader_election": "wait"},
            )
            assert await admin.read_index([("t", 0)]) == {("t", 0): 0}
        async with Admin(node.endpoints, request_timeout_ms=1000) as admin:
            with pytest.raises(RequestTimeoutError):
                await admin.read_index([("t", 0)])

"""Topics deleted, created again, given more partitions and set otherwise, on real nodes."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
from msgspec import structs

from insync.replication import Admin, Consumer, Node, Producer
from insync.replication.client import (
    DeliveryTimeoutError,
    InvalidConfigError,
    InvalidPartitionsError,
    UnknownTopicError,
)
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode

from .test_cluster import full_isr, led_by, replicas_agree, settings, until


async def produce(servers: list[str], *values: bytes, partition: int = 0, within_ms: int = 30_000) -> None:
    async with Producer(servers, delivery_timeout_ms=within_ms, request_timeout_ms=1000) as producer:
        await (await producer.send_many("t", list(values), partition=partition)).wait()


async def read(servers: list[str], count: int, partition: int = 0) -> list[bytes]:
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", partition)])
        found: list[bytes] = []
        with trio.fail_after(60):
            while len(found) < count:
                found += [record.value or b"" for record in await consumer.poll(timeout_ms=200)]
        return found


def folders(tmp_path: Path) -> set[str]:
    return {
        f"{node.name}/{entry.name}" for node in tmp_path.glob("node-*") for entry in node.glob("t-[0-9]*")
    }


async def gone(tmp_path: Path) -> bool:
    await trio.sleep(0.01)
    return not folders(tmp_path)


async def none_left(node: Path) -> bool:
    await trio.sleep(0.01)
    return not any(name[0] in "tu" for name in os.listdir(node))


async def has_rolled(folder: Path) -> bool:
    await trio.sleep(0.01)
    return sum(name.endswith(".log") for name in os.listdir(folder)) > 1


async def test_a_deleted_topic_leaves_nothing_and_its_name_can_be_used_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2, 3)]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin:
            first = await admin.create_topic("t", partitions=2, replication_factor=3)
            await produce(servers, b"old", b"older")
            await admin.delete_topic("t")
            assert await admin.list_topics() == []
            await until(lambda: gone(tmp_path))
            with pytest.raises(UnknownTopicError):
                await admin.delete_topic("t")
            assert await admin.create_topic("t", partitions=2, replication_factor=3) != first
            await produce(servers, b"new")
            assert await read(servers, 1) == [b"new"]
            await until(lambda: replicas_agree(admin, "t", 3))
            await admin.delete_topic("t")
            await admin.create_topic("t", partitions=1, replication_factor=3)
            await produce(servers, b"newest")
            assert await read(servers, 1) == [b"newest"]
            await until(lambda: full_isr(admin, "t", 3))


async def test_what_a_node_holds_of_a_topic_that_was_deleted_meanwhile_does_not_come_back(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2)]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin:
            async with Node(settings(tmp_path, 3)):
                await admin.create_topic("t", partitions=2, replication_factor=3)
                await admin.create_topic("u", partitions=1, replication_factor=3)
                await produce(servers, b"old", b"older")
                await until(lambda: replicas_agree(admin, "t", 3))
            await admin.delete_topic("t")
            await admin.delete_topic("u")
            await admin.create_topic("t", partitions=1, replication_factor=2)
            await produce(servers, b"new")
            assert "node-3/t-0" in folders(tmp_path)
            async with Node(settings(tmp_path, 3)) as third:
                await until(lambda: none_left(tmp_path / "node-3"))
                async with Admin(third.endpoints) as beside:
                    reports = {each.node_id: each for each in await beside.describe_replicas()}
                assert reports[3].replicas == []
                assert not reports[3].error
            assert await read(servers, 1) == [b"new"]


async def test_new_partitions_take_records_and_old_ones_keep_theirs(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2, 3)]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=2)
            await produce(servers, b"a")
            await admin.create_partitions("t", 4)
            await admin.create_partitions("t", 4)
            with pytest.raises(InvalidPartitionsError, match="cannot become 2"):
                await admin.create_partitions("t", 2)
            await produce(servers, b"b", partition=3)
            assert await read(servers, 1) == [b"a"]
            assert await read(servers, 1, partition=3) == [b"b"]
            (topic,) = await admin.describe_topics(["t"])
            assert len({partition.leader for partition in topic.partitions}) > 1
            assert all(len(partition.replicas) == 2 for partition in topic.partitions)


async def test_settings_change_while_nodes_run(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2)]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", replication_factor=2, config={"min_insync_replicas": 1})
            await admin.alter_config("t", {"segment_bytes": 2048, "retention_ms": "-1"})
            config = await admin.describe_config("t")
            assert (config["segment_bytes"], config["retention_ms"]) == (2048, -1)
            assert config["min_insync_replicas"] == 1
            for _ in range(6):
                await produce(servers, b"x" * 1000)
            for node in ("node-1", "node-2"):
                await until(partial(has_rolled, tmp_path / node / "t-0"))
            await admin.alter_config("t", {"min_insync_replicas": 2}, reset=["segment_bytes"])
            assert (await admin.describe_config("t"))["segment_bytes"] == 1 << 30
            with pytest.raises(InvalidConfigError, match="no acks=all write"):
                await admin.alter_config("t", {"min_insync_replicas": 3})
            with pytest.raises(InvalidConfigError, match="unknown topic setting"):
                await admin.alter_config("t", reset=["nonsense"])
            with pytest.raises(UnknownTopicError):
                await admin.alter_config("nobody", {"retention_ms": 1})
    async with Node(settings(tmp_path, 1)) as alone:
        async with Admin(alone.endpoints) as admin:
            await until(lambda: led_by(admin, "t", 1))
        with pytest.raises(DeliveryTimeoutError, match="NOT_ENOUGH_REPLICAS"):
            await produce(alone.endpoints, b"y", within_ms=3000)
        async with Admin(alone.endpoints) as admin:
            await admin.alter_config("t", {"min_insync_replicas": 1})
        await produce(alone.endpoints, b"y")


async def test_a_creation_that_is_asked_again_of_any_node_is_done_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2)]
        admin = await stack.enter_async_context(Admin([node.endpoints[0] for node in nodes]))
        request = m.CreateTopicRequest(name="t", partitions=1, replication_factor=2, creation_id="one")

        async def ask(number: int, asked: m.CreateTopicRequest = request) -> m.CreateTopicResponse:
            answer = await admin._cluster.ask(m.Kind.CREATE_TOPIC, asked, timeout=10, node_id=number)
            assert isinstance(answer, m.CreateTopicResponse)
            return answer

        async def all_known() -> bool:
            return len(await admin.describe_replicas()) == 2

        await until(all_known)
        first, again = await ask(1), await ask(2)
        assert (first.error, again.error) == (0, 0)
        assert first.topic_id == again.topic_id != ""
        theirs = await ask(1, structs.replace(request, creation_id="another"))
        assert theirs.error == ErrorCode.TOPIC_ALREADY_EXISTS
        await admin.alter_config("t", {"retention_ms": 5})
        assert (await ask(2)).topic_id == first.topic_id, "settings change nothing about who made it"
        await admin.delete_topic("t")
        assert (await ask(1)).topic_id != first.topic_id, "an id never names two topics"

"""One rotten batch in a leader's log: its partition alone waits, is led elsewhere and copied again from there."""

from __future__ import annotations

import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from insync.replication import Admin, Node, Producer
from insync.replication.core.types import PartitionId
from insync.replication.node.logs._maintenance_troubles import MaintenanceTroubles
from insync.storage import CompactionResult, CorruptLogError
from insync.storage.batch import scan

from ..test_cluster import consume, full_isr, produce, replicas_agree, settings, until

PARTITIONS = 6
_ATTRIBUTES = 21
"""Where the attributes of a batch begin."""


async def write(servers: list[str], values: list[bytes]) -> None:
    """As many records in each partition."""
    async with Producer(servers) as producer:
        sent = [
            await producer.send("t", value, partition=partition)
            for partition in range(PARTITIONS)
            for value in values
        ]
        for each in sent:
            assert (await each.wait()).offset >= 0


def rot(folder: Path) -> None:
    """One bit of the last batch is another."""
    path = max(folder.glob("*.log"))
    last = scan(path.read_bytes())[-1]
    with path.open("r+b") as file:
        at = last.position + last.size_bytes - 1
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), at)


def rot_header(folder: Path) -> None:
    """The attributes of the last batch make no sense: no read gets past it."""
    path = max(folder.glob("*.log"))
    at = scan(path.read_bytes())[-1].position + _ATTRIBUTES
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 4]), at)


def fast(folder: Path, node_id: int) -> Any:
    return settings(folder, node_id, replica_fetch_backoff_ms=100)


@pytest.mark.parametrize("min_isr", [1, 2])
async def test_a_rotten_batch_costs_its_partition_alone_and_is_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, min_isr: int
) -> None:
    """Under a minimum of two the damaged one was eligible to lead (KIP-966) until it said that it is not."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(fast(tmp_path, number))) for number in (1, 2)]
        servers = [url for node in nodes for url in node.endpoints]
        admin = await stack.enter_async_context(Admin(servers))
        async with Node(fast(tmp_path, 3)):
            await admin.create_topic("t", PARTITIONS, 3, config={"min_insync_replicas": min_isr})
            await until(lambda: full_isr(admin, "t", 3))
            await write(servers, [b"before"])
        await write(servers, [b"after"])
        (info,) = await admin.describe_topics(["t"])
        rotten = info.partitions[0]
        rot(tmp_path / f"node-{rotten.leader}" / f"t-{rotten.partition}")
        async with Node(fast(tmp_path, 3)):
            await until(lambda: full_isr(admin, "t", 3), 60)
            await until(lambda: replicas_agree(admin, "t", 3), 30)
            values = await consume(servers, "t", PARTITIONS, 2 * PARTITIONS)
            assert sorted(values) == [b"after"] * PARTITIONS + [b"before"] * PARTITIONS
            await produce(servers, "t", [b"on"] * PARTITIONS)
            damaged = [each for each in caplog.messages if "event=log_damaged" in each]
            assert len(damaged) == 1 and f"partition=t-{rotten.partition}" in damaged[0]
            sent = [each for each in caplog.messages if "damaged batch in the fetch response" in each]
            assert len(sent) == 1 and f"t-{rotten.partition}:" in sent[0]
    copies = {
        next(iter((tmp_path / f"node-{number}" / f"t-{rotten.partition}").glob("*.log"))).read_bytes()
        for number in (1, 2, 3)
    }
    assert len(copies) == 1


@pytest.mark.parametrize("min_isr", [1, 2])
async def test_a_consumer_that_meets_damage_tells_the_leader_and_reads_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, min_isr: int
) -> None:
    """No follower is sent that batch any more: all of them have it. Another one leads, and the copy is mended."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(fast(tmp_path, number))) for number in (1, 2)]
        servers = [url for node in nodes for url in node.endpoints]
        admin = await stack.enter_async_context(Admin(servers))
        await admin.create_topic("t", PARTITIONS, 2, config={"min_insync_replicas": min_isr})
        await write(servers, [b"before"])
        (info,) = await admin.describe_topics(["t"])
        rotten = info.partitions[0]
        rot(tmp_path / f"node-{rotten.leader}" / f"t-{rotten.partition}")
        assert sorted(await consume(servers, "t", PARTITIONS, PARTITIONS)) == [b"before"] * PARTITIONS
        damaged = [each for each in caplog.messages if "event=log_damaged" in each]
        assert len(damaged) == 1 and f"partition=t-{rotten.partition}" in damaged[0]
        await until(lambda: full_isr(admin, "t", 2), 60)
        await until(lambda: replicas_agree(admin, "t", 2), 30)
        await write(servers, [b"after"])
        assert len(await consume(servers, "t", PARTITIONS, 2 * PARTITIONS)) == 2 * PARTITIONS
    copies = {
        next(iter((tmp_path / f"node-{number}" / "t-0").glob("*.log"))).read_bytes() for number in (1, 2)
    }
    assert len(copies) == 1


@pytest.mark.parametrize("reader", ["consumer", "follower"])
async def test_a_leader_that_cannot_read_its_own_log_looks_at_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reader: str
) -> None:
    """Nothing is sent that anybody could doubt: its own read finds the damage. The log is mended like any other."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(fast(tmp_path, number))) for number in (1, 2, 3)]
        admin = await stack.enter_async_context(Admin([url for node in nodes for url in node.endpoints]))
        await admin.create_topic("t", PARTITIONS, 3, config={"min_insync_replicas": 1})
        await write(nodes[0].endpoints, [b"kept"])
        await until(lambda: replicas_agree(admin, "t", 3), 30)
    # After a start nothing of the batches is in memory.
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(fast(tmp_path, number))) for number in (1, 2)]
        servers = [url for node in nodes for url in node.endpoints]
        admin = await stack.enter_async_context(Admin(servers))
        await until(lambda: full_isr(admin, "t", 2), 60)
        (info,) = await admin.describe_topics(["t"])
        rotten = info.partitions[0]
        rot_header(tmp_path / f"node-{rotten.leader}" / f"t-{rotten.partition}")
        if reader == "consumer":
            values = await consume(servers, "t", PARTITIONS, PARTITIONS)
            assert values == [b"kept"] * PARTITIONS
        else:
            shutil.rmtree(tmp_path / "node-3")
        await stack.enter_async_context(Node(fast(tmp_path, 3)))
        await until(lambda: full_isr(admin, "t", 3), 60)
        await until(lambda: replicas_agree(admin, "t", 3), 30)
        damaged = [each for each in caplog.messages if "event=log_damaged" in each]
        assert len(damaged) == 1 and f"partition=t-{rotten.partition}" in damaged[0]
        assert "its header is invalid" in damaged[0]
    copies = {
        max((tmp_path / f"node-{number}" / f"t-{rotten.partition}").glob("*.log")).read_bytes()
        for number in (1, 2, 3)
    }
    assert len(copies) == 1


async def test_the_only_member_of_the_isr_serves_on_and_says_what_is_wrong(tmp_path: Path) -> None:
    """The follower copies all other partitions; what is sound in the damaged one can still be read."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(Node(fast(tmp_path, 1)))
        admin = await stack.enter_async_context(Admin(one.endpoints))
        async with Node(fast(tmp_path, 2)):
            await admin.create_topic("t", PARTITIONS, 2, config={"min_insync_replicas": 1})
            await until(lambda: full_isr(admin, "t", 2))
            await write(one.endpoints, [b"before"])
        await write(one.endpoints, [b"after"])
        rot(tmp_path / "node-1" / "t-0")
        async with Node(fast(tmp_path, 2)):

            async def all_others() -> bool:
                (info,) = await admin.describe_topics(["t"])
                return {part.partition for part in info.partitions if len(part.isr) == 2} == {
                    *range(1, PARTITIONS)
                }

            await until(all_others, 30)

            async def told() -> bool:
                told = {each.node_id: each for each in await admin.describe_nodes()}
                # A node that has lost its session for a moment answers without its checks.
                checks = [each for each in told[1].checks if each.name == "maintenance"]
                return any(not each.ok and "t-0" in each.detail for each in checks)

            await until(told, 30)
            assert await consume(one.endpoints, "t", 1, 1) == [b"before"]


def test_damage_is_told_until_it_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    troubles = MaintenanceTroubles()
    partition = PartitionId("t", 0)
    for _ in range(2):
        troubles.found_damaged(partition, CorruptLogError("p", 1, 10, "CRC-32C does not match"))
    troubles.found_sound(partition, 9)
    troubles.found_sound(PartitionId("t", 1), 50)
    assert troubles.damaged == {partition: 10}
    assert len(caplog.messages) == 1
    troubles.found_sound(partition, 10)
    assert not troubles.damaged


def test_maintenance_that_fails_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    troubles = MaintenanceTroubles()
    for _ in range(2):
        troubles.failed(PartitionId("t", 0), CorruptLogError("p", 1, 10, "CRC-32C does not match"))
    (line,) = caplog.messages
    assert line.startswith("retention or compaction of t-0 failed: ") and "CRC-32C does not match" in line


def test_what_is_deleted_has_no_troubles() -> None:
    troubles = MaintenanceTroubles()
    partition, other = PartitionId("t", 0), PartitionId("t", 1)
    for each in (partition, other):
        troubles.found_damaged(each, CorruptLogError("p", 1, 10, "CRC-32C does not match"))
        troubles.failed(each, CorruptLogError("p", 1, 10, "CRC-32C does not match"))
        troubles.succeeded(other, CompactionResult(cleaned_offset=5, batches_unreadable=2))
        troubles.succeeded(partition, CompactionResult(cleaned_offset=5, batches_unreadable=2))
    troubles.failed(other, CorruptLogError("p", 1, 10, "CRC-32C does not match"))
    troubles.forget(partition)
    assert troubles.damaged.keys() == troubles.failing.keys() == troubles.unreadable.keys() == {other}

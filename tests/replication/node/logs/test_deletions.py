"""Records deleted on request: gone on every replica, also on one that was away meanwhile."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Consumer, Node, Producer
from insync.replication.client import (
    ConsumerRecord,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownTopicError,
)

from ..test_cluster import full_isr, settings, until

AT = ("t", 0)


async def produce(servers: list[str], *batches: list[bytes]) -> None:
    """Each list in a batch of its own."""
    async with Producer(servers) as producer:
        for batch in batches:
            await (await producer.send_many("t", batch)).wait()


async def read(servers: list[str], count: int) -> list[ConsumerRecord]:
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([AT])
        found: list[ConsumerRecord] = []
        with trio.fail_after(60):
            while len(found) < count:
                found += await consumer.poll(timeout_ms=200)
        return found


async def starts(admin: Admin) -> dict[int, tuple[int, int]]:
    """Log start and end of the replica on each node."""
    return {
        report.node_id: (replica.log_start_offset, replica.log_end_offset)
        for report in await admin.describe_replicas(["t"])
        for replica in report.replicas
    }


async def test_deleted_records_are_gone_on_every_replica_and_whoever_wanted_them_is_told(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2, 3)]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=3)
            await produce(servers, [b"%d" % n for n in range(10)])
            assert await admin.delete_records({AT: 4}) == {AT: 4}
            assert await starts(admin) == dict.fromkeys((1, 2, 3), (4, 10))
            assert (await read(servers, 6))[0].value == b"4"
            async with Consumer(servers, auto_offset_reset="none") as consumer:
                consumer.assign([AT])
                consumer.seek(AT, 2)
                with pytest.raises(OffsetOutOfRangeError, match="offsets 2 to 3 are gone") as raised:
                    await consumer.poll(timeout_ms=5000)
                assert (raised.value.offset, raised.value.log_start_offset) == (2, 4)
            with pytest.raises(OffsetOutOfRangeError, match="only committed records"):
                await admin.delete_records({AT: 11})
            with pytest.raises(UnknownTopicError):
                await admin.delete_records({("t", 1): 0})
            assert await admin.delete_records({AT: -1}) == {AT: 10}
            assert await starts(admin) == dict.fromkeys((1, 2, 3), (10, 10))
            await produce(servers, [b"after"])
            assert [r.offset for r in await read(servers, 1)] == [10]


async def test_where_nothing_is_ever_deleted_no_request_deletes(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", replication_factor=1, config={"cleanup_policy": "compact"})
        with pytest.raises(PolicyViolationError, match="cleanup_policy is compact"):
            await admin.delete_records({AT: 0})


async def test_a_replica_that_was_away_begins_again_inside_a_batch(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2)]
        servers = [node.endpoints[0] for node in others]
        async with Admin(servers) as admin:
            async with Node(settings(tmp_path, 3)):
                await admin.create_topic("t", partitions=1, replication_factor=3)
                await produce(servers, [b"first"])
            await produce(servers, [b"%d" % n for n in range(10)], [b"last"])
            assert await admin.delete_records({AT: 5}) == {AT: 5}
            async with Node(settings(tmp_path, 3)):
                await until(lambda: full_isr(admin, "t", 3))
                assert (await starts(admin))[3] == (5, 12)
    async with (
        Node(settings(tmp_path, 3)) as alone,
        Node(settings(tmp_path, 2)),
        Admin(alone.endpoints) as admin,
    ):
        await until(lambda: full_isr(admin, "t", 2))
        assert (await starts(admin))[3] == (5, 12)
        found = await read(alone.endpoints, 7)
        assert [(r.offset, r.value) for r in found][:2] == [(5, b"4"), (6, b"5")]

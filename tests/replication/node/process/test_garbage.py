"""What a record leaves to the garbage collector, which stands in the way of the next ones: nothing."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from insync.replication import Admin, Node, NodeSettings, Producer

RECORDS = 100


@pytest.mark.slow
async def test_a_record_leaves_no_cycles_to_the_garbage_collector(tmp_path: Path) -> None:
    """Neither in the leader, whose parked fetches it answers, nor in followers and producer."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                Node(
                    NodeSettings(
                        node_id=each, data_dir=tmp_path / f"node-{each}", store=f"sqlite://{tmp_path}/meta.db"
                    )
                )
            )
            for each in (1, 2, 3)
        ]
        servers = [node.endpoints[0] for node in nodes]
        admin = await stack.enter_async_context(Admin(servers))
        await admin.create_topic("t", partitions=1, replication_factor=3)
        producer = await stack.enter_async_context(Producer(servers, linger_ms=0))

        async def send(count: int) -> None:
            for _ in range(count):
                await (await producer.send("t", b"x" * 100)).wait()

        await send(10)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await send(RECORDS)
            gc.collect()
            left = Counter(type(each).__name__ for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert sum(left.values()) < RECORDS, left.most_common(10)

"""A process that stands still inside a commit to SQLite: what is acknowledged meanwhile, and what `status` says.

Nodes write to SQLite by a process of their own that goes on when they stand still; where that one cannot either (or
somebody else has the lock), what does not need the store goes on, and `status` tells the rest.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.replication import Admin, Producer
from insync.replication.cli.watching import status
from tests.processes import NodeProcess, cluster
from tests.replication.metadata.sqlite_store.test_writer import wait_until_locked
from tests.replication.node.test_cluster import full_isr, until


async def led_alone(admin: Admin, node_id: int) -> bool:
    """Whether the other node has been replaced as leader, and counted out."""
    (topic,) = await admin.describe_topics(["t"])
    return all(each.leader == node_id and each.isr == [node_id] for each in topic.partitions)


@contextmanager
def standing_still(folder: Path, node: NodeProcess | None) -> Iterator[None]:
    """Somebody has the store's write lock and does not go on; a node, too, if one is given.

    A node that is stopped at any moment has the lock only if it is committing: here it is certain.
    """
    holder = sqlite3.connect(folder / "meta.db", isolation_level=None, timeout=30)
    try:
        if node is not None:
            node.process.send_signal(signal.SIGSTOP)
        holder.execute("BEGIN IMMEDIATE")
        yield
    finally:
        holder.close()
        if node is not None:
            os.kill(node.process.pid, signal.SIGCONT)


@pytest.mark.slow
async def test_a_node_that_is_stopped_in_a_commit_leaves_the_isr_and_acks_go_on(tmp_path: Path) -> None:
    """The controller stands still while it writes a large topic; the other node takes over within its session."""
    with cluster(tmp_path, 2) as nodes:
        async with Admin([nodes[1].endpoint]) as admin, Producer([nodes[1].endpoint]) as producer:
            await admin.create_topic("t", 2, 2, {"min_insync_replicas": 1})
            await until(lambda: full_isr(admin, "t", 2), 60)
            described = (await admin.describe_topics(["t"]))[0].partitions
            for each in described:
                # A producer that is new needs an id, which is a write to the store.
                await (await producer.send("t", b"first", partition=each.partition)).wait()
            controller = (await admin.describe_cluster()).controller_id
            stopped = next(node for node in nodes if node.node_id == controller)
            remaining = next(node for node in nodes if node is not stopped)
            async with Admin([stopped.endpoint]) as asking, trio.open_nursery() as nursery:
                nursery.start_soon(partial(asking.create_topic, "large", 2_000, 1))
                await trio.to_thread.run_sync(wait_until_locked, tmp_path / "meta.db")
                stopped.process.send_signal(signal.SIGSTOP)
                try:
                    nursery.cancel_scope.cancel()
                    with trio.CancelScope(shield=True), trio.fail_after(60):
                        async with (
                            Admin([remaining.endpoint]) as other,
                            Producer([remaining.endpoint]) as own,
                        ):
                            await until(lambda: led_alone(other, remaining.node_id), 60)
                            for each in described:
                                await (await own.send("t", b"x", partition=each.partition)).wait()
                finally:
                    stopped.process.send_signal(signal.SIGCONT)


@pytest.mark.slow
async def test_acks_need_no_store_and_status_tells_what_waits_for_whom(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin, Producer(servers) as producer:
            await admin.create_topic("t", 2, 2, {"min_insync_replicas": 1})
            await until(lambda: full_isr(admin, "t", 2), 60)
            led_by = {
                each.leader: each.partition for each in (await admin.describe_topics(["t"]))[0].partitions
            }
            # A producer that is new needs an id, which is a write to the store.
            await (await producer.send("t", b"first", partition=led_by[1])).wait()
            with standing_still(tmp_path, None):
                for partition in (0, 1):
                    with trio.fail_after(60):
                        await (await producer.send("t", b"x", partition=partition)).wait()
            async with Admin(servers[:1]) as watcher:
                seen: dict[str, Any] = {}

                async def told() -> bool:
                    seen.update(await status.look(watcher))
                    one = next(each for each in seen["nodes"] if each["node_id"] == 1)
                    return bool(seen["waiting"]) and one["store_age_ms"] > status.STORE_OLD_MS

                with standing_still(tmp_path, nodes[1]):
                    waits = await producer.send("t", b"y", partition=led_by[1])
                    await until(told, 30)
                    assert {(each["partition"], each["for"]) for each in seen["waiting"]} == {
                        (f"t-{led_by[1]}", 2)
                    }
                    assert not waits.done
            with trio.fail_after(30):
                assert (await waits.wait()).offset == 2

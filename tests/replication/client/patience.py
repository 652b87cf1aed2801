"""Waiting for what a node of the fake cluster has been asked, however long a busy machine takes over it."""

from __future__ import annotations

import trio
import trio.testing

from insync.replication.core.messages import Kind

from .fake_cluster import FakeNode

PATIENCE = 30.0


async def asked(node: FakeNode, kind: Kind, count: int) -> int:
    """How many requests of a kind have come, once `count` of them have and nothing moves any more."""
    with trio.fail_after(PATIENCE):
        while node.seen[kind] < count:
            await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked(0.01)
    return node.seen[kind]

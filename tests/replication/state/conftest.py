"""Three nodes in this program, for copies to stand on."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from insync.replication import Node
from tests.replication.node.test_cluster import settings


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[str]]:
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(Node(settings(tmp_path, n, session_timeout_ms=60_000)))
            for n in (1, 2, 3)
        ]
        yield [node.endpoints[0] for node in nodes]


@pytest.fixture
def threaded_servers(tmp_path: Path) -> Iterator[list[str]]:
    """The same in a thread, for tests that are not trio's."""
    found: list[str] = []
    ready = threading.Event()
    tokens: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def main() -> None:
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(Node(settings(tmp_path, n, session_timeout_ms=60_000)))
                for n in (1, 2, 3)
            ]
            found.extend(node.endpoints[0] for node in nodes)
            end = trio.Event()
            tokens.append((trio.lowlevel.current_trio_token(), end))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(30)
    yield found
    token, end = tokens[0]
    token.run_sync_soon(end.set)
    thread.join()

"""More connections than a process has descriptors: they end, and the node, its logs and its peers go on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication import Admin, Producer

from ...processes import NodeProcess, kept_address
from .wire_client import WireClient

Versions = message("ApiVersionsRequest")
DESCRIPTORS = 256
SILENT = 2 * DESCRIPTORS


@contextmanager
def silent(address: str) -> Iterator[None]:
    """Connections that say nothing."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    with ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
        yield


@pytest.mark.slow
async def test_a_node_outlives_more_silent_connections_than_it_has_descriptors(tmp_path: Path) -> None:
    with ExitStack() as stack:
        at = stack.enter_context(kept_address()).replace("tcp://", "kafka://")
        node = NodeProcess.start(
            1,
            tmp_path,
            *("--listen", "tcp://127.0.0.1:0", "--listen", f"{at}?sasl=SCRAM-SHA-256"),
            command=("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"),
        )
        stack.callback(node.kill)
        async with Admin(node.endpoint) as admin:
            await admin.create_topic("t", 8, 1, config={"segment_bytes": 1024})
        stack.enter_context(silent(at))
        with trio.fail_after(60):
            async with Producer(node.endpoint) as producer:
                for number in range(160):
                    await (await producer.send("t", b"." * 1000, partition=number % 8)).wait()
            client = await WireClient.connect(at)
            async with client.stream:
                assert (await client.ask(Api.API_VERSIONS, 0, Versions())).api_keys
        assert node.process.poll() is None
        assert "state=offline" not in (tmp_path / "node-1.err").read_text()
        assert node.stop() == 0

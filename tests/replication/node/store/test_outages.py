"""The store's server is away: nodes wait for it as they start, write on without it, and say so in few lines."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import trio

from insync.replication import Admin, Node, NodeSettings, Producer
from insync.replication.metadata.remote_store.client import RemoteStore
from insync.replication.node import NodeStartError
from insync.replication.node.store._registration import Registration
from insync.transport.kit._frame import until
from tests.processes import StoreServer, kept_address


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    """Not started yet."""
    with kept_address() as listen:
        server = StoreServer(tmp_path, listen, f"remote+{listen}")
        yield server
        if server.process is not None and server.process.poll() is None:
            server.end()


def settings(folder: Path, server: StoreServer, node_id: int = 1, **options: object) -> NodeSettings:
    listeners = ("tcp://127.0.0.1:0",)
    return NodeSettings(
        node_id=node_id,
        data_dir=folder / f"n{node_id}",
        store=server.url,
        listeners=listeners,
        **options,  # type: ignore[arg-type]
    )


async def ready(address: str) -> tuple[int, dict[str, Any]]:
    def ask() -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://{address}/ready", timeout=30) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    return await trio.to_thread.run_sync(ask)


@pytest.mark.slow
async def test_a_node_waits_for_its_store_and_says_so(tmp_path: Path, server: StoreServer) -> None:
    node = Node(settings(tmp_path, server, metrics_port=0))
    running, done = trio.Event(), trio.Event()

    async def run() -> None:
        async with node:
            running.set()
            await done.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(60):
            await until(lambda: bool(node.metrics_address), "health is served")
        status, told = await ready(node.metrics_address)
        assert status == 503
        assert told["checks"] == [
            {"name": "start", "ok": False, "detail": "the node waits for the metadata store"}
        ]
        assert not running.is_set()
        await trio.to_thread.run_sync(server.start)
        with trio.fail_after(60):
            await running.wait()
            while (await ready(node.metrics_address))[0] != 200:  # noqa: ASYNC110 - of another server
                await trio.sleep(0.05)
        done.set()


async def test_a_node_is_not_ready_before_it_runs_nor_as_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    async def look() -> None:
        status, answer = await ready(node.metrics_address)
        told.append((status, [each["detail"] for each in answer["checks"]]))

    async def prepare(*args: Any, **options: Any) -> Registration:
        await look()
        return await real_prepare(*args, **options)

    async def stop(self: Node, *args: Any) -> None:
        with trio.CancelScope(shield=True):
            await look()
        await real_stop(self, *args)

    real_prepare, real_stop = Registration.prepare, Node._stop_logs
    monkeypatch.setattr(Registration, "prepare", prepare)
    monkeypatch.setattr(Node, "_stop_logs", stop)
    listen = ("tcp://127.0.0.1:0",)
    node = Node(
        NodeSettings(node_id=1, data_dir=tmp_path, store="memory://", listeners=listen, metrics_port=0)
    )
    async with node:
        await look()
    assert [status for status, _ in told] == [503, 200, 503]
    assert told[0] == (503, ["the node waits for its logs"])
    assert told[2] == (503, ["the node waits for its end"])


async def test_a_node_waits_as_long_as_it_is_told(tmp_path: Path, server: StoreServer) -> None:
    with trio.fail_after(60), pytest.raises(NodeStartError, match="cannot be reached"):
        async with Node(settings(tmp_path, server, store_wait_ms=100)):
            pass


@pytest.mark.slow
def test_sigterm_ends_the_wait(tmp_path: Path, server: StoreServer) -> None:
    command = [sys.executable, "-m", "insync.replication.cli", "node", "--node-id", "1"]
    folder = ["--data-dir", str(tmp_path / "n1"), "--store", server.url, "--listen", "tcp://127.0.0.1:0"]
    with subprocess.Popen([*command, *folder], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "cannot be used" in line:
                    break
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.slow
async def test_an_outage_costs_no_write_and_few_lines(
    tmp_path: Path,
    server: StoreServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three nodes in one process, until each has tried for long to open another session."""
    attempts = 0
    real = RemoteStore.open_session

    async def counted(store: RemoteStore, timeout_ms: int) -> object:
        nonlocal attempts
        attempts += 1
        return await real(store, timeout_ms)

    monkeypatch.setattr(RemoteStore, "open_session", counted)
    await trio.to_thread.run_sync(server.start)
    async with (
        Node(settings(tmp_path, server)) as one,
        Node(settings(tmp_path, server, 2)),
        Node(settings(tmp_path, server, 3)),
        Admin(one.endpoints) as admin,
        Producer(one.endpoints) as producer,
    ):
        await admin.wait_for_nodes(3)
        await admin.create_topic("t", 3, 3)
        for partition in range(3):
            await producer.send_and_wait("t", b"before", partition=partition)
        caplog.set_level(logging.INFO)
        caplog.clear()
        server.end()
        attempts = 0
        with trio.fail_after(90):
            written = 0
            while attempts < 30:
                await producer.send_and_wait("t", b"%d" % written, partition=written % 3)
                written += 1
                await trio.sleep(0.01)
        told = [each.getMessage() for each in caplog.records if each.name.startswith("insync")]
        assert sum("cannot be used" in each for each in told) == 3
        assert len(told) <= 15, told
        await trio.to_thread.run_sync(server.start)
        with trio.fail_after(60):
            await until(
                lambda: sum("works again" in each.getMessage() for each in caplog.records) == 3,
                "all nodes say that the store works",
            )
            after = [await producer.send_and_wait("t", b"after", partition=each) for each in range(3)]
            await admin.wait_for_nodes(3)
            await admin.create_topic("u", 1, 3)
    assert sum(each.offset for each in after) == written + 3

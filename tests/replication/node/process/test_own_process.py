"""A node in a process of its own: the same object, whatever keeps this process's interpreter busy."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import attrs
import psutil
import pytest
import trio

from insync.replication import (
    Admin,
    BlockingAdmin,
    BlockingNode,
    BlockingProducer,
    Consumer,
    Node,
    NodeSettings,
    Producer,
)
from insync.replication.asyncio import Node as AsyncioNode
from insync.replication.node import DuplicateNodeError, InvalidSettingError, NodeError, NodeStoppedError


def settings(folder: Path, node_id: int = 1, **more: object) -> NodeSettings:
    return NodeSettings(
        node_id=node_id,
        data_dir=folder / f"node-{node_id}",
        store=f"sqlite://{folder}/meta.db",
        controlled_shutdown_timeout_ms=2000,
        **{"session_timeout_ms": 5000, **more},  # type: ignore[arg-type]
    )


def children() -> list[psutil.Process]:
    return [
        each
        for each in psutil.Process().children()
        if "insync.replication.node.process._child" in each.cmdline()
    ]


def hold_the_interpreter(seconds: float) -> None:
    """No other thread of this process runs meanwhile: a call into C that keeps the lock."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


async def test_records_go_in_and_come_out(tmp_path: Path) -> None:
    async with Node(settings(tmp_path), own_process=True) as node:
        (child,) = children()
        assert node.incarnation == 1 and node.cluster_id and node.store_url.endswith("meta.db")
        assert any(url.startswith("shm://") for url in node.endpoints)
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", replication_factor=1)
        async with Producer(node.endpoints) as producer:
            await (await producer.send("t", b"one")).wait()
        async with Consumer(node.endpoints) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek_to_beginning()
            (record,) = await consumer.poll(timeout_ms=10_000)
            assert record.value == b"one"
    assert not child.is_running()
    async with Node(settings(tmp_path)) as node:  # it was stopped cleanly, and the same folder serves again
        assert node.incarnation == 2


@pytest.mark.slow
@pytest.mark.parametrize("own_process", [True, False])
def test_code_that_holds_the_interpreter_costs_no_session(
    tmp_path: Path, own_process: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside it, the node of this very process, which is taken for dead."""
    caplog.set_level(logging.INFO, "insync")
    with BlockingNode(settings(tmp_path, session_timeout_ms=4000), own_process=own_process) as node:
        hold_the_interpreter(7.0)
        with BlockingProducer(node.endpoints) as producer, BlockingAdmin(node.endpoints) as admin:
            admin.create_topic("t", replication_factor=1)
            producer.send("t", b"x").result(30)
    lost = [each for each in caplog.records if "state=lost" in each.getMessage()]
    assert bool(lost) != own_process


async def test_the_log_of_the_child_is_ours(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "insync")
    async with Node(settings(tmp_path), own_process=True):
        pass
    told = [record for record in caplog.records if str(record.msg).startswith("event=session_changed")]
    assert told and told[0].name == "insync.node" and "state=registered" in told[0].getMessage()


@pytest.mark.slow
async def test_an_error_of_the_child_is_raised_here(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, session_timeout_ms=10_000), own_process=True):
        with pytest.raises(NodeError, match=r"is in use by process \d+"):
            async with Node(settings(tmp_path), own_process=True):
                pytest.fail("two nodes serve one folder")
        other = attrs.evolve(settings(tmp_path, session_timeout_ms=10_000), data_dir=tmp_path / "elsewhere")
        with trio.fail_after(60), pytest.raises(DuplicateNodeError):
            async with Node(other, own_process=True):
                pytest.fail("two nodes have one id")
    assert children() == []


async def test_a_child_that_is_killed_ends_the_block(tmp_path: Path) -> None:
    reached = False
    with trio.fail_after(30), pytest.raises(NodeStoppedError, match="node 1 ended by signal 9"):
        async with Node(settings(tmp_path), own_process=True):
            (child,) = children()
            child.kill()
            try:
                await trio.sleep_forever()
            finally:
                reached = True
    assert reached


@pytest.mark.slow
async def test_a_block_that_fails_or_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with Node(settings(tmp_path), own_process=True):
            raise ValueError("mine")
    assert children() == []
    with trio.CancelScope() as scope:
        async with Node(settings(tmp_path), own_process=True):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught and children() == []


async def test_a_child_that_does_not_end_is_killed_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("insync.replication.node.process._own_process._HURRY", 0.2)
    suspended: list[psutil.Process] = []
    try:
        with trio.fail_after(30), pytest.raises(ValueError, match="mine"):
            async with Node(settings(tmp_path), own_process=True):
                suspended = children()
                suspended[0].suspend()
                raise ValueError("mine")
        assert children() == []
    finally:
        for child in suspended:
            with suppress(psutil.NoSuchProcess):
                child.kill()
    assert "killing a node's process, which has not ended within 0.2 s" in caplog.messages


async def test_a_system_that_starts_no_process_is_an_error_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    with pytest.raises(NodeError, match=r"node 1: no process can be started for it: .*nowhere"):
        async with Node(settings(tmp_path), own_process=True):
            pytest.fail("there is no such program")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_parent_that_dies_takes_the_child_with_it(tmp_path: Path, how: signal.Signals) -> None:
    program = """
import json, sys, trio
from insync.replication import Node, NodeSettings

async def main(folder):
    given = NodeSettings(node_id=1, data_dir=folder + "/n", store=f"sqlite://{folder}/meta.db")
    async with Node(given, own_process=True) as node:
        print(json.dumps(node.endpoints), flush=True)
        await trio.sleep_forever()

trio.run(main, sys.argv[1])
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    found: list[psutil.Process] = []
    try:
        assert parent.stdout is not None
        assert json.loads(parent.stdout.readline())
        found += psutil.Process(parent.pid).children()
        assert len(found) == 1
        os.kill(parent.pid, how)
        parent.wait(30)
        assert psutil.wait_procs(found, timeout=30)[1] == []
    finally:
        for each in (psutil.Process(parent.pid) if parent.poll() is None else None, *found):
            if each is not None and each.is_running():
                each.kill()
        parent.communicate()


@pytest.mark.parametrize("given", [{"store": "memory://x"}, {"listeners": ("mem://x",)}])
async def test_what_one_process_alone_can_use_is_refused(tmp_path: Path, given: dict[str, object]) -> None:
    base: dict[str, object] = {"node_id": 1, "data_dir": tmp_path, "store": f"sqlite://{tmp_path}/meta.db"}
    with pytest.raises(InvalidSettingError, match="one process alone"):
        async with Node(NodeSettings(**{**base, **given}), own_process=True):  # type: ignore[arg-type]
            pytest.fail("it serves nobody")


async def test_no_secret_stands_in_arguments_or_environment(tmp_path: Path) -> None:
    secret = "a secret of thirty-two letters....."
    async with Node(settings(tmp_path, secret=secret), own_process=True):
        (child,) = children()
        assert secret not in " ".join(child.cmdline())
        assert secret not in " ".join(child.environ().values())


def test_asyncio_has_it_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncioNode(settings(tmp_path), own_process=True) as node:
            assert node.endpoints and len(children()) == 1

    asyncio.run(main())
    assert children() == []

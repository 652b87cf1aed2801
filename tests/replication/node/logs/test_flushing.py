"""A node brings its logs to the device while it runs, and stops if the device refuses."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from insync.replication import Admin, Node
from insync.replication.node import LogDirectoryFailedError
from insync.replication.node.logs._log_flusher import LogFlusher
from insync.storage import LogDirectory, StorageError, TooManyOpenFilesError

from ..test_cluster import produce, settings


def flushed(folder: Path) -> int:
    """The recovery point of the one partition there is, as written down."""
    path = folder / "node-1" / "recovery-point-offset-checkpoint"
    return int(path.read_text().split()[-1]) if path.exists() else 0


async def reaches(folder: Path, offset: int) -> None:
    with trio.fail_after(60):
        while flushed(folder) < offset:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("when", [{"flush_interval_messages": 1}, {"flush_interval_ms": 20}])
async def test_flushes_as_the_settings_say(tmp_path: Path, when: dict[str, int]) -> None:
    async with Node(settings(tmp_path, 1, **when)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=1)
        await produce(node.endpoints, "t", [b"a", b"b"])
        await reaches(tmp_path, 2)
        await produce(node.endpoints, "t", [b"c"])
        await reaches(tmp_path, 3)


async def test_flushes_closed_segments_by_itself(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1, replica_high_watermark_checkpoint_interval_ms=3_600_000)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 1, 1, config={"segment_bytes": 1024})
        for _ in range(12):
            await produce(node.endpoints, "t", [b"x" * 200])
        await reaches(tmp_path, 4)
        assert flushed(tmp_path) < 12, "the last segment is left to the page cache"


async def test_a_device_that_refuses_stops_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def refuse(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            raise OSError(5, "Input/output error")
        real(fd)

    with pytest.raises(LogDirectoryFailedError, match="cannot flush t-0: Input/output error"):
        async with Node(settings(tmp_path, 1, flush_interval_messages=1)) as node:
            async with Admin(node.endpoints) as admin:
                await admin.create_topic("t", partitions=1, replication_factor=1)
            monkeypatch.setattr(os, "fsync", refuse)
            await produce(node.endpoints, "t", [b"a"])
            await trio.sleep_forever()


async def test_a_flush_that_lacks_descriptors_is_late_and_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one has them again; another error is the log's own."""
    failed: list[object] = []
    late, broken = TooManyOpenFilesError("no descriptor is left"), StorageError("the device refuses")
    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1)
    directory.flush_due = lambda now: {("t", 0): late, ("t", 1): broken}  # type: ignore[method-assign]
    told = trio.Event()

    def fail(*what: object) -> None:
        failed.append(what)
        told.set()

    flusher = LogFlusher(directory, 60_000, fail, fail)
    flusher.start()
    directory.on_flush_due()
    with trio.fail_after(60):
        await told.wait()
    await flusher.stop()
    assert set(failed) == {(("t", 1), broken)}
    assert "the flush of 1 logs is late: no descriptor is left" in caplog.messages


async def test_a_flush_under_way_ends_before_the_flusher_has_stopped(tmp_path: Path) -> None:
    """What it flushes is closed next."""
    begun, goes_on = threading.Event(), threading.Event()

    def slow(now: float) -> dict[object, object]:
        begun.set()
        assert goes_on.wait(60)
        return {}

    directory = LogDirectory(tmp_path, cluster_id="c", node_id=1)
    directory.flush_due = slow  # type: ignore[method-assign,assignment]
    flusher = LogFlusher(directory, 60_000, lambda *_: None, lambda _: None)
    flusher.start()
    try:
        directory.on_flush_due()
        assert await trio.to_thread.run_sync(begun.wait, 60)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flusher.stop)
                await trio.testing.wait_all_tasks_blocked()
                assert nursery.child_tasks, "it did not wait for the flush"
                goes_on.set()
    finally:
        goes_on.set()


async def test_of_a_device_that_does_not_answer_nothing_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    directory: Any = SimpleNamespace(path=folder)
    flusher = LogFlusher(directory, 1000, lambda *_: None, lambda _: None)
    flusher._look_at_device()
    assert flusher.free_bytes >= 0 and flusher.device
    folder.rmdir()
    flusher._look_at_device()
    assert flusher.free_bytes == -1

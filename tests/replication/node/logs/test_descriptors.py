"""A process, or a machine, without a descriptor left: that says nothing of a device."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from insync.replication import Admin, Node, NodeSettings
from insync.replication.core.control.view import ClusterView
from insync.replication.core.types import PartitionId
from insync.replication.node.logs._directories import LogDirectories
from insync.replication.node.logs._startup_scan import Found
from insync.storage import LogDirectory, TooManyOpenFilesError, _opening, waits_for_descriptors
from insync.transport.kit._frame import until

from ..test_cluster import consume, produce

ERRORS = [errno.EMFILE, errno.ENFILE]


class Shortage:
    """While it lasts nothing in the folders of topic `t` can be opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        self.lasts = False
        self._code, self._real = code, os.open
        monkeypatch.setattr(os, "open", self._open)

    def _open(self, path: Any, *rest: Any, **options: Any) -> int:
        if self.lasts and "/t-0" in str(path):
            raise OSError(self._code, os.strerror(self._code))
        return self._real(path, *rest, **options)


@pytest.mark.parametrize("code", ERRORS)
async def test_writes_wait_for_a_descriptor_and_no_directory_goes_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Longer than a device may hang: the threads that wait are not taken for such as hang."""
    short = Shortage(monkeypatch, code)
    settings = NodeSettings(node_id=1, data_dir=tmp_path, store="memory://", storage_stall_timeout_ms=200)
    async with Node(settings) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 1, 1, config={"segment_bytes": 1024})
        await produce(node.endpoints, "t", [b"a" * 1000])
        short.lasts = True
        before = waits_for_descriptors()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce, node.endpoints, "t", [b"b" * 1000])
            await until(lambda: waits_for_descriptors() > before + 20, "the writer waits")
            short.lasts = False
        assert await consume(node.endpoints, "t", 1, 2) == [b"a" * 1000, b"b" * 1000]


def test_a_shortage_that_goes_on_costs_the_partition_and_not_the_directory() -> None:
    at, offline = PartitionId("t", 0), list[object]()
    directories = SimpleNamespace(
        _homes={at: "home"},
        take_offline=lambda *told, **_: pytest.fail(f"offline: {told}"),
        offline=SimpleNamespace(partitions=set(), add=offline.append),
        _owner=SimpleNamespace(went_offline=lambda *told: offline.append(told)),
    )
    LogDirectories.failed(cast(Any, directories), at, TooManyOpenFilesError("none is left"))
    assert offline == [[at], ([at], "none is left")]


def test_a_node_that_finds_no_descriptor_at_its_start_gives_no_directory_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_logs = NodeSettings(node_id=1, log_dirs=(tmp_path / "one", tmp_path / "other"), store="memory://")
    directory = LogDirectory(tmp_path / "one", cluster_id="c", node_id=1)
    directory.open_log("t", 0, create=True)
    directory.close()
    short = Shortage(monkeypatch, errno.EMFILE)
    found = Found.open_directories(with_logs, "c")
    try:
        short.lasts = True
        with pytest.raises(TooManyOpenFilesError, match="ulimit -n"):
            found.open_logs(ClusterView(), 1)
        assert not found.unusable and not found.refused
    finally:
        short.lasts = False
        found.close()


def test_an_opening_gives_up_after_a_while_and_only_where_waiting_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []
    now = [0.0]

    def none_left() -> None:
        calls.append(now[0])
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(_opening, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pass_time))
    monkeypatch.setattr(_opening, "_waits", _opening._Waits())
    with pytest.raises(OSError, match="Too many open files"):
        _opening.patiently(none_left)
    assert calls == [0.0]
    _opening.wait_for_descriptors()
    with pytest.raises(OSError, match="Too many open files"):
        _opening.patiently(none_left)
    assert calls[-1] == pytest.approx(_opening.PATIENCE, abs=0.1)

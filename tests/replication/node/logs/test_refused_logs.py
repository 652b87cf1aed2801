"""A log that cannot be opened when a node starts costs its partition alone, and is told of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from insync.replication import Admin, Node, NodeSettings
from insync.replication.core.control.view import ClusterView
from insync.replication.core.types import PartitionId
from insync.replication.node.logs import _startup_scan
from insync.replication.node.logs._startup_scan import Found, open_log
from insync.storage import Log, LogDirectory, StorageBrokenError, StorageFullError

from ..test_cluster import consume, full_isr, produce, replicas_agree, settings, until
from .test_damaged_leader import rot


def unreadable(folder: Path) -> None:
    """Its device gives an error for one file."""
    (path,) = folder.glob("*.log")
    path.rename(folder / "aside")
    path.mkdir()


def nameless(folder: Path) -> None:
    (folder / "partition.metadata").write_text("garbage")


def doubled(folder: Path) -> None:
    (folder.parent.parent / "other" / folder.name).mkdir()


def in_first(base: Path) -> Path:
    """The folder of t-0, in the first of the two log directories."""
    (folder,) = base.glob("o*/t-0")
    return folder if folder.parent.name == "one" else folder.rename(base / "one" / "t-0")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (rot, "is damaged at byte"),
        (unreadable, "is a folder, not a file"),
        (nameless, "does not name a topic id"),
        (doubled, "has a folder both in"),
    ],
)
async def test_the_other_partitions_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None], said: str
) -> None:
    """The only replica is kept as it is; neither the start nor what is written meanwhile changes anything in it."""
    both = NodeSettings(
        node_id=1, log_dirs=(tmp_path / "one", tmp_path / "other"), store=f"sqlite://{tmp_path}/meta.db"
    )

    def files() -> dict[str, bytes]:
        found = [path for name in ("one", "other") for path in (tmp_path / name).glob("t-0/**/*")]
        return {str(path): path.read_bytes() for path in found if path.is_file()}

    async with Node(both) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 2, 1)
        await produce(node.endpoints, "t", [b"%d" % number for number in range(20)])
    harm(in_first(tmp_path))
    before = files()
    async with Node(both) as node, Admin(node.endpoints) as admin:
        (line,) = [each for each in caplog.messages if "event=log_refused" in each]
        assert "partition=t-0" in line and said in line
        (told,) = await admin.describe_nodes()
        checks = {each.name: each for each in told.checks}
        assert not checks["logs"].ok and "1 partition cannot be used here: t-0" in checks["logs"].detail
        assert checks["log_directories"].ok
        (report,) = await admin.describe_replicas(["t"])
        assert said in next(each.error for each in report.replicas if each.partition == 0)

        async def led() -> bool:
            (info,) = await admin.describe_topics(["t"])
            return [part.leader for part in info.partitions] == [-1, 1]

        await until(led)
        await admin.create_topic("u", 4, 1)
        await produce(node.endpoints, "u", [b"x"] * 8)
    assert files() == before


async def test_a_damaged_log_is_copied_again_where_others_have_all_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(Node(settings(tmp_path, 2)))
        async with Node(settings(tmp_path, 1)), Admin(other.endpoints) as admin:
            await admin.create_topic("t", 3, 2, config={"min_insync_replicas": 1})
            await until(lambda: full_isr(admin, "t", 2))
            await produce(other.endpoints, "t", [b"%d" % number for number in range(60)])
        rot(tmp_path / "node-1" / "t-1")
        async with Node(settings(tmp_path, 1)), Admin(other.endpoints) as admin:
            await until(lambda: full_isr(admin, "t", 2), 30)
            await until(lambda: replicas_agree(admin, "t", 2), 30)
            told = {each.node_id: each for each in await admin.describe_nodes()}
            assert all(each.ok for each in told[1].checks if each.name == "logs")
        values = await consume(other.endpoints, "t", 3, 60)
        assert sorted(map(int, values)) == list(range(60))
    assert len([each for each in caplog.messages if "event=log_refused" in each]) == 1
    first, second = (
        next(iter((tmp_path / f"node-{number}" / "t-1").glob("*.log"))).read_bytes() for number in (1, 2)
    )
    assert first == second


def test_a_device_that_fails_is_told_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = LogDirectory(tmp_path / "data", cluster_id="c", node_id=1)
    directory.check_device()
    names = {each.name for each in directory.path.iterdir()}
    assert "device-check" not in names

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        with pytest.raises(StorageBrokenError, match="check the device"):
            directory.check_device()
    directory.close()


def test_what_was_open_in_a_directory_that_fails_is_offline_though_the_store_knows_it_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's view names no partition of this node: what was opened before the device failed counts, too."""
    both = NodeSettings(node_id=1, log_dirs=(tmp_path / "one", tmp_path / "other"), store="memory://")
    for path, partitions in (("one", (0, 1)), ("other", (2,))):
        directory = LogDirectory(tmp_path / path, cluster_id="c", node_id=1)
        for number in partitions:
            directory.open_log("t", number, create=True)
        directory.close()
    first, second, elsewhere = (PartitionId("t", number) for number in range(3))
    opened: list[PartitionId] = []

    def open_or_fail(directory: LogDirectory, partition: PartitionId, *rest: Any, **options: Any) -> Log:
        opened.append(partition)
        if len(opened) == 2 and directory.path == tmp_path / "one":
            raise StorageFullError("no space left on device")
        return open_log(directory, partition, *rest, **options)

    monkeypatch.setattr(_startup_scan, "open_log", open_or_fail)
    found = Found.open_directories(both, "c")
    try:
        found.open_logs(ClusterView(), 1)
        assert opened[0] in (first, second) and opened[1] in (first, second)
        assert found.offline == {opened[0]}
        assert found.logs.keys() == {elsewhere}
        assert found.holdings(found.offline).offline() == {opened[0]}
    finally:
        found.close()

"""Files that can be built anew from a log are removed, cut and replaced under a node that is in use."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from insync.replication import Admin, Node, NodeSettings

from ..test_cluster import consume, produce, until


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, 0)


def by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.slow
@pytest.mark.parametrize("harm", [remove, cut, by_folder])
async def test_the_directory_stays_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    settings = NodeSettings(
        node_id=1,
        data_dir=tmp_path / "data",
        store=f"sqlite://{tmp_path}/meta.db",
        log_maintenance_interval_ms=50,
    )
    caplog.set_level(logging.INFO, logger="insync.node")
    async with Node(settings) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1, config={"segment_bytes": 16 << 10, "file_delete_delay_ms": 0})
        await admin.create_topic("u", 1, 1)
        sent = 0

        async def write(batches: int) -> None:
            """Ten of them begin a segment, and have index entries."""
            nonlocal sent
            for _ in range(batches):
                await produce(node.endpoints, "t", [b"%0100d" % number for number in range(sent, sent + 20)])
                sent += 20

        for _ in range(2):
            await write(10)
            for suffix in (".index", ".timeindex"):
                harm(max((tmp_path / "data" / "t-0").glob(f"*{suffix}")))
            await write(10)
            assert [*map(int, await consume(node.endpoints, "t", 1, sent))] == [*range(sent)]
        rebuilt = [each for each in caplog.messages if each.startswith("event=index_rebuilt partition=t-0")]
        assert all(any(f"{suffix} " in each for each in rebuilt) for suffix in (".index", ".timeindex"))
        assert all(" why=" in each and " remedy=" in each for each in rebuilt)
        await admin.alter_config("t", {"retention_bytes": 1})

        async def deleted() -> bool:
            return len([*(tmp_path / "data" / "t-0").glob("*.log")]) == 1

        await until(deleted)
        await produce(node.endpoints, "u", [b"x"])
        (told,) = await admin.describe_nodes()
        assert all(each.ok for each in told.checks if each.name in ("log_directories", "logs", "maintenance"))
    assert not [each for each in caplog.messages if "state=offline" in each]


async def test_a_node_starts_beside_a_data_folder_that_is_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / "meta.properties")
    folders = tuple(tmp_path / name for name in ("file", "fifo", "good"))
    both = NodeSettings(node_id=1, log_dirs=folders, store=f"sqlite://{tmp_path}/meta.db")
    async with Node(both) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"x"])
    said = [each for each in caplog.messages if "event=log_directory_changed" in each]
    assert len(said) == 2
    assert "file is a file, not a folder; move it away" in said[0]
    assert "meta.properties is a FIFO, not a file; move it away" in said[1]

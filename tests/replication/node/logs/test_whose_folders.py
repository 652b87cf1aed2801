"""Folders that are not what their names say: a node serves without them, and deletes none."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.replication import Admin, Node

from ..test_cluster import consume, produce, settings


async def two_topics(folder: Path) -> None:
    async with Node(settings(folder, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("a", 2, 1)
        await admin.create_topic("b", 1, 1)
        await produce(node.endpoints, "a", [b"%d" % number for number in range(20)])
        await produce(node.endpoints, "b", [b"x"])


def swap(root: Path, one: str, other: str) -> None:
    (root / one).rename(root / "aside")
    (root / other).rename(root / one)
    (root / "aside").rename(root / other)


@pytest.mark.parametrize(
    ("one", "other", "names"), [("a-0", "a-1", True), ("a-0", "b-0", True), ("a-0", "b-0", False)]
)
async def test_swapped_folders(tmp_path: Path, one: str, other: str, names: bool) -> None:
    await two_topics(tmp_path)
    root = settings(tmp_path, 1).folders[0]
    if not names:
        for path in root.glob("*/partition.metadata"):
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    swap(root, one, other)
    said = f"{one} holds the data of {other}" if names else "belongs to topic id"
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        shut = {}
        for report in await admin.describe_replicas(["a", "b"]):
            shut.update({f"{each.topic}-{each.partition}": each.error for each in report.replicas})
        assert said in shut.pop(one) and shut.pop(other)
        assert set(shut.values()) == {""}
    swap(root, one, other)
    async with Node(settings(tmp_path, 1)) as node:
        values = await consume(node.endpoints, "a", 2, 20)
        assert sorted(map(int, values)) == list(range(20))
        assert await consume(node.endpoints, "b", 1, 1) == [b"x"]

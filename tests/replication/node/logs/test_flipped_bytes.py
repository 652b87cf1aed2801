"""Single bytes of a node's small files change while it is down: nothing that was acknowledged is lost of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.replication import Admin
from tests.processes import cluster, start_again

from ..process.test_processes import read_all
from ..test_cluster import full_isr, replicas_agree, until
from .test_power_cuts import NODES, surviving_values, write

VALUES = [b"%d" % number for number in range(500)]


def change_topic_id(folder: Path) -> None:
    """Another hexadecimal digit in the topic's id."""
    path = folder / "partition.metadata"
    text = path.read_text()
    at = text.index("topic_id: ") + len("topic_id: ") + 5
    path.write_text(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :])


@pytest.mark.slow
async def test_a_changed_topic_id_in_one_of_three_folders_costs_nothing(tmp_path: Path) -> None:
    """The node with the damage is the first to start after all were killed."""
    with cluster(tmp_path) as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 1, 3, config={"min_insync_replicas": 2})
            await until(lambda: full_isr(admin, "t", 3))
            await write(servers, "t", VALUES)
            await until(lambda: replicas_agree(admin, "t", 3))
        for node in nodes:
            node.kill()
        change_topic_id(tmp_path / "node-1" / "t-0")
        errors = tmp_path / "node-1.err"
        since = errors.stat().st_size
        for number in NODES:
            start_again(nodes, number)
        servers = [node.endpoint for node in nodes]
        await write(servers, "t", [b"after"])
        async with Admin(servers) as admin:
            await until(lambda: replicas_agree(admin, "t", 3))
        assert await read_all(servers) == [*VALUES, b"after"]
        assert str(tmp_path / "node-1" / "t-0") in errors.read_text()[since:], "the damage is named"


@pytest.mark.slow
async def test_a_changed_topic_id_of_the_only_replica_leaves_its_records_on_the_disk(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as nodes:
        async with Admin([nodes[0].endpoint]) as admin:
            await admin.create_topic("t", 1, 1)
            await until(lambda: full_isr(admin, "t", 1))
            await write([nodes[0].endpoint], "t", VALUES)
        nodes[0].kill()
        folder, errors = tmp_path / "node-1", tmp_path / "node-1.err"
        change_topic_id(folder / "t-0")
        since = errors.stat().st_size
        start_again(nodes, 1)
        async with Admin([nodes[0].endpoint]) as admin:
            # It serves what it was given after its start, and so has decided about what it had before.
            await admin.create_topic("new", 1, 1)
            await until(lambda: full_isr(admin, "new", 1))
            await write([nodes[0].endpoint], "new", [b"new"])
        assert nodes[0].stop() == 0
        kept = [surviving_values(each) for each in folder.glob("t-0*")]
        assert VALUES in kept, "the records are not on the disk any more"
        assert str(folder / "t-0") in errors.read_text()[since:], "the damage is named"

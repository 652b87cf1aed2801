"""Logs that a node cannot use and nobody gave up: kept, named, copied again, restored."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from insync.replication import Admin, Node
from insync.replication.cli import main
from insync.replication.core.control import records as rec
from insync.replication.core.types import PartitionId
from insync.replication.metadata import Delete, open_store
from insync.storage import Stray, find_strays, remove_stray
from tests.processes import NodeProcess, cluster

from ..recovery.test_put_back import kill_all, run_command
from ..test_cluster import (
    consume,
    full_isr,
    led_by,
    produce,
    replicas_agree,
    settings,
    settings_on_disk,
    until,
)

VALUES = [b"%d" % number for number in range(40)]


def change_topic_id(folder: Path, *, sealed: bool) -> None:
    """One hexadecimal digit. Without its checksum the file is as an earlier version wrote it."""
    path = folder / "partition.metadata"
    lines = path.read_text().splitlines(keepends=True)
    digit = lines[1][-2]
    lines[1] = lines[1][:-2] + ("0" if digit != "0" else "1") + "\n"
    path.write_text("".join(lines if sealed else lines[:4]))


async def forget(store: str, *keys: str) -> None:
    async with open_store(store) as opened:
        await opened.commit([], [Delete(key) for key in keys])


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [True, False])
async def test_a_changed_topic_id_costs_three_replicas_nothing(tmp_path: Path, sealed: bool) -> None:
    """The node with the changed file starts first, and would lead the others."""
    with cluster(tmp_path, 3) as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 1, 3)
            await produce(servers, "t", VALUES)
            await until(lambda: replicas_agree(admin, "t", 3))
        kill_all(nodes)
        change_topic_id(tmp_path / "node-1" / "t-0", sealed=sealed)
        nodes[0] = NodeProcess.start(1, tmp_path)
        async with Admin([nodes[0].endpoint]) as admin:
            await until(lambda: led_by(admin, "t", -1))
        for number in (2, 3):
            nodes[number - 1] = NodeProcess.start(number, tmp_path)
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await until(lambda: full_isr(admin, "t", 3))
            await until(lambda: replicas_agree(admin, "t", 3))
        assert await consume(servers, "t", 1, len(VALUES)) == VALUES
        (stray,) = find_strays(tmp_path / "node-1")
        assert "partition.metadata" in stray.why if sealed else "does not say that topic id" in stray.why
        said = (tmp_path / "node-1.err").read_text()
        assert "event=log_set_aside" in said and str(stray.path) in said
        assert [find_strays(tmp_path / f"node-{number}") for number in (2, 3)] == [[], []]


async def test_a_restored_log_counts_for_nothing_until_it_has_caught_up(tmp_path: Path) -> None:
    """It lacks what the log in its place had when its node was in the ISR, and the node starts first."""
    more = [b"after the log was set aside"] * 3
    for values in (VALUES, more):
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Node(settings(tmp_path, 1)))
            two = await stack.enter_async_context(Node(settings(tmp_path, 2)))
            admin = await stack.enter_async_context(Admin(two.endpoints))
            if values is VALUES:
                await admin.create_topic("t", 1, 2)
            await until(lambda admin=admin: full_isr(admin, "t", 2))
            await produce(two.endpoints, "t", values)
            await until(lambda admin=admin: replicas_agree(admin, "t", 2))
        if values is VALUES:
            change_topic_id(tmp_path / "node-1" / "t-0", sealed=False)
    (stray,) = find_strays(tmp_path / "node-1")
    assert main(["stray", "restore", "--trust-name", str(stray.path)]) == 0
    async with Node(settings(tmp_path, 1)) as one, Admin(one.endpoints) as admin:
        assert not (tmp_path / "node-1" / "t-0" / "stray.json").exists()
        await until(lambda: is_eligible_alone(admin, 2))
        async with Node(settings(tmp_path, 2)) as two:
            await until(lambda: led_by(admin, "t", 2))
            await until(lambda: replicas_agree(admin, "t", 2))
            assert await consume(two.endpoints, "t", 1, len(VALUES) + len(more)) == [*VALUES, *more]


async def test_a_damaged_name_of_the_only_replica_is_mended_by_hand(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", VALUES)
    folder = tmp_path / "node-1" / "t-0"
    change_topic_id(folder, sealed=True)
    for _ in range(2):
        async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
            await until(lambda admin=admin: led_by(admin, "t", -1))
            (report,) = await admin.describe_replicas(["t"])
            assert "partition.metadata" in report.replicas[0].error
            assert "delete this file alone" in report.replicas[0].error
        assert find_strays(tmp_path / "node-1") == []
    (folder / "partition.metadata").unlink()
    async with Node(settings(tmp_path, 1)) as node:
        assert await consume(node.endpoints, "t", 1, len(VALUES)) == VALUES
        await produce(node.endpoints, "t", [b"more"])


async def test_the_only_replica_under_another_topic_id_is_restored_by_command(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", VALUES)
    change_topic_id(tmp_path / "node-1" / "t-0", sealed=False)
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await until(lambda: led_by(admin, "t", -1))
    (stray,) = find_strays(tmp_path / "node-1")
    assert main(["stray", "restore", "--trust-name", str(stray.path)]) == 0
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.elect_leaders([("t", 0)], unclean=True)
        await until(lambda: led_by(admin, "t", 1))
        assert await consume(node.endpoints, "t", 1, len(VALUES)) == VALUES


@pytest.mark.slow
@pytest.mark.parametrize("while_up", [True, False])
async def test_the_logs_of_a_forgotten_topic_are_kept_and_come_back(tmp_path: Path, while_up: bool) -> None:
    """As after the store has lost its last commits. `insync store repair` makes the topic from the folders."""
    own = settings_on_disk(tmp_path, 1)
    keys = rec.topic_key("t"), rec.partition_key(PartitionId("t", 0))
    async with Node(own) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", VALUES)
        if while_up:
            await forget(own.store, *keys)
            await until(lambda: is_set_aside(tmp_path / "node-1"))
            await until(lambda: shows_strays(admin, 1))
            (health,) = await admin.describe_nodes()
            assert health.log_directories[0].stray_bytes > 0
            assert health.ready
    if not while_up:
        await forget(own.store, *keys)
        async with Node(own):
            await until(lambda: is_set_aside(tmp_path / "node-1"))
    (stray,) = find_strays(tmp_path / "node-1")
    assert "knows no topic t, and does not say that it was deleted" in stray.why
    assert main(["stray", "restore", str(stray.path)]) == 0
    done = await run_command("store", "repair", "--store", own.store, str(tmp_path / "node-1"))
    assert done.returncode == 0, done.stderr
    async with Node(own) as node:
        assert await consume(node.endpoints, "t", 1, len(VALUES)) == VALUES


async def is_set_aside(folder: Path) -> bool:
    return bool(find_strays(folder))


async def is_eligible_alone(admin: Admin, node_id: int) -> bool:
    (topic,) = await admin.describe_topics(["t"])
    return topic.partitions[0].elr == [node_id]


async def is_gone(folder: Path) -> bool:
    return folder.name not in names(folder.parent)


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


async def test_the_log_of_a_topic_that_was_deleted_meanwhile_goes_at_the_start(tmp_path: Path) -> None:
    """Also if another topic has its name by then."""
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(Node(settings(tmp_path, 2)))
        async with Admin(other.endpoints) as admin:
            async with Node(settings(tmp_path, 1)):
                for name in "tu":
                    await admin.create_topic(name, 1, 2, config={"min_insync_replicas": 1})
                    await produce(other.endpoints, name, VALUES)
                    await until(lambda name=name: full_isr(admin, name, 2))
            for name in "tu":
                await admin.delete_topic(name)
            await admin.create_topic("u", 1, 1)
            async with Node(settings(tmp_path, 1)):
                await until(lambda: is_gone(tmp_path / "node-1" / "t-0"))
                await until(lambda: is_gone(tmp_path / "node-1" / "u-0"))
    assert find_strays(tmp_path / "node-1") == []


async def test_a_replica_that_was_moved_while_its_node_was_down_is_kept(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(Node(settings(tmp_path, 2)))
        async with Admin(other.endpoints) as admin:
            async with Node(settings(tmp_path, 1)):
                await admin.create_topic("t", 1, 2, config={"min_insync_replicas": 1})
                await produce(other.endpoints, "t", VALUES)
                await until(lambda: full_isr(admin, "t", 2))
            await admin.reassign_partitions({("t", 0): [2]})

            async def moved() -> bool:
                (info,) = await admin.describe_topics(["t"])
                return info.partitions[0].replicas == [2]

            await until(moved)
            async with Node(settings(tmp_path, 1)):
                await until(lambda: is_set_aside(tmp_path / "node-1"))
    (stray,) = find_strays(tmp_path / "node-1")
    assert "assigns the partition to other nodes" in stray.why


async def test_what_an_unclean_leader_lacks_is_kept(tmp_path: Path) -> None:
    """Node 1 alone has the last records when it is away; node 2 is elected uncleanly, and node 1 follows it."""
    config = {"min_insync_replicas": 1, "unclean_leader_election": "any"}
    more = [b"only node 1 has this"] * 3
    async with Node(settings(tmp_path, 1)) as one:
        async with Node(settings(tmp_path, 2)) as two, Admin(two.endpoints) as admin:
            await admin.create_topic("t", 1, 2, config=config)
            await produce(two.endpoints, "t", VALUES)
            await until(lambda: replicas_agree(admin, "t", 2))
        async with Admin(one.endpoints) as admin:
            await until(lambda: led_by(admin, "t", 1))
            await produce(one.endpoints, "t", more)
    async with Node(settings(tmp_path, 2)) as two, Admin(two.endpoints) as admin:
        await until(lambda: led_by(admin, "t", 2))
        await produce(two.endpoints, "t", [b"instead"])
        async with Node(settings(tmp_path, 1)):
            await until(lambda: replicas_agree(admin, "t", 2))
            assert await consume(two.endpoints, "t", 1, len(VALUES) + 1) == [*VALUES, b"instead"]
    (stray,) = find_strays(tmp_path / "node-1")
    assert f"lacks the records from offset {len(VALUES)} on" in stray.why
    assert more[0] in b"".join(path.read_bytes() for path in stray.path.glob("*.log"))


async def keep_stray(tmp_path: Path) -> Stray:
    """A stray log in the folder of a node that was stopped cleanly."""
    own = settings(tmp_path, 1)
    async with Node(own) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", VALUES)
    await forget(own.store, rec.topic_key("t"), rec.partition_key(PartitionId("t", 0)))
    async with Node(own):
        await until(lambda: is_set_aside(tmp_path / "node-1"))
    (stray,) = find_strays(tmp_path / "node-1")
    return stray


@pytest.mark.parametrize("clean", [True, False])
async def test_a_stray_log_is_deleted_when_it_is_old_enough(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After an unclean stop not at once: somebody may be looking for records."""
    stray = await keep_stray(tmp_path)
    if not clean:
        (tmp_path / "node-1" / ".kafka_cleanshutdown").unlink()
    options = {"stray_retention_ms": 1, "log_maintenance_interval_ms": 20}
    async with Node(settings(tmp_path, 1, **options)) as node, Admin(node.endpoints) as admin:
        if clean:
            await until(lambda: is_gone(stray.path))
            assert any("event=stray_log_deleted" in each for each in caplog.messages)
            await until(lambda: shows_strays(admin, 0))
        else:
            await until(lambda: shows_strays(admin, 1))
            remove_stray(stray)  # by hand: the node sees it at its next look, and has looked at it before
            await until(lambda: shows_strays(admin, 0))
            assert not any("event=stray_log_deleted" in each for each in caplog.messages)


@pytest.mark.parametrize(("retention", "is_dated"), [(-1, True), (3_600_000, True), (1, False)])
async def test_a_stray_log_is_kept_as_long_as_the_settings_say(
    tmp_path: Path, retention: int, is_dated: bool
) -> None:
    """One of unknown age is kept for good."""
    stray = await keep_stray(tmp_path)
    if not is_dated:
        (stray.path / "stray.json").unlink()
    options = {"stray_retention_ms": retention, "log_maintenance_interval_ms": 20}
    async with Node(settings(tmp_path, 1, **options)) as node, Admin(node.endpoints) as admin:
        await until(lambda: shows_strays(admin, 1))


async def shows_strays(admin: Admin, count: int) -> bool:
    (health,) = await admin.describe_nodes()
    return health.log_directories[0].stray_logs == count


async def test_a_damaged_note_is_named_and_its_stray_log_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stray = await keep_stray(tmp_path)
    content = stray.note.read_bytes()
    stray.note.write_bytes(content.replace(b"since_ms", b"since_ns"))
    options = {"stray_retention_ms": 1, "log_maintenance_interval_ms": 20}
    async with Node(settings(tmp_path, 1, **options)) as node, Admin(node.endpoints) as admin:
        await until(lambda: shows_strays(admin, 1))
    assert any("event=stray_log_unexplained" in each and str(stray.note) in each for each in caplog.messages)
    assert [each.path for each in find_strays(tmp_path / "node-1")] == [stray.path]

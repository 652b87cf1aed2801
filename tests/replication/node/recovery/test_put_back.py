"""Folders and stores that are put back to an older state: nobody leads from them."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
from msgspec import structs

from insync.replication import Admin, Consumer, Node, wire
from insync.replication.core.control import records as rec
from insync.replication.core.types import PartitionId
from insync.replication.metadata import MemoryStore, open_store
from insync.replication.node import StoreLostError, StorePutBackError
from insync.replication.node.recovery._repair import repair
from tests.processes import NodeProcess, cluster
from tests.replication.core.recovery.test_repair import folder as found_folder

from ..test_cluster import consume, full_isr, led_by, produce, replicas_agree, settings_on_disk, until


async def all_in_sync(servers: list[str], size: int) -> None:
    async with Admin(servers) as admin:
        await until(lambda: full_isr(admin, "t", size), 20)
        await until(lambda: replicas_agree(admin, "t", size), 20)


def kill_all(nodes: list[NodeProcess]) -> None:
    for node in nodes:
        node.process.kill()
    for node in nodes:
        node.process.wait()


@pytest.mark.slow
async def test_a_folder_put_back_to_an_older_start_is_not_led_from(tmp_path: Path) -> None:
    """The copy was made after a clean stop: its marker names a process that others have followed since."""
    folder, copy = tmp_path / "node-1", tmp_path / "copy"
    with cluster(tmp_path, 2) as nodes:
        async with Admin([node.endpoint for node in nodes]) as admin:
            await admin.create_topic("t", 1, 2, config={"min_insync_replicas": 2})
        await produce([nodes[0].endpoint], "t", [b"before"])
        assert nodes[0].stop() == 0
        shutil.copytree(folder, copy)
        nodes[0] = NodeProcess.start(1, tmp_path)
        servers = [node.endpoint for node in nodes]
        await all_in_sync(servers, 2)
        await produce(servers, "t", [b"since"] * 10)
        kill_all(nodes)
        shutil.rmtree(folder)
        copy.rename(folder)
        nodes[0] = NodeProcess.start(1, tmp_path)
        async with Admin([nodes[0].endpoint]) as admin:
            await until(lambda: led_by(admin, "t", -1))
        nodes[1] = NodeProcess.start(2, tmp_path)
        servers = [node.endpoint for node in nodes]
        await all_in_sync(servers, 2)
        assert await consume(servers, "t", 1, 11) == [b"before"] + [b"since"] * 10
    assert "older state" in (tmp_path / "node-1.err").read_text()


@pytest.mark.slow
async def test_a_folder_copied_while_its_node_ran_is_not_led_from(tmp_path: Path) -> None:
    """Nothing but the counter tells it from the folder of a process that was killed."""
    folder, copy = tmp_path / "node-1", tmp_path / "copy"
    with cluster(tmp_path, 2, "--set", "proof_interval_ms=50") as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 1, 2, config={"min_insync_replicas": 2})
            await produce(servers, "t", [b"before"])
            # Files that wait for their renaming may be gone before they are copied.
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.tmp"))
            await produce(servers, "t", [b"since"] * 10)
            for _ in range(4):
                await until(partial(is_other_than, proof(folder), folder))
        kill_all(nodes)
        shutil.rmtree(folder)
        copy.rename(folder)
        nodes[0] = NodeProcess.start(1, tmp_path)
        async with Admin([nodes[0].endpoint]) as admin:
            await until(lambda: led_by(admin, "t", -1))
        nodes[1] = NodeProcess.start(2, tmp_path)
        servers = [node.endpoint for node in nodes]
        await all_in_sync(servers, 2)
        assert await consume(servers, "t", 1, 11) == [b"before"] + [b"since"] * 10


async def is_other_than(before: bytes, folder: Path) -> bool:
    await trio.sleep(0.01)
    return proof(folder) != before


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def proof(folder: Path) -> bytes:
    return (folder / "insync.proof").read_bytes()


def move_store(folder: Path, name: str, to: str) -> None:
    """The store's files, those of its log among them; what stood there goes."""
    for file in folder.glob(f"{to}*"):
        file.unlink()
    for file in folder.glob(f"{name}*"):
        file.rename(folder / file.name.replace(name, to))


async def test_a_node_founds_no_cluster_over_a_folder_of_another(tmp_path: Path) -> None:
    """The file of the store was deleted: a new one would give its topics' names to others."""
    async with Node(settings_on_disk(tmp_path, 1)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"x"])
    move_store(tmp_path, "meta.db", "aside.db")
    with pytest.raises(StoreLostError, match="belongs to cluster"):
        async with Node(settings_on_disk(tmp_path, 1)):
            pytest.fail("it must not start")
    move_store(tmp_path, "aside.db", "meta.db")
    async with Node(settings_on_disk(tmp_path, 1)) as node:
        assert await consume(node.endpoints, "t", 1, 1) == [b"x"]


async def test_a_node_refuses_a_store_that_was_put_back_and_deletes_nothing(tmp_path: Path) -> None:
    """The older store knows nothing of the topic, so its folder would be that of a deleted one."""
    async with Node(settings_on_disk(tmp_path, 1)):
        pass
    shutil.copy(tmp_path / "meta.db", tmp_path / "backup.db")
    async with Node(settings_on_disk(tmp_path, 1)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"x"])
    before = names(tmp_path / "node-1")
    move_store(tmp_path, "backup.db", "meta.db")
    said = (
        r"older state than this node has seen: it is at revision \d+, but this node has seen its revision \d+\. "
        "Likely causes: power was lost .* a backup .* another store.* changes and deletes nothing; .* "
        "`insync store repair --store URL`"
    )
    for _ in range(2):
        with pytest.raises(StorePutBackError, match=said):
            async with Node(settings_on_disk(tmp_path, 1)):
                pytest.fail("it must not start")
        assert names(tmp_path / "node-1") == before


async def test_a_folder_that_was_replaced_by_an_empty_one_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(settings_on_disk(tmp_path, 1)) as node:
        assert node._driver is not None
        (home,) = node._driver.directories
        directory_id = home.directory.directory_id
    assert "is not here" not in caplog.text
    shutil.rmtree(tmp_path / "node-1")
    for times in (1, 1):
        async with Node(settings_on_disk(tmp_path, 1)):
            pass
        assert (
            caplog.text.count(f"log directory {directory_id}, which this node had before, is not here")
            == times
        )


@pytest.mark.slow
async def test_a_store_that_was_put_back_is_repaired_from_the_folders(tmp_path: Path) -> None:
    """Since the backup one node fell out of sync, and a topic was made: nothing of it is lost."""
    async with Node(settings_on_disk(tmp_path, 1)) as one, Admin(one.endpoints) as admin:
        async with Node(settings_on_disk(tmp_path, 2)):
            await admin.create_topic("t", 1, 2, config={"min_insync_replicas": 1})
            await produce(one.endpoints, "t", [b"before"])
            await until(lambda: replicas_agree(admin, "t", 2))
            backup(tmp_path)
        await until(lambda: full_isr(admin, "t", 1))
        await produce(one.endpoints, "t", [b"since"] * 10)
        await admin.create_topic("new", 2, 1)
        await produce(one.endpoints, "new", [b"x"] * 10)
    move_store(tmp_path, "backup.db", "meta.db")
    folders = [str(tmp_path / f"node-{number}") for number in (1, 2)]
    for number in (1, 2):
        with pytest.raises(StorePutBackError, match="insync store repair"):
            async with Node(settings_on_disk(tmp_path, number)):
                pytest.fail("it must not start")
    done = await run_command("store", "repair", "--store", f"sqlite://{tmp_path}/meta.db", *folders)
    assert done.returncode == 0, done.stderr
    assert "topic new was unknown" in done.stdout
    async with Node(settings_on_disk(tmp_path, 2)) as two, Admin(two.endpoints) as admin:
        await until(lambda: led_by(admin, "t", -1))
        async with Node(settings_on_disk(tmp_path, 1)):
            await until(lambda: full_isr(admin, "t", 2))
            assert await consume(two.endpoints, "t", 1, 11) == [b"before"] + [b"since"] * 10
            assert await consume(two.endpoints, "new", 2, 10) == [b"x"] * 10


@pytest.mark.slow
async def test_a_store_that_was_lost_is_made_again_from_the_folders(tmp_path: Path) -> None:
    async with (
        Node(settings_on_disk(tmp_path, 1)) as one,
        Node(settings_on_disk(tmp_path, 2)),
        Admin(one.endpoints) as admin,
    ):
        await admin.create_topic("t", 2, 2, config={"min_insync_replicas": 2})
        await produce(one.endpoints, "t", [b"%d" % number for number in range(20)])
        await until(lambda: replicas_agree(admin, "t", 2))
    move_store(tmp_path, "meta.db", "gone.db")
    looked = await run_command("store", "evidence", str(tmp_path / "node-2"))
    evidence = tmp_path / "node-2.json"
    evidence.write_text(looked.stdout)
    arguments = ("store", "repair", "--store", f"sqlite://{tmp_path}/meta.db", str(tmp_path / "node-1"))
    done = await run_command(*arguments, str(evidence))
    assert done.returncode == 0, done.stderr
    async with (
        Node(settings_on_disk(tmp_path, 1)) as one,
        Node(settings_on_disk(tmp_path, 2)),
        Admin(one.endpoints) as admin,
    ):
        await until(lambda: full_isr(admin, "t", 2))
        found = await consume(one.endpoints, "t", 2, 20)
        assert sorted(found) == sorted(b"%d" % number for number in range(20))


async def test_every_partition_of_many_is_repaired() -> None:
    """A repair writes them in portions, of which none leaves one out."""
    held = [found_folder(1, 2, 10, topic=f"t-{number:03}") for number in range(250)]
    folder = structs.replace(held[0], logs=tuple(each.logs[0] for each in held))
    async with MemoryStore() as store:
        planned = await repair(store, [folder])
        written = (await store.list(rec.PARTITIONS_PREFIX)).entries
        assert sorted(written) == [rec.partition_key(PartitionId(each.logs[0].topic, 0)) for each in held]
        for _, put in planned.writes:
            assert (await store.get(put.key)).entry is not None, put.key


@pytest.mark.slow
async def test_a_store_that_was_lost_comes_back_without_what_would_delete_records(tmp_path: Path) -> None:
    """Offsets of groups are kept by compaction alone; of `kept` nobody knows how long it was to be kept."""
    own = settings_on_disk(tmp_path, 1, offsets_topic_num_partitions=1)
    async with Node(own) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("kept", 1, 1, config={"retention_ms": -1})
        await produce(node.endpoints, "kept", [b"x"] * 3)
        async with Consumer(node.endpoints, group_id="g", enable_auto_commit=False) as consumer:
            consumer.assign([("kept", 0)])
            await consumer.commit({("kept", 0): 2})
        before = await admin.describe_config("__consumer_offsets")
    move_store(tmp_path, "meta.db", "gone.db")
    # A log that is listed here was compacted.
    (tmp_path / "node-1" / "cleaner-offset-checkpoint").write_text("0\n1\nkept 0 1\n")
    arguments = ("store", "repair", "--store", f"sqlite://{tmp_path}/meta.db", str(tmp_path / "node-1"))
    done = await run_command(*arguments)
    assert done.returncode == 0, done.stderr
    assert "nothing of it is deleted until its retention is set: insync config set kept" in done.stdout
    async with open_store(f"sqlite://{tmp_path}/meta.db") as store:
        entry = (await store.get(rec.topic_key("kept"))).entry
        assert entry is not None
        assert wire.decode_record(rec.TopicRecord, entry.value).was_compacted
    async with Node(own) as node, Admin(node.endpoints) as admin:
        assert (await admin.describe_config("kept"))["retention_ms"] == -1
        assert await admin.describe_config("__consumer_offsets") == before
        assert await admin.group_offsets("g") == {PartitionId("kept", 0): 2}


async def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "insync.replication.cli", *arguments]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def backup(folder: Path) -> None:
    """As `docs/backup.md` says."""
    with (
        contextlib.closing(sqlite3.connect(folder / "meta.db")) as store,
        contextlib.closing(sqlite3.connect(folder / "backup.db")) as copy,
    ):
        store.backup(copy)

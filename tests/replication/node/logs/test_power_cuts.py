"""Node processes whose machine loses its power: only what its devices hold comes back."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Producer
from insync.replication.core.control import records as rec
from insync.replication.core.types import PartitionId
from insync.replication.metadata import Put
from insync.replication.metadata.sqlite_store.store import SqliteStore
from insync.storage.folder._proof import PROOF
from insync.storage.inspection import batches_in
from tests.chaos.power.machine import Machine, machine
from tests.chaos.replica_files import surviving_records
from tests.devices import CannotMountError
from tests.processes import NodeProcess, cluster, start_again
from tests.requires import missing
from tests.tiers import uses

from ..process.test_processes import read_all
from ..test_cluster import full_isr, replicas_agree, until

NODES = (1, 2, 3)
_START_SECONDS = 60.0


@pytest.fixture
@uses("power")
def powered(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Makes the machine of a test, which ends with it."""
    with ExitStack() as stack:

        def make(*devices: str) -> Machine:
            try:
                return stack.enter_context(machine(tmp_path / "machine", *devices))
            except CannotMountError as error:
                missing(str(error))

        yield make


async def start(on: Machine, number: int, device: str, store: Path) -> NodeProcess:
    """A node that keeps its logs on a device of the machine, once it serves."""
    with trio.fail_after(_START_SECONDS):
        return await trio.to_thread.run_sync(
            partial(
                NodeProcess.start,
                number,
                on.folder,
                data_dirs=[folder(on, number, device)],
                store=f"sqlite://{store}",
                command=on.command,
            ),
            abandon_on_cancel=True,
        )


def folder(on: Machine, number: int, device: str) -> Path:
    return on.folder / device / f"node-{number}"


async def write(servers: Sequence[str], topic: str, values: Sequence[bytes], partition: int = 0) -> None:
    """Acknowledged by every replica in sync, however long it takes for one to lead."""
    async with Producer(servers, delivery_timeout_ms=60_000) as producer:
        for delivery in [await producer.send(topic, value, partition=partition) for value in values]:
            await delivery.wait()


def surviving_values(folder: Path) -> list[bytes]:
    return [value for _, value in surviving_records(folder)]


async def led_by_others(admin: Admin, topics: Sequence[str], than: int) -> bool:
    infos = await admin.describe_topics(topics)
    return all(part.leader not in (-1, than) for info in infos for part in info.partitions)


async def test_the_replica_that_kept_the_most_is_heard_although_it_came_back_first(
    tmp_path: Path, powered: Callable[..., Machine]
) -> None:
    """The device of node 1 has all that was acknowledged, the others lack the end of it."""
    on, store = powered("disk-1", "disk-2", "disk-3"), tmp_path / "meta.db"
    servers = [(await start(on, number, f"disk-{number}", store)).endpoint for number in NODES]
    values = [b"%d" % number for number in range(500)]
    async with Admin(servers) as admin:
        await admin.create_topic("t", 1, 3, config={"min_insync_replicas": 2})
        await until(lambda: full_isr(admin, "t", 3))
        await write(servers, "t", values[:200])
        for place in on.places:
            on.sync(place)
        await write(servers, "t", values[200:])
        await until(lambda: replicas_agree(admin, "t", 3))
        on.sync(on.places[0])
    on.cut()
    on.boot()
    kept = [surviving_values(on.inside(folder(on, each, f"disk-{each}")) / "t-0") for each in NODES]
    assert kept[0] == values and max(map(len, kept[1:])) < len(values)
    servers = [(await start(on, number, f"disk-{number}", store)).endpoint for number in NODES]
    await write(servers, "t", [b"after"])
    assert await read_all(servers) == [*values, b"after"]


async def test_nodes_of_one_machine_start_by_themselves_after_every_power_cut(
    powered: Callable[..., Machine],
) -> None:
    """Each cut comes just after topics were made and leaders elected; the store is cut with the logs."""
    on = powered("disk")
    store, topics = on.places[0] / "meta.db", list[str]()
    for turn in range(5):
        nodes = [await start(on, number, "disk", store) for number in NODES]
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.wait_for_nodes(len(NODES))
            assert set(topics) <= set(await admin.list_topics()), "an acknowledged topic is gone"
            for topic in topics:
                await write(servers, topic, [b"%d" % turn])
            made = [f"t-{turn}-{number}" for number in range(3)]
            for topic in made:
                await admin.create_topic(topic, 1, 3, config={"min_insync_replicas": 2})
                topics.append(topic)
                await write(servers, topic, [b"made"])
            killed = nodes[turn % 3]
            killed.kill()
            await until(partial(led_by_others, admin, topics, killed.node_id))
            for topic in topics:
                await write(servers, topic, [b"moved"])
        on.cut()
        on.boot()


@pytest.mark.slow
async def test_what_the_store_forgot_is_kept_on_the_disks(tmp_path: Path) -> None:
    """The store is as it was before the topic was made, and so are the folders' own numbers: none shows it."""
    values = [b"%d" % number for number in range(100)]
    with cluster(tmp_path) as nodes:
        servers, folders = [node.endpoint for node in nodes], [tmp_path / f"node-{each}" for each in NODES]
        async with Admin(servers) as admin:
            await admin.create_topic("known", 1, 3)
            await until(lambda: full_isr(admin, "known", 3))
            older = older_store(tmp_path / "meta.db", folders)
            await admin.create_topic("t", 1, 3)
            await write(servers, "t", values)
            await until(lambda: replicas_agree(admin, "t", 3))
        for node in nodes:
            node.kill()
        await until(partial(is_closed, tmp_path / "meta.db"))
        put_back(tmp_path / "meta.db", older)
        served = []
        for number in NODES:
            with suppress(RuntimeError):
                start_again(nodes, number)
                served.append(folders[number - 1])

        async def decided() -> bool:
            await trio.lowlevel.checkpoint()
            return not any((each / "t-0").exists() for each in served)

        await until(decided)
        for each in folders:
            found = list(each.glob("t-0.*-stray")) if each in served else [each / "t-0"]
            assert [surviving_values(each) for each in found] == [values]


def older_store(path: Path, folders: Sequence[Path]) -> dict[Path, bytes]:
    """The contents of the store's file and of the proofs in the folders, all of one moment."""
    proofs = [each / PROOF for each in folders]
    copy = path.with_suffix(".older")
    while True:
        before = {proof: proof.read_bytes() for proof in proofs}
        copy.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        if before == {proof: proof.read_bytes() for proof in proofs}:
            return {**before, path: copy.read_bytes()}


async def is_closed(path: Path) -> bool:
    """Nodes write to the store by processes that end a moment after them."""
    await trio.lowlevel.checkpoint()
    return not is_open(path)


def is_open(path: Path) -> bool:
    """Whether a process has the file open."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(descriptor) == str(path):
                return True
    return False


def put_back(store: Path, older: Mapping[Path, bytes]) -> None:
    for suffix in ("-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    for path, content in older.items():
        path.write_bytes(content)


@pytest.mark.slow
async def test_a_partition_whose_elections_the_store_forgot_gets_a_leader_above_every_log(
    tmp_path: Path,
) -> None:
    place, key = ("t", 0), rec.partition_key(PartitionId("t", 0))
    values = [b"%d" % number for number in range(90)]
    with cluster(tmp_path) as nodes:
        servers = [node.endpoint for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", 1, 3, config={"min_insync_replicas": 2})
            await until(lambda: full_isr(admin, "t", 3))
            async with SqliteStore(tmp_path / "meta.db") as store:
                first = (await store.get(key)).entry
            assert first is not None
            for turn, leader in enumerate(NODES * 3):
                await admin.reassign_partitions(
                    {place: [leader, *(each for each in NODES if each != leader)]}
                )
                await admin.wait_for_reassignments(["t"])
                await until(partial(leads, admin, leader))
                await write(servers, "t", values[10 * turn : 10 * turn + 10])
            await until(lambda: replicas_agree(admin, "t", 3))
        for node in nodes:
            node.kill()
        before = max(last_epoch(tmp_path / f"node-{each}" / "t-0") for each in NODES)
        assert before >= 8
        async with SqliteStore(tmp_path / "meta.db") as store:
            await store.commit([], [Put(key, first.value)])
        for number in NODES:
            start_again(nodes, number)
        servers = [node.endpoint for node in nodes]
        await write(servers, "t", [b"after"])
        async with Admin(servers) as admin:
            await until(lambda: replicas_agree(admin, "t", 3))
        assert await read_all(servers) == [*values, b"after"]
    assert all(last_epoch(tmp_path / f"node-{each}" / "t-0") > before for each in NODES)


async def leads(admin: Admin, leader: int) -> bool:
    await admin.elect_leaders([("t", 0)])
    (info,) = await admin.describe_topics(["t"])
    return info.partitions[0].leader == leader


def last_epoch(folder: Path) -> int:
    """The leader epoch of the last batch."""
    found = [batch.info for path in sorted(folder.glob("*.log")) for batch, _ in batches_in(path)]
    assert found[-1] is not None
    return found[-1].leader_epoch

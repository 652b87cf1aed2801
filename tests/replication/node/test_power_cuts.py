"""Node processes whose machine loses its power: only what its devices hold comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Producer
from tests.chaos.power import Machine, machine
from tests.chaos.replica_files import surviving_records
from tests.devices import CannotMountError
from tests.processes import NodeProcess
from tests.requires import missing

from .test_cluster import full_isr, replicas_agree, until
from .test_processes import read_all

NODES = (1, 2, 3)
_START_SECONDS = 60.0


@pytest.fixture
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
    kept = [len(surviving_records(on.inside(folder(on, each, f"disk-{each}")) / "t-0")) for each in NODES]
    assert kept[0] == 500 and max(kept[1:]) < 500
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
            nodes[turn % 3].kill()

            async def moved() -> bool:
                infos = await admin.describe_topics(topics)
                return all(
                    part.leader not in (-1, turn % 3 + 1) for info in infos for part in info.partitions
                )

            await until(moved)
            for topic in topics:
                await write(servers, topic, [b"moved"])
        on.cut()
        on.boot()

"""Real devices of a fixed size that fill up under running node processes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import trio

from insync.replication import Admin, Producer, ReplicationError
from tests.devices import CannotMountError, mounted
from tests.processes import NodeProcess
from tests.requires import missing

from ..process.test_processes import read_all
from ..test_cluster import full_isr, replicas_agree, until

PARTITIONS = 4


@contextlib.contextmanager
def small_device(folder: Path, kind: Literal["ext4", "tmpfs"]) -> Iterator[Path]:
    """A file system of its own of a few MiB, mounted."""
    place = folder / f"small-{kind}"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(mounted(place, kind, (6 if kind == "tmpfs" else 16) << 20))
        except CannotMountError as error:
            missing(str(error))
        yield place


async def fill(servers: list[str], acked: list[bytes], until_event: trio.Event) -> None:
    """Produce to every partition, remembering what was acknowledged."""
    number = 0
    async with Producer(servers, delivery_timeout_ms=20_000, request_timeout_ms=2000) as producer:
        while not until_event.is_set():
            values = [b"%d" % (number + n) + b"." * 2000 for n in range(40)]
            number += 40
            deliveries = [
                await producer.send("t", value, partition=n % PARTITIONS) for n, value in enumerate(values)
            ]
            for value, each in zip(values, deliveries, strict=True):
                with contextlib.suppress(ReplicationError):
                    await each.wait()
                    acked.append(value)


PATIENT = ("--session-timeout-ms", "20000")
"""Sessions that outlive a slow moment of the machine: leaderships move here for a disk alone."""


def count_partitions(folder: Path) -> int:
    return len(list(folder.glob("t-*")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
async def test_a_full_device_moves_leaderships_and_the_rest_goes_on(
    tmp_path: Path, kind: Literal["ext4", "tmpfs"]
) -> None:
    with contextlib.ExitStack() as stack:
        small = stack.enter_context(small_device(tmp_path, kind))
        folders = {number: [tmp_path / f"{number}-{each}" for each in "ab"] for number in (1, 2, 3)}
        folders[1][0] = small / "logs"
        nodes = []
        for number in folders:
            nodes.append(NodeProcess.start(number, tmp_path, *PATIENT, data_dirs=folders[number]))
            stack.callback(nodes[-1].kill)
        servers = [node.endpoint for node in nodes]
        acked: list[bytes] = []
        stop = trio.Event()
        async with Admin(servers) as admin, trio.open_nursery() as nursery:
            await admin.create_topic("t", PARTITIONS, 3)
            await until(lambda: full_isr(admin, "t", 3))

            async def placed() -> bool:
                return sum(map(count_partitions, folders[1])) == PARTITIONS

            await until(placed)
            lost = {int(path.name.removeprefix("t-")) for path in (small / "logs").glob("t-*")}
            assert len(lost) == PARTITIONS // 2
            nursery.start_soon(fill, servers, acked, stop)

            async def gone() -> bool:
                (info,) = await admin.describe_topics(["t"])
                out = {part.partition for part in info.partitions if 1 not in part.isr}
                led = {part.partition for part in info.partitions if part.leader == 1}
                return out == lost and led and not led & lost

            await until(gone, 150)
            before = len(acked)
            with trio.fail_after(30):
                while len(acked) < before + 200:
                    await trio.lowlevel.checkpoint()
            (info,) = await admin.describe_topics(["t"])
            assert all(part.leader > 0 for part in info.partitions)
            assert {part.partition for part in info.partitions if 1 not in part.isr} == lost
            stop.set()
        words = (tmp_path / "node-1.err").read_text()
        assert f"event=log_directory_changed path={small / 'logs'} state=offline partitions=2 " in words
        assert "No space left on device; free some space" in words
        assert nodes[0].process.poll() is None, "the node itself goes on"
        found = await read_all(servers)
        assert not set(acked) - set(found), "an acknowledged record is lost"
        assert nodes[0].stop() == 0
        if kind == "tmpfs":
            await trio.run_process(["mount", "-o", "remount,size=200m", str(small)])
        else:
            moved = tmp_path / "larger"
            shutil.copytree(small / "logs", moved)
            folders[1][0] = moved
        nodes[0] = NodeProcess.start(1, tmp_path, *PATIENT, data_dirs=folders[1])
        stack.callback(nodes[0].kill)
        async with Admin(servers[1:]) as admin:
            await until(lambda: full_isr(admin, "t", 3), 60)
            await until(lambda: replicas_agree(admin, "t", 3), 60)
        assert sorted(await read_all([nodes[0].endpoint])) == sorted(found)


@pytest.mark.slow
async def test_a_directory_that_cannot_be_used_at_the_start_is_left_out_and_comes_back(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / each for each in "ab"]
    with contextlib.ExitStack() as stack:
        node = NodeProcess.start(1, tmp_path, data_dirs=folders)
        stack.callback(lambda: node.kill())
        async with Admin([node.endpoint]) as admin:
            await admin.create_topic("t", 2, 1)
            await until(lambda: full_isr(admin, "t", 1))
        async with Producer([node.endpoint]) as producer:
            for partition in (0, 1):
                await (await producer.send("t", b"x", partition=partition)).wait()
        assert node.stop() == 0
        (bad,) = [each for each in folders if (each / "t-1").exists()]
        aside = tmp_path / "aside"
        bad.rename(aside)
        bad.write_text("a file where the device should be mounted")
        node = NodeProcess.start(1, tmp_path, data_dirs=folders)
        async with Admin([node.endpoint]) as admin:

            async def one_leads() -> bool:
                (info,) = await admin.describe_topics(["t"])
                return [part.leader for part in info.partitions] == [1, -1]

            await until(one_leads)
            await admin.create_topic("new", 2, 1)
            await until(lambda: full_isr(admin, "new", 1))
            (report,) = await admin.describe_replicas(["t"])
            (broken,) = [replica for replica in report.replicas if replica.partition == 1]
            assert str(bad) in broken.error
        assert (
            f"event=log_directory_changed path={bad} state=offline" in (tmp_path / "node-1.err").read_text()
        )
        assert node.stop() == 0
        os.unlink(bad)
        aside.rename(bad)
        node = NodeProcess.start(1, tmp_path, data_dirs=folders)
        async with Admin([node.endpoint]) as admin:
            await until(lambda: full_isr(admin, "t", 1))
        assert await read_all([node.endpoint]) == [b"x", b"x"]
        assert node.stop() == 0

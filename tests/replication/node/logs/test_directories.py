"""Several log directories on one node: where partitions go, and what becomes of those in one that fails."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from insync.replication import Admin, Consumer, Node, NodeSettings, Producer, ReplicationError
from insync.replication.core.control import records as rec
from insync.replication.core.types import PartitionId
from insync.replication.metadata import open_store
from insync.replication.node import InvalidSettingError, LogDirectoryFailedError, NodeStartError
from insync.replication.node.logs._directories import LogDirectories
from insync.replication.node.store._registration import Registration
from insync.replication.wire import decode_record
from insync.storage import StorageBrokenError, StorageError, read_identity
from insync.storage.segment._segment import Segment

from ..conftest import Device
from ..test_cluster import consume, full_isr, produce, replicas_agree, until

STALL_MS = 2000
"""A device that hangs is told by it from one that others keep busy."""


def settings(folder: Path, node_id: int, **options: Any) -> NodeSettings:
    values: dict[str, Any] = {"log_dirs": (folder / f"{node_id}-a", folder / f"{node_id}-b"), **options}
    return NodeSettings(node_id=node_id, store=f"sqlite://{folder}/meta.db", **values)


@pytest.mark.parametrize(
    ("known", "error", "is_taken_offline"),
    [
        (True, StorageBrokenError("the device failed"), True),
        (True, StorageError("one file cannot be read"), False),
        (False, StorageBrokenError("the device failed"), False),
    ],
)
def test_maintenance_that_fails_takes_a_directory_offline_only_if_its_device_is_broken(
    known: bool, error: StorageError, is_taken_offline: bool
) -> None:
    at, offline, troubles = PartitionId("t", 0), list[object](), list[object]()
    directories = SimpleNamespace(
        _homes={at: "home"} if known else {},
        take_offline=lambda *told: offline.append(told),
        troubles=SimpleNamespace(failed=lambda *told: troubles.append(told)),
    )
    LogDirectories.maintenance_failed(cast(Any, directories), at, error)
    assert (offline, troubles) == (([("home", str(error))], []) if is_taken_offline else ([], [(at, error)]))


def folders(base: Path) -> list[str]:
    return sorted(each.name for each in base.iterdir() if each.is_dir())


async def all_led_by(admin: Admin, topic: str, *leaders: int) -> bool:
    (info,) = await admin.describe_topics([topic])
    return all(part.leader in leaders for part in info.partitions)


async def test_new_partitions_go_where_there_are_fewest_and_are_found_again(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 4, 1)
            await admin.create_topic("u", 1, 1)
        await produce(node.endpoints, "t", [b"x"] * 4)
        assert [len(folders(tmp_path / f"1-{each}")) for each in "ab"] in ([3, 2], [2, 3])
    (tmp_path / "1-a" / "t-0").rename(tmp_path / "1-b" / "t-0")
    before = {each: folders(tmp_path / f"1-{each}") for each in "ab"}
    async with Node(settings(tmp_path, 1)) as node:
        async with Admin(node.endpoints) as admin:
            await until(lambda: all_led_by(admin, "t", 1))
            (report,) = await admin.describe_replicas(["t"])
            assert sum(replica.log_end_offset for replica in report.replicas) == 4
        assert {each: folders(tmp_path / f"1-{each}") for each in "ab"} == before


def test_settings_that_cannot_be_meant(tmp_path: Path) -> None:
    for wrong in ({"log_dirs": ()}, {"data_dir": "x"}, {"log_dirs": (tmp_path, tmp_path / ".")}):
        with pytest.raises(InvalidSettingError, match="log_dirs"):
            settings(tmp_path, 1, **wrong)
    assert settings(tmp_path, 1, log_dirs=str(tmp_path)).folders == (tmp_path,)


async def test_a_directory_of_another_node_is_refused_though_others_work(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)):
        pass
    with pytest.raises(NodeStartError, match=r"1-b holds data of node 1, not of node 2"):
        async with Node(settings(tmp_path, 2, log_dirs=(tmp_path / "2-a", tmp_path / "1-b"))):
            pytest.fail("it is not ours")
    async with Node(settings(tmp_path, 1)):
        pass


async def leaders_of(admin: Admin, topic: str) -> dict[int, int]:
    (info,) = await admin.describe_topics([topic])
    return {part.partition: part.leader for part in info.partitions}


async def lose_a_directory(
    tmp_path: Path, device: Device, fault: Callable[[Device, Path], None], **options: Any
) -> None:
    """Two nodes, each with two directories; `fault` befalls the one of node 1 that has t-0, which node 1 leads."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(Node(settings(tmp_path, number, **options))) for number in (1, 2)
        ]
        servers = [url for node in nodes for url in node.endpoints]
        admin = await stack.enter_async_context(Admin(servers))
        await admin.create_topic("t", 4, 2, config={"min_insync_replicas": 1})
        await until(lambda: full_isr(admin, "t", 2))
        await produce(servers, "t", [b"%d" % n for n in range(200)])
        before = await leaders_of(admin, "t")
        bad = tmp_path / ("1-a" if (tmp_path / "1-a" / "t-0").exists() else "1-b")
        lost = {int(name.removeprefix("t-")) for name in folders(bad)}
        assert len(lost) == 2
        assert 1 in [before[number] for number in lost]
        fault(device, bad)
        await produce(servers, "t", [b"%d" % n for n in range(200, 400)])

        async def moved() -> bool:
            (info,) = await admin.describe_topics(["t"])
            led_by_2 = {part.partition for part in info.partitions if part.leader == 2}
            return (
                lost <= led_by_2 and {part.partition for part in info.partitions if 1 not in part.isr} == lost
            )

        await until(moved, 30)
        now = await leaders_of(admin, "t")
        assert {number: now[number] for number in now if number not in lost} == {
            number: before[number] for number in before if number not in lost
        }, "the other directory of the node goes on leading"
        assert nodes[0]._driver is not None
        assert nodes[0]._driver.offline.partitions == {PartitionId("t", number) for number in lost}
        await produce(servers, "t", [b"%d" % n for n in range(400, 600)])
        device.heal()
        assert sorted(int(value) for value in await consume(servers, "t", 4, 600)) == list(range(600))
    for number in (1, 2):
        nodes[number - 1] = Node(settings(tmp_path, number, **options))
    async with nodes[0], nodes[1], Admin(nodes[0].endpoints) as admin:
        await until(lambda: full_isr(admin, "t", 2))
        await until(lambda: replicas_agree(admin, "t", 2))
        assert sorted(int(value) for value in await consume(nodes[0].endpoints, "t", 4, 600)) == list(
            range(600)
        )


async def test_a_directory_that_fails_while_another_is_reported_is_reported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on, say = trio.Event(), trio.Event(), Registration.say_offline

    async def said(*told: Any) -> bool:
        done = await say(*told)
        begun.set()
        await goes_on.wait()
        return done

    monkeypatch.setattr(Registration, "say_offline", said)
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 2, 1)
        replicas = node._driver
        assert replicas is not None
        with trio.fail_after(30):
            for number in (0, 1):
                replicas.log_failed(PartitionId("t", number), StorageError("it is refused"))
                await begun.wait()
            goes_on.set()
            while set(replicas.view.nodes[1].offline) != {PartitionId("t", 0), PartitionId("t", 1)}:
                await trio.lowlevel.checkpoint()


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
async def test_a_directory_that_cannot_be_written_takes_only_its_own_partitions_with_it(
    tmp_path: Path, device: Device, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    await lose_a_directory(tmp_path, device, lambda device, folder: device.refuse(folder, error))
    (line,) = [each for each in caplog.messages if "event=log_directory_changed" in each]
    assert os.strerror(error) in line
    assert "state=offline" in line and "partitions=2 " in line and "other nodes lead" in line


@pytest.mark.slow
async def test_a_directory_that_hangs_takes_only_its_own_partitions_with_it(
    tmp_path: Path, device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    await lose_a_directory(
        tmp_path, device, lambda device, folder: device.hang(folder), storage_stall_timeout_ms=STALL_MS
    )
    (line,) = [each for each in caplog.messages if "event=log_directory_changed" in each]
    assert "has not finished for 2 s" in line


@pytest.mark.slow
async def test_a_node_stops_though_a_device_hangs(
    tmp_path: Path, device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(settings(tmp_path, 1, storage_stall_timeout_ms=STALL_MS)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", 2, 1)
        await produce(node.endpoints, "t", [b"x"] * 4)
        device.hang(tmp_path / "1-a")
        stopping = trio.current_time()
    assert trio.current_time() - stopping < 20, "the device itself hangs for a minute"
    (line,) = [each for each in caplog.messages if "event=log_directory_changed" in each]
    assert "1-a" in line and "hung" in line


async def test_a_node_stops_when_its_last_directory_fails(tmp_path: Path, device: Device) -> None:
    with pytest.raises(LogDirectoryFailedError, match=r"no log directory works.*Input/output error"):
        async with Node(settings(tmp_path, 1)) as node:
            async with Admin(node.endpoints) as admin:
                await admin.create_topic("t", 2, 1)
            for each in "ab":
                device.refuse(tmp_path / f"1-{each}", errno.EIO)
            async with Producer(node.endpoints) as producer:
                for partition in (0, 1):
                    await producer.send("t", b"x", partition=partition)
            await trio.sleep_forever()


async def trusted(folder: Path) -> set[str]:
    """The directories of node 1 that the store holds for whole."""
    async with open_store(f"sqlite://{folder}/meta.db") as store:
        entry = (await store.get(rec.incarnation_key(1))).entry
        assert entry is not None
        return {each.directory_id for each in decode_record(rec.IncarnationRecord, entry.value).directories}


@pytest.mark.slow
@pytest.mark.parametrize(("error", "is_trusted"), [(errno.ENOSPC, True), (errno.EIO, False)])
@pytest.mark.parametrize("others", [0, 1])
async def test_a_device_that_lost_writes_is_no_proof_at_the_next_start(
    tmp_path: Path, device: Device, error: int, is_trusted: bool, others: int
) -> None:
    """A machine that was not restarted has all that was written, unless the device failed."""
    given = tuple(tmp_path / name for name in "ab"[: 1 + others])
    with pytest.raises(LogDirectoryFailedError) if not others else contextlib.nullcontext():
        # The store is told what is lost with the session of the node, which a busy machine must not end.
        async with Node(settings(tmp_path, 1, log_dirs=given, session_timeout_ms=30_000)) as node:
            async with Admin(node.endpoints) as admin:
                await admin.create_topic("t", 1 + others, 1)
            await produce(node.endpoints, "t", [b"%d" % n for n in range(20)])
            (bad,) = [folder for folder in given if (folder / "t-0").exists()]
            assert len(await trusted(tmp_path)) == 1 + others
            device.refuse(bad, error)
            assert node._driver is not None
            offline = node._driver.offline
            async with Producer(node.endpoints, delivery_timeout_ms=1000, request_timeout_ms=500) as producer:
                with trio.fail_after(60):
                    while not offline.partitions:
                        # It may have been too late to be sent at all.
                        with contextlib.suppress(ReplicationError):
                            await (await producer.send("t", b"x", partition=0)).wait()
                    await offline.is_told.wait()
            if not others:
                await trio.sleep_forever()
    device.heal()
    _, _, directory_id = read_identity(bad)
    assert (directory_id in await trusted(tmp_path)) == is_trusted
    assert len(await trusted(tmp_path)) == others + is_trusted
    async with Node(settings(tmp_path, 1, log_dirs=given)) as node, Admin(node.endpoints) as admin:
        await until(lambda: all_led_by(admin, "t", 1))
        assert directory_id in await trusted(tmp_path)
        assert {int(value) for value in await consume(node.endpoints, "t", 1 + others, 20)} == set(range(20))


@pytest.mark.slow
async def test_a_directory_that_was_away_for_a_while_is_still_proof_of_what_it_had(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 2, 1)
    before = await trusted(tmp_path)
    (tmp_path / "1-b").rename(tmp_path / "aside")
    (tmp_path / "1-b").write_text("not a folder")
    for _ in range(2):
        async with Node(settings(tmp_path, 1)):
            assert await trusted(tmp_path) == before
    (tmp_path / "1-b").unlink()
    (tmp_path / "aside").rename(tmp_path / "1-b")
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await until(lambda: all_led_by(admin, "t", 1))
        (info,) = await admin.describe_topics(["t"])
        assert all(part.isr == [1] and not part.recovering for part in info.partitions)


@pytest.mark.slow
async def test_replaced_directories_start_empty_and_are_filled_by_the_others(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 2)) as other:
        async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
            await admin.create_topic("t", 4, 2, config={"min_insync_replicas": 1})
            await until(lambda: full_isr(admin, "t", 2))
            await produce(node.endpoints, "t", [b"%d" % n for n in range(100)])
            await until(lambda: replicas_agree(admin, "t", 2))
        shutil.rmtree(tmp_path / "1-a")
        async with Node(settings(tmp_path, 1)) as node, Admin(other.endpoints) as admin:
            await until(lambda: full_isr(admin, "t", 2))
            await until(lambda: replicas_agree(admin, "t", 2))
            assert [len(folders(tmp_path / f"1-{each}")) for each in "ab"] == [2, 2]
            assert {int(value) for value in await consume(node.endpoints, "t", 4, 100)} == set(range(100))


async def test_a_read_that_hangs_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 2, 1)
        async with Producer(node.endpoints) as producer:
            for partition in (0, 1):
                await (await producer.send("t", b"old", partition=partition, timestamp_ms=5)).wait()
    (bad,) = [tmp_path / f"1-{each}" for each in "ab" if (tmp_path / f"1-{each}" / "t-0").exists()]
    go_on = threading.Event()
    loop = threading.get_ident()
    hung: list[str] = []

    def hang(name: str) -> None:
        real = getattr(Segment, name)

        def look(self: Segment, *arguments: Any) -> Any:
            if self.path.is_relative_to(bad) and not go_on.is_set():
                hung.append(name)
                assert threading.get_ident() != loop, "the event loop would wait for the device"
                assert go_on.wait(20)
            return real(self, *arguments)

        monkeypatch.setattr(Segment, name, look)

    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await until(lambda: all_led_by(admin, "t", 1))
        hang("_find")
        hang("find_timestamp")
        found: list[int] = []

        async def read_old() -> None:
            async with Consumer(node.endpoints) as consumer:
                consumer.assign([("t", 0)])
                (start,) = (await consumer.offsets_for_times({("t", 0): 5})).values()
                consumer.seek(("t", 0), start)
                while not found:
                    found.extend(record.offset for record in await consumer.poll(timeout_ms=100))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_old)
            with trio.fail_after(60):
                while "find_timestamp" not in hung:
                    await trio.lowlevel.checkpoint()
            await produce(node.endpoints, "t", [b"new"] * 20)
            assert not found
            go_on.set()
        assert found[0] == 0
        assert node._driver is not None
        assert not node._driver.offline.partitions

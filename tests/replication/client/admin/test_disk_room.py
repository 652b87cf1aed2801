"""A move to a node that has no room for it is refused before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from msgspec import structs

from insync.replication import Admin, Node, Producer
from insync.replication.client.admin._disk_room import check_room
from insync.replication.client.errors import NoDiskRoomError
from insync.replication.core import messages as m

from ...node.test_cluster import settings


@attrs.frozen
class Report:
    """As `NodeReport` and `NodeHealth`, as far as it matters here."""

    node_id: int
    replicas: Sequence[Any] = ()
    log_directories: Sequence[m.LogDirectoryInfo] = ()


@attrs.frozen
class Replica:
    partition: int
    size_bytes: int
    topic: str = "t"


def directory(free: int, device: str = "a", error: str = "") -> m.LogDirectoryInfo:
    return m.LogDirectoryInfo(path=f"/{device}", free_bytes=free, device=device, error=error)


@attrs.frozen
class Told:
    """An admin client that is told this."""

    directories: Sequence[m.LogDirectoryInfo]

    async def describe_replicas(self, topics: Sequence[str]) -> list[Report]:
        assert topics == ["t"]
        return [Report(1, [Replica(0, 600), Replica(1, 500)]), Report(2, [Replica(0, 599)])]

    async def describe_nodes(self) -> list[Report]:
        return [Report(1), Report(2), Report(3, log_directories=self.directories)]


def move(partition: int, *nodes: int) -> m.PartitionReassignment:
    return m.PartitionReassignment(topic="t", partition=partition, replicas=list(nodes))


async def check(moves: Sequence[m.PartitionReassignment], *directories: m.LogDirectoryInfo) -> None:
    await check_room(Told(directories), moves)  # type: ignore[arg-type]


async def test_what_comes_to_a_node_has_to_fit_together() -> None:
    await check([move(0, 1, 3)], directory(600))
    with pytest.raises(NoDiskRoomError, match=r"to move to node 3 have 1100 bytes.*have 1099 free") as caught:
        await check([move(0, 1, 3), move(1, 3)], directory(1099))
    assert (caught.value.node, caught.value.needed, caught.value.free) == (3, 1100, 1099)


async def test_an_empty_partition_hides_no_other() -> None:
    with pytest.raises(NoDiskRoomError):
        await check([move(7, 2), move(0, 3)], directory(599))


async def test_what_a_node_has_already_needs_no_room() -> None:
    await check([move(0, 2, 1)], directory(0))


async def test_room_of_one_device_counts_once_and_that_of_a_failed_one_not_at_all() -> None:
    await check([move(0, 3)], directory(300), directory(300, "b"))
    for second in (directory(300), directory(300, "b", error="it fails")):
        with pytest.raises(NoDiskRoomError):
            await check([move(0, 3)], directory(300), second)


async def test_directories_of_one_device_are_known_by_it_and_others_by_their_paths() -> None:
    def at(path: str, device: str) -> m.LogDirectoryInfo:
        return m.LogDirectoryInfo(path=path, free_bytes=300, device=device, error="")

    await check([move(0, 3)], at("/one", ""), at("/other", ""))
    with pytest.raises(NoDiskRoomError):
        await check([move(0, 3)], at("/one", "a"), at("/other", "a"))


async def test_of_a_node_that_does_not_say_nothing_is_assumed() -> None:
    await check([move(0, 3)], directory(0), directory(-1, "b"))
    await check([move(0, 3)])
    await check([m.PartitionReassignment(topic="t", partition=0, replicas=None)], directory(0))


async def test_a_node_tells_its_room_and_a_move_beyond_it_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (settings(tmp_path, node_id, session_timeout_ms=60_000) for node_id in (1, 2))
    async with Node(one) as first, Node(two):  # noqa: SIM117 - order
        async with Admin(first.endpoints) as admin, Producer(first.endpoints) as producer:
            await admin.create_topic("t", partitions=1, replication_factor=1)
            await (await producer.send("t", b"x" * 1000)).wait()
            (info,) = await admin.describe_topics(["t"])
            other = 3 - info.partitions[0].leader
            while True:
                health = next(each for each in await admin.describe_nodes() if each.node_id == other)
                if health.log_directories[0].free_bytes >= 0:
                    break
            assert health.log_directories[0].free_bytes > 1000

            async def nearly_full(**more: Any) -> list[Any]:
                full = [structs.replace(each, free_bytes=100) for each in health.log_directories]
                return [attrs.evolve(health, log_directories=full)]

            monkeypatch.setattr(admin, "describe_nodes", nearly_full)
            with pytest.raises(NoDiskRoomError, match="check_room=False"):
                await admin.reassign_partitions({("t", 0): [other]})
            assert await admin.list_partition_reassignments() == {}
            assert await admin.reassign_partitions({("t", 0): [other]}, check_room=False) == {("t", 0): None}

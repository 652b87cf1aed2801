"""Nodes together, inside one trio program: replication, leadership, restarts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pytest
import trio

from insync.replication import Admin, Consumer, Node, NodeSettings, Producer, ReplicationError
from insync.replication.metadata.memory import MemoryHub
from insync.replication.node import ClusterMismatchError, DuplicateNodeError, NodeStartError, StoreLostError

_stores: dict[str, MemoryHub] = {}


def store_of(folder: Path) -> str:
    """URL of the store of the nodes below a folder, in memory: it outlives them, as a file does.

    With a file each node has a process that writes it, whose start costs the processor 100 ms.
    """
    name = str(folder).replace("/", "_")
    _stores[name] = MemoryHub.named(name)
    return f"memory://{name}"


def settings(folder: Path, node_id: int, **options: object) -> NodeSettings:
    # Five times the default: a machine that stands still for a second or two costs no node its place.
    given = {"store": store_of(folder), "session_timeout_ms": 5000, **options}
    return NodeSettings(node_id=node_id, data_dir=folder / f"node-{node_id}", **given)  # type: ignore[arg-type]


def settings_on_disk(folder: Path, node_id: int, **options: object) -> NodeSettings:
    """The same with a store in a file, for tests of the file, of its loss and of other processes that use it."""
    return settings(folder, node_id, store=f"sqlite://{folder}/meta.db", **options)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Ask again and again, at the pace of the answers."""
    with trio.fail_after(seconds):
        while not await condition():
            await trio.lowlevel.checkpoint()


async def full_isr(admin: Admin, topic: str, size: int) -> bool:
    (info,) = await admin.describe_topics([topic])
    return all(len(partition.isr) == size for partition in info.partitions)


async def replicas_agree(admin: Admin, topic: str, nodes: int) -> bool:
    """Whether every replica of every partition has HW = LEO = that of the others."""
    ends: dict[int, set[tuple[int, int]]] = {}
    count = 0
    for report in await admin.describe_replicas([topic]):
        for replica in report.replicas:
            count += 1
            ends.setdefault(replica.partition, set()).add((replica.high_watermark, replica.log_end_offset))
    return count == nodes * len(ends) and all(
        len(each) == 1 and len(set(next(iter(each)))) == 1 for each in ends.values()
    )


async def produce(servers: list[str], topic: str, values: list[bytes]) -> None:
    async with Producer(servers) as producer:
        deliveries = await producer.send_many(
            topic, values, keys=[b"k%d" % (n % 31) for n in range(len(values))]
        )
        for metadata in await deliveries.wait():
            assert metadata.offset >= 0


async def consume(servers: list[str], topic: str, partitions: int, count: int) -> list[bytes]:
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in range(partitions)])
        found: list[bytes] = []
        with trio.fail_after(60):
            while len(found) < count:
                found += [record.value or b"" for record in await consumer.poll(timeout_ms=200)]
        return found


async def test_three_nodes_replicate_what_is_produced(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2, 3)]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin:
            await admin.create_topic("t", partitions=4, replication_factor=3)
            values = [b"%d" % n * (n % 9 + 1) for n in range(500)]
            await produce(servers, "t", values)
            assert sorted(await consume(servers, "t", 4, 500)) == sorted(values)
            await until(lambda: replicas_agree(admin, "t", 3))
    folders = [tmp_path / f"node-{n}" for n in (1, 2, 3)]
    for partition in range(4):
        logs = {(folder / f"t-{partition}" / f"{0:020}.log").read_bytes() for folder in folders}
        assert len(logs) == 1
        assert logs != {b""}


async def test_what_a_node_held_is_there_after_a_clean_restart(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node:
        async with Admin(node.endpoints) as admin:
            await admin.create_topic("t", partitions=1, replication_factor=1)
        await produce(node.endpoints, "t", [b"a", b"b"])
        first = node.incarnation
    async with Node(settings(tmp_path, 1)) as node:
        assert node.incarnation == first + 1
        await produce(node.endpoints, "t", [b"c"])
        assert await consume(node.endpoints, "t", 1, 3) == [b"a", b"b", b"c"]


async def test_another_replica_leads_when_the_leader_leaves(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (2, 3)]
        servers = [node.endpoints[0] for node in others]
        async with Admin(servers) as admin:
            async with Node(settings(tmp_path, 1)):
                await admin.create_topic("t", partitions=3, replication_factor=3)
                await produce(servers, "t", [b"before"] * 50)
                await until(lambda: full_isr(admin, "t", 3))
            await produce(servers, "t", [b"after"] * 50)

            async def without_it() -> bool:
                """One of the two may lead already when the other has not read of it."""
                (info,) = await admin.describe_topics(["t"])
                return all(part.leader in (2, 3) and 1 not in part.isr for part in info.partitions)

            await until(without_it)
            async with Node(settings(tmp_path, 1)):
                await until(lambda: full_isr(admin, "t", 3))
                await until(lambda: replicas_agree(admin, "t", 3))
            assert len(await consume(servers, "t", 3, 100)) == 100


async def test_under_the_minimum_isr_writes_are_refused_and_absent(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(Node(settings(tmp_path, 1)))
        async with Admin(one.endpoints) as admin:
            async with Node(settings(tmp_path, 2)):
                await admin.create_topic("t", 1, 2, config={"min_insync_replicas": 2})
            await until(lambda: full_isr(admin, "t", 1))
            async with Producer(one.endpoints, delivery_timeout_ms=700, request_timeout_ms=500) as producer:
                delivery = await producer.send("t", b"x")
                with pytest.raises(ReplicationError):
                    await delivery.wait()
            reports = await admin.describe_replicas(["t"])
            assert [replica.log_end_offset for each in reports for replica in each.replicas] == [0]
            async with Node(settings(tmp_path, 2)):
                await produce(one.endpoints, "t", [b"y"])
                assert await consume(one.endpoints, "t", 1, 1) == [b"y"]


async def led_by(admin: Admin, topic: str, leader: int) -> bool:
    (info,) = await admin.describe_topics([topic])
    return info.partitions[0].leader == leader


async def leave_an_old_replica(folder: Path, policy: str) -> None:
    """Node 2 has nothing of what node 1 committed alone, and node 1 is gone."""
    async with Node(settings(folder, 1)) as one, Admin(one.endpoints) as admin:
        async with Node(settings(folder, 2)):
            config = {"min_insync_replicas": 1, "unclean_leader_election": policy}
            await admin.create_topic("t", 1, 2, config=config)
        await until(lambda: full_isr(admin, "t", 1))
        await produce(one.endpoints, "t", [b"committed by node 1"])


async def test_no_replica_leads_that_lacks_what_was_committed(tmp_path: Path) -> None:
    await leave_an_old_replica(tmp_path, "wait")
    async with Node(settings(tmp_path, 2)) as two, Admin(two.endpoints) as admin:
        await until(lambda: led_by(admin, "t", -1))
        async with Node(settings(tmp_path, 1)):
            assert await consume(two.endpoints, "t", 1, 1) == [b"committed by node 1"]
            await until(lambda: full_isr(admin, "t", 2))


async def test_an_unclean_election_takes_any_and_the_others_follow_it(tmp_path: Path) -> None:
    await leave_an_old_replica(tmp_path, "any")
    async with Node(settings(tmp_path, 2)) as two, Admin(two.endpoints) as admin:
        await produce(two.endpoints, "t", [b"written by node 2"])
        async with Node(settings(tmp_path, 1)):
            await until(lambda: full_isr(admin, "t", 2))
            await until(lambda: replicas_agree(admin, "t", 2))
            assert await consume(two.endpoints, "t", 1, 1) == [b"written by node 2"]
    logs = {(tmp_path / f"node-{n}" / "t-0" / f"{0:020}.log").read_bytes() for n in (1, 2)}
    assert len(logs) == 1


async def test_a_replica_whose_folder_was_moved_away_is_copied_again(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as one, Admin(one.endpoints) as admin:
        async with Node(settings(tmp_path, 2)):
            await admin.create_topic("t", 1, 2, config={"min_insync_replicas": 2})
            await produce(one.endpoints, "t", [b"a", b"b"])
            await until(lambda: replicas_agree(admin, "t", 2))
        (tmp_path / "node-2" / "t-0").rename(tmp_path / "aside")
        async with Node(settings(tmp_path, 2)):
            await until(lambda: replicas_agree(admin, "t", 2))
            await until(lambda: full_isr(admin, "t", 2))
    (tmp_path / "node-1" / "t-0").rename(tmp_path / "also aside")
    async with Node(settings(tmp_path, 1)) as one, Admin(one.endpoints) as admin:
        await until(lambda: led_by(admin, "t", -1))
        async with Node(settings(tmp_path, 2)):
            assert await consume(one.endpoints, "t", 1, 2) == [b"a", b"b"]
            await until(lambda: replicas_agree(admin, "t", 2))


async def test_an_only_replica_that_lost_its_log_leads_only_if_told_to(tmp_path: Path) -> None:
    for policy in ("wait", "any"):
        async with Node(settings(tmp_path, 1)) as one, Admin(one.endpoints) as admin:
            await admin.create_topic(policy, 1, 1, config={"unclean_leader_election": policy})
            await produce(one.endpoints, policy, [b"lost"])
        (tmp_path / "node-1" / f"{policy}-0").rename(tmp_path / policy)
    async with Node(settings(tmp_path, 1)) as one, Admin(one.endpoints) as admin:
        await until(lambda: led_by(admin, "any", 1))
        await until(lambda: led_by(admin, "wait", -1))


async def test_a_topic_has_its_own_segment_size_also_after_a_restart(tmp_path: Path) -> None:
    for round_ in range(2):
        async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
            if round_ == 0:
                await admin.create_topic("t", 1, 1, config={"segment_bytes": 4096})
            for _ in range(10):
                await produce(node.endpoints, "t", [b"x" * 1000])
        segments = sorted((tmp_path / "node-1" / "t-0").glob("*.log"))
        assert len(segments) >= 2 * (round_ + 1)
        assert all(segment.stat().st_size <= 4096 for segment in segments)


async def test_offsets_are_found_by_time(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 2, 1)
        async with Producer(node.endpoints, linger_ms=0) as producer:
            for index in range(20):
                await (await producer.send("t", b"x", partition=0, timestamp_ms=1000 + index * 10)).wait()
        async with Consumer(node.endpoints) as consumer:
            for timestamp, offset in ((0, 0), (1000, 0), (1001, 1), (1190, 19), (1191, None)):
                assert await consumer.offsets_for_times({("t", 0): timestamp}) == {("t", 0): offset}
            both = await consumer.offsets_for_times({("t", 0): 1050, ("t", 1): 1050})
            assert both == {("t", 0): 5, ("t", 1): None}


async def test_a_living_node_id_is_refused(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1, session_timeout_ms=20_000)):
        twin = NodeSettings(node_id=1, data_dir=tmp_path / "elsewhere", store=store_of(tmp_path))
        with pytest.raises(DuplicateNodeError, match=r"node id 1 is in use.* id and with an empty folder"):
            async with Node(twin):
                pytest.fail("a second node 1 must not start")
        # By now the folder belongs to node 1, so another id alone is no remedy.
        with pytest.raises(NodeStartError, match="holds data of node 1, not of node 2"):
            async with Node(attrs.evolve(twin, node_id=2)):
                pytest.fail("a folder of node 1 must not be node 2's")
        async with Node(attrs.evolve(twin, node_id=2, data_dir=tmp_path / "empty")) as other:
            assert other.endpoints


async def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)):
        with pytest.raises(NodeStartError, match=r"node-1"):
            async with Node(settings(tmp_path, 1)):
                pytest.fail("the folder is locked")


async def test_a_folder_of_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)):
        pass
    other_node = NodeSettings(node_id=2, data_dir=tmp_path / "node-1", store=store_of(tmp_path))
    other_store = NodeSettings(node_id=1, data_dir=tmp_path / "node-1", store=f"sqlite://{tmp_path}/other.db")
    for wrong, error in ((other_node, NodeStartError), (other_store, StoreLostError)):
        with pytest.raises(error, match="node-1"):
            async with Node(wrong):
                pytest.fail("the folder belongs to somebody else")
    with pytest.raises(ClusterMismatchError, match="belongs to cluster"):
        async with Node(settings(tmp_path, 1, cluster_id="another")):
            pytest.fail("the store belongs to another cluster")


async def test_an_occupied_port_is_refused(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node:
        with pytest.raises(NodeStartError, match=node.endpoints[0].rpartition(":")[2]):
            async with Node(settings(tmp_path, 2, listeners=(node.endpoints[0],))):
                pytest.fail("the port is taken")


async def test_an_error_in_the_body_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with Node(settings(tmp_path, 1)):
            raise KeyError("mine")

"""Elections and reassignments, asked of real nodes."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import trio

from insync.replication import Admin, Node, wire
from insync.replication.client import (
    ElectionNotNeededError,
    InvalidConfigError,
    InvalidReplicaAssignmentError,
    NoReassignmentInProgressError,
    PreferredLeaderNotAvailableError,
    UnknownTopicError,
)
from insync.replication.core.control import records as rec
from insync.replication.core.control import transitions
from insync.replication.core.control.elections import Elect, Situation, Verdict, Wait, wait
from insync.replication.core.types import PartitionId
from insync.replication.metadata import Put, open_store
from insync.replication.node import _policies
from insync.replication.node._policies import election_policies

from .test_cluster import consume, full_isr, produce, replicas_agree, until
from .test_faults import Cluster, proofs


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def leader_of(admin: Admin, partition: int = 0) -> int:
    (info,) = await admin.describe_topics(["t"])
    return info.partitions[partition].leader


async def led_by(admin: Admin, node: int, partition: int = 0) -> bool:
    return await leader_of(admin, partition) == node


async def start(stack: AsyncExitStack, cluster: Cluster, *nodes: int, **options: object) -> list[str]:
    started = [await stack.enter_async_context(Node(cluster.settings(n, **options))) for n in nodes]
    return [node.endpoints[0] for node in started]


async def test_leadership_goes_back_to_the_preferred_replica_when_asked(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        servers = await start(stack, cluster, 2, 3)
        async with Admin(servers) as admin:
            async with Node(cluster.settings(1)):
                await admin.create_topic("t", 3, 3)
                (info,) = await admin.describe_topics(["t"])
            preferred = {each.partition: each.replicas[0] for each in info.partitions}
            (first,) = [partition for partition, node in preferred.items() if node == 1]
            await until(lambda: full_isr(admin, "t", 2))
            moved = await leader_of(admin, first)
            assert moved in (2, 3)
            outcome = await admin.elect_leaders([("t", first), ("u", 0)])
            assert isinstance(outcome["t", first], PreferredLeaderNotAvailableError)
            assert isinstance(outcome["u", 0], UnknownTopicError)
            async with Node(cluster.settings(1)):
                await until(lambda: full_isr(admin, "t", 3))
                assert await leader_of(admin, first) == moved
                assert await admin.elect_leaders() == {("t", partition): None for partition in range(3)}
                await until(lambda: led_by(admin, 1, first))
                await produce(servers, "t", [b"x"] * 20)


async def test_leadership_goes_back_by_itself_when_too_much_of_it_is_elsewhere(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        quick = {"leader_imbalance_check_interval_ms": 200}
        servers = await start(stack, cluster, 2, 3, **quick)
        async with Admin(servers) as admin:
            async with Node(cluster.settings(1, **quick)):
                await admin.create_topic("t", 3, 3)
                (info,) = await admin.describe_topics(["t"])
            (first,) = [each.partition for each in info.partitions if each.replicas[0] == 1]
            await until(lambda: full_isr(admin, "t", 2))
            async with Node(cluster.settings(1, **quick)):
                await until(lambda: led_by(admin, 1, first))


async def test_an_only_replica_that_lost_its_folder_is_led_again_by_an_unclean_election(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with Node(cluster.settings(1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"lost"])
    shutil.rmtree(tmp_path / "node-1" / "t-0")
    async with Node(cluster.settings(1)) as node, Admin(node.endpoints) as admin:
        assert await leader_of(admin) == -1
        elected = await admin.elect_leaders([("t", 0)], unclean=True)
        assert elected == {("t", 0): None}
        assert "elected uncleanly with its log (last epoch -1, end 0); there is no" in elected.words["t", 0]
        await until(lambda: led_by(admin, 1))
        await produce(node.endpoints, "t", [b"found"])
        assert await consume(node.endpoints, "t", 1, 1) == [b"found"]
        again = await admin.elect_leaders([("t", 0)], unclean=True)
        assert isinstance(again["t", 0], ElectionNotNeededError)
        assert "node 1 leads it in leader epoch" in str(again["t", 0]) and not again.words


async def test_of_those_that_are_left_the_most_complete_one_leads_by_policy(cluster: Cluster) -> None:
    async with Node(cluster.settings(1)) as one, Admin(one.endpoints) as admin:
        async with Node(cluster.settings(3)):
            async with Node(cluster.settings(2)):
                await admin.create_topic("t", 1, 3, {"min_insync_replicas": 1})
                await produce(one.endpoints, "t", [b"a"])
                await until(lambda: replicas_agree(admin, "t", 3))
            await until(lambda: full_isr(admin, "t", 2))
            await produce(one.endpoints, "t", [b"b"])
            await until(lambda: replicas_agree(admin, "t", 2))
        await until(lambda: full_isr(admin, "t", 1))
        await produce(one.endpoints, "t", [b"c"])
    async with AsyncExitStack() as stack:
        servers = await start(stack, cluster, 2, 3)
        async with Admin(servers) as admin:
            await until(lambda: led_by(admin, -1))
            await admin.alter_config("t", {"unclean_leader_election": "most_complete"})
            await until(lambda: led_by(admin, 3))
            assert await consume(servers, "t", 1, 2) == [b"a", b"b"]


async def test_after_all_power_was_lost_the_last_eligible_ones_lead_again_and_no_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs(monkeypatch)
    async with AsyncExitStack() as stack:
        servers = await start(stack, cluster, 1, 3)
        async with Admin(servers) as admin:
            async with Node(cluster.settings(2)):
                await admin.create_topic("t", 1, 3)
                await produce(servers, "t", [b"a"])
                await until(lambda: replicas_agree(admin, "t", 3))
            await until(lambda: full_isr(admin, "t", 2))
            await produce(servers, "t", [b"b"])
    for marker in cluster.folder.glob("node-*/.kafka_cleanshutdown"):
        marker.unlink()
    async with AsyncExitStack() as stack:
        servers = await start(stack, cluster, 2, 1)
        async with Admin(servers) as admin:
            assert await leader_of(admin) == -1
            async with Node(cluster.settings(3)):
                await until(lambda: full_isr(admin, "t", 3))
                assert await consume(servers, "t", 1, 2) == [b"a", b"b"]


async def test_a_partition_whose_nodes_were_killed_before_they_made_its_folders_heals(
    cluster: Cluster,
) -> None:
    for node in (1, 2, 3):
        async with Node(cluster.settings(node)):
            pass
    await write_topic(cluster, (1, 2, 3))
    async with AsyncExitStack() as stack:
        servers = await start(stack, cluster, 1, 2, 3)
        async with Admin(servers) as admin:
            await until(lambda: full_isr(admin, "t", 3))
            (info,) = await admin.describe_topics(["t"])
            assert info.partitions[0].leader >= 0
            assert not info.partitions[0].recovering
        await produce(servers, "t", [b"x"])


async def test_a_new_folder_in_place_of_the_old_one_proves_nothing(cluster: Cluster) -> None:
    async with Node(cluster.settings(1)):
        pass
    await write_topic(cluster, (1,))
    shutil.rmtree(cluster.folder / "node-1")
    async with Node(cluster.settings(1)) as node, Admin(node.endpoints) as admin:
        assert await leader_of(admin) == -1


async def write_topic(cluster: Cluster, replicas: tuple[int, ...]) -> None:
    """What the controller leaves in the store when it creates a topic and dies."""
    topic = rec.TopicRecord(
        name="t",
        topic_id="x",
        partitions=1,
        replication_factor=len(replicas),
        config=rec.TopicConfig(min_insync_replicas=len(replicas)),
    )
    partition = transitions.create(
        topic="t",
        partition=0,
        topic_id="x",
        replicas=replicas,
        live=replicas,
        min_insync=len(replicas),
    )
    records: dict[str, object] = {rec.topic_key("t"): topic, rec.partition_key(partition.id): partition}
    async with open_store(f"memory://{cluster.name}") as store:
        await store.commit([], [Put(key, wire.encode_record(record)) for key, record in records.items()])


async def test_a_store_that_has_forgotten_elections_leaves_a_partition_that_is_written_to(
    cluster: Cluster,
) -> None:
    """Its log holds batches of leader epochs that the store does not know; it takes none of an earlier one."""
    key = rec.partition_key(PartitionId("t", 0))
    async with open_store(f"memory://{cluster.name}") as store:
        async with Node(cluster.settings(1)) as node, Admin(node.endpoints) as admin:
            await admin.create_topic("t", 1, 1)
        before = (await store.get(key)).entry
        assert before is not None
        for value in (b"a", b"b"):
            async with Node(cluster.settings(1)) as node, Admin(node.endpoints) as admin:
                await until(lambda: led_by(admin, 1))
                await produce(node.endpoints, "t", [value])
        await store.commit([], [Put(key, before.value)])
        async with Node(cluster.settings(1)) as node, Admin(node.endpoints) as admin:
            await until(lambda: led_by(admin, 1))
            await produce(node.endpoints, "t", [b"c"])
            assert await consume(node.endpoints, "t", 1, 3) == [b"a", b"b", b"c"]
            (info,) = await admin.describe_topics(["t"])
            assert info.partitions[0].leader_epoch > transitions.EPOCHS_SKIPPED


# Reassignment


async def test_a_partition_moves_while_it_is_written_and_the_old_log_goes(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        servers = await start(stack, cluster, 1, 2, 3, 4)
        async with Admin(servers) as admin:
            await admin.create_topic("t", 1, 2)
            (info,) = await admin.describe_topics(["t"])
            old = info.partitions[0].replicas
            new = [node for node in (1, 2, 3, 4) if node not in old]
            values = [b"%d" % number for number in range(300)]
            await produce(servers, "t", values[:200])
            assert await admin.reassign_partitions({("t", 0): new}) == {("t", 0): None}
            await produce(servers, "t", values[200:])
            with trio.fail_after(60):
                await admin.wait_for_reassignments(["t"])
            (info,) = await admin.describe_topics(["t"])
            moved = info.partitions[0]
            assert (moved.replicas, sorted(moved.isr), moved.leader) == (new, sorted(new), new[0])
            assert sorted(await consume(servers, "t", 1, 300)) == sorted(values)
            await until(lambda: folders(cluster, new))
            await admin.reassign_partitions({("t", 0): [*old, *new]})
            with trio.fail_after(60):
                await admin.wait_for_reassignments(["t"])
            await until(lambda: replicas_agree(admin, "t", 4))


async def folders(cluster: Cluster, nodes: list[int]) -> bool:
    """Whether just these nodes have a folder of the partition."""
    found = {int(path.parent.name.removeprefix("node-")) for path in cluster.folder.glob("node-*/t-0")}
    return found == set(nodes)


async def test_a_move_that_cannot_end_is_listed_and_cancelled(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        servers = await start(stack, cluster, 1, 2)
        async with Admin(servers) as admin:
            async with Node(cluster.settings(3)):
                await admin.create_topic("t", 1, 1)
                (info,) = await admin.describe_topics(["t"])
                (old,) = info.partitions[0].replicas
                if old == 3:
                    await admin.reassign_partitions({("t", 0): [1]})
                    await admin.wait_for_reassignments()
                    old = 1
            await admin.reassign_partitions({("t", 0): [old]})
            refused = await admin.reassign_partitions({("t", 0): [old, 3], ("u", 0): [1]})
            assert isinstance(refused["t", 0], InvalidReplicaAssignmentError)
            assert "node 3 is not alive" in str(refused["t", 0])
            assert isinstance(refused["u", 0], UnknownTopicError)
            nothing = await admin.reassign_partitions({("t", 0): None})
            assert isinstance(nothing["t", 0], NoReassignmentInProgressError)


async def test_a_cancelled_move_leaves_the_old_replicas_and_no_new_ones(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        servers = await start(stack, cluster, 1, 2, follower_replication_throttled_rate=1)
        async with Admin(servers) as admin:
            await admin.create_topic("t", 1, 1)
            (info,) = await admin.describe_topics(["t"])
            (old,) = info.partitions[0].replicas
            new = 3 - old
            for _ in range(3):  # a batch each, as the first that is fetched is never throttled
                await produce(servers, "t", [b"x" * 1000])
            await admin.reassign_partitions({("t", 0): [new]})
            (moving,) = (await admin.list_partition_reassignments()).values()
            assert (moving.target, moving.adding, moving.removing) == ([new], [new], [old])
            await admin.reassign_partitions({("t", 0): None})
            with trio.fail_after(60):
                await admin.wait_for_reassignments()
            (info,) = await admin.describe_topics(["t"])
            assert info.partitions[0].replicas == [old]
            await until(lambda: folders(cluster, [old]))


async def test_an_even_placement_is_planned(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        servers = await start(stack, cluster, 1, 2, 3)
        async with Admin(servers) as admin:
            await admin.create_topic("t", 4, 1)
            planned = await admin.plan_reassignment("t", [2, 3], 2)
            assert [sorted(nodes) for nodes in planned.values()] == [[2, 3]] * 4
            assert sorted(nodes[0] for nodes in planned.values()) == [2, 2, 3, 3]
            await admin.reassign_partitions(planned)
            with trio.fail_after(60):
                await admin.wait_for_reassignments()
            await until(lambda: full_isr(admin, "t", 2))


# Policies of plugins


def last_in_order(situation: Situation) -> Verdict:
    living = situation.living
    return Elect(living[-1]) if living else Wait()


def entry(name: str, target: str) -> EntryPoint:
    return EntryPoint(name=name, value=f"{__name__}:{target}", group=_policies.GROUP)


async def test_a_plugins_policy_is_one_of_a_topics_settings(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed = [
        entry("last", "last_in_order"),
        entry("broken", "no_such_thing"),
        entry("wait", "last_in_order"),
    ]
    monkeypatch.setattr(_policies, "entry_points", lambda group: installed)
    async with AsyncExitStack() as stack:
        servers = await start(stack, cluster, 2, 3)
        async with Admin(servers) as admin:
            assert "election policy broken" in caplog.text
            with pytest.raises(InvalidConfigError, match="any, last, most_complete, wait"):
                await admin.create_topic("u", 1, 2, {"unclean_leader_election": "broken"})
            async with Node(cluster.settings(1)):
                config = {"unclean_leader_election": "last", "min_insync_replicas": 1}
                await admin.create_topic("t", 1, 1, config)
                assert (await admin.describe_config("t"))["unclean_leader_election"] == "last"
                await admin.reassign_partitions({("t", 0): [1]})
                with trio.fail_after(60):
                    await admin.wait_for_reassignments()
            await until(lambda: led_by(admin, -1))
            assert election_policies()["wait"] is wait

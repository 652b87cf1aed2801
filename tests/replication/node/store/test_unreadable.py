"""Values in the metadata store that are no records: told of, left alone, and nobody's end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
from msgspec import structs

from insync.replication import Admin, Node, wire
from insync.replication.client import ServerError, TopicNotReadyError
from insync.replication.core.control import records as rec
from insync.replication.core.control.view import ClusterView
from insync.replication.core.types import PartitionId
from insync.replication.metadata import Entry, Listing, Put, open_store
from insync.replication.node.store._view_reader import ViewReader

from ..test_cluster import consume, full_isr, produce, until
from ..test_faults import Cluster

PARTITION = rec.PartitionRecord(topic="t", partition=0, topic_id="x", replicas=(1, 2), isr=(1,), leader=1)
NODE = rec.NodeRecord(node_id=1, incarnation=1, endpoints=())


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def listing(revision: int, **values: object) -> Listing:
    entries = {}
    for key, value in values.items():
        data = value if isinstance(value, bytes) else wire.encode_record(value)
        entries[key] = Entry(key=key, value=data, version=revision, revision=revision, session_id=None)
    return Listing(entries=entries, revision=revision)


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"topic": "t"}',
        wire.encode_record(rec.PartitionRecord(topic="t", partition=0, topic_id="x", replicas=(), isr=())),
        wire.encode_record(rec.PartitionRecord(topic="t", partition=1, topic_id="x", replicas=(1,), isr=())),
    ],
)
async def test_what_cannot_be_read_is_what_it_was_until_it_is_mended(
    spoilt: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, key = ViewReader(), rec.partition_key(PARTITION.id)

    async def read(answer: Listing) -> ClusterView:
        return reader.read(await reader.decoded(answer))

    assert not (await read(listing(5, **{key: PARTITION}))).unreadable
    for revision in (6, 6, 7):
        view = await read(listing(revision, **{key: spoilt, rec.node_key(1): NODE}))
        assert view.unreadable == {key}
        assert view.partitions[PARTITION.id] == rec.Versioned(PARTITION, 5)
        assert view.nodes == {1: NODE}
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert key in caplog.text
    mended = await read(listing(8, **{key: PARTITION}))
    assert (mended.unreadable, mended.partitions[PARTITION.id].version) == (frozenset(), 8)


async def test_what_could_never_be_read_is_left_out() -> None:
    reader = ViewReader()
    found = listing(1, **{"/topics/t": b"{", "/nodes/7": b"7", "/elsewhere": b"?"})
    view = reader.read(await reader.decoded(found))
    assert (view.topics, view.nodes, view.unreadable) == ({}, {}, {"/topics/t", "/nodes/7"})


async def test_nodes_go_on_and_keep_their_logs_whatever_stands_in_the_store(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(cluster.settings(1)) as one, Admin(one.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        await produce(one.endpoints, "t", [b"kept"])
        async with open_store(f"memory://{cluster.name}") as store:
            good = (await store.get("/topics/t")).entry
            assert good is not None
            keys = ("/topics/t", "/topics/u", "/nodes/9", "/partitions/u/0")
            await store.commit([], [Put(key, b"{broken") for key in keys])
            with trio.fail_after(60):
                while "/topics/t in the metadata store" not in caplog.text:
                    await trio.lowlevel.checkpoint()
            assert await consume(one.endpoints, "t", 1, 1) == [b"kept"]
            with pytest.raises(ServerError, match="/topics/u in the metadata store cannot be read"):
                await admin.create_topic("u", 1, 1)
            await admin.create_topic("v", 1, 1)
    async with Node(cluster.settings(1)) as one, Admin(one.endpoints) as admin:
        assert (cluster.folder / "node-1" / "t-0").is_dir()
        async with open_store(f"memory://{cluster.name}") as store:
            await store.commit([], [Put("/topics/t", good.value)])
        await until(lambda: full_isr(admin, "t", 1))
        assert await consume(one.endpoints, "t", 1, 1) == [b"kept"]


async def test_an_address_that_is_none_holds_nobody_up(cluster: Cluster) -> None:
    async with Node(cluster.settings(1)) as one, Admin(one.endpoints) as admin:
        await admin.create_topic("t", 1, 1)
        record = rec.NodeRecord(
            node_id=2, incarnation=1, endpoints=("tcp://", "nonsense", "tcp://" + "a" * 99)
        )
        led = structs.replace(
            await partition_of(cluster), replicas=(2, 1), isr=(2,), leader=2, leader_epoch=9
        )
        async with open_store(f"memory://{cluster.name}") as store:
            await store.commit([], [Put(rec.node_key(2), wire.encode_record(record))])
            await store.commit([], [Put(rec.partition_key(led.id), wire.encode_record(led))])
            with trio.fail_after(60):
                while one._driver is None or one._driver.hosts[led.id].replica.role != "follower":
                    await trio.lowlevel.checkpoint()
            # One of the two is for the node that nobody reaches; the other one is made.
            async with Admin(one.endpoints, request_timeout_ms=5000) as hurried:
                with pytest.raises(TopicNotReadyError, match="1 of its 2 new partitions"):
                    await hurried.create_topic("u", 2, 1)


async def partition_of(cluster: Cluster) -> rec.PartitionRecord:
    async with open_store(f"memory://{cluster.name}") as store:
        entry = (await store.get(rec.partition_key(PartitionId("t", 0)))).entry
        assert entry is not None
        return wire.decode_record(rec.PartitionRecord, entry.value)

"""What one request may cost a node: the bounds that a real node keeps, each of a kind that names many things."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from insync.replication import Admin, Consumer, Node, Producer, wire
from insync.replication.client.connection._offsets import _OffsetQuestion
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode
from insync.replication.node.logs import _cold_reads
from insync.replication.node.requests._handlers import describe_view
from insync.replication.node.requests._limits import MOST_BYTES, MOST_ELEMENTS, problem_of
from insync.replication.node.store import _client_state
from insync.storage import Log, LookUpStoppedError, batch
from insync.transport import Connection, Identity, RemoteError, connect

from ..test_cluster import produce, settings
from .test_pages import view


@asynccontextmanager
async def asked(node: Node) -> AsyncIterator[Connection]:
    """A client's connection without any of the clients' manners."""
    async with trio.open_nursery() as nursery:
        yield await connect(node.endpoints[0], identity=Identity(), nursery=nursery, timeout=5)
        nursery.cancel_scope.cancel()


async def ask(connection: Connection, kind: m.Kind, message: object) -> Any:
    with await connection.request(kind, wire.encode(message), timeout=20) as answer:
        return wire.decode_response(kind, bytes(answer.body))


def by_time(*timestamps: int) -> m.ListOffsetsRequest:
    return m.ListOffsetsRequest(
        partitions=[m.ListOffsetsPartition(topic="t", partition=0, timestamp=each) for each in timestamps]
    )


async def test_timestamps_are_looked_for_once_each_and_so_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    real = batch.records

    def decoded(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return real(*arguments, **options)

    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin, asked(node) as stranger:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"x"])
        monkeypatch.setattr("insync.storage.segment._segment.records", decoded)
        answer = await ask(stranger, m.Kind.LIST_OFFSETS, by_time(*[5] * 3_000, m.LATEST_TIMESTAMP))
        assert [each.offset for each in answer.partitions] == [0] * 3_000 + [1]
        assert len(threads) == 1 and threads[0] != threading.get_ident()
        with pytest.raises(RemoteError, match="1001 timestamps are more than the 1000"):
            await ask(stranger, m.Kind.LIST_OFFSETS, by_time(*range(m.MOST_LOOK_UPS + 1)))
        assert len(threads) == 1


async def test_a_client_asks_for_many_partitions_by_time_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(m, "MOST_LOOK_UPS", 4)
    monkeypatch.setattr(_OffsetQuestion, "at_once", 4)
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 10, 1)
        await produce(node.endpoints, "t", [b"x"])
        async with Consumer(node.endpoints) as consumer:
            found = await consumer.offsets_for_times({("t", number): 5 for number in range(10)})
        assert sorted(str(each) for each in found.values()) == ["0"] + 9 * ["None"]


class Endless:
    """A look-up that ends when it is stopped, or let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.stopped, self.let_go = threading.Event(), threading.Event(), threading.Event()

        def look(log: Log, timestamp_ms: int, *, stop: Any) -> None:
            self.begun.set()
            while not stop():
                if self.let_go.wait(0.01):
                    return
            self.stopped.set()
            raise LookUpStoppedError("given up")

        monkeypatch.setattr("insync.storage.disk_log.DiskLog.offset_for_timestamp", look)


async def test_a_look_up_that_takes_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cold_reads, "LOOK_UP_TIME", 0.1)
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin, asked(node) as stranger:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"x"])
        endless = Endless(monkeypatch)
        answer = await ask(stranger, m.Kind.LIST_OFFSETS, by_time(5))
        assert answer.partitions[0].error == ErrorCode.OFFSET_NOT_AVAILABLE
        assert await trio.to_thread.run_sync(endless.stopped.wait, 10)


async def test_look_ups_hold_up_nobody_who_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin, asked(node) as stranger:
        await admin.create_topic("t", 1, 1)
        await produce(node.endpoints, "t", [b"x"] * 3)
        endless = Endless(monkeypatch)
        monkeypatch.setattr(_cold_reads, "LOOK_UP_TIME", 60)
        # What is not at hand is read in a thread.
        monkeypatch.setattr("insync.storage.disk_log.DiskLog.is_at_hand", lambda self, offset: False)
        monkeypatch.setattr("insync.storage.disk_log.DiskLog.read_at_hand", lambda *at, **options: None)
        async with trio.open_nursery() as nursery:
            for _ in range(_cold_reads.THREADS + 1):
                nursery.start_soon(ask, stranger, m.Kind.LIST_OFFSETS, by_time(5))
            await trio.to_thread.run_sync(endless.begun.wait)
            async with Consumer(node.endpoints, auto_offset_reset="earliest") as consumer:
                consumer.assign([("t", 0)])
                with trio.fail_after(10):
                    while not await consumer.poll(timeout_ms=100):
                        pass
            endless.let_go.set()


def test_an_answer_describes_so_many_partitions_whatever_is_asked_for() -> None:
    shown = view({"t": 3_000})
    for limit in (0, -7, 5_000):
        answer = describe_view(shown, m.MetadataRequest(partition_limit=limit))
        (topic,) = answer.topics
        assert len(topic.partitions) == m.MOST_DESCRIBED
        assert answer.next_cursor == m.PartitionName(topic="t", partition=m.MOST_DESCRIBED)


class Walked(list[str]):
    """A list that must not be gone through for each replica."""

    def __contains__(self, item: object) -> bool:
        pytest.fail("each replica goes through the list of topics")


async def test_a_description_goes_through_the_topics_once(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 3, 1)
        assert node._driver is not None
        told, following = node._driver.describe(m.DescribePartitionsRequest(topics=Walked(["t"])), 2)
        assert [each.partition for each in told] == [0, 1]
        assert following == m.PartitionName(topic="t", partition=2)


async def test_what_is_kept_under_one_name_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_client_state, "MAX_OFFSETS_BYTES", 2_000)

    def commit(*names: str) -> m.OffsetCommitRequest:
        offsets = [m.CommittedOffset(topic=name, partition=0, offset=7) for name in names]
        return m.OffsetCommitRequest(group="g", offsets=offsets)

    async with Node(settings(tmp_path, 1)) as node, asked(node) as stranger:
        kept = []
        for number in range(10):
            names = [f"{number}-{each}" for each in range(20)]
            kept.append(await ask(stranger, m.Kind.OFFSET_COMMIT, commit(*names)))
        assert (kept[0].error, len(kept[0].offsets)) == (0, 20)
        assert kept[-1].error == 42 and "above 2000" in kept[-1].message
        found = await ask(stranger, m.Kind.OFFSET_FETCH, m.OffsetFetchRequest(group="g"))
        assert 0 < len(found.offsets) < 200
        assert (await ask(stranger, m.Kind.OFFSET_COMMIT, commit())).error == 0


async def test_a_client_has_no_fetch_session(tmp_path: Path) -> None:
    """What a session remembers outlives its requests, and clients may be many."""
    async with Node(settings(tmp_path, 1)) as node, asked(node) as stranger:
        async with Admin(node.endpoints) as admin, Producer(node.endpoints) as producer:
            await admin.create_topic("t", 1, 1)
            await (await producer.send("t", b"x")).wait()
        wanted = m.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=1000)
        request = m.FetchRequest(
            replica_id=-1,
            incarnation=-1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1000,
            partitions=[wanted],
            session_epoch=0,
        )
        answer = await ask(stranger, m.Kind.FETCH, request)
        assert (answer.session_id, answer.partitions[0].error) == (0, 0)
        assert node._driver is not None
        assert not node._driver.broker.serving.sessions


async def test_the_name_of_a_producer_is_short(tmp_path: Path) -> None:
    async with Node(settings(tmp_path, 1)) as node, asked(node) as stranger:
        request = m.InitProducerIdRequest(identity="x" * 1_025)
        answer = await ask(stranger, m.Kind.INIT_PRODUCER_ID, request)
        assert answer.error == 42 and "too long" in answer.message


@pytest.mark.parametrize(
    ("kind", "message", "why"),
    [
        (
            m.Kind.DESCRIBE_GROUPS,
            {"groups": [""] * (MOST_ELEMENTS + 1)},
            "the request has 25001 elements, above 25000: ask in several requests",
        ),
        (
            m.Kind.CONSUMER_GROUP_HEARTBEAT,
            {
                "group": "g",
                "member_id": "m",
                "member_epoch": 0,
                "owned": [{"topic_id": "x", "partitions": [0] * 8 * MOST_ELEMENTS}],
            },
            "the request has 25001 elements, above 25000: ask in several requests",
        ),
        (
            m.Kind.LEAVE_GROUP,
            {"group": "g", "members": [{}] * MOST_BYTES[m.Kind.LEAVE_GROUP]},
            "bytes, above 131072: ask in several requests",
        ),
    ],
    ids=lambda each: each.name if isinstance(each, m.Kind) else "",
)
async def test_a_request_names_so_many_things_and_the_next_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: m.Kind, message: object, why: str
) -> None:
    """A million empty names in one body kept a node's loop from everything else for one to two seconds."""
    decoded: list[object] = []
    decode = wire.decode_request
    monkeypatch.setattr(wire, "decode_request", lambda *given: decoded.append(given[0]) or decode(*given))
    async with Node(settings(tmp_path, 1)) as node, asked(node) as stranger:
        with pytest.raises(RemoteError, match=why) as refused:
            await stranger.request(kind, msgspec.msgpack.encode(message), timeout=20)
        assert refused.value.code == ErrorCode.INVALID_REQUEST
        assert (kind in decoded) == (kind != m.Kind.LEAVE_GROUP), "its million objects are not even made"
        assert (await ask(stranger, m.Kind.METADATA, m.MetadataRequest(topics=[]))).cluster_id


def test_nodes_ask_each_other_of_all_that_they_have_in_common() -> None:
    """And replicas are what a partition has three of."""
    part = m.PartitionName(topic="t", partition=0)
    assert not problem_of(m.Kind.GET_REPLICA_LOG_INFO, m.GetReplicaLogInfoRequest(partitions=[part] * 50_000))
    moves = [m.PartitionReassignment(topic="t", partition=0, replicas=[1, 2, 3])] * 15_000
    message = m.AlterReassignmentsRequest(partitions=moves)
    assert not problem_of(m.Kind.ALTER_PARTITION_REASSIGNMENTS, message)
    assert problem_of(m.Kind.ELECT_LEADERS, m.ElectLeadersRequest(partitions=[part] * 25_001))

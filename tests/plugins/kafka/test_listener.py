"""A listener of a real node, by clients that no library would be: half a request, too much, gone, or slow."""

from __future__ import annotations

import gc
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from insync.plugins.kafka import listener
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api, KafkaError
from insync.replication import Admin, Node, NodeSettings
from insync.replication.core.errors import ErrorCode
from insync.replication.node import NodeError
from insync.storage.batch import build_batch
from insync.transport.kit._frame import until

from .wire_client import WireClient

Metadata, Fetch, Produce = message("MetadataRequest"), message("FetchRequest"), message("ProduceRequest")
ListOffsets = message("ListOffsetsRequest")


@asynccontextmanager
async def node_at(folder: Path, options: str = "", *, number: int = 1, **more: Any) -> AsyncIterator[Node]:
    settings = NodeSettings(
        node_id=number,
        data_dir=folder / f"n{number}",
        store=f"sqlite://{folder}/m.db",
        listeners=("tcp://127.0.0.1:0", f"kafka://127.0.0.1:0{options}"),
        **more,
    )
    async with Node(settings) as node:
        yield node


@asynccontextmanager
async def client_of(node: Node) -> AsyncIterator[WireClient]:
    client = await WireClient.connect(node.gateway_endpoints[0])
    async with client.stream:
        yield client


async def make(node: Node, name: str = "t", partitions: int = 1) -> None:
    async with Admin(node.endpoints) as admin:
        await admin.create_topic(name, partitions=partitions, replication_factor=1)


def batch(*values: bytes, time_ms: int | None = None) -> bytes:
    """time_ms: now by default, since what is older than a topic's retention is deleted while a test runs."""
    now = time.time_ns() // 1_000_000
    return build_batch([None] * len(values), values, timestamps_ms=now if time_ms is None else time_ms)


def produce(data: bytes, *, acks: int = -1, topic: str = "t", partition: int = 0) -> Any:
    part = Produce.PartitionProduceData(index=partition, records=data)
    named = Produce.TopicProduceData(name=topic, partition_data=[part])
    return Produce(acks=acks, timeout_ms=5000, topic_data=[named])


def fetch(
    offset: int = 0, *, wait_ms: int = 0, session: tuple[int, int] = (0, -1), partitions: int = 1
) -> Any:
    parts = [
        Fetch.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index in range(partitions)
    ]
    named = [Fetch.FetchTopic(topic="t", partitions=parts)] if partitions else []
    return Fetch(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=named,
    )


async def write(client: WireClient, *values: bytes, partition: int = 0) -> Any:
    """Until there is a leader to take it."""
    while True:
        answer = await client.ask(Api.PRODUCE, 9, produce(batch(*values), partition=partition))
        (part,) = answer.responses[0].partition_responses
        if part.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return part


def parts_of(answer: Any) -> dict[int, Any]:
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


async def test_what_ends_a_connection_harms_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    strange = {
        b"GET / HTTP/1.1\r\n\r\n": "HTTP client",
        struct.pack(">ihhih", 10, Api.METADATA, 99, 1, 0): "version 99 of API 3",
        struct.pack(">ihhih", 14, Api.METADATA, 5, 1, 0)
        + b"\x7f\xff\xff\xff": "more elements than bytes follow",
        struct.pack(">ihhi", 2**31 - 1, Api.PRODUCE, 9, 1): "a frame of 2147483647 bytes",
    }
    async with node_at(tmp_path) as node, client_of(node) as other:
        for data, why in strange.items():
            async with client_of(node) as client:
                await client.stream.send_all(data)
                assert await client.has_ended()
            assert why in caplog.text
        assert (await other.ask(Api.METADATA, 9, Metadata(topics=[]))).brokers[0].node_id == 1


async def test_api_versions_answers_what_it_does_not_know(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await client.stream.send_all(struct.pack(">ihhi", 12, Api.API_VERSIONS, 99, 7) + b"????")
        frame = await client.frame()
        correlation, error, count = struct.unpack_from(">ihi", frame)
        assert (correlation, error) == (7, KafkaError.UNSUPPORTED_VERSION)
        assert len(frame) == 10 + 6 * count
        assert struct.unpack_from(">hhh", frame, 10) == (Api.PRODUCE, 0, 13)
        Versions = message("ApiVersionsRequest")
        told = await client.ask(
            Api.API_VERSIONS, 3, Versions(client_software_name="a b", client_software_version="1")
        )
        assert told.error_code == ErrorCode.INVALID_REQUEST
        asked = Versions(
            client_software_name="a", client_software_version="1", cluster_id="another", node_id=1
        )
        assert (await client.ask(Api.API_VERSIONS, 5, asked)).error_code == KafkaError.REBOOTSTRAP_REQUIRED
        asked.node_id = -1
        assert (await client.ask(Api.API_VERSIONS, 5, asked)).error_code == 0, "it names no node"


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"0")
        for index in range(1, 20):
            await client.send(Api.PRODUCE, 9, produce(batch(b"%d" % index)))
        await client.send(Api.FETCH, 11, fetch())
        await client.send(Api.METADATA, 5, Metadata(topics=None))
        offsets = [
            (await client.receive(Api.PRODUCE, 9)).responses[0].partition_responses[0].base_offset
            for _ in range(1, 20)
        ]
        assert offsets == list(range(1, 20))
        assert parts_of(await client.receive(Api.FETCH, 11))[0].high_watermark == 20
        assert (await client.receive(Api.METADATA, 5)).topics[0].name == "t"


async def test_a_client_that_goes_leaves_no_parked_fetch(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        await make(node)
        replicas = node._driver
        assert replicas is not None
        serving = replicas.broker.serving
        async with client_of(node) as client:
            await write(client, b"x")
            await client.send(Api.FETCH, 11, fetch(1, wait_ms=60_000, session=(0, 0)))
            await client.send(Api.METADATA, 5, Metadata(topics=[]))  # waits behind it
            await until(lambda: bool(serving.parked), "the fetch is parked")
            (link,) = _links(node)
            slots = link.client.sessions._slots
            assert slots.used == 1
        await until(lambda: not serving.parked, "the fetch is given up")
        await until(lambda: not slots.used, "its session has ended")


async def test_a_failure_without_acknowledgement_ends_the_connection(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"first")
        await client.send(Api.PRODUCE, 9, produce(batch(b"kept"), acks=0))
        asked = ListOffsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic = ListOffsets.ListOffsetsTopic(name="t", partitions=[asked])
        end = await client.ask(Api.LIST_OFFSETS, 2, ListOffsets(replica_id=-1, topics=[topic]))
        assert end.topics[0].partitions[0].error_code == 0, "no answer came before this one"
        await client.send(Api.PRODUCE, 9, produce(batch(b"lost"), acks=0, partition=7))
        assert await client.has_ended()


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (produce(batch(b"x"), acks=2), ErrorCode.INVALID_REQUIRED_ACKS),
        (produce(b""), ErrorCode.INVALID_RECORD),
        (produce(b"short"), ErrorCode.CORRUPT_MESSAGE),
        (produce(batch(b"a") + batch(b"b")), ErrorCode.INVALID_RECORD),
        (produce(batch(b"x")[:16] + b"\1" + batch(b"x")[17:]), ErrorCode.INVALID_RECORD),
        (produce(batch(b"x")[:-1] + b"\7"), ErrorCode.CORRUPT_MESSAGE),
        (produce(batch(b"x"), topic="__consumer_offsets"), ErrorCode.INVALID_TOPIC),
        (produce(batch(b"x"), topic="nowhere"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_produced_batches_that_are_refused(tmp_path: Path, request_: Any, error: int) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"first")
        answer = await client.ask(Api.PRODUCE, 9, request_)
        assert answer.responses[0].partition_responses[0].error_code == error
        assert (await write(client, b"second")).base_offset == 1


async def test_several_partitions_in_one_request_each_have_their_own(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node, partitions=3)
        for index in range(3):
            await write(client, b"first", partition=index)
        parts = [
            Produce.PartitionProduceData(
                index=index, records=batch(b"%d" % index) if index != 1 else b"no batch"
            )
            for index in range(3)
        ]
        named = Produce.TopicProduceData(name="t", partition_data=[*parts, parts[0]])
        answer = await client.ask(Api.PRODUCE, 9, Produce(acks=1, timeout_ms=5000, topic_data=[named]))
        told = [(each.index, each.error_code) for each in answer.responses[0].partition_responses]
        assert told == [(0, 0), (1, ErrorCode.CORRUPT_MESSAGE), (2, 0), (0, ErrorCode.INVALID_REQUEST)]
        found = parts_of(await client.ask(Api.FETCH, 11, fetch(partitions=3)))
        assert [found[index].high_watermark for index in range(3)] == [2, 1, 2]


async def test_a_fetch_session_tells_what_has_changed(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client, client_of(node) as writer:
        await make(node, partitions=3)
        for index in range(3):
            await write(writer, b"first", partition=index)
        begun = await client.ask(Api.FETCH, 11, fetch(1, session=(0, 0), partitions=3))
        assert begun.session_id > 0
        assert {index: part.high_watermark for index, part in parts_of(begun).items()} == {0: 1, 1: 1, 2: 1}
        quiet = await client.ask(Api.FETCH, 11, fetch(session=(begun.session_id, 1), partitions=0))
        assert parts_of(quiet) == {}
        await write(writer, b"news", partition=2)
        news = await client.ask(
            Api.FETCH, 11, fetch(session=(begun.session_id, 2), partitions=0, wait_ms=5000)
        )
        assert [(index, part.records[1] > 0) for index, part in parts_of(news).items()] == [(2, True)]
        # It did not move on, so it is told again.
        again = await client.ask(Api.FETCH, 11, fetch(session=(begun.session_id, 3), partitions=0))
        assert list(parts_of(again)) == [2]
        wrong = await client.ask(Api.FETCH, 11, fetch(session=(begun.session_id, 3), partitions=0))
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        stranger = await writer.ask(Api.FETCH, 11, fetch(session=(begun.session_id, 4), partitions=0))
        assert stranger.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_replica_of_a_client_is_refused(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"x")
        asked = fetch()
        asked.replica_id = 2
        part = parts_of(await client.ask(Api.FETCH, 11, asked))[0]
        assert part.error_code == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert part.records[1] == 0


async def test_topics_are_made_when_asked_for_unless_somebody_says_no(tmp_path: Path) -> None:
    named = Metadata(topics=[Metadata.MetadataRequestTopic(name="new")])
    bad = Metadata(topics=[Metadata.MetadataRequestTopic(name="not valid")])
    async with node_at(tmp_path, "?num_partitions=4") as node, client_of(node) as client:
        quiet = Metadata(topics=named.topics, allow_auto_topic_creation=False)
        (topic,) = (await client.ask(Api.METADATA, 4, quiet)).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        while topic.error_code:  # a moment after the start there is no controller
            (topic,) = (await client.ask(Api.METADATA, 4, named)).topics
        assert len(topic.partitions) == 4
        assert (await client.ask(Api.METADATA, 4, bad)).topics[0].error_code == ErrorCode.INVALID_TOPIC
    (tmp_path / "b").mkdir()
    async with (
        node_at(tmp_path / "b", "?auto_create_topics=false") as node,
        client_of(node) as client,
    ):
        (topic,) = (await client.ask(Api.METADATA, 4, named)).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_made_at_another_node_is_found_at_once(tmp_path: Path) -> None:
    other = NodeSettings(
        node_id=2,
        data_dir=tmp_path / "n2",
        store=f"sqlite://{tmp_path}/m.db",
        listeners=("tcp://127.0.0.1:0", "kafka://127.0.0.1:0"),
    )
    Create = message("CreateTopicsRequest")
    async with (
        node_at(tmp_path, "?auto_create_topics=false") as node,
        Node(other) as second,
        client_of(node) as client,
        client_of(second) as admin,
    ):
        assert node._driver is not None
        replicas = node._driver
        await until(lambda: 2 in replicas.view.nodes, "the other node is known")
        look_only_when_asked(node)
        for index in range(10):
            wanted = Create.CreatableTopic(name=f"t{index}", num_partitions=1, replication_factor=1)
            (made,) = (await admin.ask(Api.CREATE_TOPICS, 5, Create(topics=[wanted]))).topics
            right = {ErrorCode.NONE}
            while made.error_code == ErrorCode.NOT_CONTROLLER:
                # There is none yet; or it has lost its office on the way, perhaps after it made the topic.
                right.add(ErrorCode.TOPIC_ALREADY_EXISTS)
                (made,) = (await admin.ask(Api.CREATE_TOPICS, 5, Create(topics=[wanted]))).topics
            assert made.error_code in right
            named = Metadata(topics=[Metadata.MetadataRequestTopic(name=f"t{index}")])
            (topic,) = (await client.ask(Api.METADATA, 4, named)).topics
            assert topic.name == f"t{index}" and topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def look_only_when_asked(node: Node) -> None:
    """A node that hears of no change by itself: what it is to know, it must look for."""
    assert node._driver is not None
    state: Any = node._driver.store
    read, confirm, asked = state._read, state.confirm, False

    async def read_if_asked() -> None:
        if asked:
            await read()

    async def confirm_() -> None:
        nonlocal asked
        asked = True
        await confirm()
        asked = False

    state._read, state.confirm = read_if_asked, confirm_


async def test_who_reads_nothing_is_given_up_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "STUCK", 0.5)
    monkeypatch.setattr(listener, "SWEEP", 0.1)
    async with node_at(tmp_path) as node, client_of(node) as other:
        await make(node)
        for _ in range(20):
            await write(other, b"x" * 900_000)
        slow = await WireClient.connect(node.gateway_endpoints[0])
        slow.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asked = fetch()
        asked.max_bytes = asked.topics[0].partitions[0].partition_max_bytes = 50 << 20
        await slow.send(Api.FETCH, 11, asked)
        (link,) = [each for each in _links(node) if each._unsent] or [None]
        while link is None:
            await trio.sleep(0.01)
            (link,) = [each for each in _links(node) if each._unsent] or [None]
        assert (await other.ask(Api.METADATA, 5, Metadata(topics=[]))).brokers
        await until(lambda: link not in _links(node), "the slow one is given up")
        await trio.aclose_forcefully(slow.stream)


class LooksAsOneWakes(trio.abc.Instrument):
    """The sweep comes upon a link in the moment in which its task is about to read what has come."""

    def __init__(self, link: listener.Link) -> None:
        self.link = link
        self.looks = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if "Links._serve" in task.name and self.link._reading is not None:
            self.looks += 1
            self.link.look(trio.current_time() + listener.SWEEP + 1)


async def test_what_comes_while_a_buffer_is_made_small_is_kept(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"x" * 40_000)
        (link,) = _links(node)
        assert link._machine.can_shrink
        sweep = LooksAsOneWakes(link)
        trio.lowlevel.add_instrument(sweep)
        try:
            assert (await client.ask(Api.METADATA, 5, Metadata(topics=[]))).brokers
        finally:
            trio.lowlevel.remove_instrument(sweep)
        assert sweep.looks


def _links(node: Node) -> list[Any]:
    """Without `gc.get_objects`: a tuple that another thread fills cannot change its size while that list refers to
    it, and `tuple` raises SystemError there.
    """
    found = [each for each in gc.get_referrers(listener.Link) if isinstance(each, listener.Link)]
    return [each for each in found if each in each._links.open]


async def test_idle_connections_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "IDLE", 0.3)
    monkeypatch.setattr(listener, "SWEEP", 0.1)
    async with node_at(tmp_path) as node, client_of(node) as client:
        assert await client.has_ended()


async def test_an_address_that_others_reach_is_refused(tmp_path: Path) -> None:
    settings = NodeSettings(
        node_id=1,
        data_dir=tmp_path / "n",
        store=f"sqlite://{tmp_path}/m.db",
        listeners=("tcp://127.0.0.1:0", "kafka://0.0.0.0:0"),
    )
    with pytest.raises(NodeError, match="reachable from other machines"):
        async with Node(settings):
            pass


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("?num_partitions=0", "num_partitions is a number"),
        ("?auto_create_topics=maybe", "true or false"),
        ("?nonsense=1", "unknown option 'nonsense'"),
        ("?contact=host:x", "is not HOST, HOST:PORT"),
        ("?contact=[h]:1", "'h' is not an IPv6 address"),
    ],
)
async def test_options_that_are_wrong_are_named(tmp_path: Path, options: str, why: str) -> None:
    with pytest.raises(NodeError, match=why):
        async with node_at(tmp_path, options):
            pass


@pytest.mark.parametrize(
    ("contact", "host", "port"),
    [
        ("example.org", "example.org", None),
        ("example.org:9650", "example.org", 9650),
        ("[::1]:9650", "::1", 9650),
    ],
)
async def test_clients_are_told_the_advertised_address(
    tmp_path: Path, contact: str, host: str, port: int | None
) -> None:
    async with node_at(tmp_path, f"?contact={contact}") as node:
        told = urlsplit(node.gateway_endpoints[0])
        assert told.hostname == host and (told.port == port if port else told.port)


async def test_a_mistake_over_one_client_ends_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encode = listener.encode

    def fails(told: Any, version: int) -> list[bytes]:
        if version == 1:
            raise RuntimeError("a mistake")
        return encode(told, version)

    monkeypatch.setattr(listener, "encode", fails)
    async with node_at(tmp_path) as node, client_of(node) as other:
        for api, kind in ((Api.METADATA, Metadata), (Api.API_VERSIONS, message("ApiVersionsRequest"))):
            async with client_of(node) as client:
                await client.send(api, 1, kind())
                assert await client.has_ended()
        assert (await other.ask(Api.METADATA, 5, Metadata(topics=[]))).brokers
    assert "a mistake" in caplog.text


async def test_offsets_are_found_by_times_and_told_with_the_records_own(tmp_path: Path) -> None:
    now = time.time_ns() // 1_000_000
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        first = await write(client, b"first")
        assert first.base_offset == 0
        for step in (10_000, 30_000, 20_000):
            told = await client.ask(Api.PRODUCE, 9, produce(batch(b"x", time_ms=now + step)))
            assert told.responses[0].partition_responses[0].error_code == 0

        async def listed(timestamp: int, version: int = 7) -> tuple[int, int, int]:
            part = ListOffsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topic = ListOffsets.ListOffsetsTopic(name="t", partitions=[part])
            told = await client.ask(Api.LIST_OFFSETS, version, ListOffsets(replica_id=-1, topics=[topic]))
            (found,) = told.topics[0].partitions
            return found.error_code, found.offset, found.timestamp

        assert await listed(now + 10_001) == (0, 2, now + 30_000)
        assert await listed(now + 30_001) == (0, -1, -1)
        assert await listed(-3) == (0, 2, now + 30_000), "the greatest"
        assert await listed(-1) == (0, 4, -1)
        assert await listed(-2) == await listed(-4, 8) == (0, 0, -1)
        assert await listed(-5, 9) == await listed(-6, 11) == (0, -1, -1)
        for time_ms, version in ((-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11)):
            assert await listed(time_ms, version) == (KafkaError.UNSUPPORTED_VERSION, -1, -1)

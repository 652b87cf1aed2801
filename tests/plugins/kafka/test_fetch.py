"""Fetch requests of a real node: topics by their ids, what a session forgets, and epochs; and who may send zstd."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from insync.plugins.kafka.core.sessions import Sessions, Slots
from insync.plugins.kafka.handlers.fetch import _questions
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api, KafkaError
from insync.replication.core.errors import ErrorCode
from insync.storage.batch import build_batch

from .test_listener import client_of, fetch, make, node_at, parts_of, produce, write
from .wire_client import WireClient

Fetch, Metadata = message("FetchRequest"), message("MetadataRequest")


async def id_of(client: WireClient, name: str = "t") -> bytes:
    asked = Metadata(topics=[Metadata.MetadataRequestTopic(name=name)])
    (topic,) = (await client.ask(Api.METADATA, 10, asked)).topics
    return bytes(topic.topic_id)


def by_id(topic_id: bytes, session: tuple[int, int], partitions: int, forgotten: int = 0) -> Any:
    """`forgotten`: so many of the first partitions."""
    asked = fetch(session=session, partitions=partitions)
    for topic in asked.topics:
        topic.topic_id = topic_id
    if forgotten:
        asked.forgotten_topics_data = [
            Fetch.ForgottenTopic(topic_id=topic_id, partitions=[*range(forgotten)])
        ]
    return asked


async def test_a_session_by_ids_forgets_by_ids(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node, partitions=3)
        for index in range(3):
            await write(client, b"x", partition=index)
        topic_id = await id_of(client)
        begun = await client.ask(Api.FETCH, 13, by_id(topic_id, (0, 0), 3))
        assert list(parts_of(begun)) == [0, 1, 2]
        left = await client.ask(Api.FETCH, 13, by_id(topic_id, (begun.session_id, 1), 0, forgotten=2))
        assert list(parts_of(left)) == [2], "what it has forgotten is not told again"


async def test_who_believes_in_another_epoch_is_told(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"x")
        asked = fetch()
        for epoch, error in ((-1, ErrorCode.NONE), (99, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            asked.topics[0].partitions[0].current_leader_epoch = epoch
            assert parts_of(await client.ask(Api.FETCH, 11, asked))[0].error_code == error


async def test_an_id_that_no_topic_has_is_told_of_at_once(tmp_path: Path) -> None:
    """However long the client would wait for records of the others."""
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"x")
        asked = fetch(1, wait_ms=60_000)
        asked.topics[0].topic_id = await id_of(client)
        part = Fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
        asked.topics.append(Fetch.FetchTopic(topic_id=bytes(15) + b"\1", partitions=[part]))
        answer = await client.ask(Api.FETCH, 13, asked)
        told = {each.topic_id: each.partitions[0].error_code for each in answer.responses}
        assert told == {
            asked.topics[0].topic_id: ErrorCode.NONE,
            asked.topics[1].topic_id: KafkaError.UNKNOWN_TOPIC_ID,
        }


def test_an_id_that_is_still_unknown_in_a_session_costs_a_look() -> None:
    """A session may have thousands, and each of its requests looks for all of them."""
    names: dict[bytes, str] = {}
    client: Any = SimpleNamespace(
        sessions=Sessions(Slots(Random(1))),
        directory=SimpleNamespace(name_of=lambda view, topic_id: names.get(topic_id)),
        view=None,
    )
    session, _, _ = _questions(client, by_id(bytes(16), (0, 0), 1), 13)
    assert session is not None
    (question,) = session.asked.values()
    _questions(client, by_id(bytes(16), (session.session_id, 1), 0), 13)
    assert next(iter(session.asked.values())) is question
    names[bytes(16)] = "t"
    _questions(client, by_id(bytes(16), (session.session_id, 2), 0), 13)
    assert [each.topic for each in session.asked.values()] == ["t"]


async def test_zstd_is_for_who_knows_it(tmp_path: Path) -> None:
    data = build_batch([None], [b"x"], timestamps_ms=time.time_ns() // 1_000_000, compression="zstd")
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await write(client, b"first")
        for version, error in ((6, KafkaError.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)):
            answer = await client.ask(Api.PRODUCE, version, produce(data))
            assert answer.responses[0].partition_responses[0].error_code == error

"""Refusals that clients of a real Kafka hear: which error each has."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.plugins.kafka.client import Client
from insync.plugins.kafka.handlers import topics
from insync.plugins.kafka.handlers.topics import seen
from insync.plugins.kafka.protocol import message
from insync.plugins.kafka.protocol.apis import Api, KafkaError
from insync.replication.core.errors import ErrorCode

from .test_listener import client_of, make, node_at

Grow, Create, Init = (
    message("CreatePartitionsRequest"),
    message("CreateTopicsRequest"),
    message("InitProducerIdRequest"),
)


async def test_a_topic_is_not_grown_to_the_size_that_it_has(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node, partitions=2)
        for count, error in ((2, ErrorCode.INVALID_PARTITIONS), (3, 0), (3, ErrorCode.INVALID_PARTITIONS)):
            wanted = [Grow.CreatePartitionsTopic(name="t", count=count, assignments=None)]
            told = await client.ask(Api.CREATE_PARTITIONS, 3, Grow(topics=wanted, timeout_ms=30_000))
            assert told.results[0].error_code == error
        assert told.results[0].error_message == "topic 't' has 3 partitions already: ask for more"


@pytest.mark.parametrize("may", ["consume", "admin"])
async def test_who_may_not_grow_a_topic_is_told_only_that_and_no_reading_of_the_store_is_asked_for(
    tmp_path: Path, may: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a topic that has as many partitions already: nobody may find that out so."""
    asked: list[object] = []

    async def noted(client: Client) -> None:
        asked.append(client)
        await seen(client)

    monkeypatch.setattr(topics, "seen", noted)
    async with node_at(tmp_path) as node:
        await make(node, partitions=2)
    async with node_at(tmp_path, allow=(f"client={may}",)) as node, client_of(node) as client:
        wanted = [Grow.CreatePartitionsTopic(name="t", count=2, assignments=None)]
        told = await client.ask(Api.CREATE_PARTITIONS, 3, Grow(topics=wanted, timeout_ms=30_000))
    refused = ErrorCode.INVALID_PARTITIONS if may == "admin" else KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert told.results[0].error_code == refused
    assert len(asked) == (may == "admin")


async def test_an_internal_topic_that_is_there_exists_already(tmp_path: Path) -> None:
    name = "__consumer_offsets"
    wanted = Create(topics=[Create.CreatableTopic(name=name, num_partitions=1, replication_factor=1)])
    async with node_at(tmp_path) as node, client_of(node) as client:
        told = await client.ask(Api.CREATE_TOPICS, 7, wanted)
        assert told.topics[0].error_code == ErrorCode.INVALID_TOPIC
        asked = message("FindCoordinatorRequest")(key="g", key_type=0)
        while (await client.ask(Api.FIND_COORDINATOR, 2, asked)).error_code:
            pass
        told = await client.ask(Api.CREATE_TOPICS, 7, wanted)
        assert told.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("may", "error"), [("consume", KafkaError.CLUSTER_AUTHORIZATION_FAILED), ("produce", 0)]
)
async def test_who_may_not_produce_gets_no_producer_id(tmp_path: Path, may: str, error: int) -> None:
    async with node_at(tmp_path, allow=(f"client={may}",)) as node, client_of(node) as client:
        told = await client.ask(Api.INIT_PRODUCER_ID, 4, Init(transactional_id=None))
        assert told.error_code == error and (told.producer_id < 0) == bool(error)


@pytest.mark.parametrize(
    ("may", "group", "transaction"),
    [
        ("consume", 0, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("produce", 0, 0),
        ("admin", 0, 0),
    ],
)
async def test_who_may_not_use_what_is_coordinated_is_told_no_coordinator(
    tmp_path: Path, may: str, group: int, transaction: int
) -> None:
    Find = message("FindCoordinatorRequest")
    async with node_at(tmp_path, allow=(f"client={may}",)) as node, client_of(node) as client:
        for kind, error in enumerate((group, transaction)):
            told = ErrorCode.COORDINATOR_NOT_AVAILABLE
            while told == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                found = await client.ask(Api.FIND_COORDINATOR, 4, Find(coordinator_keys=["k"], key_type=kind))
                told = found.coordinators[0].error_code
            assert told == error and (found.coordinators[0].node_id < 0) == bool(error)

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
from insync.storage.batch import build_batch

from .test_listener import client_of, make, node_at, produce

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


async def test_a_topic_is_deleted_by_its_name_or_by_its_id(tmp_path: Path) -> None:
    """Whoever gives both may mean another topic of that name; whoever names one twice is not understood."""
    Delete, Metadata = message("DeleteTopicsRequest"), message("MetadataRequest")
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        asked = Metadata(topics=[Metadata.MetadataRequestTopic(name="t")])
        topic_id = (await client.ask(Api.METADATA, 12, asked)).topics[0].topic_id
        by_name, by_id = (
            Delete.DeleteTopicState(name="t"),
            Delete.DeleteTopicState(name=None, topic_id=topic_id),
        )
        for wanted in (
            [Delete.DeleteTopicState(name="t", topic_id=topic_id)],
            [Delete.DeleteTopicState(name=None)],
            [by_name, by_name],
            [by_id, by_id],
            [by_name, by_id],
        ):
            told = await client.ask(Api.DELETE_TOPICS, 6, Delete(topics=wanted, timeout_ms=30_000))
            assert [each.error_code for each in told.responses] == [ErrorCode.INVALID_REQUEST]
        assert (await client.ask(Api.METADATA, 12, asked)).topics[0].error_code == 0
        told = await client.ask(Api.DELETE_TOPICS, 6, Delete(topics=[by_id], timeout_ms=30_000))
        assert (told.responses[0].name, told.responses[0].error_code) == ("t", 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("retention.ms", None), ("retention.ms", "1_000"), ("retention.ms", "\u0661"), ("cleanup.policy", ",")],
)
async def test_a_setting_without_a_value_is_no_setting(tmp_path: Path, name: str, value: str | None) -> None:
    config = [Create.CreatableTopicConfig(name=name, value=value)]
    wanted = Create.CreatableTopic(name="u", num_partitions=1, replication_factor=1, configs=config)
    async with node_at(tmp_path) as node, client_of(node) as client:
        told = await client.ask(Api.CREATE_TOPICS, 7, Create(topics=[wanted], timeout_ms=30_000))
        assert told.topics[0].error_code == ErrorCode.INVALID_CONFIG


async def test_a_policy_is_written_as_topics_have_it(tmp_path: Path) -> None:
    config = [Create.CreatableTopicConfig(name="cleanup.policy", value=" compact , delete,compact")]
    wanted = Create.CreatableTopic(name="u", num_partitions=1, replication_factor=1, configs=config)
    async with node_at(tmp_path) as node, client_of(node) as client:
        told = await client.ask(Api.CREATE_TOPICS, 7, Create(topics=[wanted], timeout_ms=30_000))
        (policy,) = [each.value for each in told.topics[0].configs if each.name == "cleanup.policy"]
        assert policy == "compact,delete"


async def test_a_transactional_batch_comes_with_the_transactional_id(tmp_path: Path) -> None:
    data = build_batch(
        [None], [b"x"], timestamps_ms=1, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True
    )
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        told = await client.ask(Api.PRODUCE, 9, produce(data))
        refused = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert told.responses[0].partition_responses[0].error_code == refused


async def test_partitions_that_cannot_be_written_to_are_not_added_to_a_transaction(tmp_path: Path) -> None:
    Add, Find = message("AddPartitionsToTxnRequest"), message("FindCoordinatorRequest")
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        while (await client.ask(Api.FIND_COORDINATOR, 2, Find(key="etl", key_type=1))).error_code:
            pass
        given = Init(transactional_id="etl", transaction_timeout_ms=60_000)
        while (told := await client.ask(Api.INIT_PRODUCER_ID, 4, given)).error_code:
            pass

        async def added(*places: tuple[str, int]) -> list[int]:
            request = Add(
                v3_and_below_transactional_id="etl",
                v3_and_below_producer_id=told.producer_id,
                v3_and_below_producer_epoch=told.producer_epoch,
                v3_and_below_topics=[
                    Add.AddPartitionsToTxnTopic(name=name, partitions=[index]) for name, index in places
                ],
            )
            answer = await client.ask(Api.ADD_PARTITIONS_TO_TXN, 3, request)
            return [
                each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]

        unknown, not_tried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, KafkaError.OPERATION_NOT_ATTEMPTED
        assert await added(("nowhere", 0), ("t", 0), ("t", 1)) == [unknown, not_tried, unknown]
        internal = KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert await added(("__consumer_offsets", 0), ("t", 0)) == [internal, not_tried]
        assert await added(("t", 0)) == [0]


@pytest.mark.parametrize("may", ["produce", "consume", "admin"])
async def test_whoever_may_use_topics_may_ask_where_a_partition_ends(tmp_path: Path, may: str) -> None:
    """As in Kafka, where a right to write implies the right to describe: no record is told."""
    List, Epochs = message("ListOffsetsRequest"), message("OffsetForLeaderEpochRequest")
    async with node_at(tmp_path) as node:
        await make(node)
    async with node_at(tmp_path, allow=(f"client={may}",)) as node, client_of(node) as client:
        part = List.ListOffsetsPartition(partition_index=0, timestamp=-1)
        asked = List(replica_id=-1, topics=[List.ListOffsetsTopic(name="t", partitions=[part])])
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        while error == ErrorCode.NOT_LEADER_OR_FOLLOWER:  # it has just begun
            (found,) = (await client.ask(Api.LIST_OFFSETS, 7, asked)).topics[0].partitions
            error = found.error_code
        assert (error, found.offset) == (0, 0)
        place = Epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        wanted = Epochs(replica_id=-1, topics=[Epochs.OffsetForLeaderTopic(topic="t", partitions=[place])])
        told = await client.ask(Api.OFFSET_FOR_LEADER_EPOCH, 4, wanted)
        assert told.topics[0].partitions[0].error_code == 0

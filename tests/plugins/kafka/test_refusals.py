"""Refusals that clients of a real Kafka hear: which error each has."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.plugins.kafka.client import Client
from insync.plugins.kafka.handlers import topics
from insync.plugins.kafka.handlers.topics import seen
from insync.plugins.kafka.protocol import Struct, message
from insync.plugins.kafka.protocol.apis import Api, KafkaError
from insync.replication.client import BootstrapError, Consumer
from insync.replication.core.errors import ErrorCode
from insync.replication.node.store._cluster_state import ClusterState
from insync.storage.batch import build_batch

from .test_listener import client_of, make, node_at, produce, write

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


@pytest.mark.parametrize(
    ("may", "error"), [("consume", KafkaError.TOPIC_AUTHORIZATION_FAILED), ("consume+admin", 0)]
)
async def test_the_records_of_internal_topics_are_for_admins(tmp_path: Path, may: str, error: int) -> None:
    """By name and by id, within a session and without one. Other topics of the same request are read."""
    Fetch, Metadata = message("FetchRequest"), message("MetadataRequest")
    name, few = "__consumer_offsets", {"offsets_topic_num_partitions": 1}
    async with node_at(tmp_path, **few) as node, client_of(node) as client:
        await make(node)
        await write(client, b"value")
        asked = message("FindCoordinatorRequest")(key="g", key_type=0)
        while (await client.ask(Api.FIND_COORDINATOR, 2, asked)).error_code:
            pass
    async with node_at(tmp_path, allow=(f"client={may}",), **few) as node, client_of(node) as client:
        told = await client.ask(Api.METADATA, 12, Metadata(topics=None))
        ids = {each.name: each.topic_id for each in told.topics}

        def wanted(by: str, session: tuple[int, int], *topics: str) -> Any:
            part = Fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            return Fetch(
                max_bytes=1 << 20,
                session_id=session[0],
                session_epoch=session[1],
                topics=[
                    Fetch.FetchTopic(partitions=[part], **{by: ids[each] if by == "topic_id" else each})
                    for each in topics
                ],
            )

        for version, by in ((12, "topic"), (13, "topic_id")):
            called = ids if by == "topic_id" else {each: each for each in ids}
            for epoch in (-1, 0):
                size = 0
                while not size:  # the node has just started
                    told = await client.ask(Api.FETCH, version, wanted(by, (0, epoch), "t", name))
                    found = {getattr(each, by): each.partitions[0] for each in told.responses}
                    _, size = found[called["t"]].records
                assert found[called["t"]].error_code == 0 and found[called[name]].error_code == error
            told = await client.ask(Api.FETCH, version, wanted(by, (told.session_id, 1)))
            errors = [part.error_code for topic in told.responses for part in topic.partitions]
            assert error == 0 or error in errors, "a session goes on with the same refusal"


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


async def test_a_number_beyond_64_bits_is_refused_by_a_node_that_has_to_pass_it_on(tmp_path: Path) -> None:
    """The other one is the controller: what nodes tell each other has no larger numbers."""
    config = [Create.CreatableTopicConfig(name="retention.ms", value="9" * 20)]
    wanted = Create.CreatableTopic(name="u", num_partitions=1, replication_factor=1, configs=config)
    async with node_at(tmp_path), node_at(tmp_path, number=2) as node, client_of(node) as client:
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


Elect, Alter = message("ElectLeadersRequest"), message("IncrementalAlterConfigsRequest")
Reassign, Pages = message("AlterPartitionReassignmentsRequest"), message("DescribeTopicPartitionsRequest")
Delete, Described = message("DeleteTopicsRequest"), message("DescribeConfigsRequest")
RATE = "leader.replication.throttled.rate"


def altered(kind: int, name: str, key: str, value: str, *, tried: bool = False) -> Struct:
    config = Alter.AlterableConfig(name=key, config_operation=0, value=value)
    resource = Alter.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    return Alter(resources=[resource], validate_only=tried)


def moved(*entries: tuple[str, list[int]], replicas: list[int]) -> Struct:
    return Reassign(
        timeout_ms=30_000,
        allow_replication_factor_change=False,
        topics=[
            Reassign.ReassignableTopic(
                name=name,
                partitions=[
                    Reassign.ReassignablePartition(partition_index=index, replicas=replicas)
                    for index in indexes
                ],
            )
            for name, indexes in entries
        ],
    )


async def test_who_has_no_rights_finds_out_of_no_topic_whether_it_exists(tmp_path: Path) -> None:
    """Every answer repeats what the request has."""
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        asked = message("MetadataRequest")(topics=[message("MetadataRequest").MetadataRequestTopic(name="t")])
        topic_id = (await client.ask(Api.METADATA, 12, asked)).topics[0].topic_id
    async with node_at(tmp_path, allow=("client=consume",)) as node, client_of(node) as client:
        refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
        wanted = [
            Delete.DeleteTopicState(name="t"),
            Delete.DeleteTopicState(name=None, topic_id=topic_id),
            Delete.DeleteTopicState(name="t", topic_id=topic_id),
        ]
        told = await client.ask(Api.DELETE_TOPICS, 6, Delete(topics=wanted, timeout_ms=30_000))
        assert [(each.name, each.topic_id, each.error_code) for each in told.responses] == [
            ("t", bytes(16), refused),
            (None, topic_id, refused),
            ("t", topic_id, refused),
        ]
        told = await client.ask(
            Api.ALTER_PARTITION_REASSIGNMENTS, 1, moved(("t", [0]), ("none", [0]), replicas=[1, 2])
        )
        assert (told.error_code, told.responses) == (KafkaError.CLUSTER_AUTHORIZATION_FAILED, [])
        for kind, name, error in ((2, "t", refused), (4, "1", KafkaError.CLUSTER_AUTHORIZATION_FAILED)):
            for tried in (False, True):
                told = await client.ask(
                    Api.INCREMENTAL_ALTER_CONFIGS, 1, altered(kind, name, "x", "y", tried=tried)
                )
                assert told.responses[0].error_code == error
        bad = Create.CreatableTopicConfig(name="no.such", value="1")
        topics_ = [Create.CreatableTopic(name="u", num_partitions=1, replication_factor=1, configs=[bad])]
        told = await client.ask(Api.CREATE_TOPICS, 7, Create(topics=topics_, timeout_ms=30_000))
        assert told.topics[0].error_code == refused
    async with node_at(tmp_path, allow=("client/nobody=admin",)) as node, client_of(node) as client:
        told = await client.ask(Api.DESCRIBE_TOPIC_PARTITIONS, 0, Pages(response_partition_limit=9))
        assert told.topics == []
        named = [Pages.TopicRequest(name=each) for each in ("t", "none")]
        told = await client.ask(
            Api.DESCRIBE_TOPIC_PARTITIONS, 0, Pages(topics=named, response_partition_limit=9)
        )
        assert [(each.name, each.error_code) for each in told.topics] == [("none", refused), ("t", refused)]


@pytest.mark.parametrize("may", ["consume", "admin"])
async def test_many_topics_are_looked_at_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may: str
) -> None:
    """A look at all others for each entry would be four hundred of each."""
    count = 400
    looks = Counter[str]()

    def looked_at(kind: type[Struct], name: str) -> None:
        """Count how often a field of such a struct is read by the handlers."""
        plain = getattr(kind, name)

        def read(struct: Struct) -> Any:
            looks[name] += sys._getframe(1).f_globals is vars(topics)
            return plain.__get__(struct)

        monkeypatch.setattr(kind, name, property(read, lambda struct, value: plain.__set__(struct, value)))

    many = [
        Create.CreatableTopic(name=f"a b{i}", num_partitions=1, replication_factor=1) for i in range(count)
    ]
    async with node_at(tmp_path) as node:
        await make(node)
    async with node_at(tmp_path, allow=(f"client={may}",)) as node, client_of(node) as client:
        looked_at(Create.CreatableTopic, "name")
        looked_at(Reassign.ReassignablePartition, "partition_index")
        if may != "admin":
            told = await client.ask(Api.CREATE_TOPICS, 7, Create(topics=many, timeout_ms=0))
            assert len(told.topics) == count
            assert looks["name"] <= 4 * count
        parts = [
            Reassign.ReassignablePartition(partition_index=0, replicas=[1, index]) for index in range(count)
        ]
        wanted = Reassign(
            timeout_ms=0,
            allow_replication_factor_change=False,
            topics=[Reassign.ReassignableTopic(name="t", partitions=parts)],
        )
        await client.ask(Api.ALTER_PARTITION_REASSIGNMENTS, 1, wanted)
        assert looks["partition_index"] <= 4 * count
        assert looks["name" if may != "admin" else "partition_index"] >= count


async def test_a_partition_that_is_named_twice_is_not_moved(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node, partitions=2)
        for entries in ([("t", [0, 0, 1])], [("t", [0]), ("t", [0, 1])]):
            told = await client.ask(Api.ALTER_PARTITION_REASSIGNMENTS, 1, moved(*entries, replicas=[1]))
            parts = [part for each in told.responses for part in each.partitions]
            twice = ErrorCode.INVALID_REQUEST
            assert [(each.partition_index, each.error_code) for each in parts] == [
                (0, twice),
                (0, twice),
                (1, 0),
            ]


async def test_a_topic_in_two_entries_has_leaders_elected_of_both(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node, partitions=2)
        wanted = [Elect.TopicPartitions(topic="t", partitions=[index]) for index in (1, 0)]
        told = await client.ask(
            Api.ELECT_LEADERS, 2, Elect(election_type=0, topic_partitions=wanted, timeout_ms=30_000)
        )
        (topic,) = told.replica_election_results
        assert [each.partition_id for each in topic.partition_result] == [1, 0]


@pytest.mark.parametrize("value", ["\u00b2", "9" * 5000, "1_0", "0", "9" * 20, "-1"])
async def test_a_rate_that_is_none_is_refused_and_the_connection_goes_on(tmp_path: Path, value: str) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        for tried in (False, True):
            told = await client.ask(
                Api.INCREMENTAL_ALTER_CONFIGS, 1, altered(4, "1", RATE, value, tried=tried)
            )
            assert told.responses[0].error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("name", ["001", "9" * 20, "9" * 5000, "2147483648", "\u00b2", "x"])
async def test_a_node_that_cannot_be_has_no_rate(tmp_path: Path, name: str) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        told = await client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, altered(4, name, RATE, "5"))
        assert told.responses[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("cleanup.policy", "foo", ErrorCode.INVALID_CONFIG),
        ("min.insync.replicas", "9", ErrorCode.INVALID_CONFIG),
        ("insync.unclean.leader.election", "perhaps", ErrorCode.INVALID_CONFIG),
        ("retention.ms", "7", 0),
        ("preallocate", " FALSE ", 0),
        ("preallocate", "true", ErrorCode.INVALID_CONFIG),
        ("compression.type", " producer", 0),
    ],
)
async def test_a_change_that_is_only_tried_is_answered_as_one_that_is_made(
    tmp_path: Path, name: str, value: str, error: int
) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        for tried in (True, False):
            told = await client.ask(
                Api.INCREMENTAL_ALTER_CONFIGS, 1, altered(2, "t", name, value, tried=tried)
            )
            assert told.responses[0].error_code == error, told.responses[0].error_message


async def test_the_store_is_read_once_for_all_topics_that_a_request_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        read: list[bool] = []
        confirm = ClusterState.confirm

        async def noted(state: ClusterState) -> None:
            read.append(True)
            await confirm(state)

        monkeypatch.setattr(ClusterState, "confirm", noted)
        names = [f"none-{index}" for index in range(20)]
        asked = Described(
            resources=[
                Described.DescribeConfigsResource(resource_type=2, resource_name=each) for each in names
            ]
        )
        told = await client.ask(Api.DESCRIBE_CONFIGS, 4, asked)
        assert {each.error_code for each in told.results} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert len(read) == 2, "once for what was changed elsewhere, and once for what is not known"
        read.clear()
        asked = Alter(
            resources=[
                Alter.AlterConfigsResource(resource_type=2, resource_name=each, configs=[]) for each in names
            ]
        )
        told = await client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, asked)
        assert {each.error_code for each in told.responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert len(read) == 1


@pytest.mark.parametrize("options", ["", "?sasl=PLAIN"])
async def test_a_client_of_the_nodes_own_protocol_is_told_that_the_port_is_kafka_s(
    tmp_path: Path, options: str
) -> None:
    """At once, however long it would wait for a node that is too busy to answer."""
    async with node_at(tmp_path, options) as node:
        address = node.gateway_endpoints[0].replace("kafka://", "tcp://")
        with trio.fail_after(10), pytest.raises(BootstrapError) as caught:
            async with Consumer([address], request_timeout_ms=60_000):
                pass
    assert "port for other clients, such as those of Kafka (kafka://)" in str(caught.value)
    assert "such as its tcp:// address" in str(caught.value) and address in str(caught.value)


async def test_a_server_that_closes_without_a_word_is_told_as_one() -> None:
    """A broker of Kafka does so, which takes the first bytes for the size of a frame; a busy node does so, too."""

    async def close(stream: trio.SocketStream) -> None:
        await stream.receive_some(4)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, close, [listener])
        port = listener.socket.getsockname()[1]
        with pytest.raises(BootstrapError, match=r"closed without a word.* broker of Kafka.* tcp:// address"):
            async with Consumer([f"127.0.0.1:{port}"], request_timeout_ms=200, connect_timeout_ms=200):
                pass
        nursery.cancel_scope.cancel()

"""Client quotas, and transactions as tools look at them: request by request at a real node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from insync.plugins.kafka.handlers import transaction_admin
from insync.plugins.kafka.protocol import Struct, message
from insync.plugins.kafka.protocol.apis import Api, KafkaError
from insync.replication import Admin, Node, Producer
from insync.replication.core.errors import ErrorCode
from insync.replication.node.store._cluster_state import ClusterState

from .test_listener import client_of, make, node_at, write
from .wire_client import WireClient

Describe, Alter = message("DescribeClientQuotasRequest"), message("AlterClientQuotasRequest")
Producers, Transactions = message("DescribeProducersRequest"), message("DescribeTransactionsRequest")
Listed = message("ListTransactionsRequest")
EXACT, DEFAULT, ANY = range(3)


@asynccontextmanager
async def asking(folder: Path, **more: Any) -> AsyncIterator[tuple[Node, WireClient]]:
    async with node_at(folder, **more) as node, client_of(node) as client:
        yield node, client


def entity(**named: str | None) -> list[Struct]:
    return [
        Alter.EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in named.items()
    ]


def op(key: str, value: float | None) -> Struct:
    return Alter.OpData(key=key, value=value or 0.0, remove=value is None)


async def alter(client: WireClient, *entries: tuple[list[Struct], list[Struct]], dry: bool = False) -> Any:
    wanted = [Alter.EntryData(entity=whose, ops=ops) for whose, ops in entries]
    request = Alter(entries=wanted, validate_only=dry)
    return (await client.ask(Api.ALTER_CLIENT_QUOTAS, 1, request)).entries


async def describe(client: WireClient, *parts: tuple[str, int, str | None], strict: bool = False) -> Any:
    components = [Describe.ComponentData(entity_type=k, match_type=how, match=name) for k, how, name in parts]
    return await client.ask(Api.DESCRIBE_CLIENT_QUOTAS, 1, Describe(components=components, strict=strict))


def told(answer: Any) -> dict[tuple[str, str | None], dict[str, float]]:
    assert answer.error_code == 0, answer.error_message
    return {
        (each.entity[0].entity_type, each.entity[0].entity_name): {v.key: v.value for v in each.values}
        for each in answer.entries
    }


async def test_limits_are_set_found_and_taken_away(tmp_path: Path) -> None:
    async with asking(tmp_path) as (node, client), Admin(node.endpoints) as admin:
        done = await alter(
            client,
            (entity(user="etl"), [op("producer_byte_rate", 1000.0), op("consumer_byte_rate", 2000.0)]),
            (entity(client_id=None), [op("producer_byte_rate", 5.0)]),
        )
        assert [each.error_code for each in done] == [0, 0]
        assert done[0].entity[0].entity_name == "etl", "each entity is repeated"
        native = {(each.entity_type, each.name): each.limits for each in await admin.describe_quotas()}
        assert native["user", "etl"] == {"producer_byte_rate": 1000, "consumer_byte_rate": 2000}
        etl, rest = ("user", "etl"), ("client-id", None)
        limits = {"consumer_byte_rate": 2000.0, "producer_byte_rate": 1000.0}
        assert told(await describe(client)) == {etl: limits, rest: {"producer_byte_rate": 5.0}}
        assert told(await describe(client, ("user", EXACT, "etl"), strict=True)) == {etl: limits}
        assert told(await describe(client, ("user", DEFAULT, None))) == {}
        assert told(await describe(client, ("client-id", DEFAULT, None))).keys() == {rest}
        assert told(await describe(client, ("client-id", ANY, None))).keys() == {rest}
        assert told(await describe(client, ("user", EXACT, "etl"), ("client-id", ANY, None))) == {}
        assert told(await describe(client, ("ip", ANY, None))) == {}
        assert told(await describe(client, strict=True)) == {}, "each has a type, and no type is asked for"
        (planned,) = await alter(client, (entity(user="etl"), [op("producer_byte_rate", None)]), dry=True)
        assert planned.error_code == 0 and etl in told(await describe(client))
        removed = [op("producer_byte_rate", None), op("consumer_byte_rate", None)]
        assert (await alter(client, (entity(user="etl"), removed)))[0].error_code == 0
        assert told(await describe(client)).keys() == {rest}
        # What reassignments may take is a setting of nodes, and no quota of clients.
        await admin.alter_quotas("node", "", {"leader_replication_throttled_rate": 9})
        assert told(await describe(client)).keys() == {rest}


@pytest.mark.parametrize(
    ("whose", "ops", "said"),
    [
        (entity(user="a", client_id="b"), [], "not to a pair"),
        ([], [], "not to a pair"),
        (entity(ip="10.0.0.1"), [], "use user or client-id"),
        (entity(user=""), [], "is empty"),
        (entity(user="a"), [op("request_percentage", 5.0)], "'request_percentage' is not supported"),
        (entity(user="a"), [op("producer_byte_rate", 0.5)], "whole number"),
        (entity(user="a"), [op("producer_byte_rate", float("nan"))], "whole number"),
        (entity(user="a"), [op("producer_byte_rate", float("inf"))], "whole number"),
    ],
)
async def test_limits_that_are_not_offered(tmp_path: Path, whose: Any, ops: Any, said: str) -> None:
    async with asking(tmp_path) as (_, client):
        (refused,) = await alter(client, (whose, ops))
        assert refused.error_code == ErrorCode.INVALID_REQUEST and said in refused.error_message
        assert told(await describe(client)) == {}


async def test_questions_for_limits_that_cannot_be(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, client):
        for whose in (entity(user="a"), entity(user=None)):
            await alter(client, (whose, [op("producer_byte_rate", 5.0)]))
        invalid = ErrorCode.INVALID_REQUEST
        for parts, error in (
            ([("group", ANY, None)], KafkaError.UNSUPPORTED_VERSION),
            ([("", ANY, None)], invalid),
            ([("user", 7, None)], invalid),
            ([("user", ANY, None), ("user", ANY, None)], invalid),
            ([("user", EXACT, None)], invalid),
            ([("user", DEFAULT, "a")], invalid),
            ([("user", ANY, "a")], invalid),
        ):
            refused = await describe(client, *parts)
            assert refused.error_code == error and refused.entries is None
        assert (await describe(client, ("user", EXACT, ""))).entries == [], "the default has no name"
        assert told(await describe(client)).keys() == {("user", "a"), ("user", None)}


async def test_a_limit_is_changed_once_in_a_request(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, client):
        twice = [op("producer_byte_rate", 5.0), op("producer_byte_rate", 6.0)]
        (entry,) = await alter(client, (entity(user="a"), twice))
        assert entry.error_code == ErrorCode.INVALID_REQUEST
        change = (entity(user="a"), twice[:1])
        (entry,) = await alter(client, change, change)
        assert entry.error_code == ErrorCode.INVALID_REQUEST
        assert (await describe(client)).entries == []
        (entry,) = await alter(client, (entity(user="a"), [op("request_percentage", None)]))
        assert entry.error_code == 0, "nobody has such a limit: it is gone"


async def test_limits_are_for_admins(tmp_path: Path) -> None:
    async with asking(tmp_path, allow=("client=consume",)) as (_, client):
        refused = await describe(client)
        assert refused.error_code == KafkaError.CLUSTER_AUTHORIZATION_FAILED and refused.entries is None
        (entry,) = await alter(client, (entity(user="a"), [op("producer_byte_rate", 5.0)]))
        assert entry.error_code == KafkaError.CLUSTER_AUTHORIZATION_FAILED


async def test_producers_and_transactions_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(tmp_path) as (node, client):
        await make(node, "t", 2)
        async with Producer(node.endpoints, transactional_id="etl") as producer:
            producer.begin()
            await (await producer.send("t", b"x", partition=1)).wait()
            request = Transactions(transactional_ids=["etl", "nobody"])
            loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            with trio.fail_after(30):
                # Each id has a coordinator of its own, which reads its partition first.
                while any(
                    each.error_code == loading
                    for each in (await client.ask(Api.DESCRIBE_TRANSACTIONS, 0, request)).transaction_states
                ):
                    await trio.lowlevel.checkpoint()
            etl, nobody = (await client.ask(Api.DESCRIBE_TRANSACTIONS, 0, request)).transaction_states
            assert (etl.error_code, etl.transaction_state) == (0, "Ongoing")
            assert [(each.topic, each.partitions) for each in etl.topics] == [("t", [1])]
            assert etl.transaction_start_time_ms > 0 and etl.transaction_timeout_ms > 0
            questions: list[object] = []
            ask = transaction_admin.ask

            def counted(client: Any, asked: object) -> Any:
                questions.append(asked)
                return ask(client, asked)

            monkeypatch.setattr(transaction_admin, "ask", counted)
            often = Transactions(transactional_ids=["etl"] * 1000 + ["nobody"])
            told = (await client.ask(Api.DESCRIBE_TRANSACTIONS, 0, often)).transaction_states
            assert [each.transactional_id for each in told] == often.transactional_ids
            assert len(questions) == 2, "a name is asked about once, however often it stands there"
            assert nobody.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            asked = [Producers.TopicRequest(name=name, partition_indexes=[0, 1]) for name in ("t", "u")]
            found = (await client.ask(Api.DESCRIBE_PRODUCERS, 0, Producers(topics=asked))).topics
            empty, active = found[0].partitions
            assert (empty.error_code, empty.active_producers) == (0, [])
            (one,) = active.active_producers
            assert (one.producer_id, one.producer_epoch) == (etl.producer_id, etl.producer_epoch)
            assert (one.current_txn_start_offset, one.last_sequence) == (0, 0)
            missing = [each.error_code for each in found[1].partitions]
            assert missing == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2

            async def listed(**filters: Any) -> Any:
                return await client.ask(Api.LIST_TRANSACTIONS, 1, Listed(**filters))

            (each,) = (await listed(state_filters=["Ongoing"])).transaction_states
            assert (each.transactional_id, each.transaction_state) == ("etl", "Ongoing")
            none = await listed(state_filters=["Sleeping"])
            assert none.unknown_state_filters == ["Sleeping"] and none.transaction_states == []
            assert (await listed(duration_filter=3_600_000)).transaction_states == []
            assert (await listed(producer_id_filters=[etl.producer_id + 1])).transaction_states == []
            await producer.commit()


async def test_producers_and_transactions_are_not_for_readers(tmp_path: Path) -> None:
    async with asking(tmp_path, allow=("client=consume",)) as (_, client):
        asked = [Producers.TopicRequest(name="t", partition_indexes=[0])]
        (topic,) = (await client.ask(Api.DESCRIBE_PRODUCERS, 0, Producers(topics=asked))).topics
        assert topic.partitions[0].error_code == KafkaError.TOPIC_AUTHORIZATION_FAILED
        refused = await client.ask(Api.LIST_TRANSACTIONS, 1, Listed())
        assert refused.error_code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        request = Transactions(transactional_ids=["etl"])
        (state,) = (await client.ask(Api.DESCRIBE_TRANSACTIONS, 0, request)).transaction_states
        assert state.error_code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_where_an_epoch_ends_is_told_to_consumers(tmp_path: Path) -> None:
    Ends = message("OffsetForLeaderEpochRequest")

    async def ask(client: WireClient, version: int, replica: int = -1) -> Any:
        parts = [
            Ends.OffsetForLeaderPartition(partition=index, leader_epoch=epoch, current_leader_epoch=current)
            for index, epoch, current in ((0, 0, 0), (0, 5, -1), (0, 0, 7), (9, 0, -1))
        ]
        topics = [Ends.OffsetForLeaderTopic(topic="t", partitions=parts)]
        request = Ends(replica_id=replica, topics=topics)
        (told,) = (await client.ask(Api.OFFSET_FOR_LEADER_EPOCH, version, request)).topics
        return [(each.error_code, each.leader_epoch, each.end_offset) for each in told.partitions]

    async with asking(tmp_path) as (node, client):
        await make(node)
        with trio.fail_after(60):
            while (empty := (await ask(client, 4))[0])[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                pass
        assert empty == (0, 0, 0), "nothing is written in this epoch yet"
        await write(client, b"x", b"y")
        for version in (2, 3, 4):
            assert await ask(client, version) == [
                (0, 0, 2),
                (0, -1, -1),
                (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1),
                (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
            ]
        refused = await ask(client, 3, replica=2)
        assert {error for error, _, _ in refused} == {KafkaError.TOPIC_AUTHORIZATION_FAILED}


async def test_what_was_changed_at_one_node_is_told_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other node reads the store when it is asked, and never by itself here."""
    confirm, read, confirming = ClusterState.confirm, ClusterState._read, []

    async def confirmed(self: ClusterState) -> None:
        confirming.append(self)
        try:
            await confirm(self)
        finally:
            confirming.remove(self)

    async def read_if_asked(self: ClusterState) -> None:
        if self._driver.settings.node_id == 2 and self not in confirming:
            await trio.sleep_forever()
        await read(self)

    Configs = message("DescribeConfigsRequest")
    topic = Configs.DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)
    async with node_at(tmp_path) as one, node_at(tmp_path, number=2) as other, client_of(other) as client:
        await make(one)
        monkeypatch.setattr(ClusterState, "confirm", confirmed)
        monkeypatch.setattr(ClusterState, "_read", read_if_asked)
        async with Admin(one.endpoints) as admin:
            await admin.alter_config("t", {"retention_ms": 123_456})
            (told,) = (await client.ask(Api.DESCRIBE_CONFIGS, 4, Configs(resources=[topic]))).results
            assert {each.name: each.value for each in told.configs}["retention.ms"] == "123456"
            await admin.alter_quotas("user", "etl", {"producer_byte_rate": 7})
            (entry,) = (await describe(client)).entries
            assert entry.values[0].value == 7

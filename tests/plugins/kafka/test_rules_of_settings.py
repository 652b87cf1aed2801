"""Which rules a change of settings must keep, and that what is only tried changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from insync.plugins.kafka.protocol import Struct, message
from insync.plugins.kafka.protocol.apis import Api, KafkaError
from insync.replication import Admin
from insync.replication.core.errors import ErrorCode
from insync.replication.metadata import StoreUnavailableError
from insync.replication.node.store._cluster_state import ClusterState

from .test_listener import client_of, make, node_at
from .wire_client import WireClient

Alter, Increments = message("AlterConfigsRequest"), message("IncrementalAlterConfigsRequest")
Described, Find = message("DescribeConfigsRequest"), message("FindCoordinatorRequest")
Create = message("CreateTopicsRequest")
TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
RATE = "leader.replication.throttled.rate"
Op = tuple[str, int, str | None]


def increments(kind: int, name: str, *ops: Op) -> Struct:
    configs = [Increments.AlterableConfig(name=key, config_operation=op, value=v) for key, op, v in ops]
    return Increments.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


def replacement(kind: int, name: str, **values: str | None) -> Struct:
    configs = [Alter.AlterableConfig(name=key.replace("_", "."), value=v) for key, v in values.items()]
    return Alter.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


async def incremented(client: WireClient, *resources: Struct, tried: bool = False) -> list[int]:
    asked = Increments(resources=list(resources), validate_only=tried)
    answer = await client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, asked)
    return [each.error_code for each in answer.responses]


async def replaced(client: WireClient, *resources: Struct, tried: bool = False) -> list[int]:
    answer = await client.ask(Api.ALTER_CONFIGS, 2, Alter(resources=list(resources), validate_only=tried))
    return [each.error_code for each in answer.responses]


async def described(client: WireClient, name: str) -> Any:
    resource = Described.DescribeConfigsResource(resource_type=TOPIC, resource_name=name)
    return (await client.ask(Api.DESCRIBE_CONFIGS, 4, Described(resources=[resource]))).results[0]


async def value_of(client: WireClient, name: str, setting: str) -> str:
    told = await described(client, name)
    (value,) = [each.value for each in told.configs if each.name == setting]
    return str(value)


async def test_what_is_only_tried_changes_nothing(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client, Admin(node.endpoints) as admin:
        await make(node)
        before = await value_of(client, "t", "retention.ms")
        resource = increments(TOPIC, "t", ("retention.ms", SET, "7"))
        assert await incremented(client, resource, tried=True) == [0]
        others = replacement(TOPIC, "t", retention_ms="7", min_insync_replicas="1")
        assert await replaced(client, others, tried=True) == [0]
        limit = increments(BROKER, "1", (RATE, SET, "9"))
        assert await incremented(client, limit, tried=True) == [0]
        # Who is told a setting is told what was changed before, so that limits are known by then, too.
        assert await value_of(client, "t", "retention.ms") == before
        assert await admin.describe_quotas() == []
        assert await incremented(client, resource) == [0] == await incremented(client, limit)
        assert await value_of(client, "t", "retention.ms") == "7"
        assert len(await admin.describe_quotas()) == 1


async def test_an_internal_topic_keeps_its_policy_also_when_a_change_is_only_tried(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        while (await client.ask(Api.FIND_COORDINATOR, 2, Find(key="g", key_type=0))).error_code:
            pass
        resource = increments(TOPIC, "__consumer_offsets", ("cleanup.policy", SET, "delete"))
        for tried in (True, False):
            assert await incremented(client, resource, tried=tried) == [ErrorCode.POLICY_VIOLATION]


async def test_a_request_that_contradicts_itself_is_not_understood(tmp_path: Path) -> None:
    keep: Op = ("retention.ms", SET, "7")
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        before, refused = await value_of(client, "t", "retention.ms"), ErrorCode.INVALID_REQUEST
        for resources in (
            [increments(TOPIC, "t", keep), increments(TOPIC, "t", keep)],
            [increments(LOGGER, "1", keep)],
            [increments(TOPIC, "", keep)],
            [increments(TOPIC, "t", keep, keep)],
            [increments(TOPIC, "t", keep, ("segment.bytes", SET, None))],
            [increments(TOPIC, "t", keep, ("cleanup.policy", APPEND, None))],
            [increments(BROKER, "1", (RATE, SET, None))],
        ):
            assert await incremented(client, *resources) == [refused] * len(resources)
        for resources in (
            [replacement(TOPIC, "t", retention_ms="7")] * 2,
            [replacement(TOPIC, "t", retention_ms=None)],
            [replacement(LOGGER, "1")],
        ):
            assert await replaced(client, *resources) == [refused] * len(resources)
        assert await value_of(client, "t", "retention.ms") == before
        # A type and a name make a resource: a topic may be called like a node.
        assert await incremented(client, increments(TOPIC, "t", keep), increments(BROKER, "1")) == [0, 0]


@pytest.mark.parametrize(
    ("kind", "why"), [(8, "loggers"), (16, "metrics of clients"), (32, "group_..."), (99, "type 99")]
)
async def test_what_has_no_settings_is_refused_with_the_reason(tmp_path: Path, kind: int, why: str) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        resource = Described.DescribeConfigsResource(resource_type=kind, resource_name="1")
        (told,) = (await client.ask(Api.DESCRIBE_CONFIGS, 4, Described(resources=[resource]))).results
        assert told.error_code == ErrorCode.INVALID_REQUEST and why in told.error_message
        changes = Increments(resources=[increments(kind, "1", ("x", SET, "1"))])
        (told,) = (await client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, changes)).responses
        assert told.error_code == ErrorCode.INVALID_REQUEST and why in told.error_message


async def test_what_is_taken_away_needs_no_value_and_need_not_be_there(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        before = await value_of(client, "t", "retention.ms")
        assert await incremented(client, increments(TOPIC, "t", ("retention.ms", SET, "7"))) == [0]
        taken: list[Op] = [("retention.ms", DELETE, None), ("of.a.newer.kafka", DELETE, None)]
        assert await incremented(client, increments(TOPIC, "t", *taken)) == [0]
        assert await value_of(client, "t", "retention.ms") == before
        unknown = increments(TOPIC, "t", ("of.a.newer.kafka", SET, "1"))
        assert await incremented(client, unknown) == [ErrorCode.INVALID_CONFIG]


async def has_durability(admin: Admin, topic: str, expected: str) -> None:
    """Its node reads soon of what another client has changed."""
    with trio.fail_after(60):
        while (await admin.describe_config(topic))["durability"] != expected:
            pass


async def test_flush_messages_stands_for_the_durability_of_a_topic(tmp_path: Path) -> None:
    never = str(2**63 - 1)
    async with node_at(tmp_path) as node, client_of(node) as client, Admin(node.endpoints) as admin:
        await make(node)
        assert await value_of(client, "t", "flush.messages") == never
        assert await incremented(client, increments(TOPIC, "t", ("flush.messages", SET, "1"))) == [0]
        assert await value_of(client, "t", "flush.messages") == "1"
        await has_durability(admin, "t", "flushed")
        for refused in ("2", "0", "flushed"):
            answer = await incremented(client, increments(TOPIC, "t", ("flush.messages", SET, refused)))
            assert answer == [ErrorCode.INVALID_CONFIG], refused
        assert await incremented(client, increments(TOPIC, "t", ("flush.messages", DELETE, None))) == [0]
        assert await value_of(client, "t", "flush.messages") == never
        await has_durability(admin, "t", "replicated")
        configs = [Create.CreatableTopicConfig(name="flush.messages", value="1")]
        topic = Create.CreatableTopic(name="u", num_partitions=1, replication_factor=1, configs=configs)
        await client.ask(Api.CREATE_TOPICS, 5, Create(topics=[topic], timeout_ms=10_000))
        await has_durability(admin, "u", "flushed")


async def test_members_of_a_list_come_and_go(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        for op, value, policy in (
            (APPEND, "compact", "delete,compact"),
            (APPEND, "compact,delete", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
        ):
            assert await incremented(client, increments(TOPIC, "t", ("cleanup.policy", op, value))) == [0]
            assert await value_of(client, "t", "cleanup.policy") == policy
        for strange in (("retention.ms", APPEND, "7"), ("cleanup.policy", 4, "delete")):
            assert await incremented(client, increments(TOPIC, "t", strange)) == [ErrorCode.INVALID_CONFIG]


@pytest.mark.parametrize("value", ["1.5", "1e3", "9" * 5000, "", "-"])
async def test_a_whole_number_is_written_as_one(tmp_path: Path, value: str) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        wrong = increments(TOPIC, "t", ("retention.ms", SET, value))
        assert await incremented(client, wrong) == [ErrorCode.INVALID_CONFIG]
        right = increments(TOPIC, "t", ("min.cleanable.dirty.ratio", SET, "2.5E-1"))
        assert await incremented(client, right) == [0]
        assert await value_of(client, "t", "min.cleanable.dirty.ratio") == "0.25"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("cleanup.policy", "compacted", "cleanup.policy='compacted': use "),
        ("cleanup.policy", "retention_ms", "cleanup.policy='retention_ms': use "),
        ("segment.bytes", "1", "segment.bytes=1: use "),
        ("max.compaction.lag.ms", "1", "min.compaction.lag.ms=7 is above max.compaction.lag.ms=1"),
        ("min.insync.replicas", "2", "min.insync.replicas=2 is more than the 1 replicas of topic 't': "),
        ("insync.unclean.leader.election", "x", "insync.unclean.leader.election='x': use "),
        ("insync.produce.batch.validation", "x", "insync.produce.batch.validation='x': use "),
    ],
)
async def test_a_refusal_names_settings_as_kafka_does(
    tmp_path: Path, name: str, value: str, why: str
) -> None:
    settings = {"min.compaction.lag.ms": "7", name: value}
    async with node_at(tmp_path) as node, client_of(node) as client:
        config = [Create.CreatableTopicConfig(name=key, value=text) for key, text in settings.items()]
        wanted = Create.CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=config)
        (told,) = (await client.ask(Api.CREATE_TOPICS, 7, Create(topics=[wanted], timeout_ms=9000))).topics
        assert told.error_code == ErrorCode.INVALID_CONFIG and why in told.error_message
        await make(node)
        ops: list[Op] = [(key, SET, text) for key, text in settings.items()]
        for tried in (True, False):
            asked = Increments(resources=[increments(TOPIC, "t", *ops)], validate_only=tried)
            (told,) = (await client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, asked)).responses
            assert told.error_code == ErrorCode.INVALID_CONFIG and why in told.error_message
            assert "ErrorCode" not in told.error_message


async def test_a_refused_limit_of_a_node_has_kafkas_name(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node, client_of(node) as client:
        asked = Increments(resources=[increments(BROKER, "1", (RATE, SET, "0"))])
        (told,) = (await client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, asked)).responses
        assert told.error_code == ErrorCode.INVALID_CONFIG
        assert told.error_message.startswith(f"{RATE}=0: use ")


async def test_a_topic_that_is_not_there_and_one_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it said that there is none while nobody can know."""
    async with node_at(tmp_path) as node, client_of(node) as client:

        async def errors(name: str) -> list[int]:
            change = increments(TOPIC, name, ("retention.ms", SET, "7"))
            other = replacement(TOPIC, name)
            told = await incremented(client, change), await replaced(client, other)
            return [*told[0], *told[1], (await described(client, name)).error_code]

        assert await errors("none") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
        assert await errors("no such") == [ErrorCode.INVALID_TOPIC] * 3

        async def unreadable(state: ClusterState) -> None:
            raise StoreUnavailableError("the store is elsewhere")

        monkeypatch.setattr(ClusterState, "confirm", unreadable)
        assert await errors("none") == [ErrorCode.LEADER_NOT_AVAILABLE] * 3


async def test_who_may_not_administer_is_told_only_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with the change; and the store is not read for it."""
    async with node_at(tmp_path, allow=("client=consume",)) as node, client_of(node) as client:
        read: list[bool] = []
        confirm = ClusterState.confirm

        async def noted(state: ClusterState) -> None:
            read.append(True)
            await confirm(state)

        monkeypatch.setattr(ClusterState, "confirm", noted)
        topic, cluster = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED
        asked = increments(TOPIC, "none"), increments(BROKER, "1", (RATE, SET, "none"))
        assert await incremented(client, *asked) == [topic, cluster]
        assert await replaced(client, replacement(TOPIC, "none"), replacement(BROKER, "1")) == [
            topic,
            cluster,
        ]
        assert not read

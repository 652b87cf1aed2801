"""What a request names thousands of times is told a few times: a short request has no answer of gigabytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from insync.plugins.kafka.handlers import again, configs, group_admin
from insync.plugins.kafka.protocol import Struct, message
from insync.plugins.kafka.protocol.apis import Api
from insync.replication.core.errors import ErrorCode
from insync.replication.core.messages import groups as gm

from .test_limits import Turns, turns  # noqa: F401 - a fixture
from .test_listener import client_of, make, node_at
from .test_rules_of_requests import client_with
from .wire_client import WireClient

Metadata, Configs = message("MetadataRequest"), message("DescribeConfigsRequest")
Commit, Fetch = message("OffsetCommitRequest"), message("OffsetFetchRequest")
Find = message("FindCoordinatorRequest")
Classic, Consumers = message("DescribeGroupsRequest"), message("ConsumerGroupDescribeRequest")
TOPIC, BROKER = 2, 4
OFTEN = 3000


@asynccontextmanager
async def at_a_node(folder: Path, *topics: str) -> AsyncIterator[WireClient]:
    """A node with topics of 40 partitions, and with a coordinator."""
    async with node_at(folder, "?auto_create_topics=false") as node, client_of(node) as client:
        for name in topics:
            await make(node, name, 40)
        with trio.fail_after(20):
            while (await client.ask(Api.FIND_COORDINATOR, 2, Find(key="g", key_type=0))).error_code:
                pass  # the answer itself waits for the topic that keeps offsets
        yield client


async def commit(client: WireClient, group: str, partitions: int, metadata: str = "") -> None:
    parts = [
        Commit.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=index, committed_metadata=metadata
        )
        for index in range(partitions)
    ]
    topics = [Commit.OffsetCommitRequestTopic(name="t", partitions=parts)]
    with trio.fail_after(20):
        codes: set[int] = {ErrorCode.NOT_COORDINATOR}
        while codes - {0}:  # its partition of the offsets topic may still be opened
            answer = await client.ask(Api.OFFSET_COMMIT, 8, Commit(group_id=group, topics=topics))
            codes = {part.error_code for part in answer.topics[0].partitions}
            assert codes <= {0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


@pytest.mark.parametrize("version", [1, 8, 12])
async def test_metadata_of_a_topic(tmp_path: Path, version: int) -> None:
    async with at_a_node(tmp_path, "t", "u") as client:
        both = (await client.ask(Api.METADATA, 12, Metadata(topics=[named("t"), named("u")]))).topics
        topics = [named("t"), named("u"), named("missing")]
        if version == 12:
            topics += [with_id(each.topic_id) for each in both]
        asked = Metadata(
            topics=topics * OFTEN,
            include_topic_authorized_operations=True,
            allow_auto_topic_creation=False,
        )
        told = [
            (each.name, len(each.partitions))
            for each in (await client.ask(Api.METADATA, version, asked)).topics
        ]
        assert told == [("t", 40), ("u", 40), ("missing", 0), *[("t", 40), ("u", 40)] * (version == 12)]


def named(name: str) -> object:
    return Metadata.MetadataRequestTopic(name=name)


def with_id(topic_id: bytes) -> object:
    return Metadata.MetadataRequestTopic(name=None, topic_id=topic_id)


async def test_offsets_of_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with at_a_node(tmp_path, "t") as client:
        for group in ("g", "h"):
            await commit(client, group, 40)
        wanted = [Fetch.OffsetFetchRequestGroup(group_id=each, topics=None) for each in ("g", "h")]
        g, h = (await client.ask(Api.OFFSET_FETCH, 9, Fetch(groups=wanted))).groups
        assert [(each.group_id, len(each.topics[0].partitions)) for each in (g, h)] == [("g", 40), ("h", 40)]
        monkeypatch.setattr(again, "MOST_AGAIN", 100)
        groups = (await client.ask(Api.OFFSET_FETCH, 9, Fetch(groups=wanted * OFTEN))).groups
        assert len(groups) == 2 * OFTEN
        assert groups[:5] == [g, h, g, h, g]
        refused = {(each.group_id, each.error_code, len(each.topics)) for each in groups[5:]}
        assert refused == {("g", ErrorCode.INVALID_REQUEST, 0), ("h", ErrorCode.INVALID_REQUEST, 0)}


@pytest.mark.parametrize("version", [1, 7, 9])
async def test_what_clients_said_with_an_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """A partition's number has four bytes, and what is stored with its offset thousands."""
    async with at_a_node(tmp_path, "t") as client:
        await commit(client, "g", 3, "m" * 640)
        await commit(client, "plain", 3)
        monkeypatch.setattr(again, "MOST_AGAIN", 100)

        async def told(group: str, indexes: list[int]) -> list[tuple[int, int, int, int]]:
            """Number, offset, length of the text and error of each."""
            if version < 8:
                topic = Fetch.OffsetFetchRequestTopic(name="t", partition_indexes=indexes)
                answer = await client.ask(Api.OFFSET_FETCH, version, Fetch(group_id=group, topics=[topic]))
            else:
                topics = [Fetch.OffsetFetchRequestTopics(name="t", partition_indexes=indexes)]
                wanted = Fetch.OffsetFetchRequestGroup(group_id=group, topics=topics)
                answer = (await client.ask(Api.OFFSET_FETCH, version, Fetch(groups=[wanted]))).groups[0]
            return [
                (each.partition_index, each.committed_offset, len(each.metadata), each.error_code)
                for each in answer.topics[0].partitions
            ]

        found = await told("g", [1] * OFTEN + [2, 1, 2])
        assert found[:11] == [(1, 1, 640, 0)] * 11
        refused = (1, -1, 0, ErrorCode.INVALID_REQUEST)
        assert found[11:OFTEN] == [refused] * (OFTEN - 11)
        assert found[OFTEN:] == [(2, 2, 640, 0), refused, (2, -1, 0, ErrorCode.INVALID_REQUEST)]
        # Nothing is refused that costs no more than to ask for it.
        assert await told("plain", [1] * OFTEN) == [(1, 1, 0, 0)] * OFTEN


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", "consumers"])
async def test_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    async with at_a_node(tmp_path, "t") as client:
        await commit(client, "g", 1)

        async def described(*names: str) -> list[Struct]:
            if kind == "classic":
                answer = await client.ask(Api.DESCRIBE_GROUPS, 6, Classic(groups=list(names)))
            else:
                answer = await client.ask(Api.CONSUMER_GROUP_DESCRIBE, 0, Consumers(group_ids=list(names)))
            found: list[Struct] = answer.groups
            return found

        g, none = await described("g", "none")
        assert [each.group_id for each in (g, none)] == ["g", "none"]
        monkeypatch.setattr(again, "MOST_AGAIN", 3)
        found = await described(*["none", "g"] * OFTEN)
        assert found[:5] == [none, g, none, g, none]
        assert {(each.group_id, each.error_code, each.error_message) for each in found[5:]} == {
            (each, ErrorCode.INVALID_REQUEST, again.TOO_OFTEN) for each in ("g", "none")
        }


@pytest.mark.parametrize("kind", ["classic", "consumers"])
async def test_large_groups(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Groups count for what their members have: bytes of their own, or partitions."""
    owned = gm.TopicPartitionList(topic_id="0" * 32, partitions=list(range(30)))
    members = [
        gm.DescribedMember(
            member_id=str(index),
            subscription=b"s" * 640 if kind == "classic" else b"",
            assignment=b"a" * 640 if kind == "classic" else b"",
            topics=[] if kind == "classic" else ["t"] * 20,
            owned=[] if kind == "classic" else [owned],
            target=[] if kind == "classic" else [owned],
        )
        for index in range(10)
    ]
    group = gm.DescribedGroup(group="g", type="classic" if kind == "classic" else "consumer", members=members)
    client = client_with(*[gm.DescribeGroupsResponse(groups=[group])] * 2)
    client.directory = SimpleNamespace(name_of=lambda view, topic_id: "t")
    parts = 10 * (2 + 20) if kind == "classic" else 10 * (2 + 20 + 31 + 31)
    for limit, again_told in ((4 * parts, 4), (4 * parts + 1, 5)):
        monkeypatch.setattr(again, "MOST_AGAIN", limit)
        if kind == "classic":
            answer = await group_admin.describe_groups(client, Classic(groups=["g"] * OFTEN), 5)
        else:
            asked = Consumers(group_ids=["g"] * OFTEN)
            answer = await group_admin.consumer_group_describe(client, asked, 0)
        assert [len(each.members) for each in answer.groups[: 2 + again_told]] == [10] * (1 + again_told) + [
            0
        ]
        assert {len(each.members) for each in answer.groups[1 + again_told :]} == {0}


async def test_settings_of_what_is_named_twice(tmp_path: Path) -> None:
    async with at_a_node(tmp_path, "t") as client:
        resource = Configs.DescribeConfigsResource(resource_type=TOPIC, resource_name="t")
        first, second = (await client.ask(Api.DESCRIBE_CONFIGS, 4, Configs(resources=[resource] * 2))).results
        assert first == second and first.configs
        answer = await client.ask(Api.DESCRIBE_CONFIGS, 4, Configs(resources=[resource] * OFTEN))
        described = sum(1 for each in answer.results if each.configs)
        assert 1 <= described - again.MOST_AGAIN / len(first.configs) < 2


@pytest.mark.slow
async def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: Turns) -> None:  # noqa: F811
    """And the settings of many topics are described in several turns of the loop."""
    monkeypatch.setattr(again, "MOST_AGAIN", 0)
    monkeypatch.setattr(configs, "_DESCRIBED_IN_A_TURN", 7)
    monkeypatch.setattr(configs, "encoded", turns.noted("encoded", configs.encoded))
    topics = [*[f"t{index}" for index in range(20)], "1"]  # the last has the name of a node
    async with at_a_node(tmp_path, *topics) as client:
        names = [(TOPIC, each) for each in topics]
        names[5:5] = [(BROKER, "1"), (TOPIC, "none"), (TOPIC, "t0"), (BROKER, "1")]
        names += [(TOPIC, "t19")] * OFTEN
        resources = [
            Configs.DescribeConfigsResource(resource_type=kind, resource_name=name) for kind, name in names
        ]
        results = (await client.ask(Api.DESCRIBE_CONFIGS, 4, Configs(resources=resources))).results
    assert [(each.resource_type, each.resource_name) for each in results] == names
    repeated = {index for index, each in enumerate(names) if each in names[:index]}
    for index, each in enumerate(results):
        if index in repeated:
            assert (each.error_code, each.configs) == (ErrorCode.INVALID_REQUEST, [])
            assert each.error_message == again.TOO_OFTEN
        elif each.resource_name == "none":
            assert (each.error_code, each.configs) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
        else:
            assert each.error_code == 0 and len(each.configs) > (3 if each.resource_type == BROKER else 15)
    made = turns.of["encoded"]
    assert len(made) == -(-len(names) // 7) and len(set(made)) == len(made)


async def test_settings_of_nothing(tmp_path: Path) -> None:
    async with at_a_node(tmp_path) as client:
        assert (await client.ask(Api.DESCRIBE_CONFIGS, 4, Configs(resources=[]))).results == []
        with trio.fail_after(10):
            assert (await client.ask(Api.METADATA, 12, Metadata(topics=[]))).topics == []

"""Answers about many partitions come in pages, and clients put them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from insync.replication import Admin, Node, wire
from insync.replication.client.admin import _pages
from insync.replication.client.admin._pages import whole_metadata
from insync.replication.core import messages as m
from insync.replication.core.control.records import PartitionRecord, TopicConfig, TopicRecord, Versioned
from insync.replication.core.control.view import ClusterView
from insync.replication.core.types import PartitionId
from insync.replication.node.requests._handlers import describe_view

from ..test_cluster import produce, settings

FRAME = 1 << 20


def view(sizes: dict[str, int], revision: int = 1, topic_id: str = "id") -> ClusterView:
    topics = {
        name: TopicRecord(
            name=name, topic_id=topic_id, partitions=count, replication_factor=3, config=TopicConfig()
        )
        for name, count in sizes.items()
    }
    partitions = {
        PartitionId(name, index): Versioned(
            PartitionRecord(
                topic=name, partition=index, topic_id=topic_id, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1
            ),
            1,
        )
        for name, count in sizes.items()
        for index in range(count)
    }
    return ClusterView(revision=revision, topics=topics, partitions=partitions)


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 9), max_size=5),
    st.one_of(st.none(), st.lists(st.sampled_from("abcdef"), max_size=6)),
    st.integers(1, 7),
)
async def test_pages_add_up_to_the_whole(sizes: dict[str, int], asked: list[str] | None, limit: int) -> None:
    shown = view(sizes)
    request = m.MetadataRequest(topics=asked)
    lengths: list[int] = []

    async def ask(message: m.MetadataRequest) -> m.MetadataResponse:
        answer = describe_view(shown, structs.replace(message, partition_limit=limit))
        lengths.append(sum(len(topic.partitions) for topic in answer.topics))
        return answer

    assert await whole_metadata(ask, request) == describe_view(shown, request)
    assert max(lengths) <= limit


async def test_a_node_that_is_behind_and_a_topic_that_is_made_again_do_not_mix_their_parts() -> None:
    old, new = view({"t": 9}, 1, "old"), view({"t": 5}, 3, "new")
    answers = iter([old, new, view({"t": 7}, 2, "older"), new, new, new, new])

    async def ask(message: m.MetadataRequest) -> m.MetadataResponse:
        return describe_view(next(answers), structs.replace(message, partition_limit=2))

    found = await whole_metadata(ask, m.MetadataRequest())
    assert [topic.topic_id for topic in found.topics] == ["new"]
    assert [each.partition for each in found.topics[0].partitions] == list(range(5))


def test_no_page_about_ten_thousand_partitions_exceeds_a_frame() -> None:
    shown = view({"t" * 249: 10_000})
    request = m.MetadataRequest(partition_limit=_pages.PAGE)
    assert len(wire.encode(describe_view(shown, request))) < FRAME
    assert len(wire.encode(describe_view(shown, m.MetadataRequest()))) < FRAME


async def test_a_client_follows_the_pages_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pages, "PAGE", 3)
    asked: list[Any] = []
    original = wire.decode_response

    def decode_response(kind: Any, body: Any) -> Any:
        answer = original(kind, body)
        asked.append(answer)
        return answer

    monkeypatch.setattr(wire, "decode_response", decode_response)
    async with Node(settings(tmp_path, 1)) as node, Admin(node.endpoints) as admin:
        await admin.create_topic("t", 10, 1)
        await admin.create_topic("u", 2, 1)
        await produce(node.endpoints, "t", [b"%d" % number for number in range(100)])
        asked.clear()
        topics = await admin.describe_topics()
        assert {topic.name: len(topic.partitions) for topic in topics} == {"t": 10, "u": 2}
        (report,) = await admin.describe_replicas()
        assert len(report.replicas) == 12
        await admin.delete_topic("t")
    sizes = [len(each.partitions) for each in asked if isinstance(each, m.DescribePartitionsResponse)]
    assert sizes == [3, 3, 3, 3]

"""Descriptions that come in pages: put together of one topic, and asked for again when another has its name."""

from __future__ import annotations

import pytest

from insync.replication.client.admin import _pages
from insync.replication.client.admin._pages import whole_metadata
from insync.replication.core import messages as m


def page(topic_id: str, partition: int, *, goes_on: bool, revision: int = 1) -> m.MetadataResponse:
    """One partition of topic t."""
    info = m.PartitionInfo(
        partition=partition, leader=1, leader_epoch=0, partition_epoch=0, replicas=[1], isr=[1], elr=[]
    )
    topic = m.TopicInfo(name="t", error=0, topic_id=topic_id, partitions=[info])
    following = m.PartitionName(topic="t", partition=partition + 1) if goes_on else None
    return m.MetadataResponse(
        cluster_id="c", revision=revision, controller_id=1, nodes=[], topics=[topic], next_cursor=following
    )


async def whole(*pages: m.MetadataResponse) -> tuple[str, list[int]]:
    """What is made of these answers, one after the other: the id of the topic, and its partitions."""
    left = list(pages)

    async def ask(request: m.MetadataRequest) -> m.MetadataResponse:
        return left.pop(0)

    answer = await whole_metadata(ask, m.MetadataRequest(topics=["t"]))
    (topic,) = answer.topics
    assert not left and answer.next_cursor is None
    return topic.topic_id, [each.partition for each in topic.partitions]


async def test_parts_of_one_topic_are_put_together() -> None:
    assert await whole(page("a", 0, goes_on=True), page("a", 1, goes_on=False)) == ("a", [0, 1])


async def test_parts_of_two_topics_of_one_name_are_never_mixed() -> None:
    changed = page("a", 0, goes_on=True), page("b", 1, goes_on=False)
    anew = page("b", 0, goes_on=True), page("b", 1, goes_on=False)
    assert await whole(*changed, *anew) == ("b", [0, 1])


async def test_a_page_of_a_node_that_is_behind_is_asked_for_again() -> None:
    late = page("a", 1, goes_on=True, revision=4)
    pages = page("a", 0, goes_on=True, revision=5), late, page("a", 1, goes_on=False, revision=5)
    assert await whole(*pages) == ("a", [0, 1])


async def test_pages_of_nodes_that_are_behind_are_asked_for_ten_times_and_then_all_anew() -> None:
    late = page("a", 1, goes_on=True, revision=4)
    first, second = page("a", 0, goes_on=True, revision=5), page("a", 1, goes_on=False, revision=5)
    assert await whole(first, *[late] * 10, second) == ("a", [0, 1])
    assert await whole(first, *[late] * 11, first, second) == ("a", [0, 1])


async def test_a_node_that_names_a_next_page_for_ever_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_pages, "_MOST_PAGES", 20)
    asked = 0

    async def ask(request: m.MetadataRequest) -> m.MetadataResponse:
        nonlocal asked
        asked += 1
        return page("a", 0, goes_on=True)

    answer = await whole_metadata(ask, m.MetadataRequest(topics=["t"]))
    assert answer.next_cursor is None and asked == _pages._RESTARTS * _pages._MOST_PAGES

    async def described(request: m.DescribePartitionsRequest) -> m.DescribePartitionsResponse:
        following = m.PartitionName(topic="t", partition=0)
        return m.DescribePartitionsResponse(node_id=1, incarnation=1, partitions=[], next_cursor=following)

    assert not (await _pages.whole_description(described, m.DescribePartitionsRequest())).partitions

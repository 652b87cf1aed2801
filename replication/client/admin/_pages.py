"""Answers that come in pages, so that none exceeds a frame: followed by their cursors, and put together again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import structs

from ...core import messages as m

PAGE = m.MOST_DESCRIBED
"""Partitions in one answer."""
_RESTARTS = 10
"""How often a listing begins again because what it lists was changed meanwhile."""
_MOST_PAGES = 1_000
"""Two million partitions: a node that names a next page for ever is not followed."""

Ask = Callable[[Any], Awaitable[Any]]


async def whole_metadata(ask: Ask, request: m.MetadataRequest) -> m.MetadataResponse:
    """All that a request asks for, as of the revision of the first page or later.

    Raises what `ask` raises.
    """
    request = structs.replace(request, partition_limit=PAGE)
    for left in reversed(range(_RESTARTS)):
        first: m.MetadataResponse = await ask(request)
        topics = {topic.name: topic for topic in first.topics}
        cursor, behind, pages = first.next_cursor, 0, 1
        while cursor is not None and pages < _MOST_PAGES:
            pages += 1
            page: m.MetadataResponse = await ask(structs.replace(request, cursor=cursor))
            if page.revision < first.revision:
                # Another node has answered, which has not read as far.
                behind += 1
                if behind > _RESTARTS:
                    break
                continue
            if not all(_goes_on(topics.get(topic.name), topic) for topic in page.topics):
                break
            for topic in page.topics:
                known = topics.get(topic.name)
                parts = [*(known.partitions if known is not None else ()), *topic.partitions]
                topics[topic.name] = structs.replace(topic, partitions=parts)
            cursor = page.next_cursor
        if cursor is None or not left:
            return structs.replace(first, topics=list(topics.values()), next_cursor=None)
    raise AssertionError("the last round returns")


def _goes_on(known: m.TopicInfo | None, topic: m.TopicInfo) -> bool:
    """Whether a part belongs to the same topic as the earlier parts."""
    return known is None or known.topic_id == topic.topic_id


async def whole_description(ask: Ask, request: m.DescribePartitionsRequest) -> m.DescribePartitionsResponse:
    """All replicas that a node reports; each in its state at the request of its page.

    Raises what `ask` raises.
    """
    request = structs.replace(request, partition_limit=PAGE)
    answer: m.DescribePartitionsResponse = await ask(request)
    partitions, pages = list(answer.partitions), 1
    while answer.next_cursor is not None and pages < _MOST_PAGES:
        pages += 1
        answer = await ask(structs.replace(request, cursor=answer.next_cursor))
        partitions += answer.partitions
    return structs.replace(answer, partitions=partitions)

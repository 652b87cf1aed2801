"""Requests of administrators while no controller is elected: they wait for one, as at Kafka's brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from insync.plugins.kafka.handlers import topics
from insync.plugins.kafka.protocol import Struct, message
from insync.replication.core import messages as m
from insync.replication.core.errors import ErrorCode

NONE_NOW = m.TopicChanged(error=ErrorCode.NOT_CONTROLLER, message="this node is not the controller: retry")
Create, Delete, Elect = (
    message("CreateTopicsRequest"),
    message("DeleteTopicsRequest"),
    message("ElectLeadersRequest"),
)


def client_of(answers: Callable[[], Any]) -> Any:
    """One whose node gives these answers."""

    async def ask(_: object, request: object) -> Any:
        return SimpleNamespace(message=answers())

    async def confirm_view() -> None:
        pass

    view = SimpleNamespace(topics={"t": SimpleNamespace(topic_id="0" * 32)}, partitions={})
    service = SimpleNamespace(ask=ask, confirm_view=confirm_view)
    return SimpleNamespace(service=service, view=view, may=lambda operation: True)


@pytest.mark.parametrize(
    ("handler", "request_", "granted", "told"),
    [
        (
            topics.create_topics,
            Create(
                topics=[Create.CreatableTopic(name="new", num_partitions=1, replication_factor=1)],
                validate_only=True,
            ),
            m.CreateTopicResponse(error=0),
            lambda answer: answer.topics[0].error_code,
        ),
        (
            topics.delete_topics,
            Delete(topic_names=["t"]),
            m.TopicChanged(error=0),
            lambda answer: answer.responses[0].error_code,
        ),
        (
            topics.elect_leaders,
            Elect(topic_partitions=None),
            m.ElectLeadersResponse(error=0),
            lambda answer: answer.error_code,
        ),
    ],
)
async def test_an_administrator_is_not_told_that_there_is_no_controller_yet(
    autojump_clock: MockClock,
    handler: Callable[[Any, Struct, int], Awaitable[Struct]],
    request_: Struct,
    granted: object,
    told: Callable[[Struct], int],
) -> None:
    answers = [NONE_NOW, NONE_NOW, granted]
    assert told(await handler(client_of(lambda: answers.pop(0)), request_, 2)) == 0
    assert not answers
    assert 0 < trio.current_time() < 1000


async def test_who_waits_too_long_for_a_controller_is_told(autojump_clock: MockClock) -> None:
    start = trio.current_time()
    answer = await topics.delete_topics(client_of(lambda: NONE_NOW), Delete(topic_names=["t"]), 2)
    assert answer.responses[0].error_code == ErrorCode.NOT_CONTROLLER
    assert trio.current_time() - start == pytest.approx(topics.CONTROLLER_PATIENCE)

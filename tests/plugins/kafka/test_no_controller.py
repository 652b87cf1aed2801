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
            Delete(topic_names=["t"], timeout_ms=30_000),
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


@pytest.mark.parametrize(
    ("timeout_ms", "seconds"), [(60_000, topics.CONTROLLER_PATIENCE), (500, 0.5), (0, 0), (-1, 0)]
)
async def test_who_waits_too_long_for_a_controller_is_told(
    autojump_clock: MockClock, timeout_ms: int, seconds: float
) -> None:
    """All that a request asks for waits together."""
    start = trio.current_time()
    request = Delete(topic_names=["t", "u", "v"], timeout_ms=timeout_ms)
    client = client_of(lambda: NONE_NOW)
    client.view.topics |= dict.fromkeys("uv", client.view.topics["t"])
    answer = await topics.delete_topics(client, request, 2)
    assert [each.error_code for each in answer.responses] == [ErrorCode.NOT_CONTROLLER] * 3
    assert trio.current_time() - start == pytest.approx(seconds)


async def test_what_a_controller_has_begun_is_waited_for(autojump_clock: MockClock) -> None:
    """It takes effect, so its outcome is told although it comes late."""
    client = client_of(lambda: NONE_NOW)
    none = client.service.ask

    async def ask(caller: object, request: object) -> Any:
        if trio.current_time() < begun + topics.CONTROLLER_PATIENCE - 1:
            return await none(caller, request)
        await trio.sleep(5)
        return SimpleNamespace(message=m.TopicChanged(error=0))

    begun = trio.current_time()
    client.service.ask = ask
    answer = await topics.delete_topics(client, Delete(topic_names=["t"], timeout_ms=60_000), 2)
    assert answer.responses[0].error_code == 0

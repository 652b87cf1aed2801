"""Nodes of a later minor version answer errors that this client has no name for; it tells them as what they are."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from insync.replication import wire
from insync.replication.client import Consumer, UnknownServerError
from insync.replication.core import messages as m
from insync.replication.core.messages import groups as gm

from ..consumer.test_consumer import fill
from ..consumer.test_groups import PROTOCOLS
from ..fake_cluster import FakeNode
from ..fake_coordinator import group_cluster

LATER = 30_000
"""No error that this version knows."""
_JOINS = (m.Kind.CONSUMER_GROUP_HEARTBEAT, m.Kind.JOIN_GROUP)


@PROTOCOLS
async def test_a_consumer_whose_coordinator_answers_an_unknown_error_is_told_so_and_may_subscribe_again(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with group_cluster(t=1) as (cluster, coordinator):
        fill(cluster.topics["t"][0], 3)
        answered: list[m.Kind] = []

        def handle(node: FakeNode, request: Any) -> bool:
            kind = m.Kind(request.kind)
            if kind not in _JOINS or answered:
                return coordinator.handle(node, request)
            answered.append(kind)
            reply = gm.RESPONSES[type(wire.decode_request(kind, request.body))]
            request.reply(wire.encode(reply(error=LATER, message="the moon is full")))
            return True

        cluster.chaos = handle
        async with Consumer(cluster.urls, **settings) as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(UnknownServerError, match="the moon is full"), trio.fail_after(30):
                while True:
                    await consumer.poll(100)
            assert answered and "the moon is full" in caplog.text
            consumer.subscribe(["t"])
            found: list[int] = []
            with trio.fail_after(30):
                while len(found) < 3:
                    found += [each.offset for each in await consumer.poll(100)]
        assert found == [0, 1, 2]

"""The ways to nodes by themselves: one connection for each, and a pause that begins short after each success."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from insync.replication.client._settings import ClientSettings
from insync.replication.client.connection import _links
from insync.replication.client.connection._links import Links
from insync.transport import ConnectError, Connection, Security

URL = "tcp://127.0.0.1:1"


class FakeConnection:
    """As much of a connection to node 1 as its keeper uses."""

    def __init__(self) -> None:
        self.url = URL
        self.peer = SimpleNamespace(node_id=1, cluster_id="c")
        self.closed = trio.Event()

    def abort(self, reason: str) -> None:
        self.closed.set()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed.set()


class Dials:
    """Each dial brings what stands next in `outcomes`: a connection, or the error of having none."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.outcomes: list[FakeConnection | ConnectError] = []

        async def dial(*arguments: Any, **named: Any) -> Connection:
            await trio.lowlevel.checkpoint()
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, ConnectError):
                raise outcome
            return cast("Connection", outcome)

        patch.setattr(_links, "connect", dial)
        patch.setattr(_links, "connect_nearest", dial)


def links(nursery: trio.Nursery) -> Links:
    return Links(ClientSettings(), nursery, Security(), lambda node_id: (), lambda: None)


async def test_after_a_success_the_first_pause_is_short_again(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    dials = Dials(monkeypatch)
    async with trio.open_nursery() as nursery:
        ways = links(nursery)
        refused = [ConnectError("nobody listens") for _ in range(12)]
        connection = FakeConnection()
        dials.outcomes = [*refused, connection, ConnectError("it is gone")]
        for _ in refused:
            with pytest.raises(ConnectError):
                await ways.get(1)
        assert ways.retry_at(1) - trio.current_time() > 0.5
        assert await ways.get(1) is cast("Connection", connection)
        connection.closed.set()
        with pytest.raises(ConnectError):
            await ways.get(1)
        assert ways.retry_at(1) - trio.current_time() < 0.05


async def test_of_two_connections_to_a_node_one_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    dials = Dials(monkeypatch)
    async with trio.open_nursery() as nursery:
        ways = links(nursery)
        first, second = FakeConnection(), FakeConnection()
        dials.outcomes = [first, second]
        kept = cast("Connection", first)
        assert await ways.bootstrap(URL) is kept
        assert await ways.bootstrap(URL) is kept
        assert second.closed.is_set() and not first.closed.is_set()


async def test_a_nearer_connection_ends_that_by_which_the_node_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dials = Dials(monkeypatch)
    monkeypatch.setattr(_links, "is_as_near", lambda url, endpoints: False)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            ways = links(nursery)
            found, nearer = FakeConnection(), FakeConnection()
            dials.outcomes = [found, nearer]
            await ways.bootstrap(URL)
            assert await ways.get(1) is cast("Connection", nearer)
            await found.closed.wait()
    assert not nearer.closed.is_set()


async def test_a_connection_that_has_ended_is_not_sent_by(monkeypatch: pytest.MonkeyPatch) -> None:
    dials = Dials(monkeypatch)
    async with trio.open_nursery() as nursery:
        ways = links(nursery)
        first, second = FakeConnection(), FakeConnection()
        dials.outcomes = [first, second]
        assert ways.nowait(1) is None, "it is opened first"
        assert await ways.get(1) is ways.nowait(1) is cast("Connection", first)
        first.closed.set()
        assert ways.nowait(1) is None, "another one is opened"
        assert await ways.get(1) is ways.nowait(1) is cast("Connection", second)

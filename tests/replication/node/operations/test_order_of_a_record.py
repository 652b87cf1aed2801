"""A node sends the frames that somebody waits for before it does the work that nobody waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from insync.replication import Admin, Node, Producer
from insync.replication.core import messages as m
from insync.replication.core.broker.machine import Broker
from insync.replication.node.operations.inbound import TransportInbound
from insync.transport.stream import StreamLink

from ..test_cluster import full_isr, settings, until

FETCHED, ACKNOWLEDGED, SENT, SETTLED = "a fetch is answered", "acknowledged", "bytes leave", "settled"
KINDS = {m.Kind.FETCH: FETCHED, m.Kind.PRODUCE: ACKNOWLEDGED}


SMALL, LARGE = 1, 8 << 10


@pytest.fixture
async def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[int, list[list[str]]]]:
    """By size of a record: what the nodes do, from `send` until its producer goes on. They share the event loop."""
    noted: list[str] = []

    def note(owner: type, name: str, step: Any) -> None:
        right = getattr(owner, name)

        def noting(self: Any, *arguments: Any) -> Any:
            noted.append(step(self) if callable(step) else step)
            return right(self, *arguments)

        monkeypatch.setattr(owner, name, noting)

    found: dict[int, list[list[str]]] = {SMALL: [], LARGE: []}
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(settings(tmp_path, n))) for n in (1, 2, 3)]
        servers = [node.endpoints[0] for node in nodes]
        async with Admin(servers) as admin, Producer(servers, linger_ms=0) as producer:
            await admin.create_topic("t", partitions=1, replication_factor=3)
            await until(lambda: full_isr(admin, "t", 3))
            # From its acknowledgement on both followers wait for the next record.
            await producer.send_and_wait("t", b"first")
            note(TransportInbound, "_reply", lambda request: KINDS.get(request.kind, ""))
            note(StreamLink, "send_now", SENT)
            note(Broker, "settle", SETTLED)
            for size in [SMALL, LARGE] * 5:
                noted.clear()
                await producer.send_and_wait("t", b"x" * size)
                found[size].append(list(noted))
        yield found


async def test_a_small_answer_to_a_follower_leaves_before_the_next_ones_is_made(
    steps: dict[int, list[list[str]]],
) -> None:
    for size, expected in (SMALL, [FETCHED, SENT] * 2), (LARGE, [FETCHED] * 2 + [SENT] * 2):
        for noted in steps[size]:
            at = noted.index(FETCHED)
            assert noted[at : at + 4] == expected


async def test_an_acknowledgement_leaves_before_parked_fetches_are_looked_at_again(
    steps: dict[int, list[list[str]]],
) -> None:
    for noted in steps[SMALL] + steps[LARGE]:
        at = noted.index(ACKNOWLEDGED)
        assert noted[at + 1] == SENT

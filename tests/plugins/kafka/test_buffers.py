"""The memory into which a connection receives: it grows under load, within the node's budget, and shrinks again."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import trio

from insync.plugins.kafka import listener
from insync.plugins.kafka.core.connection import LEAST_BUFFER, MOST_BUFFER, SMALL_FRAME
from insync.plugins.kafka.protocol import encode
from insync.plugins.kafka.protocol.apis import Api
from insync.transport._kit import until

from .test_listener import _links, batch, client_of, make, node_at, produce

COUNT = 200


def burst() -> bytes:
    """Produce requests one behind the other, each smaller than a small frame."""
    (body,) = encode(produce(batch(bytes(16_000))), 9)
    head = struct.pack(">hhih", Api.PRODUCE, 9, 7, 4) + b"test\0"
    return (struct.pack(">i", len(head) + len(body)) + head + body) * COUNT


@pytest.mark.parametrize("has_room", [True, False])
async def test_a_burst_has_a_larger_buffer_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    monkeypatch.setattr(listener, "SWEEP", 0.05)
    sizes: list[int] = []
    async with node_at(tmp_path) as node, client_of(node) as client:
        await make(node)
        await until(lambda: len(_links(node)) == 1, "the connection is there")
        (link,) = _links(node)
        machine, budget = link._machine, link._service.budget
        assert len(machine._buffer) == LEAST_BUFFER
        if not has_room:
            budget.take(budget.limit)
        before = budget.used
        received = machine.received

        def watched(count: int) -> None:
            sizes.append(len(machine._buffer))
            received(count)

        machine.received = watched
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stream.send_all, burst())
            for offset in range(COUNT):
                told = (await client.receive(Api.PRODUCE, 9)).responses[0].partition_responses[0]
                assert (told.error_code, told.base_offset) == (0, offset)
        assert max(sizes) == (MOST_BUFFER if has_room else SMALL_FRAME)
        await until(lambda: len(machine._buffer) == LEAST_BUFFER, "the buffer is small again")
        assert budget.used == before
        # And is read into.
        await client.stream.send_all(burst()[: len(burst()) // COUNT])
        told = (await client.receive(Api.PRODUCE, 9)).responses[0].partition_responses[0]
        assert (told.error_code, told.base_offset) == (0, COUNT)

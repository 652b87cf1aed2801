"""Random requests of every API, whole and damaged, at a real node: each is answered or ends its connection."""

from __future__ import annotations

import logging
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from insync.plugins.kafka.handlers import OFFERED
from insync.plugins.kafka.protocol import encode, message_of
from insync.plugins.kafka.protocol.apis import Api

from .tables.samples import messages
from .test_listener import client_of, make, node_at, write
from .wire_client import WireClient

EACH = 15
"""Requests of each API."""


def drawn() -> list[tuple[int, int, bytes]]:
    """Requests as bytes without their size: as they should be, cut, and with bytes that differ."""
    found: list[tuple[int, int, bytes]] = []
    chance = random.Random(random.randrange(1 << 32))
    for api in OFFERED.ranges:
        _draw(api, found)
    for api, version, whole in list(found):
        cut = whole[: chance.randrange(8, len(whole) + 1)]
        differs = bytearray(whole)
        for _ in range(3):
            differs[chance.randrange(8, len(whole))] = chance.randrange(256)
        found += [(api, version, cut), (api, version, bytes(differs))]
    return found


def _draw(api: int, found: list[tuple[int, int, bytes]]) -> None:
    least, most = OFFERED.ranges[api]
    kind = message_of(api, is_request=True)
    assert kind is not None

    @settings(max_examples=EACH, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        version = data.draw(st.integers(least, most))
        head = struct.pack(">hhih", api, version, 1, 4) + b"test"
        head += b"\0" if OFFERED.is_flexible(api, version) else b""
        (body,) = encode(data.draw(messages(kind, version)), version)
        found.append((api, version, head + body))

    draw()


async def attempt(url: str, request: bytes) -> None:
    """Send one, and wait for whatever comes of it, or for nothing: a join may wait for others."""
    client = await WireClient.connect(url)
    async with client.stream:
        await client.stream.send_all(struct.pack(">i", len(request)) + request)
        with trio.move_on_after(0.3):
            with suppress(trio.BrokenResourceError):
                await client.stream.receive_some(1 << 16)


@pytest.mark.slow
async def test_nothing_that_clients_send_is_an_error_of_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    requests: list[Any] = await trio.to_thread.run_sync(drawn)
    caplog.set_level(logging.ERROR)
    async with node_at(tmp_path) as node:
        url = node.gateway_endpoints[0]
        await make(node)
        limiter = trio.CapacityLimiter(20)

        async def one(request: bytes) -> None:
            async with limiter:
                await attempt(url, request)

        async with trio.open_nursery() as nursery:
            for _, _, request in requests:
                nursery.start_soon(one, request)
        async with client_of(node) as client:
            assert (await write(client, b"still served")).error_code == 0
    ours = [each for each in caplog.records if each.name.startswith("insync") and each.exc_info]
    assert not ours, "\n".join(f"{each.getMessage()}: {each.exc_info[1]!r}" for each in ours if each.exc_info)
    assert {api for api, _, _ in requests} >= {Api.PRODUCE, Api.FETCH, Api.END_TXN, Api.JOIN_GROUP}

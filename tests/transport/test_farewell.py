"""A connection that is closed in good order, whatever becomes of its peer meanwhile."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from insync.transport import Connection, Identity, Response, TransportError, connect, serve


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "mem://farewell/x"])
async def test_a_peer_that_is_lost_during_the_farewell_raises_nothing(url: str) -> None:
    accepted: list[Connection] = []
    outcomes: list[Response | TransportError] = []
    async with trio.open_nursery() as nursery:
        listen = partial(serve, url, lambda request: request.payload.release(), identity=Identity("c", 1, 1))
        serving = await nursery.start(partial(listen, on_connect=accepted.append))
        connection = await connect(serving.endpoints[0], identity=Identity(), nursery=nursery)
        connection.request_nowait(1, b"", timeout=30, on_done=outcomes.append)
        with trio.fail_after(5):
            async with trio.open_nursery() as closing:
                closing.start_soon(connection.aclose, 60)
                await trio.testing.wait_all_tasks_blocked(0.05)
                accepted[0].abort("a test")
        assert [isinstance(each, TransportError) for each in outcomes] == [True]
        nursery.cancel_scope.cancel()

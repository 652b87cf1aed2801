"""The server as it runs, asked by programs that are no browsers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.request import urlopen

import pytest

pytest.importorskip("nicegui")

from nicegui import Client

from insync.plugins.dashboard._server import listen, serve
from insync.plugins.dashboard._watcher import Watcher
from insync.plugins.dashboard.pages._frame import MOST_UNCONNECTED, Site


def test_pages_that_never_connect_are_forgotten_when_there_are_many() -> None:
    kept: list[int] = []

    def read(url: str) -> None:
        for _ in range(MOST_UNCONNECTED + 10):
            with urlopen(url) as page:
                assert b"Plan: create" in page.read()
            kept.append(len(Client.instances))

    async def run() -> None:
        listener = listen("127.0.0.1", 0)
        ready = asyncio.Event()
        site = Site(watcher=Watcher("tcp://127.0.0.1:1"), allow_changes=True)
        serving = asyncio.create_task(serve(site, listener, ready=ready.set))
        try:
            async with asyncio.timeout(100):
                await ready.wait()
                await asyncio.to_thread(read, f"http://127.0.0.1:{listener.getsockname()[1]}/do")
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    asyncio.run(run())
    assert kept[:3] == [1, 2, 3]
    assert max(kept) == kept[-1] == MOST_UNCONNECTED

"""The server as it runs, asked by programs that are no browsers."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("nicegui")

from nicegui import Client

from insync.plugins.dashboard._server import configured, listen, serve
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


@pytest.mark.parametrize(
    ("proxies", "client", "source"),
    [
        ((), "127.0.0.1", "127.0.0.1"),
        (("10.0.0.7",), "127.0.0.1", "127.0.0.1"),
        (("127.0.0.1",), "127.0.0.1", "192.0.2.9"),
        (("10.0.0.0/24",), "10.0.0.7", "192.0.2.9"),
    ],
)
def test_only_a_trusted_proxy_says_from_where_a_request_comes(
    proxies: tuple[str, ...], client: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    seen: list[str] = []

    async def guarded(scope: MutableMapping[str, Any], receive: object, send: object) -> None:
        seen.append(scope["client"][0])

    async def nothing(*_: object) -> Any: ...

    config = configured(guarded, proxies)
    config.load()
    headers = [(b"x-forwarded-for", b"192.0.2.9")]
    scope: Any = {"type": "http", "client": (client, 5), "headers": headers, "scheme": "http"}
    asyncio.run(config.loaded_app(scope, nothing, nothing))  # type: ignore[arg-type]
    assert seen == [source]

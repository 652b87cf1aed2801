"""The server as it runs, asked by programs that are no browsers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import MutableMapping
from contextlib import ExitStack, suppress
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("nicegui")

import uvicorn
from nicegui import Client

from insync.plugins.dashboard._server import MOST_CONNECTIONS, MOST_WAITING, configured, listen, serve
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
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: ",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
    ],
    ids=["nothing", "half a head", "a head without its body"],
)
def test_connections_from_which_no_request_comes_keep_nobody_out(said: bytes) -> None:
    async def answer(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"here"})

    def read(port: int) -> None:
        with ExitStack() as stack:
            many = MOST_CONNECTIONS + 20
            silent = list[socket.socket]()
            for _ in range(many):
                silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)))
                silent[-1].sendall(said)
            for each in silent[: many - MOST_WAITING]:
                with suppress(ConnectionError):
                    while each.recv(1000):
                        pass
            for _ in range(3):
                with urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
                    assert page.read() == b"here"

    async def run() -> None:
        listener = listen("127.0.0.1", 0)
        config = configured(answer, ())
        config.lifespan = "off"
        serving = asyncio.create_task(uvicorn.Server(config).serve(sockets=[listener]))
        try:
            async with asyncio.timeout(100):
                await asyncio.to_thread(read, listener.getsockname()[1])
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    asyncio.run(run())


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

"""The process: the watcher, the pages, and the web server in front of which the guard stands."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI
from nicegui import app as nicegui_app
from nicegui import core, ui
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ._guard import App, Guard, names
from ._login import Door
from .pages import _cluster, _do, _groups, _records, _topics, _transactions
from .pages._frame import Site, frame, live, login

MOST_CONNECTIONS = 200
MOST_WAITING = 150
"""Connections; and those from which a request, or the rest of one, is yet to come: one more ends the oldest."""
MOST_MESSAGE = 1 << 20
"""Bytes of one message of a browser; what is typed into a form is far less."""


def register(site: Site) -> None:
    """Say which pages there are. Once in a process: the library keeps them for good."""

    @ui.page("/")
    def cluster_page() -> None:
        with frame(site, "Cluster", "/"):
            live(site, lambda: _cluster.cluster(site.watcher))

    @ui.page("/topics")
    def topics_page(text: str = "", first: int = 0) -> None:
        with frame(site, "Topics", "/topics"):
            field = ui.input("Name holds", value=text).style("max-width:20em")
            field.on("keydown.enter", lambda: ui.navigate.to(f"/topics?text={_quoted(field.value)}"))
            live(site, lambda: _topics.topics(site.watcher, text, max(0, first)))

    @ui.page("/topic")
    def topic_page(name: str = "", first: int = 0) -> None:
        with frame(site, name or "Topic", "/topics"):
            live(site, lambda: _topics.topic(site.watcher, name, max(0, first)))

    @ui.page("/records")
    def records_page(topic: str = "") -> None:
        with frame(site, "Records", "/records"):
            _records.RecordsPage(site, topic)

    @ui.page("/groups")
    def groups_page() -> None:
        with frame(site, "Groups", "/groups"):
            live(site, lambda: _groups.groups(site.watcher))

    @ui.page("/group")
    def group_page(name: str = "") -> None:
        with frame(site, name or "Group", "/groups"):
            live(site, lambda: _groups.group(site.watcher, name))

    @ui.page("/transactions")
    def transactions_page() -> None:
        with frame(site, "Transactions", "/transactions"):
            live(site, lambda: _transactions.transactions(site.watcher))

    @ui.page("/why")
    def why_page() -> None:
        with frame(site, "Why", "/why"):
            live(site, lambda: _cluster.why(site.watcher))

    @ui.page("/do")
    def do_page() -> None:
        with frame(site, "Do", "/do"):
            _do.do_page(site, login())


def _quoted(text: object) -> str:
    from urllib.parse import quote

    return quote(str(text or ""), safe="")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


async def serve(
    site: Site,
    listener: socket.socket,
    *,
    door: Door | None = None,
    further_names: tuple[str, ...] = (),
    proxies: tuple[str, ...] = (),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Watch the cluster and serve the pages until the task is cancelled or a signal comes.

    proxies: addresses and networks of those whose X-Forwarded-For says from where a request comes.
    """
    register(site)
    # Not by requests in turn either, which anybody could choose: a session's end closes WebSockets.
    nicegui_app.config.socket_io_js_transports = core.sio.eio.transports = ["websocket"]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = [asyncio.create_task(site.watcher.run())]
        if door is not None:
            watching.append(asyncio.create_task(guarded.sessions.watch(door)))
        ready()
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    web = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    ui.run_with(web, title="insync", tailwind=False, show_welcome_message=False, reconnect_timeout=10)
    host, port = listener.getsockname()[:2]
    guarded = Guard(web, names(host, port, further_names), door)
    logging.getLogger("nicegui").setLevel(logging.WARNING)
    await uvicorn.Server(configured(guarded, proxies)).serve(sockets=[listener])


def _bounded() -> type[asyncio.Protocol]:
    """The library's protocol, with a bound for connections that say nothing: it refuses others because of them."""
    waiting: dict[asyncio.Protocol, None] = {}

    class Bounded(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # one of two classes
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            waiting[self] = None
            late = [each for each in waiting if each.is_waiting]  # type: ignore[attr-defined]
            for each in late[:-MOST_WAITING]:
                del waiting[each]
                # At once, and not when its end is told: it may be what the next request is refused for.
                self.connections.discard(each)
                each.transport.abort()  # type: ignore[attr-defined]

        @property
        def is_waiting(self) -> bool:
            return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

        def connection_lost(self, exc: Exception | None) -> None:
            waiting.pop(self, None)
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, *event: Any) -> None:
            waiting.pop(self, None)
            super().handle_websocket_upgrade(*event)

    return Bounded


def configured(guarded: App, proxies: tuple[str, ...]) -> uvicorn.Config:
    """The web server's configuration. Its own default believes every program on this machine, which may guess
    passwords, from where its requests come.
    """
    return uvicorn.Config(
        guarded,
        http=_bounded(),
        log_level="warning",
        access_log=False,
        limit_concurrency=MOST_CONNECTIONS,
        ws_max_size=MOST_MESSAGE,
        timeout_graceful_shutdown=2,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
    )

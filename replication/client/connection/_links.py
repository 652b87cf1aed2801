"""Connections to nodes: one for each, opened when first needed, opened again with growing pauses."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

import attrs
import trio

from ....transport import (
    ConnectError,
    Connection,
    Identity,
    Security,
    TransportError,
    connect,
    connect_nearest,
    is_as_near,
)
from .._settings import ClientSettings

log = logging.getLogger("insync.client")


@attrs.define(eq=False)
class Link:
    """The way to one node, as far as it is known."""

    node_id: int
    connection: Connection | None = None
    first: Connection | None = None
    """By which the node was found, at an address that may not be its nearest: only for questions that any node can
    answer, until it is known to be as near as any, or another one is open."""
    connecting: bool = False
    failures: int = 0
    retry_at: float = -1.0
    error: TransportError | None = None
    settled: trio.Event = attrs.Factory(trio.Event)

    @property
    def open_connection(self) -> Connection | None:
        if self.connection is not None and self.connection.closed.is_set():
            self.connection = None
        return self.connection

    @property
    def any_connection(self) -> Connection | None:
        if self.first is not None and self.first.closed.is_set():
            self.first = None
        return self.open_connection or self.first


class Links:
    """The connections of one client. `endpoints` tells the URLs of a node, `changed` hears of every outcome."""

    def __init__(
        self,
        settings: ClientSettings,
        nursery: trio.Nursery,
        security: Security,
        endpoints: Callable[[int], Sequence[str]],
        changed: Callable[[], None],
    ) -> None:
        self.cluster_id = ""
        self._settings = settings
        self._nursery = nursery
        self._security = security
        self._endpoints = endpoints
        self._changed = changed
        self._links: dict[int, Link] = {}
        self._random = random.Random()

    def nowait(self, node_id: int) -> Connection | None:
        """The open connection to a node; without one, begin to open it (not before its pause is over)."""
        link = self._link(node_id)
        connection = link.open_connection
        if connection is not None:
            return connection
        self._adopt(link)
        if link.open_connection is None and not link.connecting and trio.current_time() >= link.retry_at:
            self._begin(link)
        return link.connection

    def retry_at(self, node_id: int) -> float:
        """When the next attempt may begin; inf while one is under way or the connection is open."""
        link = self._link(node_id)
        return float("inf") if link.connecting or link.open_connection is not None else link.retry_at

    async def get(self, node_id: int) -> Connection:
        """The connection to a node, opened now if there is none.

        Raises:
          TransportError: It could not be opened.
        """
        link = self._link(node_id)
        self._adopt(link)
        if link.open_connection is None:
            if not link.connecting:
                self._begin(link)
            await link.settled.wait()
        if link.connection is None:
            assert link.error is not None
            raise link.error
        return link.connection

    async def bootstrap(self, url: str) -> Connection:
        """Connect to a URL without knowing whose it is; what comes of it is kept under the node that answers."""
        connection = await self._connect_url(url)
        link = self._link(connection.peer.node_id)
        if link.any_connection is not None:
            connection.abort("another connection to the same node is open")
            return link.any_connection
        link.first = connection
        return connection

    def open_connections(self) -> list[Connection]:
        return [c for link in self._links.values() if (c := link.any_connection) is not None]

    def abort_all(self) -> None:
        for link in self._links.values():
            for connection in (link.connection, link.first):
                if connection is not None:
                    connection.abort("client closed")

    def _link(self, node_id: int) -> Link:
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link(node_id)
        return link

    def _begin(self, link: Link) -> None:
        link.connecting = True
        link.settled = trio.Event()
        self._nursery.start_soon(self._open, link)

    async def _open(self, link: Link) -> None:
        try:
            link.connection = await self._connect_nearest(link)
            link.failures, link.error, link.retry_at = 0, None, -1.0
        except TransportError as error:
            link.error = error
            link.failures += 1
            link.retry_at = trio.current_time() + self._pause(link.failures)
        finally:
            link.connecting = False
            link.settled.set()
        self._changed()

    def _pause(self, failures: int) -> float:
        """Short at first, so that a node that restarts or takes over is found quickly."""
        longest = self._settings.retry_backoff_max_ms / 1000
        return min(longest, 0.02 * 1.5 ** min(failures, 20)) * self._random.uniform(0.8, 1.2)

    def _adopt(self, link: Link) -> None:
        """The connection by which a node was found will do if none of the node's addresses is nearer."""
        if link.any_connection is not None and link.connection is None and not link.connecting:
            assert link.first is not None
            if is_as_near(link.first.url, self._endpoints(link.node_id)):
                link.connection, link.first = link.first, None

    async def _connect_nearest(self, link: Link) -> Connection:
        """By the node's own addresses; if they lead nowhere, what it was found by must do."""
        try:
            connection = await self._connect_node(link.node_id)
        except TransportError as error:
            if link.any_connection is None or link.first is None:
                raise
            log.warning("%s is only reached at %s: %s", link.first.peer, link.first.url, error)
            connection, link.first = link.first, None
            return connection
        if link.first is not None:
            self._nursery.start_soon(link.first.aclose)
            link.first = None
        return connection

    async def _connect_node(self, node_id: int) -> Connection:
        connection = await connect_nearest(
            self._endpoints(node_id),
            identity=Identity(cluster_id=self.cluster_id),
            security=self._security,
            expect_node=node_id,
            nursery=self._nursery,
            timeout=self._settings.connect_timeout_ms / 1000,
        )
        self.cluster_id = self.cluster_id or connection.peer.cluster_id
        return connection

    async def _connect_url(self, url: str) -> Connection:
        try:
            connection = await connect(
                url,
                identity=Identity(cluster_id=self.cluster_id),
                security=self._security,
                nursery=self._nursery,
                timeout=self._settings.connect_timeout_ms / 1000,
            )
        except ValueError as error:
            raise ConnectError(f"{url}: {error}", peer=url) from error
        self.cluster_id = self.cluster_id or connection.peer.cluster_id
        return connection

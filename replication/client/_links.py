"""Connections to nodes: one for each, opened when first needed, opened again with growing pauses."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import attrs
import trio

from ...transport import (
    ConnectError,
    Connection,
    Identity,
    Security,
    TransportError,
    UnknownSchemeError,
    connect,
)
from ._settings import ClientSettings


@attrs.define(eq=False)
class Link:
    """What is known of the way to one node."""

    node_id: int
    connection: Connection | None = None
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
        if link.open_connection is None:
            if not link.connecting:
                self._begin(link)
            await link.settled.wait()
        if link.connection is None:
            assert link.error is not None
            raise link.error
        return link.connection

    async def bootstrap(self, url: str) -> Connection:
        """Connect to a URL without knowing whose it is; the connection is kept under the node that answers."""
        connection = await self._connect_url(url, None)
        link = self._link(connection.peer.node_id)
        if link.open_connection is not None:
            connection.abort("another connection to the same node is open")
            return link.open_connection
        link.connection = connection
        return connection

    def open_connections(self) -> list[Connection]:
        return [c for link in self._links.values() if (c := link.open_connection) is not None]

    def abort_all(self) -> None:
        for connection in self.open_connections():
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
            link.connection = await self._connect_node(link.node_id)
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

    async def _connect_node(self, node_id: int) -> Connection:
        error: TransportError = UnknownSchemeError(f"node {node_id} names no endpoint")
        for url in self._endpoints(node_id):
            try:
                return await self._connect_url(url, node_id)
            except TransportError as failure:
                error = failure
        raise error

    async def _connect_url(self, url: str, expect_node: int | None) -> Connection:
        try:
            connection = await connect(
                url,
                identity=Identity(cluster_id=self.cluster_id),
                security=self._security,
                expect_node=expect_node,
                nursery=self._nursery,
                timeout=self._settings.connect_timeout_ms / 1000,
            )
        except ValueError as error:
            raise ConnectError(f"{url}: {error}", peer=url) from error
        self.cluster_id = self.cluster_id or connection.peer.cluster_id
        return connection

"""`spark://host:port`: whichever node of an `ExecutorLogs` is nearest, as its directory there knows them.

A bootstrap address for clients: it stays the same while executors come and go. Nodes are reached at their own
addresses, so nothing listens on one of these.
"""

from __future__ import annotations

import random
from typing import ClassVar, Self

import trio

from ....transport import (
    URL,
    Capabilities,
    ConnectError,
    Endpoint,
    Identity,
    Link,
    LinkTransport,
    Listener,
    Security,
    TransportError,
    check_options,
    connect,
    nearest_first,
    split_host_port,
)
from ....transport.registry import resolve
from ._messages import Found, Kind, decode

SCHEME = "spark"
_LOOK_SECONDS = 2.0
_DIAL_SECONDS = 1.0


class SparkTransport(LinkTransport):
    """Asks the directory at `spark://host:port` (over TCP), then dials the nearest node that answers."""

    api_version: ClassVar[tuple[int, int]] = (1, 0)
    schemes: ClassVar[tuple[str, ...]] = (SCHEME,)
    caps: ClassVar[Capabilities] = Capabilities()
    preference: ClassVar[int] = -1

    def __init__(self) -> None:
        self._security = Security()

    def parse(self, url: URL) -> Endpoint:
        check_options(url, ())
        split_host_port(url)
        if url.path not in ("", "/"):
            raise ValueError(f"{url}: the address of executor logs has no path, write spark://host:port")
        return URL(url.scheme, url.authority.lower())

    def is_local(self, endpoint: Endpoint) -> bool:
        transport, directory = resolve(_directory(endpoint))
        return transport.is_local(directory)

    def secured(self, security: Security) -> Self:
        found = type(self)()
        found._security = security
        return found

    async def connect(self, endpoint: Endpoint) -> Link:
        try:
            found = await self._look(endpoint)
        except (TransportError, ValueError) as error:
            raise ConnectError(
                f"{endpoint}: the directory of executor logs cannot be asked: {error}", peer=str(endpoint)
            ) from error
        failure = "no node has reported yet"
        for url in _nearest(found):
            transport, node = resolve(url)
            try:
                self._security.check_address(transport, node)
                with trio.fail_after(_DIAL_SECONDS):
                    return await transport.secured(self._security).connect(node)
            except (TransportError, trio.TooSlowError) as error:
                failure = f"{url}: {error or 'no answer'}"
        raise ConnectError(f"{endpoint}: no node can be reached: {failure}", peer=str(endpoint))

    async def listen(self, endpoint: Endpoint) -> Listener:
        raise OSError(f"{endpoint}: nodes listen on tcp:// and the like; spark:// only finds them")

    async def _look(self, endpoint: Endpoint) -> Found:
        # What is raised inside a nursery comes out as a group, so it is carried past its end.
        failure: TransportError | None = None
        body = b""
        async with trio.open_nursery() as nursery:
            try:
                connection = await connect(
                    _directory(endpoint),
                    identity=Identity(),
                    nursery=nursery,
                    security=self._security,
                    timeout=_LOOK_SECONDS,
                )
                with await connection.request(Kind.LOOK, timeout=_LOOK_SECONDS) as response:
                    body = response.body
            except TransportError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return decode(body, Found)


def _directory(endpoint: Endpoint) -> str:
    return f"tcp://{endpoint.authority}"


def _nearest(found: Found) -> list[str]:
    """One address of each node, its nearest; nodes on this host first, otherwise in random order."""
    best: list[str] = []
    for urls in found.nodes.values():
        try:
            best.append(nearest_first(urls)[0])
        except TransportError:
            continue
    random.SystemRandom().shuffle(best)
    return nearest_first(best) if best else []

"""The choice among a node's addresses: the nearest that can be dialled from here and answers.

Addresses say themselves where they can be dialled from (`LinkTransport.can_dial`), and transports which of them is
better (`LinkTransport.preference`). Both are hints: what counts is who answers, and as which node.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from . import registry
from ._border import told
from .abc import LinkTransport
from .connections.connection import Connection, Handler, connect
from .errors import ConnectError, ConnectRefusedError, TransportError
from .frames import Limits
from .repeats import limited
from .requests import Identity
from .security import Security
from .urls import Endpoint

log = limited(logging.getLogger("insync.transport"))

NEAR_TIMEOUT = 1.0
"""Seconds that an address may take to answer while there is another one to try."""


def nearest_first(urls: Sequence[str]) -> list[str]:
    """Those addresses that are worth trying from here, the preferred ones first, otherwise in their order.

    Raises:
      ConnectError: There is none; it says why.
    """
    found: list[tuple[int, str]] = []
    reasons: list[str] = []
    for url in urls:
        try:
            transport, endpoint = registry.resolve(url)
        except (TransportError, ValueError) as error:
            reasons.append(str(error))
            continue
        if _can_dial(transport, endpoint):
            found.append((transport.preference, url))
        else:
            reasons.append(f"{url} is on another machine, or in another network namespace")
    if not found:
        raise ConnectError(f"no address can be dialled from here: {'; '.join(reasons) or 'none is given'}")
    return [url for _, url in sorted(found, key=lambda pair: -pair[0])]


def _can_dial(transport: LinkTransport, endpoint: Endpoint) -> bool:
    try:
        return transport.can_dial(endpoint)
    except Exception as error:  # noqa: BLE001 - a plugin's
        told(error, endpoint.scheme, "can_dial", str(endpoint))
        return False


def is_as_near(url: str, urls: Sequence[str]) -> bool:
    """Whether no address among `urls` would be preferred to the one that a connection has already."""
    try:
        best = nearest_first(urls)[0]
        return registry.resolve(url)[0].preference >= registry.resolve(best)[0].preference
    except TransportError:
        return True


async def connect_nearest(
    urls: Sequence[str],
    *,
    identity: Identity,
    nursery: trio.Nursery,
    expect_node: int | None = None,
    lane: str = "data",
    handler: Handler | None = None,
    timeout: float = 5.0,
    limits: Limits | None = None,
    security: Security | None = None,
) -> Connection:
    """Connect to a node by the nearest of its addresses that answers; one line in the log if another had to do.

    `timeout` is for the last address; those before it get a second at most. See `connect` for everything else.

    Raises:
      ConnectRefusedError: Every address that can be dialled from here refuses.
      TransportError: As `connect` raises it for one of the addresses, which does not say that nobody is there.
    """
    failures: list[TransportError] = []
    nearest = nearest_first(urls)
    for number, url in enumerate(nearest, 1):
        patience = timeout if number == len(nearest) else min(timeout, NEAR_TIMEOUT)
        try:
            connection = await connect(
                url,
                identity=identity,
                nursery=nursery,
                expect_node=expect_node,
                lane=lane,
                handler=handler,
                timeout=patience,
                limits=limits,
                security=security,
            )
        except TransportError as error:
            failures.append(error)
            continue
        if failures:
            why = "; ".join(map(str, failures))
            log.warning("%s is reached at %s, because nearer addresses fail: %s", connection.peer, url, why)
        return connection
    telling = [error for error in failures if not isinstance(error, ConnectRefusedError)]
    raise (telling or failures)[-1]

"""Requests and responses as handlers and callers see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import attrs

from .parts import Payload

if TYPE_CHECKING:
    from .errors import TransportError


Method = Literal["none", "token", "mtls", "uid", "sasl"]


@attrs.frozen
class Identity:
    """The identity that a process claims. `cluster_id` "" is "not known yet", `node_id` -1 a client."""

    cluster_id: str = ""
    node_id: int = -1
    incarnation: int = 0


@attrs.frozen
class PeerIdentity:
    """The identity of a peer, and how it proved that.

    "token": it knows the cluster's secret, or if it comes as a node that of the nodes. "mtls": its certificate is
    for this node, or for clients. "uid": the system says that its process is of the same user as this one.
    "sasl": a gateway's client that has proved to know the password of the user `name`.
    `verified`: one of these. `is_proven`: and if it says that it is a node, it has proved that it is one of them:
    by its certificate, by the nodes' own secret, or because only this process, or this user of this machine, can be
    there.
    """

    cluster_id: str
    node_id: int
    incarnation: int
    lane: str
    method: Method = "none"
    name: str = ""
    """The client's name, if its certificate says so (`isr://CLUSTER/client/NAME`), or by its password."""
    is_proven: bool = False

    @property
    def principal(self) -> str:
        """For whom rules are made: `node/3`, `client`, or `client/NAME`."""
        if self.node_id >= 0:
            return f"node/{self.node_id}"
        return f"client/{self.name}" if self.name else "client"

    @property
    def verified(self) -> bool:
        return self.method != "none"

    def __str__(self) -> str:
        named = f"client {self.name}" if self.name else "a client"
        who = f"node {self.node_id}" if self.node_id >= 0 else named
        return f"{who} ({self.lane})"


class Response:
    """An answer. Its payload is valid until `release()`, or the end of `with`."""

    __slots__ = ("body", "payload")

    def __init__(self, body: bytes, payload: Payload) -> None:
        self.body = body
        self.payload = payload

    def release(self) -> None:
        """Give the payload's memory back. Idempotent."""
        self.payload.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.payload.release()


Authorise = Callable[[PeerIdentity, int], str | None]
"""Whether a peer may send requests of a kind: None, or why not. Asked once for each connection and kind."""

Claims = Callable[[PeerIdentity], Awaitable[str | None]]
"""Whether a peer is the node, in the incarnation, that it says it is: None, or why not. It may wait for news of it
for a moment. Asked once the peer has proved what it has to.
"""

OnDone = Callable[["Response | TransportError"], None]

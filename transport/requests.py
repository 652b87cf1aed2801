"""Requests and responses as handlers and callers see them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import attrs

from .abc import Buffer, Part, Payload
from .frames import FRAMEWORK_STATUS

if TYPE_CHECKING:
    from .connections._outgoing import Pending
    from .connections.connection import Connection
    from .connections.session import Session
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


class RequestHandle:
    """A request under way."""

    __slots__ = ("_connection", "_pending")

    def __init__(self, connection: Connection, pending: Pending) -> None:
        self._connection = connection
        self._pending = pending

    def cancel(self) -> None:
        """Withdraw it: `on_done` is not called any more, the peer is told. No-op when it is done."""
        self._connection.withdraw(self._pending)


class Request:
    """A request as its handler gets it; answered once, now or later, on the thread that runs the connection.

    `payload` is the handler's to release. `arrived` and `deadline` are times of the trio clock; inf: no deadline.
    """

    __slots__ = (
        "_callbacks",
        "_session",
        "arrived",
        "body",
        "cancelled",
        "connection",
        "corr",
        "deadline",
        "kind",
        "kind_version",
        "max_response",
        "payload",
    )

    def __init__(
        self,
        session: Session,
        kind: int,
        kind_version: int,
        corr: int,
        body: bytes,
        payload: Payload,
        arrived: float,
    ) -> None:
        self._session = session
        self.arrived = arrived
        self._callbacks: list[Callable[[], None]] = []
        self.kind = kind
        self.kind_version = kind_version
        self.corr = corr
        self.body = body
        self.payload = payload
        self.deadline = math.inf
        self.max_response = 0
        self.cancelled = False
        """The requester does not wait any more, or the connection has ended."""
        self.connection: Connection

    @property
    def peer(self) -> PeerIdentity:
        return self.connection.peer

    def reply(self, body: Buffer = b"", parts: Sequence[Part] = ()) -> None:
        """Queue the answer and return at once. Nothing happens when nobody waits for it.

        `parts` must not change until the peer has them: bytes, memory that is left alone, or a `FileRange`.
        An answer above the requester's or the connection's limits becomes an error there.

        Raises:
          RuntimeError: It was answered before.
        """
        self._session.reply(self, body, parts)
        self.connection.queued()

    def fail(self, code: int, detail: str) -> None:
        """Answer with an error: the requester gets RemoteError(code, detail).

        Raises:
          ValueError: `code` is not from 1 to 2**31 - 1.
          RuntimeError: It was answered before.
        """
        if not 0 < code < FRAMEWORK_STATUS:
            raise ValueError(f"an error code of a handler is from 1 to 2**31 - 1, not {code}")
        self._session.fail(self, code, detail)
        self.connection.queued()

    def refuse(self, detail: str) -> None:
        """Answer that the peer may not ask for this: it gets NotAuthorisedError. The first time is logged."""
        self.connection.refuse(self, detail)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call it when the requester withdraws, or the connection ends, before the answer; at once if so.

        The answer lets go of it.
        """
        if self.cancelled:
            callback()
        else:
            self._callbacks.append(callback)

    def answered(self) -> None:
        """Let go of what was to be called. It mostly holds this request: that cycle would be left to the garbage
        collector, with each fetch that waits.
        """
        self._callbacks.clear()

    def withdrawn(self) -> list[Callable[[], None]]:
        """Mark it as cancelled; returns what is to be called."""
        self.cancelled = True
        callbacks, self._callbacks = self._callbacks, []
        return callbacks

"""A request that came in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..frames import FRAMEWORK_STATUS
from ..parts import Buffer, Part, Payload
from ..requests import PeerIdentity

if TYPE_CHECKING:
    from .connection import Connection
    from .session import Session


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

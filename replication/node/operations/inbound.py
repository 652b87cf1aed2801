"""A request as the node's handlers see it, wherever it came from: timed, with what a quota says about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ....transport import Part, Payload, PeerIdentity, Request
from ... import wire
from .counters import Counters


class Inbound(ABC):
    """Answered exactly once. `message`: what is asked; `connection`: by which connection, compared by identity.

    `throttle_ms`: for how long the client is to send no more of this kind; handlers put it into the answer.
    `has_waited`: a fetch found nothing when it came.
    """

    __slots__ = (
        "_arrived",
        "_counters",
        "_now",
        "connection",
        "has_waited",
        "is_answered",
        "kind",
        "message",
        "payload",
        "throttle_ms",
    )

    def __init__(
        self,
        kind: int,
        message: Any,
        payload: Payload,
        connection: Hashable,
        counters: Counters,
        now: Callable[[], float],
        arrived: float | None = None,
    ) -> None:
        """arrived: the time, by `now`; None: it is now."""
        self._now = now
        self._counters = counters
        self._arrived = now() if arrived is None else arrived
        self.kind = kind
        self.message: Any = message
        self.payload = payload
        self.connection = connection
        self.throttle_ms = 0
        self.is_answered = False
        self.has_waited = False

    @property
    @abstractmethod
    def peer(self) -> PeerIdentity:
        """Who asks."""

    def reply(self, message: object, parts: Sequence[Part] = ()) -> None:
        """Answer by a message, or by the bytes of one that another node has given; `parts` follow it."""
        self.is_answered = True
        self._counters.answered(self.kind, self._now() - self._arrived)
        self._reply(message, parts)

    def fail(self, code: int, detail: str) -> None:
        """See `Request.fail`."""
        self._count_failed()
        self._fail(code, detail)

    def refuse(self, detail: str) -> None:
        """See `Request.refuse`."""
        self._count_failed()
        self._refuse(detail)

    @abstractmethod
    def on_cancel(self, callback: Callable[[], None]) -> None:
        """See `Request.on_cancel`."""

    @abstractmethod
    def _reply(self, message: object, parts: Sequence[Part]) -> None: ...

    @abstractmethod
    def _fail(self, code: int, detail: str) -> None: ...

    @abstractmethod
    def _refuse(self, detail: str) -> None: ...

    def _count_failed(self) -> None:
        self.is_answered = True
        self._counters.failed(self.kind, self._now() - self._arrived)


class TransportInbound(Inbound):
    """One that came over a transport, and is answered over it: by `request`, which the maker sets."""

    __slots__ = ("request",)

    request: Request

    @property
    def peer(self) -> PeerIdentity:
        """The identity that the peer has proved."""
        return self.request.connection.peer

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """See `Request.on_cancel`."""
        self.request.on_cancel(callback)

    def _reply(self, message: object, parts: Sequence[Part]) -> None:
        self.request.reply(message if isinstance(message, bytes) else wire.encode(message), parts)

    def _fail(self, code: int, detail: str) -> None:
        self.request.fail(code, detail)

    def _refuse(self, detail: str) -> None:
        self.request.refuse(detail)

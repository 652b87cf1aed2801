"""A request as the node's handlers see it: the transport's, timed, and with what a quota has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....transport import Buffer, Connection, Part, Payload, PeerIdentity, Request
from .counters import Counters


class Inbound:
    """Answered exactly once, like the request that it stands for.

    `throttle_ms`: for how long the client is to send no more of this kind; handlers put it into the answer.
    """

    __slots__ = (
        "_arrived",
        "_counters",
        "_now",
        "_request",
        "body",
        "is_answered",
        "kind",
        "message",
        "payload",
        "throttle_ms",
    )

    def __init__(self, request: Request, counters: Counters, now: Callable[[], float]) -> None:
        self._request = request
        self._now = now
        self._counters = counters
        self._arrived = self._now()
        self.kind: int = request.kind
        self.body: bytes = request.body
        self.payload: Payload = request.payload
        self.throttle_ms = 0
        self.message: object = None
        """What `body` was decoded to, for whoever answers."""
        self.is_answered = False

    @property
    def peer(self) -> PeerIdentity:
        return self._request.peer

    @property
    def connection(self) -> Connection:
        return self._request.connection

    def reply(self, body: Buffer = b"", parts: Sequence[Part] = ()) -> None:
        """See `Request.reply`."""
        self._count(failed=False)
        self._request.reply(body, parts)

    def fail(self, code: int, detail: str) -> None:
        """See `Request.fail`."""
        self._count(failed=True)
        self._request.fail(code, detail)

    def refuse(self, detail: str) -> None:
        """See `Request.refuse`."""
        self._count(failed=True)
        self._request.refuse(detail)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """See `Request.on_cancel`."""
        self._request.on_cancel(callback)

    def _count(self, *, failed: bool) -> None:
        self.is_answered = True
        self._counters.answered(self.kind, self._now() - self._arrived, failed=failed)

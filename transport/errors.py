"""The errors of transports and connections.

Every class says whether a retry can help, and whether the peer may have acted.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import trio

Delivery = Literal["never", "maybe"]


class TransportError(Exception):
    """Root of the transport's errors.

    `retryable`: the same call can succeed later. `delivery`: "never" if the peer certainly has not acted on the
    request, "maybe" if it may have. `peer`: a readable name of the peer (a URL, or "node 3 at tcp://...").
    """

    retryable: ClassVar[bool] = False
    delivery: Delivery = "never"

    def __init__(self, message: str, *, peer: str = "", delivery: Delivery | None = None) -> None:
        super().__init__(message)
        self.peer = peer
        if delivery is not None:
            self.delivery = delivery


class ConnectError(TransportError):
    """No connection could be made: refused, unreachable, name unknown, or no answer in time."""

    retryable = True


class ConnectRefusedError(ConnectError):
    """The peer's machine refused the connection: no process listens, or the listener is closing."""


class ConnectSlowError(ConnectError):
    """A process listens there, but did not finish the handshake in time or closed it to admit others, because too
    many
    clients came at once.
    """


class AddressInUseError(TransportError):
    """Another listener has this address."""


class AuthError(TransportError):
    """The peer did not prove its identity, or does not accept our proof."""


class InsecureAddressError(AuthError):
    """An address is reachable from other machines but requires no proof of identity."""


class SecretError(TransportError):
    """The cluster's secret, or a certificate, is unreadable or invalid."""


class WrongPeerError(TransportError):
    """Connected, but to another cluster, another node, or a replaced process."""


class NotRegisteredError(WrongPeerError):
    """The peer does not know us (yet) as the node that we claim to be."""

    retryable = True


class VersionMismatchError(TransportError):
    """Both sides share no version of the protocol, or of a plugin's interface."""


class ProtocolError(TransportError):
    """The peer violated the protocol. The link is closed."""

    delivery: Delivery = "maybe"


class FrameTooLargeError(TransportError):
    """A body or payload above the negotiated limits."""


class ConnectionLost(TransportError):
    """The link ended while the request was under way."""

    retryable = True
    delivery: Delivery = "maybe"


class PeerGoingAway(TransportError):
    """The peer is closing normally and has not begun this request."""

    retryable = True


class DeadlineExceeded(TransportError):
    """No answer before the request's deadline."""

    retryable = True
    delivery: Delivery = "maybe"


class Overloaded(TransportError):
    """Too many requests are under way on this connection. `retry_after` is in seconds."""

    retryable = True

    def __init__(self, message: str, *, peer: str = "", retry_after: float = 0.1) -> None:
        super().__init__(message, peer=peer)
        self.retry_after = retry_after


class RemoteError(TransportError):
    """The peer's handler answered with an error: a handler-specific number, or one of `frames.Status`."""

    delivery: Delivery = "maybe"
    _said = "answered with error {code}"

    def __init__(self, code: int, detail: str, *, peer: str = "") -> None:
        super().__init__(f"{peer or 'the peer'} {self._said.format(code=code)}: {detail}", peer=peer)
        self.code = code
        self.detail = detail


class NotAuthorisedError(RemoteError):
    """The peer accepts us but does not permit this request: nothing was done."""

    delivery: Delivery = "never"
    _said = "refuses this"


class RangeTruncated(TransportError):
    """A file ended inside a range that was being sent; the frame cannot be completed, so the link is broken."""


class LinkClosed(TransportError, trio.ClosedResourceError):
    """The link or connection was closed on this side."""


class EndOfLink(TransportError):
    """The peer closed the link between two frames."""

    retryable = True
    delivery: Delivery = "maybe"


class LinkBroken(TransportError):
    """The link ended inside a frame, was reset, or delivered damage."""

    retryable = True
    delivery: Delivery = "maybe"


class UnknownSchemeError(TransportError):
    """No transport is installed for a URL's scheme."""


class AmbiguousTransportError(TransportError):
    """Two installed distributions offer a transport for one scheme."""

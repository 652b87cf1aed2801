"""TLS 1.3 over TCP, mutual: both ends show a certificate, whose URI names who has it in one cluster.

In the certificate's subject alternative names it is `isr://CLUSTER/NODE_ID`, `isr://CLUSTER/client` or, for what
serves a metadata store and is no node, `isr://CLUSTER/store`; the framework compares it with what the peer calls
itself. Names of hosts are not looked at: nodes move.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Literal, Self

import attrs
import trio

from insync.transport import (
    AuthError,
    Buffer,
    ByteListener,
    ByteStream,
    Capabilities,
    Endpoint,
    LinkBroken,
    LinkClosed,
    Part,
    SecretError,
    Security,
    TlsFiles,
    TransportError,
    pieces,
)
from insync.transport.below_tls import BelowTls, RenewedContext, reason_of
from insync.transport.ranges import warm
from insync.transport.security import TLS_VARIABLES

from ._transport import TcpListener, TcpTransport, endpoint_of

CAPS = Capabilities(encrypted=True, authenticated=True)

_PIECE_BYTES = 128 << 10
_JOIN_BELOW = 16 << 10
_RECORD_BYTES = 16 << 10
"""More does not come at once: TLS has no longer records. Memory is taken for as much as is asked for."""
_SCHEME = "isr://"

Side = Literal["dialer", "acceptor"]


class TlsTransport(TcpTransport):
    """`tls://host:port`; addresses as those of tcp. The files come from `Security.tls`."""

    schemes: ClassVar[tuple[str, ...]] = ("tls",)
    caps: ClassVar[Capabilities] = CAPS

    def __init__(self, files: TlsFiles | None = None) -> None:
        self._contexts = None if files is None else _Contexts(files)

    def secured(self, security: Security) -> Self:
        return self if security.tls is None else type(self)(security.tls)

    async def open_stream(self, endpoint: Endpoint) -> ByteStream:
        self._certificates(endpoint).get("dialer")
        return await super().open_stream(endpoint)

    async def listen_streams(self, endpoint: Endpoint) -> ByteListener:
        self._certificates(endpoint).get("acceptor")
        return await super().listen_streams(endpoint)

    def make_stream(self, sock: socket.socket, endpoint: Endpoint) -> ByteStream:
        local = endpoint_of(endpoint.scheme, sock.getsockname())
        return TlsStream(sock, self._certificates(endpoint), "dialer", local, endpoint)

    def make_listener(self, sock: socket.socket, endpoint: Endpoint) -> ByteListener:
        return _TlsListener(sock, self._certificates(endpoint), endpoint)

    def _certificates(self, endpoint: Endpoint) -> _Contexts:
        if self._contexts is None:
            raise SecretError(
                f"{endpoint}: TLS needs a certificate, its key, and the authorities to trust: "
                f"set {', '.join(TLS_VARIABLES)}",
                peer=str(endpoint),
            )
        return self._contexts


class _Contexts:
    """TLS contexts of the files as they are now, for both sides."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        paths = attrs.astuple(files)
        self._made: dict[Side, RenewedContext] = {
            "dialer": RenewedContext(paths, partial(self._make, "dialer")),
            "acceptor": RenewedContext(paths, partial(self._make, "acceptor")),
        }

    def get(self, side: Side) -> ssl.SSLContext:
        """The context for new links.

        Raises:
          SecretError: The files cannot be used, and never could.
        """
        try:
            return self._made[side].get()
        except OSError as error:
            raise SecretError(
                f"the certificates cannot be used ({_named(self._files)}): {reason_of(error)}"
            ) from error

    def _make(self, side: Side) -> ssl.SSLContext:
        protocol = ssl.PROTOCOL_TLS_CLIENT if side == "dialer" else ssl.PROTOCOL_TLS_SERVER
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if side == "acceptor":
            # Unread session tickets would reset a connection whose dialer closes, and lose what it sent.
            context.num_tickets = 0
        context.load_cert_chain(self._files.certificate, self._files.key)
        context.load_verify_locations(self._files.authorities)
        return context


def _short(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """Large buffers in pieces: what is encrypted at once holds up the event loop, and is in memory twice."""
    for buffer in buffers:
        if len(buffer) <= _PIECE_BYTES:
            yield buffer
        else:
            view = memoryview(buffer)
            yield from (view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES))


class _TlsListener(TcpListener):
    def __init__(self, sock: socket.socket, contexts: _Contexts, endpoint: Endpoint) -> None:
        super().__init__(sock, CAPS, [endpoint])
        self._contexts = contexts
        self._turns = trio.Lock()

    def make_stream(self, sock: socket.socket, local: Endpoint, remote: Endpoint) -> ByteStream:
        return TlsStream(sock, self._contexts, "acceptor", local, remote, self._turns)


class TlsStream(ByteStream):
    """A TLS stream that owns its socket; it shakes hands by `prepare`, or when first used."""

    caps = CAPS

    def __init__(
        self,
        sock: socket.socket,
        contexts: _Contexts,
        side: Side,
        local: Endpoint,
        remote: Endpoint,
        turns: trio.Lock | None = None,
    ) -> None:
        """turns: that of all streams whose handshakes take turns."""
        self.local, self.remote = local, remote
        self._socket = trio.socket.from_stdlib_socket(sock)
        self._closed = False
        self._below = BelowTls(self._socket, turns)
        self._tls = trio.SSLStream(self._below, contexts.get(side), server_side=side == "acceptor")

    @property
    def peer_name(self) -> str:
        names = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        uris = [str(value) for kind, value in names if kind == "URI" and str(value).startswith(_SCHEME)]
        return uris[0] if len(uris) == 1 else f"{_SCHEME}nobody/nobody"

    async def prepare(self) -> None:
        self._check_open()
        try:
            await self._tls.do_handshake()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self._failure(error) from error
        self._below.turns = None

    async def send(self, parts: Sequence[Part]) -> None:
        self._check_open()
        await warm(parts)
        gathered = bytearray()
        try:
            for piece in _short(pieces(parts, _PIECE_BYTES)):
                gathered += piece
                if len(gathered) >= _JOIN_BELOW:
                    await self._tls.send_all(gathered)
                    self.sent += len(gathered)
                    gathered = bytearray()
            if gathered:
                await self._tls.send_all(gathered)
                self.sent += len(gathered)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self._failure(error) from error

    async def receive_into(self, buffer: memoryview, at_least: int = 1) -> int:
        self._check_open()
        try:
            data = await self._tls.receive_some(min(len(buffer), _RECORD_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self._failure(error) from error
        buffer[: len(data)] = data
        return len(data)

    async def aclose(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        await self._tls.aclose()

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LinkClosed(f"the link to {self.remote} was closed here", peer=str(self.remote))

    def _failure(self, error: Exception) -> TransportError:
        cause = error.__cause__
        if self._closed or isinstance(error, trio.ClosedResourceError):
            return LinkClosed(f"the link to {self.remote} was closed here", peer=str(self.remote))
        reason = getattr(cause, "reason", None) or str(cause or error)
        if isinstance(cause, ssl.SSLError) and ("CERT" in reason or "UNKNOWN_CA" in reason):
            return AuthError(
                f"{self.remote}: a certificate is missing or not trusted ({reason}): both ends need one "
                "of an authority that the other end trusts",
                peer=str(self.remote),
            )
        return LinkBroken(f"the link to {self.remote} broke: {reason}", peer=str(self.remote))


def _named(files: TlsFiles) -> str:
    return ", ".join(f"{name} {path}" for name, path in attrs.asdict(files).items())

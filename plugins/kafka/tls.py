"""`kafka+tls://`: the same connections, encrypted, and with who is there by the client's certificate."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from insync.transport import AuthError, Endpoint, LinkBroken, Part
from insync.transport.below_tls import BelowTls, RenewedContext, reason_of
from insync.transport.ranges import is_range, range_pieces, warm

HANDSHAKE = 10.0
"""Seconds that a client has for it."""
_RECORD = 16 << 10
_PIECE = 128 << 10
"""Bytes encrypted at a time: other tasks run between two pieces."""


def contexts(certificate: str, key: str, authorities: str | None) -> RenewedContext:
    """Those of a listener. authorities: whose certificates clients must show; None: they show none.

    Raises:
      ValueError: A file is missing or cannot be used.
    """
    files = [certificate, key, *filter(None, [authorities])]
    made = RenewedContext(files, partial(_context, certificate, key, authorities))
    try:
        made.get()
    except OSError as error:
        raise ValueError(
            f"the certificates cannot be used ({', '.join(files)}): {reason_of(error)}"
        ) from error
    return made


def _context(certificate: str, key: str, authorities: str | None) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_cert_chain(certificate, key)
    if authorities is not None:
        made.load_verify_locations(authorities)
        made.verify_mode = ssl.CERT_REQUIRED
    return made


class TlsStream:
    """A connected socket with TLS on it: as much of a byte stream as a connection uses."""

    def __init__(self, socket: Any, made: RenewedContext, remote: Endpoint, turns: trio.Lock) -> None:
        """turns: that of all connections whose handshakes are to take turns."""
        self._socket = trio.socket.from_stdlib_socket(socket)
        self._below = BelowTls(self._socket, turns)
        self._stream = trio.SSLStream(self._below, made.get(), server_side=True)
        self.remote = remote
        self.sent = 0
        """Bytes that `send` got rid of so far, before they were encrypted."""

    async def prepare(self) -> str:
        """Shake hands; the common name in the client's certificate, empty if it has shown none.

        Raises:
          AuthError: The certificate has several.
          LinkBroken: The client speaks something else, is not believed, or takes too long.
        """
        try:
            with trio.fail_after(HANDSHAKE):
                await self._stream.do_handshake()
        except trio.TooSlowError as error:
            raise self._broken("no TLS handshake in time") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, OSError) as error:
            raise self._broken(f"the TLS handshake failed: {error.__cause__ or error}") from error
        self._below.turns = None
        shown = self._stream.getpeercert() or {}
        names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
        if len(names) > 1:
            raise AuthError(
                f"{self.remote}: its certificate has the common names {', '.join(map(repr, names))}: "
                "issue one with a single name, which rules and quotas are for",
                peer=str(self.remote),
            )
        return str(names[0]) if names else ""

    async def receive_into(self, buffer: memoryview, at_least: int = 1) -> int:
        """See `insync.transport.ByteStream`."""
        try:
            data = await self._stream.receive_some(min(len(buffer), _RECORD))
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            raise self._broken(str(error.__cause__ or error)) from error
        buffer[: len(data)] = data
        return len(data)

    async def send(self, parts: Sequence[Part]) -> None:
        """See `insync.transport.ByteStream`."""
        await warm(parts)
        try:
            for part in parts:
                if is_range(part):
                    for piece in range_pieces(part, 0, _PIECE):
                        await self._stream.send_all(piece)
                        self.sent += len(piece)
                else:
                    view = memoryview(part)  # type: ignore[arg-type]  # no range, so bytes
                    for start in range(0, len(view), _PIECE):
                        await self._stream.send_all(view[start : start + _PIECE])
                        self.sent += min(_PIECE, len(view) - start)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError) as error:
            raise self._broken(str(error.__cause__ or error)) from error

    def send_now(self, parts: Sequence[Part]) -> int:
        """Encrypting may take more than one step: the writer task does it."""
        return 0

    async def aclose(self) -> None:
        """See `insync.transport.ByteStream`."""
        try:
            await self._stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            # Closed: `abort` was first.
            self.abort()

    def abort(self) -> None:
        """See `insync.transport.ByteStream`."""
        self._socket.close()

    def _broken(self, why: str) -> LinkBroken:
        return LinkBroken(f"the link to {self.remote} broke: {why}", peer=str(self.remote))

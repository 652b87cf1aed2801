"""Unix domain sockets as a transport: within one machine, between processes of one user."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from typing import ClassVar

import trio

from insync.transport import (
    URL,
    AddressInUseError,
    AuthError,
    ByteListener,
    ByteStream,
    Capabilities,
    ConnectError,
    ConnectRefusedError,
    Endpoint,
    StreamTransport,
)
from insync.transport.sockets import SocketListener, SocketStream

from ._address import Claim, contact, is_abstract, is_here, parse, socket_address

CAPS = Capabilities(ranges="sendfile", same_host_only=True, half_close=True)

_BACKLOG = 1024
_SEND_BUFFER = 1 << 20
"""Bytes on their way at most; the system grants up to net.core.wmem_max. Nothing adapts it, as for TCP."""
_FULL_PAUSE = 0.005
"""A full queue of connections cannot be waited for: it is tried again."""
_CREDENTIALS = struct.Struct("@iII")
_PRIVATE = 0o600
_numbers = itertools.count(1)


class UnixTransport(StreamTransport):
    """`unix:///path/of/socket`, or `unix://@name` without a file; `unix://@` lets the system choose a name.

    Both ends must run as one user, which the system vouches for. The socket is readable by that user alone.
    """

    schemes: ClassVar[tuple[str, ...]] = ("unix",)
    caps: ClassVar[Capabilities] = CAPS
    preference: ClassVar[int] = 1

    def parse(self, url: URL) -> Endpoint:
        return parse(url)

    def can_dial(self, endpoint: Endpoint) -> bool:
        return is_here(endpoint)

    async def open_stream(self, endpoint: Endpoint) -> ByteStream:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await _connect(sock, endpoint)
            return self.make_stream(sock, _dialer(endpoint), endpoint)
        except BaseException:
            sock.close()
            raise

    async def listen_streams(self, endpoint: Endpoint) -> ByteListener:
        claim = None if is_abstract(endpoint) else Claim.take(endpoint)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # The mode of a socket that is not bound yet is the mode of the file that binding makes.
            os.fchmod(sock.fileno(), _PRIVATE)
            sock.bind(socket_address(endpoint))
            sock.listen(_BACKLOG)
        except BaseException as error:
            sock.close()
            if claim is not None:
                claim.release()
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                text = f"{endpoint} is in use by another listener: stop it, or choose another name"
                raise AddressInUseError(text, peer=str(endpoint)) from error
            raise
        await trio.lowlevel.checkpoint()
        return _UnixListener(self, sock, contact(endpoint, sock.getsockname()), claim)

    def make_stream(self, sock: socket.socket, local: Endpoint, remote: Endpoint) -> ByteStream:
        """The stream of a connected socket."""
        return UnixStream(sock, CAPS, local, remote)


class UnixStream(SocketStream):
    """A connected socket; nothing is sent before it is known that one user is at both ends."""

    def __init__(self, sock: socket.socket, caps: Capabilities, local: Endpoint, remote: Endpoint) -> None:
        super().__init__(sock, caps, local, remote)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    async def prepare(self) -> None:
        uid = self.peer_uid
        if uid is not None and uid != os.geteuid():
            raise AuthError(
                f"{self.remote}: the other end runs as user {uid}, this one as user {os.geteuid()}: run both as "
                "one user, or connect by tcp:// with a secret",
                peer=str(self.remote),
            )
        await trio.lowlevel.checkpoint()

    @property
    def peer_uid(self) -> int | None:
        return None if self.is_closed else _credentials(self.socket)[1]


class _UnixListener(SocketListener):
    def __init__(
        self, transport: UnixTransport, sock: socket.socket, endpoint: Endpoint, claim: Claim | None
    ) -> None:
        super().__init__(sock, transport.caps, [endpoint])
        self._transport = transport
        self._claim = claim

    def prepare(self, sock: socket.socket) -> tuple[Endpoint, Endpoint]:
        here = self.endpoints[0]
        return here, URL(here.scheme, f"pid-{_credentials(sock)[0]}", f"/{next(_numbers)}")

    def make_stream(self, sock: socket.socket, local: Endpoint, remote: Endpoint) -> ByteStream:
        return self._transport.make_stream(sock, local, remote)

    async def aclose(self) -> None:
        claim, self._claim = self._claim, None
        try:
            await super().aclose()
        finally:
            if claim is not None:
                claim.release()


async def _connect(sock: socket.socket, endpoint: Endpoint) -> None:
    while True:
        await trio.lowlevel.checkpoint()
        try:
            sock.connect(socket_address(endpoint))
        except BlockingIOError:
            await trio.sleep(_FULL_PAUSE)
        except ConnectionRefusedError as error:
            text = f"cannot connect to {endpoint}: no process listens there"
            raise ConnectRefusedError(text, peer=str(endpoint)) from error
        except OSError as error:
            text = f"cannot connect to {endpoint}: {error.strerror or error}"
            raise ConnectError(text, peer=str(endpoint)) from error
        else:
            return


def _dialer(endpoint: Endpoint) -> Endpoint:
    return URL(endpoint.scheme, f"pid-{os.getpid()}", f"/{next(_numbers)}")


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group at the other end, when it connected or began to listen."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid

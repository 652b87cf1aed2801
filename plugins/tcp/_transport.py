"""TCP as a transport plugin: addresses, opening and listening. Frames and sending are the framework's."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from typing import ClassVar

import trio

from insync.transport import (
    URL,
    AddressInUseError,
    ByteListener,
    ByteStream,
    Capabilities,
    ConnectError,
    ConnectRefusedError,
    ConnectSlowError,
    Endpoint,
    StreamTransport,
)
from insync.transport.sockets import SocketListener, SocketStream
from insync.transport.urls import WILDCARDS, advertised, check_options, join_host_port, split_host_port

CAPS = Capabilities(ranges="sendfile", half_close=True)

_BACKLOG = 1024
_KEEPALIVE_IDLE = 15
_KEEPALIVE_INTERVAL = 5
_KEEPALIVE_PROBES = 3
_USER_TIMEOUT_MS = 30_000
_UNSENT_BYTES = 1 << 20
_DROPPED = (errno.ECONNRESET, errno.ENOTCONN)


class TcpTransport(StreamTransport):
    """`tcp://host:port` or `tcp://[v6]:port`; port 0 lets the system choose.

    Listening on a wildcard (`0.0.0.0`, `::`, `*` for both) advertises this machine's address.
    `?contact=HOST` or `HOST:PORT` advertises another one.
    """

    schemes: ClassVar[tuple[str, ...]] = ("tcp",)
    caps: ClassVar[Capabilities] = CAPS

    def parse(self, url: URL) -> Endpoint:
        check_options(url, ("contact",))
        advertised(url)
        host, port = split_host_port(url)
        if url.path not in ("", "/"):
            raise ValueError(f"{url}: a tcp address has no path")
        return URL(url.scheme, join_host_port(host.lower(), port), "", url.options)

    def is_local(self, endpoint: Endpoint) -> bool:
        host, _ = split_host_port(endpoint)
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    async def open_stream(self, endpoint: Endpoint) -> ByteStream:
        host, port = split_host_port(endpoint)
        failure = "the name has no address"
        kind: type[ConnectError] = ConnectError
        for family, address in await _resolve(endpoint, host, port):
            try:
                return self.make_stream(await _open(family, address), endpoint)
            except OSError as error:
                failure = error.strerror or str(error)
                kind = _kind_of(error)
        raise kind(f"cannot connect to {endpoint}: {failure}", peer=str(endpoint))

    async def listen_streams(self, endpoint: Endpoint) -> ByteListener:
        host, port = split_host_port(endpoint)
        family, address = (await _resolve(endpoint, "::" if host == "*" else host, port))[0]
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "*"))
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                raise _in_use(endpoint) from error
            raise
        contact, contact_port = advertised(endpoint) or (_contact_host(host, sock), None)
        authority = join_host_port(contact, contact_port or sock.getsockname()[1])
        return self.make_listener(sock, URL(endpoint.scheme, authority))

    def make_stream(self, sock: socket.socket, endpoint: Endpoint) -> ByteStream:
        """The stream of a connected socket."""
        return SocketStream(sock, CAPS, endpoint_of(endpoint.scheme, sock.getsockname()), endpoint)

    def make_listener(self, sock: socket.socket, endpoint: Endpoint) -> ByteListener:
        """The listener of a listening socket."""
        return TcpListener(sock, CAPS, [endpoint])


class TcpListener(SocketListener):
    def prepare(self, sock: socket.socket) -> tuple[Endpoint, Endpoint]:
        _tune(sock)
        scheme = self.endpoints[0].scheme
        return endpoint_of(scheme, sock.getsockname()), endpoint_of(scheme, sock.getpeername())


async def _resolve(endpoint: Endpoint, host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConnectError(
            f"{endpoint}: the name {host!r} cannot be resolved: {error}", peer=str(endpoint)
        ) from error
    return [(family, address) for family, _, _, _, address in found]


def _kind_of(error: OSError) -> type[ConnectError]:
    if isinstance(error, ConnectionRefusedError):
        return ConnectRefusedError
    # The listener took the connection, and closed it to admit others before this process saw that it stood.
    return ConnectSlowError if error.errno in _DROPPED else ConnectError


async def _open(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        code = sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        else:
            await trio.lowlevel.checkpoint()
        if code:
            raise OSError(code, os.strerror(code))
        if sock.getsockname() == sock.getpeername():
            # A connection to an unused ephemeral port may connect to itself.
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        _tune(sock)
        return sock
    except BaseException:
        sock.close()
        raise


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def endpoint_of(scheme: str, address: tuple[str, int] | tuple[str, int, int, int]) -> Endpoint:
    return URL(scheme, join_host_port(address[0], address[1]))


def _contact_host(host: str, sock: socket.socket) -> str:
    """Where peers reach a listener: the host asked for, or for a wildcard the address of the default route."""
    if host not in WILDCARDS:
        return host
    probe = "192.0.2.1" if sock.family == socket.AF_INET or host == "*" else "2001:db8::1"
    family = socket.AF_INET6 if ":" in probe else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as datagram, contextlib.suppress(OSError):
        # Connecting a datagram socket sends nothing; it only asks the routing table.
        datagram.connect((probe, 9))
        return str(datagram.getsockname()[0])
    return "::1" if family == socket.AF_INET6 else "127.0.0.1"


def _in_use(endpoint: Endpoint) -> AddressInUseError:
    return AddressInUseError(
        f"{endpoint} is in use by another listener: stop it, choose another port, or port 0 for any free one",
        peer=str(endpoint),
    )

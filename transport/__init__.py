"""Requests and answers between nodes, over any transport that carries frames.

Who uses transports calls `serve`, with a handler, and `connect`, which gives a `Connection`; `Security` says what
both ends prove, `Limits` what they allow. All of it belongs to one trio thread.

Who writes one makes a class, and names it in the entry point group `insync.transports` under its URL scheme (or
calls `register`). The class is made without arguments, once in a process, when the first URL of the scheme is
used:

- For an ordered stream of bytes subclass `StreamTransport`: write `parse`, `open_stream` and `listen_streams`,
  and with them a `ByteStream` (`send`, `receive_into`, `aclose`, `abort`) and a `ByteListener` (`endpoints`,
  `accept`, `aclose`). Frames, their limits and CRCs are done here. If the stream is a socket,
  `insync.transport.sockets` has both but for opening and listening, with `sendfile`.
- For whole messages subclass `LinkTransport`: `parse`, `connect` and `listen`, with a `Link` (`send`, `recv`,
  `received`, `aclose`, `abort`) and a `Listener`.

All else has a default. Each method's docstring says what it promises and raises; `schemes` and `caps` are class
attributes. Handshake, identity, deadlines, cancelling, keepalive, credit and reconnecting are the same over every
transport, and nothing of them is a plugin's to write. `URL`, `check_options`, `split_host_port` and `pieces`
help; `insync.transport.testing` proves the promises case by case, and `docs/writing-a-transport.md` has a whole
example.

`API_VERSION` is the version of this interface. A class says by `api_version` for which it was written: another
major number is refused, and so is a greater minor one.
"""

from ._outgoing import size_of
from ._payload import RangePayload, bytes_payload
from ._turn import Turn, turn
from .abc import API_VERSION, Buffer, Capabilities, FileRange, Link, LinkTransport, Listener, Part, Payload
from .connection import Connection, Handler, connect
from .errors import (
    AddressInUseError,
    AmbiguousTransportError,
    AuthError,
    ConnectError,
    ConnectionLost,
    ConnectRefusedError,
    DeadlineExceeded,
    EndOfLink,
    FrameTooLargeError,
    InsecureAddressError,
    LinkBroken,
    LinkClosed,
    NotAuthorisedError,
    NotRegisteredError,
    Overloaded,
    PeerGoingAway,
    ProtocolError,
    RangeTruncated,
    RemoteError,
    SecretError,
    TransportError,
    UnknownSchemeError,
    VersionMismatchError,
    WrongPeerError,
)
from .frames import Limits, Status
from .intake import DEFAULT_BUDGET, ReceiveBudget
from .locality import connect_nearest, is_as_near, nearest_first
from .peers import Peer, PeerManager
from .ranges import pieces
from .registry import register, schemes
from .requests import Authorise, Claims, Identity, PeerIdentity, Request, RequestHandle, Response
from .security import Security, TlsFiles
from .server import Serving, ServingGroup, serve
from .stream import ByteListener, ByteStream, StreamTransport
from .urls import URL, Endpoint, check_options, join_host_port, split_host_port

__all__ = [
    # Connections.
    "Authorise",
    "Claims",
    "Connection",
    "Handler",
    "Identity",
    "Limits",
    "PeerIdentity",
    "DEFAULT_BUDGET",
    "ReceiveBudget",
    "Request",
    "RequestHandle",
    "Response",
    "Security",
    "Serving",
    "ServingGroup",
    "Status",
    "TlsFiles",
    "connect",
    "connect_nearest",
    "is_as_near",
    "nearest_first",
    "serve",
    "Peer",
    "PeerManager",
    "Turn",
    "turn",
    # What travels.
    "Buffer",
    "FileRange",
    "Part",
    "Payload",
    "RangePayload",
    # Writing a transport.
    "API_VERSION",
    "ByteListener",
    "ByteStream",
    "Capabilities",
    "Endpoint",
    "Link",
    "LinkTransport",
    "Listener",
    "StreamTransport",
    "URL",
    "bytes_payload",
    "check_options",
    "join_host_port",
    "pieces",
    "register",
    "schemes",
    "size_of",
    "split_host_port",
    # Errors.
    "AddressInUseError",
    "AmbiguousTransportError",
    "AuthError",
    "ConnectError",
    "ConnectRefusedError",
    "ConnectionLost",
    "DeadlineExceeded",
    "EndOfLink",
    "FrameTooLargeError",
    "InsecureAddressError",
    "LinkBroken",
    "LinkClosed",
    "NotAuthorisedError",
    "NotRegisteredError",
    "Overloaded",
    "PeerGoingAway",
    "ProtocolError",
    "RangeTruncated",
    "RemoteError",
    "SecretError",
    "TransportError",
    "UnknownSchemeError",
    "VersionMismatchError",
    "WrongPeerError",
]

"""Requests and answers between nodes, over any transport that carries frames.

`serve` and `connect` make connections; plugins implement `StreamTransport` (byte streams) or `LinkTransport`.
"""

from ._payload import RangePayload
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
from .requests import Authorise, Identity, PeerIdentity, Request, RequestHandle, Response
from .security import Security, TlsFiles
from .server import Serving, ServingGroup, serve
from .stream import ByteListener, ByteStream, StreamTransport
from .urls import URL, Endpoint

__all__ = [
    # Connections.
    "Authorise",
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
    "pieces",
    "register",
    "schemes",
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

"""Requests and answers between nodes, over any transport that carries frames.

A user of transports calls `serve`, with a handler, and `connect`, which gives a `Connection`; `Security` says what
both ends prove, `Limits` what they allow. All of it belongs to one trio thread.

The author of a transport makes a class, and names it in the entry point group `insync.transports` under its URL
scheme (or calls `register`). The class is made without arguments, once in a process, when the first URL of the
scheme is used:

- For an ordered stream of bytes subclass `StreamTransport`: write `parse`, `open_stream` and `listen_streams`,
  and with them a `ByteStream` (`send`, `receive_into`, `aclose`, `abort`) and a `ByteListener` (`endpoints`,
  `accept`, `aclose`). Frames, their limits and CRCs are done here. If the stream is a socket,
  `insync.transport.sockets` has both but for opening and listening, with `sendfile`.
- For whole messages subclass `LinkTransport`: `parse`, `connect` and `listen`, with a `Link` (`send`, `recv`,
  `received`, `aclose`, `abort`) and a `Listener`.

All else has a default. Each method's docstring says what it promises and raises; `schemes` and `caps` are class
attributes. Handshake, identity, deadlines, cancelling, keepalive, and credit are the same over every
transport, and nothing of them is a plugin's to write. `URL`, `check_options`, `split_host_port` and `pieces`
help; `insync.transport.testing` proves the promises case by case, and `docs/writing-a-transport.md` has a whole
example.

`API_VERSION` is the version of this interface. A class says by `api_version` for which it was written: another
major number is refused, and so is a greater minor one.

The names, for `help(insync.transport.NAME)`:

- Connections: `Authorise`, `Claims`, `connect`, `connect_nearest`, `Connection`, `DEFAULT_BUDGET`, `Handler`,
  `Identity`, `is_as_near`, `Limits`, `nearest_first`, `PeerIdentity`, `ReceiveBudget`, `Request`,
  `RequestHandle`, `Response`, `Security`, `serve`, `Serving`, `ServingGroup`, `Status`, `TlsFiles`, `Turn`,
  `turn`.
- Payloads: `Buffer`, `FileRange`, `Part`, `Payload`, `RangePayload`.
- Writing a transport: `API_VERSION`, `ByteListener`, `bytes_payload`, `ByteStream`, `Capabilities`,
  `advertised`, `check_options`, `Departures`, `Endpoint`, `join_host_port`, `Link`, `LinkTransport`, `Listener`,
  `pieces`, `register`, `schemes`, `size_of`, `split_host_port`, `StreamTransport`, `URL`.
- Errors: `AddressInUseError`, `AmbiguousTransportError`, `AuthError`, `ConnectError`, `ConnectionLost`,
  `ConnectRefusedError`, `ConnectSlowError`, `DeadlineExceeded`, `EndOfLink`, `FrameTooLargeError`,
  `InsecureAddressError`, `LinkBroken`, `LinkClosed`, `NotAuthorisedError`, `NotRegisteredError`, `Overloaded`,
  `PeerGoingAway`, `ProtocolError`, `RangeTruncated`, `RemoteError`, `SecretError`, `TransportError`,
  `UnknownSchemeError`, `VersionMismatchError`, `WrongPeerError`.
"""

from ._give_back import Departures as Departures
from ._payload import (
    RangePayload as RangePayload,
)
from ._payload import (
    bytes_payload as bytes_payload,
)
from .abc import (
    API_VERSION as API_VERSION,
)
from .abc import (
    Buffer as Buffer,
)
from .abc import (
    Capabilities as Capabilities,
)
from .abc import (
    FileRange as FileRange,
)
from .abc import (
    Link as Link,
)
from .abc import (
    LinkTransport as LinkTransport,
)
from .abc import (
    Listener as Listener,
)
from .abc import (
    Part as Part,
)
from .abc import (
    Payload as Payload,
)
from .connections._outgoing import (
    RequestHandle as RequestHandle,
)
from .connections._outgoing import size_of as size_of
from .connections._turn import Turn as Turn
from .connections._turn import turn as turn
from .connections.connection import Connection as Connection
from .connections.connection import Handler as Handler
from .connections.connection import connect as connect
from .connections.intake import DEFAULT_BUDGET as DEFAULT_BUDGET
from .connections.intake import ReceiveBudget as ReceiveBudget
from .connections.request import (
    Request as Request,
)
from .connections.server import Serving as Serving
from .connections.server import ServingGroup as ServingGroup
from .connections.server import serve as serve
from .errors import (
    AddressInUseError as AddressInUseError,
)
from .errors import (
    AmbiguousTransportError as AmbiguousTransportError,
)
from .errors import (
    AuthError as AuthError,
)
from .errors import (
    ConnectError as ConnectError,
)
from .errors import (
    ConnectionLost as ConnectionLost,
)
from .errors import (
    ConnectRefusedError as ConnectRefusedError,
)
from .errors import (
    ConnectSlowError as ConnectSlowError,
)
from .errors import (
    DeadlineExceeded as DeadlineExceeded,
)
from .errors import (
    EndOfLink as EndOfLink,
)
from .errors import (
    FrameTooLargeError as FrameTooLargeError,
)
from .errors import (
    InsecureAddressError as InsecureAddressError,
)
from .errors import (
    LinkBroken as LinkBroken,
)
from .errors import (
    LinkClosed as LinkClosed,
)
from .errors import (
    NotAuthorisedError as NotAuthorisedError,
)
from .errors import (
    NotRegisteredError as NotRegisteredError,
)
from .errors import (
    Overloaded as Overloaded,
)
from .errors import (
    PeerGoingAway as PeerGoingAway,
)
from .errors import (
    ProtocolError as ProtocolError,
)
from .errors import (
    RangeTruncated as RangeTruncated,
)
from .errors import (
    RemoteError as RemoteError,
)
from .errors import (
    SecretError as SecretError,
)
from .errors import (
    TransportError as TransportError,
)
from .errors import (
    UnknownSchemeError as UnknownSchemeError,
)
from .errors import (
    VersionMismatchError as VersionMismatchError,
)
from .errors import (
    WrongPeerError as WrongPeerError,
)
from .frames import (
    Limits as Limits,
)
from .frames import (
    Status as Status,
)
from .locality import (
    connect_nearest as connect_nearest,
)
from .locality import (
    is_as_near as is_as_near,
)
from .locality import (
    nearest_first as nearest_first,
)
from .ranges import pieces as pieces
from .registry import (
    register as register,
)
from .registry import (
    schemes as schemes,
)
from .requests import (
    Authorise as Authorise,
)
from .requests import (
    Claims as Claims,
)
from .requests import (
    Identity as Identity,
)
from .requests import (
    PeerIdentity as PeerIdentity,
)
from .requests import (
    Response as Response,
)
from .security import (
    Security as Security,
)
from .security import (
    TlsFiles as TlsFiles,
)
from .stream import (
    ByteListener as ByteListener,
)
from .stream import (
    ByteStream as ByteStream,
)
from .stream import (
    StreamTransport as StreamTransport,
)
from .urls import (
    URL as URL,
)
from .urls import (
    Endpoint as Endpoint,
)
from .urls import (
    advertised as advertised,
)
from .urls import (
    check_options as check_options,
)
from .urls import (
    join_host_port as join_host_port,
)
from .urls import (
    split_host_port as split_host_port,
)

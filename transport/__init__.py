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

What there is, for `help(insync.transport.NAME)`:

- Connections: `Authorise`, `Claims`, `connect`, `connect_nearest`, `Connection`, `DEFAULT_BUDGET`, `Handler`,
  `Identity`, `is_as_near`, `Limits`, `nearest_first`, `PeerIdentity`, `ReceiveBudget`, `Request`,
  `RequestHandle`, `Response`, `Security`, `serve`, `Serving`, `ServingGroup`, `Status`, `TlsFiles`, `Turn`,
  `turn`.
- What travels: `Buffer`, `FileRange`, `Part`, `Payload`, `RangePayload`.
- Writing a transport: `API_VERSION`, `ByteListener`, `bytes_payload`, `ByteStream`, `Capabilities`,
  `check_options`, `Endpoint`, `join_host_port`, `Link`, `LinkTransport`, `Listener`, `pieces`, `register`,
  `schemes`, `size_of`, `split_host_port`, `StreamTransport`, `URL`.
- Errors: `AddressInUseError`, `AmbiguousTransportError`, `AuthError`, `ConnectError`, `ConnectionLost`,
  `ConnectRefusedError`, `DeadlineExceeded`, `EndOfLink`, `FrameTooLargeError`, `InsecureAddressError`,
  `LinkBroken`, `LinkClosed`, `NotAuthorisedError`, `NotRegisteredError`, `Overloaded`, `PeerGoingAway`,
  `ProtocolError`, `RangeTruncated`, `RemoteError`, `SecretError`, `TransportError`, `UnknownSchemeError`,
  `VersionMismatchError`, `WrongPeerError`.
"""

from ._outgoing import size_of as size_of
from ._payload import (
    RangePayload as RangePayload,
    bytes_payload as bytes_payload,
)
from ._turn import (
    Turn as Turn,
    turn as turn,
)
from .abc import (
    API_VERSION as API_VERSION,
    Buffer as Buffer,
    Capabilities as Capabilities,
    FileRange as FileRange,
    Link as Link,
    LinkTransport as LinkTransport,
    Listener as Listener,
    Part as Part,
    Payload as Payload,
)
from .connection import (
    Connection as Connection,
    Handler as Handler,
    connect as connect,
)
from .errors import (
    AddressInUseError as AddressInUseError,
    AmbiguousTransportError as AmbiguousTransportError,
    AuthError as AuthError,
    ConnectError as ConnectError,
    ConnectionLost as ConnectionLost,
    ConnectRefusedError as ConnectRefusedError,
    DeadlineExceeded as DeadlineExceeded,
    EndOfLink as EndOfLink,
    FrameTooLargeError as FrameTooLargeError,
    InsecureAddressError as InsecureAddressError,
    LinkBroken as LinkBroken,
    LinkClosed as LinkClosed,
    NotAuthorisedError as NotAuthorisedError,
    NotRegisteredError as NotRegisteredError,
    Overloaded as Overloaded,
    PeerGoingAway as PeerGoingAway,
    ProtocolError as ProtocolError,
    RangeTruncated as RangeTruncated,
    RemoteError as RemoteError,
    SecretError as SecretError,
    TransportError as TransportError,
    UnknownSchemeError as UnknownSchemeError,
    VersionMismatchError as VersionMismatchError,
    WrongPeerError as WrongPeerError,
)
from .frames import (
    Limits as Limits,
    Status as Status,
)
from .intake import (
    DEFAULT_BUDGET as DEFAULT_BUDGET,
    ReceiveBudget as ReceiveBudget,
)
from .locality import (
    connect_nearest as connect_nearest,
    is_as_near as is_as_near,
    nearest_first as nearest_first,
)
from .ranges import pieces as pieces
from .registry import (
    register as register,
    schemes as schemes,
)
from .requests import (
    Authorise as Authorise,
    Claims as Claims,
    Identity as Identity,
    PeerIdentity as PeerIdentity,
    Request as Request,
    RequestHandle as RequestHandle,
    Response as Response,
)
from .security import (
    Security as Security,
    TlsFiles as TlsFiles,
)
from .server import (
    Serving as Serving,
    ServingGroup as ServingGroup,
    serve as serve,
)
from .stream import (
    ByteListener as ByteListener,
    ByteStream as ByteStream,
    StreamTransport as StreamTransport,
)
from .urls import (
    URL as URL,
    Endpoint as Endpoint,
    check_options as check_options,
    join_host_port as join_host_port,
    split_host_port as split_host_port,
)

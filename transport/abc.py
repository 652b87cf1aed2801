"""The interface of a transport: ordered, reliable links that carry frames.

A plugin implements `LinkTransport` (links that carry whole messages) or, for byte streams, the smaller
`insync.transport.stream.StreamTransport`. The framework implements requests, deadlines and identity, so a plugin
cannot break them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol, Self

import attrs
import trio

from .frames import Frame, Header, Limits, decode_frame
from .parts import Buffer as Buffer
from .parts import FileRange as FileRange
from .parts import Part as Part
from .parts import Payload as Payload
from .security import Security
from .urls import URL, Endpoint

API_VERSION = (1, 0)
"""Version of this interface as (major, minor): see `insync.transport`."""


@attrs.frozen
class Capabilities:
    """The abilities of a transport's links. The framework and the kit rely on them, so they must be true."""

    ranges: Literal["copy", "sendfile", "handover"] = "copy"
    """How file ranges are sent: as bytes that are read first (always works), by the system from the file, or as
    descriptors to be read at the other end (`ByteStream.receive_ranges`).
    """
    same_host_only: bool = False
    """The other end is always on this machine, so links need no secret."""
    one_process: bool = False
    """Both ends are in one process."""
    encrypted: bool = False
    """Nobody on the network path can read the data."""
    authenticated: bool = False
    """Links authenticate the peer (`Link.peer_name`) and are encrypted."""
    half_close: bool = False
    """One direction can end while the other continues: `send_eof` works."""
    deterministic: bool = False
    """Only the trio clock and a seed drive it: the same seed gives the same run."""
    max_frame: int = 1 << 30
    """Maximum size of a frame in bytes."""


class Gate(Protocol):
    """Consulted before memory is allocated for a large payload, or a body above `frames.LARGE_BODY`."""

    def admits(self, header: Header) -> bool:
        """Whether the frame may come in now; else the link calls `wait` and asks again. ProtocolError: never."""

    async def wait(self) -> None:
        """Return when asking again may help. Raises ProtocolError if it never will."""


class Link(ABC):
    """One ordered, reliable duplex of frames. One task sends, one receives; a second raises trio.BusyResourceError.

    A link first carries the handshake's preface and HELLO, by `send` and `recv_hello`; frames follow. For a link
    that carries messages all of these are opaque messages.
    """

    caps: Capabilities
    """The abilities of this link, which may be less than those of its transport."""
    local: Endpoint
    remote: Endpoint
    """A readable name for messages and the log."""

    @abstractmethod
    async def send(self, head: Buffer, parts: Sequence[Part], *, more: bool = False) -> None:
        """Send one frame: its header and body, then its payload. `more`: another frame follows at once.

        Returns when the link no longer needs `parts` (buffers may be reused). A cancellation after the first byte
        breaks the link, so that the peer never sees a short frame.

        Raises:
          LinkBroken: The peer is gone.
          LinkClosed: This side has closed the link.
          RangeTruncated: A file ended inside its range. The link is broken.
        """

    @abstractmethod
    async def recv(self) -> tuple[memoryview, Payload]:
        """The next frame: its header and body as they were sent, and its payload. Cancelling loses nothing.

        Raises:
          EndOfLink: The peer closed between two frames.
          LinkBroken: The link ended inside a frame, or was reset.
          LinkClosed: This side has closed the link.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Send accepted frames, then close. A cancelled call closes at once. Idempotent."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once without blocking; wakes both tasks with LinkClosed. Idempotent."""

    @property
    def peer_name(self) -> str | None:
        """With `caps.authenticated`: the proven identity of the peer.

        `isr://CLUSTER/NODE`, `isr://CLUSTER/client`, `isr://CLUSTER/client/NAME` or `isr://CLUSTER/store`.
        """
        return None

    @property
    def peer_uid(self) -> int | None:
        """The user id of the peer's process, if the system provides it."""
        return None

    async def prepare(self) -> None:
        """Do the work before the first frame, such as a TLS handshake; the caller limits the time.

        Raises:
          AuthError: One end does not accept the identity of the other.
          LinkBroken: The peer is gone, or uses another protocol.
        """
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """End the sending direction; receiving continues. Only with `caps.half_close`."""
        await trio.lowlevel.checkpoint()

    async def recv_hello(self) -> bytes:
        """The peer's preface and HELLO, which are its first bytes."""
        head, payload = await self.recv()
        payload.release()
        return bytes(head)

    def set_limits(self, limits: Limits) -> None:
        """Set the maximum size of received frames from now on."""
        self.limits = limits

    def set_gate(self, gate: Gate) -> None:
        """Consult this gate for each large payload, if the link sees headers before it allocates payloads."""
        self.gate = gate

    limits: Limits = Limits()
    """Limits of received frames."""
    gate: Gate | None = None
    """The gate; None before the end of the handshake."""

    def trim(self) -> None:
        """Free memory that is kept for the next burst. Called from time to time while nothing arrives.

        `recv` may be waiting and may have received a part of a frame, which must not be lost.
        """
        return

    @property
    def sent(self) -> int:
        """Number of bytes sent so far, also inside a frame, if known.

        It is the only sign of life of a peer that receives a large frame slowly.
        """
        return 0

    @property
    @abstractmethod
    def received(self) -> int:
        """Number of bytes received so far, also inside a frame: a sign of life."""

    async def send_many(self, frames: Sequence[tuple[Buffer, Sequence[Part]]]) -> None:
        """Send several frames. Links that can gather writes override it."""
        last = len(frames) - 1
        for index, (head, parts) in enumerate(frames):
            await self.send(head, parts, more=index < last)

    def send_now(self, pieces: Sequence[Part]) -> bool:
        """Send whole frames (heads and parts, in order) without waiting; False if another send is under way.

        A rest may stay inside the link: `has_rest` reports it, and the next `send_many`, which may be empty, sends
        it. Raises the errors of `send`.
        """
        return False

    @property
    def has_rest(self) -> bool:
        """Whether `send_now` has left a rest."""
        return False

    async def recv_many(self) -> list[Frame]:
        """All received frames, at least one. Links that parse many at once override it."""
        head, payload = await self.recv()
        return [decode_frame(head, payload, self.limits)]


class Listener(ABC):
    """Accepts links. `endpoints` are reachable addresses: with the real port, and without wildcards."""

    endpoints: Sequence[Endpoint]

    @abstractmethod
    async def accept(self) -> Link:
        """The next link, before any handshake. The caller retries after an OSError such as EMFILE."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop accepting; a blocked `accept` raises LinkClosed. Accepted links stay open."""


class LinkTransport(ABC):
    """A plugin's transport for its URL schemes. Created without arguments, once in a process."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    """The interface version for which it was written; a plugin writes it as literal numbers."""
    schemes: ClassVar[tuple[str, ...]]
    """Its URL schemes, the same as the names of its entry points."""
    caps: ClassVar[Capabilities]
    """The maximum abilities of its links."""
    preference: ClassVar[int] = 0
    """Of the addresses of a node, those with the highest preference are dialled first."""

    @abstractmethod
    def parse(self, url: URL) -> Endpoint:
        """Check a URL, without I/O. ValueError names the malformed part. `str()` of the result is canonical."""

    def can_dial(self, endpoint: Endpoint) -> bool:
        """Whether an attempt from here may succeed, judged by the address. Does not wait; True promises nothing."""
        return True

    def is_local(self, endpoint: Endpoint) -> bool:
        """Whether both ends are always on this machine. Peers then need no proof of identity."""
        return self.caps.same_host_only

    def secured(self, security: Security) -> Self:
        """The transport with this process's credentials; most transports leave this to the framework."""
        return self

    @abstractmethod
    async def connect(self, endpoint: Endpoint) -> Link:
        """Open a link, without retries. The caller's cancel scope limits the time.

        Raises:
          ConnectError: No process answers there.
        """

    @abstractmethod
    async def listen(self, endpoint: Endpoint) -> Listener:
        """Open a listener.

        Raises:
          AddressInUseError: Another listener has this address.
          OSError: The system refuses for another reason.
        """

"""The interface of a transport: ordered, reliable links that carry frames.

A plugin implements `LinkTransport` (links that carry whole messages) or, for byte streams, the smaller
`insync.transport.stream.StreamTransport`; requests, deadlines and identity are the framework's and cannot be
got wrong by a plugin.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self, runtime_checkable

import attrs
import trio

from .frames import Frame, Header, Limits, decode_frame
from .urls import URL, Endpoint

if TYPE_CHECKING:
    from .security import Security

API_VERSION = (1, 0)
"""Of this interface, as (major, minor): see `insync.transport`."""

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes."""


@runtime_checkable
class FileRange(Protocol):
    """`length` bytes of an append-only file from `offset` on.

    Who hands one over keeps the descriptor open while the object lives, and does not change these bytes while
    a link may still send them (a socket refers to the file's pages until the peer has them).
    """

    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...
    def fileno(self) -> int: ...


Part = Buffer | FileRange
"""A piece of a payload."""


class Payload(Protocol):
    """Bytes received beside a body. Valid until `release()`."""

    @property
    def nbytes(self) -> int: ...
    @property
    def source(self) -> Literal["pooled", "ring", "range"]: ...

    def view(self) -> memoryview:
        """The bytes. Raises ValueError after `release()`.

        Those of source "range" are read now: RangeTruncated if a file was cut meanwhile, OSError if it fails.
        """

    def copy_to(self, fd: int, offset: int) -> int:
        """Write all of it to a file at `offset`; returns the number of bytes. It blocks."""

    def release(self) -> None:
        """Give the memory back. Idempotent."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@attrs.frozen
class Capabilities:
    """What a transport's links can do; all of it must be true, for the framework and the kit go by it."""

    ranges: Literal["copy", "sendfile", "handover"] = "copy"
    """How file ranges travel: as bytes that are read first (always works), sent by the system from the file, or
    handed over to be read at the other end (`ByteStream.receive_ranges`).
    """
    same_host_only: bool = False
    """Nobody on another machine can be at the other end: such links need no secret."""
    one_process: bool = False
    """Both ends are in one process."""
    encrypted: bool = False
    """Others on the way cannot read along."""
    authenticated: bool = False
    """Links show who is at the other end, in `Link.peer_name`, and do so in secret."""
    half_close: bool = False
    """One direction can end while the other goes on: `send_eof` works."""
    deterministic: bool = False
    """Driven by the trio clock and a seed alone: the same seed gives the same run."""
    max_frame: int = 1 << 30
    """Bytes of the largest frame that a link can carry."""


class Gate(Protocol):
    """Asked before memory is laid out for a large payload, or a body above `frames.LARGE_BODY`."""

    def admits(self, header: Header) -> bool:
        """Whether it may come in now; else the link calls `wait` and asks again. ProtocolError: never."""

    async def wait(self) -> None:
        """Return when asking again is worth it. Raises ProtocolError: it never will be."""


class Link(ABC):
    """One ordered, reliable duplex of frames. One task sends, one receives; a second raises trio.BusyResourceError.

    The first thing on a link is the handshake's preface and HELLO, by `send` and `recv_hello`; frames follow. To a
    link that carries messages all of these are messages; it need not look into them.
    """

    caps: Capabilities
    """Those of this link: it may do less than its transport."""
    local: Endpoint
    remote: Endpoint
    """For people, in messages and the log."""

    @abstractmethod
    async def send(self, head: Buffer, parts: Sequence[Part], *, more: bool = False) -> None:
        """Send one frame: its header and body, then its payload. `more`: another follows at once.

        Returns when the link no longer needs `parts` (buffers may be reused). When it is cancelled after the
        first byte the link is broken: there is never a short frame.

        Raises:
          LinkBroken: The peer is gone.
          LinkClosed: Closed on this side.
          RangeTruncated: A file ended inside its range. The link is broken.
        """

    @abstractmethod
    async def recv(self) -> tuple[memoryview, Payload]:
        """The next frame: its header and body as they were sent, and its payload. Cancelling loses nothing.

        Raises:
          EndOfLink: The peer closed between two frames.
          LinkBroken: It ended inside a frame, or was reset.
          LinkClosed: Closed on this side.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Send what was accepted, then close; when cancelled, closed all the same. Idempotent."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once without blocking; wakes both tasks with LinkClosed. Idempotent."""

    @property
    def peer_name(self) -> str | None:
        """With `caps.authenticated`: as whom the peer has proved itself.

        `isr://CLUSTER/NODE`, `isr://CLUSTER/client`, `isr://CLUSTER/client/NAME` or `isr://CLUSTER/store`.
        """
        return None

    @property
    def peer_uid(self) -> int | None:
        """The user that the process at the other end runs as, where the system vouches for it."""
        return None

    async def prepare(self) -> None:
        """Do what both ends must do before the first frame, like a TLS handshake; the caller bounds the time.

        Raises:
          AuthError: One end does not accept who the other is.
          LinkBroken: The peer is gone, or speaks something else.
        """
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """Nothing more will be sent, receiving goes on; only with `caps.half_close`."""
        await trio.lowlevel.checkpoint()

    async def recv_hello(self) -> bytes:
        """The peer's preface and HELLO, the first thing that it sent."""
        head, payload = await self.recv()
        payload.release()
        return bytes(head)

    def set_limits(self, limits: Limits) -> None:
        """Frames received from now on may be this large."""
        self.limits = limits

    def set_gate(self, gate: Gate) -> None:
        """Ask it about each large payload, if the link sees headers before it has memory for their payloads."""
        self.gate = gate

    limits: Limits = Limits()
    """For frames to be received."""
    gate: Gate | None = None
    """To be asked; None before the handshake is over."""

    def trim(self) -> None:
        """Nothing has come for a while: give back memory that is kept for the next burst. Called now and then.

        `recv` may be waiting, and may have received a part: of that nothing is lost.
        """
        return

    @property
    def sent(self) -> int:
        """Bytes that sending got rid of so far, counted while a frame goes out, if that can be told.

        A peer that takes a large frame slowly gives no other sign of life.
        """
        return 0

    @property
    @abstractmethod
    def received(self) -> int:
        """Bytes that have arrived so far, also inside a frame: a sign of life."""

    async def send_many(self, frames: Sequence[tuple[Buffer, Sequence[Part]]]) -> None:
        """Send several frames; links that can gather override it."""
        last = len(frames) - 1
        for index, (head, parts) in enumerate(frames):
            await self.send(head, parts, more=index < last)

    def send_now(self, pieces: Sequence[Part]) -> bool:
        """Take whole frames (heads and parts, in order) without waiting, if nothing else is being sent; else False.

        May leave a rest inside the link, which `has_rest` tells and the next `send_many` (perhaps of nothing)
        sends. Raises what `send` raises.
        """
        return False

    @property
    def has_rest(self) -> bool:
        """Whether `send_now` has left a rest."""
        return False

    async def recv_many(self) -> list[Frame]:
        """All the frames that are there, at least one. Links that parse many at once override it."""
        head, payload = await self.recv()
        return [decode_frame(head, payload, self.limits)]


class Listener(ABC):
    """Accepts links. `endpoints` are where peers reach it: the real port, and no wildcard address."""

    endpoints: Sequence[Endpoint]

    @abstractmethod
    async def accept(self) -> Link:
        """The next link, before any handshake. OSError (EMFILE and its like) is the caller's to wait out."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop accepting; a blocked `accept` ends with LinkClosed. Accepted links live on."""


class LinkTransport(ABC):
    """What a plugin offers under its schemes. Made without arguments, once in a process."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    """Of the interface that it was written for; a plugin writes the numbers out."""
    schemes: ClassVar[tuple[str, ...]]
    """Of its URLs, the same as the names of its entry points."""
    caps: ClassVar[Capabilities]
    """What its links can do at most."""
    preference: ClassVar[int] = 0
    """Of several addresses of one node that can be dialled, those of the highest preference are tried first."""

    @abstractmethod
    def parse(self, url: URL) -> Endpoint:
        """Check a URL, without I/O. ValueError names what is malformed. `str()` of the result is canonical."""

    def can_dial(self, endpoint: Endpoint) -> bool:
        """Whether it is worth trying from here, by what the address says. Does not wait; True promises nothing."""
        return True

    def is_local(self, endpoint: Endpoint) -> bool:
        """Whether only this machine can be at both ends. Peers need to prove nothing there."""
        return self.caps.same_host_only

    def secured(self, security: Security) -> Self:
        """The transport that uses what this process has to prove itself; most leave that to the framework."""
        return self

    @abstractmethod
    async def connect(self, endpoint: Endpoint) -> Link:
        """Open a link. Bounded by the caller's cancel scope; no retries inside.

        Raises:
          ConnectError: Nobody answers there.
        """

    @abstractmethod
    async def listen(self, endpoint: Endpoint) -> Listener:
        """Open a listener.

        Raises:
          AddressInUseError: Somebody else listens there.
          OSError: The system refuses for another reason.
        """

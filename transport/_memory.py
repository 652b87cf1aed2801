"""`mem://net/name`: links inside one process, driven by trio alone. File ranges are copied."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import trio

from ._payload import bytes_payload
from .abc import Buffer, Capabilities, Link, LinkTransport, Listener, Part, Payload
from .errors import AddressInUseError, ConnectError, ConnectRefusedError, EndOfLink, LinkBroken, LinkClosed
from .frames import Frame, decode_frame
from .ranges import read_range
from .urls import URL, Endpoint, check_options

_WINDOW_BYTES = 1 << 20
_BACKLOG = 128
_CAPS = Capabilities(same_host_only=True, one_process=True, half_close=True, deterministic=True)

_listeners: dict[Endpoint, MemoryListener] = {}
_numbers = itertools.count(1)


class _Pipe:
    """One direction: messages on their way, at most a window of bytes (or one message) ahead of the reader."""

    def __init__(self) -> None:
        self.messages: deque[tuple[bytes, bytes]] = deque()
        self.nbytes = 0
        self.ended = False
        self.broken = False
        self.changed = trio.lowlevel.ParkingLot()

    def has_room(self) -> bool:
        return not self.messages or self.nbytes < _WINDOW_BYTES

    def put(self, head: bytes, payload: bytes) -> None:
        self.messages.append((head, payload))
        self.nbytes += len(head) + len(payload)
        self.changed.unpark_all()

    def take(self) -> tuple[bytes, bytes]:
        head, payload = self.messages.popleft()
        self.nbytes -= len(head) + len(payload)
        self.changed.unpark_all()
        return head, payload

    def end(self, *, broken: bool) -> None:
        self.ended = True
        if broken:
            self.broken = True
            self.messages.clear()
        self.changed.unpark_all()


class MemoryLink(Link):
    """One end of a pair."""

    caps = _CAPS

    def __init__(self, local: Endpoint, remote: Endpoint, outgoing: _Pipe, incoming: _Pipe) -> None:
        self.local, self.remote = local, remote
        self._out, self._in = outgoing, incoming
        self._closed = False
        self._sending = self._receiving = False
        self._received = 0

    @property
    def received(self) -> int:
        return self._received

    async def send(self, head: Buffer, parts: Sequence[Part], *, more: bool = False) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this link")
        payload = b"".join(_copy(part) for part in parts)
        self._sending = True
        try:
            await trio.lowlevel.checkpoint()
            while True:
                self._check_sending()
                if self._out.has_room():
                    break
                await self._out.changed.park()
            self._out.put(bytes(head), payload)
        finally:
            self._sending = False

    async def recv(self) -> tuple[memoryview, Payload]:
        head, payload = await self._next()
        return memoryview(head), bytes_payload(payload)

    async def recv_many(self) -> list[Frame]:
        frames = [await self._next()]
        frames.extend(self._in.take() for _ in range(len(self._in.messages)))
        return [
            decode_frame(memoryview(head), bytes_payload(payload), self.limits) for head, payload in frames
        ]

    async def send_eof(self) -> None:
        self._check_sending()
        self._out.end(broken=False)
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._close(broken=False)
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        self._close(broken=True)

    def _close(self, *, broken: bool) -> None:
        if not self._closed:
            self._closed = True
            self._out.end(broken=broken)
            self._in.broken = True
            self._in.changed.unpark_all()

    async def _next(self) -> tuple[bytes, bytes]:
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving on this link")
        self._receiving = True
        try:
            await trio.lowlevel.checkpoint()
            while True:
                if self._closed:
                    raise self._link_closed()
                if self._in.messages:
                    break
                if self._in.broken:
                    raise LinkBroken(f"{self.remote} has aborted the link", peer=str(self.remote))
                if self._in.ended:
                    raise EndOfLink(f"{self.remote} closed the link", peer=str(self.remote))
                await self._in.changed.park()
            head, payload = self._in.take()
            self._received += len(head) + len(payload)
            return head, payload
        finally:
            self._receiving = False

    def _check_sending(self) -> None:
        if self._closed:
            raise self._link_closed()
        if self._out.broken or self._in.broken:
            raise LinkBroken(f"{self.remote} is gone", peer=str(self.remote))

    def _link_closed(self) -> LinkClosed:
        return LinkClosed(f"the link to {self.remote} was closed here", peer=str(self.remote))


class MemoryListener(Listener):
    """Listens on a name, within this process."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoints = [endpoint]
        self._send, self._receive = trio.open_memory_channel[MemoryLink](_BACKLOG)

    async def accept(self) -> Link:
        try:
            return await self._receive.receive()
        except (trio.ClosedResourceError, trio.EndOfChannel) as error:
            raise LinkClosed(f"the listener on {self.endpoints[0]} was closed here") from error

    async def aclose(self) -> None:
        if _listeners.get(self.endpoints[0]) is self:
            del _listeners[self.endpoints[0]]
            self._refuse_waiting()
            self._send.close()
        await trio.lowlevel.checkpoint()

    def dial(self) -> MemoryLink:
        """A link to this listener."""
        here = self.endpoints[0]
        there = URL("mem", here.authority, f"/dialer-{next(_numbers)}")
        one, other = _Pipe(), _Pipe()
        try:
            self._send.send_nowait(MemoryLink(here, there, one, other))
        except trio.WouldBlock as error:
            raise ConnectError(f"{here}: {_BACKLOG} links wait to be accepted", peer=str(here)) from error
        return MemoryLink(there, here, other, one)

    def _refuse_waiting(self) -> None:
        while True:
            try:
                self._receive.receive_nowait().abort()
            except trio.WouldBlock:
                return


class MemoryTransport(LinkTransport):
    """In-process links. The authority names a network, the path a listener on it."""

    schemes: ClassVar[tuple[str, ...]] = ("mem",)
    caps: ClassVar[Capabilities] = _CAPS

    def parse(self, url: URL) -> Endpoint:
        check_options(url, ())
        if not url.authority or len(url.path) < 2:
            raise ValueError(f"{url}: expected mem://network/name")
        return url

    async def connect(self, endpoint: Endpoint) -> Link:
        await trio.lowlevel.checkpoint()
        listener = _listeners.get(endpoint)
        if listener is None:
            raise ConnectRefusedError(f"{endpoint}: no listener there in this process", peer=str(endpoint))
        return listener.dial()

    async def listen(self, endpoint: Endpoint) -> Listener:
        await trio.lowlevel.checkpoint()
        if endpoint in _listeners:
            raise AddressInUseError(
                f"{endpoint} has a listener in this process: choose another name, or close it"
            )
        listener = _listeners[endpoint] = MemoryListener(endpoint)
        return listener


def _copy(part: Part) -> bytes:
    return bytes(part) if isinstance(part, bytes | bytearray | memoryview) else read_range(part)

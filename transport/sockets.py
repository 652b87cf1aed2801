"""Byte streams on non-blocking sockets, for every plugin whose streams are sockets."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import termios
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import trio

from ._native import ffi, lib
from .abc import Buffer, Capabilities, Part
from .errors import LinkBroken, LinkClosed, RangeTruncated
from .ranges import is_range, is_warm, range_pieces, read_range, truncated, warm
from .stream import ByteListener, ByteStream
from .urls import Endpoint

SENDFILE_FROM = 16 << 10
"""Shorter ranges are read and sent with their neighbours: two system calls cost more than copying."""
QUANTUM = (1 << 20) + (64 << 10)
"""Bytes received, or of file ranges sent, between two checkpoints. With a quarter of it a sender needs half as much
CPU again.

A little above 1 MiB, the usual size of an answer: its header must not push its last bytes into a step of their own.
"""
_JOIN_BELOW = 64 << 10
_MAX_BUFFERS = 512
_SEND_FLAGS = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

_INT = struct.Struct("@i")


class SocketStream(ByteStream):
    """A connected, non-blocking stream socket. It owns the socket.

    Subclasses override what a `ByteStream` has, and use these: `socket` and `is_closed`; `check_open`, which raises
    LinkClosed; `try_send`, which sends what goes at once; `receive_by`, for other calls than `recv_into`;
    `wait_writable`; `broken` and `link_closed`, which make errors; `close`, to let go of what they hold themselves.
    """

    def __init__(self, sock: socket.socket, caps: Capabilities, local: Endpoint, remote: Endpoint) -> None:
        self.caps, self.local, self.remote = caps, local, remote
        self.socket = sock
        self.is_closed = False
        self._drained = True
        self._unpaused = 0
        """Bytes received since other tasks could last run."""
        self._low_water = 1

    @property
    def unread(self) -> int:
        if self.is_closed:
            return 0
        (count,) = _INT.unpack(fcntl.ioctl(self.socket, termios.FIONREAD, bytes(_INT.size)))
        return int(count)

    def send_now(self, parts: Sequence[Part]) -> int:
        self.check_open()
        for part in parts:
            if type(part) is not bytes:
                break
        else:
            return self.try_send(parts[0]) if len(parts) == 1 else self._try_gather(parts)  # type: ignore[arg-type]
        pieces = [_short_range(part) for part in parts]
        ranges = [piece for piece in pieces if is_range(piece)]
        if not ranges:
            return self._try_gather(pieces)  # type: ignore[arg-type]
        if not all(map(is_warm, ranges)):
            return 0
        sender = _Sender(self.socket, pieces)
        code = sender.step()
        if code < 0:
            raise self.broken(OSError(-code, os.strerror(-code)))
        if code == lib.ISR_TX_TRUNCATED:
            raise sender.truncated()
        return sender.sent

    def try_send(self, data: bytes) -> int:
        """Send what goes without waiting; returns how many bytes went. Raises LinkBroken."""
        try:
            return self.socket.send(data, _SEND_FLAGS)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.broken(error) from error

    def _try_gather(self, buffers: Sequence[Buffer]) -> int:
        """Small buffers are joined: that costs less than telling the system of each."""
        if len(buffers) > _MAX_BUFFERS or sum(map(len, buffers)) <= _JOIN_BELOW:
            return self.try_send(b"".join(buffers))
        try:
            return self.socket.sendmsg(buffers, (), _SEND_FLAGS)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self.broken(error) from error

    async def send(self, parts: Sequence[Part]) -> None:
        self.check_open()
        pieces: list[Part] = [_short_range(part) for part in parts]
        if any(is_range(piece) for piece in pieces):
            await self._send_mixed(pieces)
        else:
            await self._send_buffers(pieces)  # type: ignore[arg-type]

    async def receive_into(self, buffer: memoryview, at_least: int = 1) -> int:
        return await self.receive_by(self.socket.recv_into, buffer, at_least)

    receives_now: ClassVar[bool] = True

    def receive_now(self, buffer: memoryview) -> int:
        return self.take_now(self.socket.recv_into, buffer)

    def take_now(self, receive: Callable[[memoryview], int], buffer: memoryview) -> int:
        """As `receive_by`, without waiting; -1 if that is due."""
        if self._drained or self._unpaused >= QUANTUM:
            self.check_open()
            return -1
        try:
            count = receive(buffer)
        except BlockingIOError:
            self._drained = True
            return -1
        except OSError as error:
            self.check_open()
            raise self.broken(error) from error
        self._drained = count < len(buffer)
        self._unpaused += count
        return count

    @property
    def is_drained(self) -> bool:
        return self._drained

    async def until_readable(self, at_least: int) -> None:
        if not self._drained:
            await self.pause()
            return
        if at_least != self._low_water:
            self.set_low_water(at_least)
        self._unpaused = 0
        try:
            await trio.lowlevel.wait_readable(self.socket)
        except (trio.ClosedResourceError, ValueError) as error:
            raise self.link_closed() from error
        self._drained = False

    def set_low_water(self, at_least: int) -> None:
        """Sleep until so many bytes are there."""
        self.check_open()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, at_least)
        self._low_water = at_least

    async def receive_by(
        self, receive: Callable[[memoryview], int], buffer: memoryview, at_least: int = 1
    ) -> int:
        """Wait for bytes and take them by `receive`, a call of the socket's that returns how many.

        OSError of `receive` breaks the link. `at_least`: see `receive_into`. Other tasks run now and then, however
        much there is.
        """
        self.check_open()
        if self._unpaused >= QUANTUM:
            await self.pause()
        while True:
            if self._drained:
                if at_least != self._low_water:
                    self.set_low_water(at_least)
                await self.wait_readable()
            try:
                count = receive(buffer)
            except BlockingIOError:
                self._drained = True
                continue
            except OSError as error:
                raise self.broken(error) from error
            self._drained = count < len(buffer)
            self._unpaused += count
            return count

    async def send_eof(self) -> None:
        self.check_open()
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self.broken(error) from error
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        if not self.is_closed:
            # Reset at once: what is queued refers to memory and files that may change now.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close the socket, and wake who waits for it. Idempotent; subclasses extend it."""
        if not self.is_closed:
            self.is_closed = True
            # Whoever asks for bytes hears of it; a socket without its descriptor cannot be waited for.
            self._drained = False
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    async def _send_buffers(self, buffers: list[Buffer]) -> None:
        if len(buffers) > 1 and sum(map(len, buffers)) <= _JOIN_BELOW:
            buffers = [b"".join(buffers)]
        rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
        while rest:
            self.check_open()
            try:
                count = self.socket.sendmsg(rest[:_MAX_BUFFERS], (), _SEND_FLAGS)
            except BlockingIOError:
                await self.wait_writable()
                continue
            except OSError as error:
                raise self.broken(error) from error
            self.sent += count
            _advance(rest, count)

    async def _send_mixed(self, parts: list[Part]) -> None:
        """Buffers and file ranges, by the C sender; a range whose file cannot be sent by sendfile is copied."""
        await warm(parts)
        sender = _Sender(self.socket, parts)
        while True:
            self.check_open()
            before = sender.sent
            code = sender.step()
            self.sent += sender.sent - before
            if code == lib.ISR_TX_DONE:
                return
            if code == lib.ISR_TX_BLOCKED:
                await self.wait_writable()
            elif code == lib.ISR_TX_QUANTUM:
                await trio.lowlevel.checkpoint()
            elif code == lib.ISR_TX_NO_SENDFILE:
                await self._copy(*sender.skip())
            elif code == lib.ISR_TX_TRUNCATED:
                raise sender.truncated()
            else:
                raise self.broken(OSError(-code, os.strerror(-code)))

    async def _copy(self, part: Part, done: int) -> None:
        assert is_range(part)
        for piece in range_pieces(part, done):
            await self._send_buffers([piece])

    async def pause(self) -> None:
        """Let other tasks run."""
        self._unpaused = 0
        await trio.lowlevel.checkpoint()

    async def wait_readable(self) -> None:
        """Return when there may be bytes. Raises LinkClosed."""
        self._unpaused = 0
        try:
            await trio.lowlevel.wait_readable(self.socket)
        except (trio.ClosedResourceError, ValueError) as error:
            raise self.link_closed() from error
        self.check_open()

    async def wait_writable(self) -> None:
        """Return when something may be sent. Raises LinkClosed."""
        try:
            await trio.lowlevel.wait_writable(self.socket)
        except (trio.ClosedResourceError, ValueError) as error:
            raise self.link_closed() from error

    def check_open(self) -> None:
        """Raises LinkClosed if it was closed here."""
        if self.is_closed:
            raise self.link_closed()

    def link_closed(self) -> LinkClosed:
        """The error of whoever uses a closed link."""
        return LinkClosed(f"the link to {self.remote} was closed here", peer=str(self.remote))

    def broken(self, error: OSError) -> LinkBroken:
        """The error of a link that the system calls broken."""
        return LinkBroken(
            f"the link to {self.remote} broke: {error.strerror or error}", peer=str(self.remote)
        )


class SocketListener(ByteListener):
    """Accepts on a listening, non-blocking socket. Subclasses know a stream's socket options and addresses."""

    def __init__(self, sock: socket.socket, caps: Capabilities, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = endpoints
        self._caps = caps
        self._socket = sock
        self._closed = False

    @abstractmethod
    def prepare(self, sock: socket.socket) -> tuple[Endpoint, Endpoint]:
        """Set the options of an accepted socket; returns its local and remote endpoint."""

    async def accept(self) -> ByteStream:
        while True:
            try:
                if self._closed:
                    raise LinkClosed(f"the listener on {self.endpoints[0]} was closed here")
                await trio.lowlevel.wait_readable(self._socket)
                sock, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except trio.ClosedResourceError as error:
                raise LinkClosed(f"the listener on {self.endpoints[0]} was closed here") from error
            try:
                sock.setblocking(False)
                local, remote = self.prepare(sock)
            except OSError as error:
                sock.close()
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                continue
            return self.make_stream(sock, local, remote)

    def make_stream(self, sock: socket.socket, local: Endpoint, remote: Endpoint) -> ByteStream:
        """The stream of an accepted socket."""
        return SocketStream(sock, self._caps, local, remote)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()


class _Sender:
    """Parts on their way through the C sender."""

    def __init__(self, sock: socket.socket, parts: Sequence[Part]) -> None:
        self._socket, self._parts = sock, parts
        self._native = ffi.new("isr_tx_part[]", len(parts))
        # Keeps the buffers where they are while C points at them.
        self._held = [_describe(part, slot) for part, slot in zip(parts, self._native, strict=True)]
        self._cursor, self._sent = ffi.new("isr_tx_cursor *"), ffi.new("int64_t *")

    @property
    def sent(self) -> int:
        """Bytes so far."""
        return int(self._sent[0])

    def step(self) -> int:
        """Send until the socket is full, a quantum has gone or something is amiss; returns the C sender's code."""
        return lib.isr_tx_step(
            self._socket.fileno(), self._native, len(self._parts), self._cursor, QUANTUM, self._sent
        )

    def skip(self) -> tuple[Part, int]:
        """Pass over the current part; returns it, and how much of it has gone."""
        at, done = self._cursor.part, self._cursor.done
        self._cursor.part, self._cursor.done = at + 1, 0
        return self._parts[at], done

    def truncated(self) -> RangeTruncated:
        """The error for the current part, whose file ends inside its range."""
        cut = self._parts[self._cursor.part]
        assert is_range(cut)
        return truncated(cut, self._cursor.done)


def _describe(part: Part, slot: Any) -> object:
    """Fill a native part; returns what keeps its memory in place."""
    if is_range(part):
        slot.fd, slot.offset, slot.length = part.fileno(), part.offset, part.length
        return part
    view = ffi.from_buffer(part)
    slot.data, slot.length, slot.fd = view, len(view), -1
    return view


def _short_range(part: Part) -> Part:
    """A short range as bytes, a memoryview as one of bytes; anything else as it is."""
    if type(part) is bytes:
        return part
    if isinstance(part, memoryview):
        return part.cast("B") if part.itemsize != 1 or part.ndim != 1 else part
    if isinstance(part, bytes | bytearray) or part.length >= SENDFILE_FROM:
        return part
    return read_range(part)


def _advance(buffers: list[memoryview], count: int) -> None:
    index = 0
    while index < len(buffers) and count >= len(buffers[index]):
        count -= len(buffers[index])
        index += 1
    del buffers[:index]
    if count:
        buffers[0] = buffers[0][count:]

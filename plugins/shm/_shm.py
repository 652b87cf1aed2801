"""`shm://`: a unix socket for frames, and descriptors of files instead of their bytes.

The receiver reads ranges straight from the page cache that both ends share: nothing is sent, and the sender does
next to nothing. It reads them by `pread` or `copy_file_range` and never maps them: a file may be cut above its high
watermark, and a mapping of what is cut kills its process. The receiver checks the bytes (batches have CRCs) before
it uses them, because the file may change until then.
"""

from __future__ import annotations

import array
import errno
import itertools
import logging
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import ClassVar

import attrs
import trio

from insync.transport import (
    Buffer,
    ByteStream,
    Capabilities,
    Endpoint,
    FileRange,
    LinkBroken,
    Part,
    Payload,
    ProtocolError,
    RangePayload,
)
from insync.transport.buffers import LazyBuffer
from insync.transport.ranges import after, is_range, is_warm, read_range, warm
from insync.transport.stream import NOT_NOW

from ._chunks import GREETING, MAGIC, MOST_PLACES, PLACE, PREFIX, VERSION, Chunk
from ._files import Handed, HandedFiles, OpenFile, Place, TakenFiles, most_files
from ._unix import UnixStream, UnixTransport

log = logging.getLogger("insync.transport")

CAPS = Capabilities(ranges="handover", same_host_only=True, half_close=True)

HAND_OVER_FROM = 16 << 10
"""Bytes of ranges in one sending; fewer are sent as bytes: there is a cost to each handing over."""
LEAST_RANGE = 4 << 10
"""Bytes that the ranges of one sending have on average, or they are sent as bytes: to have the peer know another
file costs more than so many bytes, and an answer about hundreds of partitions has hundreds of files.
"""
_MOST_JOINED = 256 << 10
"""Bytes of ranges that are read in the event loop at a time."""
_RAW_BUFFER = 64 << 10
_BYTES = int(Chunk.BYTES)
"""As a plain number: most chunks are of this type."""
_PREFIX_SIZE = PREFIX.size
_AFTER_PREFIX = _RAW_BUFFER - _PREFIX_SIZE
"""All that is received with a prefix finds room in `_raw`."""
_MOST_PENDING = 64
"""Descriptors that have come before the chunks that name them."""
_DESCRIPTOR_SIZE = array.array("i").itemsize
_SPACE = socket.CMSG_SPACE(8 * _DESCRIPTOR_SIZE)
_RECEIVE_FLAGS, _CUT_RIGHTS = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)
"""As plain numbers: an enumeration's operators cost each frame a microsecond."""
_SWEEP_PAUSE = 10.0
_NO_DESCRIPTORS_FOR = 60.0
"""Seconds for which new links of a process that has run out of descriptors ask to be sent bytes instead."""


class ShmTransport(UnixTransport):
    """`shm:///path/of/socket`, or `shm://@name`; addresses and who may connect as of `unix://`."""

    schemes: ClassVar[tuple[str, ...]] = ("shm",)
    caps: ClassVar[Capabilities] = CAPS
    preference: ClassVar[int] = 2

    def make_stream(self, sock: socket.socket, local: Endpoint, remote: Endpoint) -> ByteStream:
        return ShmStream(sock, local, remote)


@attrs.define
class _Shortage:
    """When this process has run out of descriptors."""

    until: float = 0.0


_shortage = _Shortage()


class ShmStream(UnixStream):
    """A connected socket whose byte stream goes by chunks, see `_chunks`; ranges of files go by reference.

    It greets by `prepare`, or when first used.
    """

    def __init__(self, sock: socket.socket, local: Endpoint, remote: Endpoint) -> None:
        super().__init__(sock, CAPS, local, remote)
        self._has_greeted = False
        self._has_complained = False
        self._next_sweep = 0.0
        self._handed = HandedFiles(0)
        self._taken = TakenFiles(0)
        self._unsent = b""
        self._covered = 0
        self._raw = LazyBuffer(_RAW_BUFFER).view
        self._prefix = bytearray(_PREFIX_SIZE)
        self._start = self._end = 0
        self._descriptors: deque[OpenFile] = deque()
        self._bytes_left = 0
        self._places: deque[Place] = deque()
        self._places_bytes = 0
        self._is_fresh = False

    async def prepare(self) -> None:
        await super().prepare()
        self._has_greeted = True
        holds = 0 if trio.current_time() < _shortage.until else most_files()
        await super().send([GREETING.pack(MAGIC, VERSION, holds)])
        while self._end - self._start < GREETING.size:
            if not await self._fill_raw():
                raise LinkBroken(
                    f"{self.remote} closed the connection before its first message", peer=str(self.remote)
                )
        magic, version, capacity = GREETING.unpack_from(self._raw, self._start)
        self._start += GREETING.size
        if (magic, version) != (MAGIC, VERSION):
            raise ProtocolError(
                f"{self.remote} does not speak shm:// version {VERSION}", peer=str(self.remote)
            )
        self._handed, self._taken = HandedFiles(min(capacity, most_files())), TakenFiles(holds)
        self._next_sweep = trio.current_time() + _SWEEP_PAUSE

    # Sending.

    async def send(self, parts: Sequence[Part]) -> None:
        self.check_open()
        if not self._has_greeted:
            await self.prepare()
        if self._unsent:
            unsent, parts = self._unsent, after(parts, self._covered)
            self._unsent, self._covered = b"", 0
            await super().send([unsent])
        if self._sweeps():
            self._next_sweep = trio.current_time() + _SWEEP_PAUSE
            await self._drop(self._handed.drop_deleted())
        ranges = [part for part in parts if is_range(part) and part.length]
        numbers: list[int | None] = []
        if ranges and _is_worth(sum([part.length for part in ranges]), len(ranges)):
            await warm(ranges)
            numbers = await self._hand_over(ranges)
        await super().send(list(self._chunks(parts, numbers)))

    def send_now(self, parts: Sequence[Part]) -> int:
        if not self._has_greeted or (self._handed.by_inode and self._sweeps()):
            return 0
        if len(parts) == 1 and type(parts[0]) is bytes:
            # As for most messages.
            total = len(parts[0])
            wire = PREFIX.pack(_BYTES, 0, total) + parts[0]
        else:
            total = sum(map(_size, parts))
            if any(map(is_range, parts)):
                with_ranges = self._wire_of(parts, total)
                if with_ranges is None:
                    return 0
                wire = with_ranges
            else:
                wire = b"".join((PREFIX.pack(_BYTES, 0, total), *parts))  # type: ignore[arg-type]
        count = self.try_send(wire)
        if count == len(wire):
            return total
        if count:
            # Chunks once begun go out as they are, when the parts that are in them come again by `send`.
            self._unsent, self._covered = wire[count:], total
        return 0

    def _wire_of(self, parts: Sequence[Part], total: int) -> bytes | None:
        """Chunks of parts with ranges among them; None if they cannot be made without waiting."""
        ranges = [part for part in parts if is_range(part) and part.length]
        if not all(map(is_warm, ranges)):
            return None
        size = sum([part.length for part in ranges])
        if not _is_worth(size, len(ranges)):
            if size > _MOST_JOINED:
                return None
            return b"".join((PREFIX.pack(_BYTES, 0, total), *map(_in_memory, parts)))
        numbers = self._known_files(ranges)
        return None if numbers is None else b"".join(self._chunks(parts, numbers))  # type: ignore[arg-type]

    def _sweeps(self) -> bool:
        """Whether it is time to close deleted files, which take space while they are open."""
        return bool(self._handed.by_inode) and trio.current_time() >= self._next_sweep

    def _known_files(self, ranges: Sequence[FileRange]) -> list[int | None] | None:
        """The numbers of all ranges' files, if the peer has them all; None if it has not."""
        found = [self._handed.find(part) for part in ranges]
        return (
            [one.number for one in found if isinstance(one, Handed)] if all(map(_is_known, found)) else None
        )

    def _chunks(self, parts: Sequence[Part], numbers: Sequence[int | None]) -> Iterator[Part]:
        """These parts of the stream as chunks; `numbers` are the files of the ranges, None for what is sent."""
        number = iter(numbers)
        given = [(part, next(number, None) if is_range(part) and part.length else None) for part in parts]
        for by_reference, run in itertools.groupby(given, lambda pair: pair[1] is not None):
            if by_reference:
                yield from _places_chunks([(part, file) for part, file in run if is_range(part) and file])
            else:
                inline = [part for part, _ in run]
                yield PREFIX.pack(Chunk.BYTES, 0, sum(map(_size, inline)))
                yield from inline

    async def _hand_over(self, ranges: Sequence[FileRange]) -> list[int | None]:
        """See to it that the peer has the files of these ranges; their numbers, None for what must be sent."""
        needed: set[int] = set()
        numbers: list[int | None] = []
        for part in ranges:
            found = self._handed.find(part)
            if isinstance(found, tuple):
                found = await self._introduce(found, part, needed)
            numbers.append(None if found is None else found.number)
            if found is not None:
                needed.add(found.number)
        return numbers

    async def _introduce(self, key: tuple[int, int], part: FileRange, needed: set[int]) -> Handed | None:
        await self._drop([*self._handed.drop_deleted(needed), *self._handed.make_room(needed)])
        if self._handed.is_full:
            return None
        try:
            handed = self._handed.add(key, part)
        except OSError as error:
            if not self._has_complained:
                log.warning("%s: files are sent, not handed over: %s", self.remote, error.strerror)
            self._has_complained = True
            return None
        if await self._send_file(handed):
            return handed
        self._handed.forget(handed)
        return None

    async def _drop(self, numbers: Sequence[int]) -> None:
        if numbers:
            await super().send([b"".join(PREFIX.pack(Chunk.DROP, number, 0) for number in numbers)])

    async def _send_file(self, handed: Handed) -> bool:
        """Send a descriptor; False if the system has too many on their way already."""
        prefix = PREFIX.pack(Chunk.FILE, handed.number, 0)
        rights = array.array("i", [handed.file.fileno()])
        while True:
            self.check_open()
            try:
                sent = self.socket.sendmsg(
                    [prefix],
                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)],
                    socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT,
                )
            except BlockingIOError:
                await self.wait_writable()
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    return False
                raise self.broken(error) from error
            else:
                if sent < len(prefix):
                    await super().send([prefix[sent:]])
                return True

    # Receiving.

    async def receive_into(self, buffer: memoryview, at_least: int = 1) -> int:
        self.check_open()
        if not self._has_greeted:
            await self.prepare()
        while not self._bytes_left:
            if self._places:
                await trio.lowlevel.checkpoint()
                return self._read_place(buffer)
            if not self._next_chunk() and not await self._more_raw():
                return 0
        target = buffer[: self._bytes_left]
        if self._start < self._end:
            count = min(len(target), self._end - self._start)
            target[:count] = self._raw[self._start : self._start + count]
            self._start += count
        else:
            count = await self._receive(target)
            if count == 0:
                raise self._cut()
        self._bytes_left -= count
        return count

    receives_now: ClassVar[bool] = True

    def receive_now(self, buffer: memoryview) -> int:
        if self._places or not self._has_greeted:
            return NOT_NOW
        if not self._bytes_left:
            if self._start == self._end:
                count = self.take_now(self._receive_chunk, buffer)
                return count if count <= 0 else self._begin_chunk(buffer, count)
            if not self._next_chunk() or not self._bytes_left:
                return NOT_NOW
        with buffer[: self._bytes_left] as target:
            there = self._end - self._start
            if there:
                count = min(len(target), there)
                target[:count] = self._raw[self._start : self._start + count]
                self._start += count
            else:
                count = self.take_now(self._receive_message, target)
                if count == 0:
                    raise self._cut()
                if count < 0:
                    return count
        self._bytes_left -= count
        return count

    def _receive_chunk(self, buffer: memoryview) -> int:
        """Receive a chunk's beginning to `_prefix`, and what follows it straight to where it mostly belongs."""
        count, ancillary, flags, _ = self.socket.recvmsg_into(
            (self._prefix, buffer[:_AFTER_PREFIX]), _SPACE, _RECEIVE_FLAGS
        )
        if ancillary or flags & _CUT_RIGHTS:
            self._keep_descriptors(ancillary, flags)
        return count

    def _begin_chunk(self, buffer: memoryview, count: int) -> int:
        """Judge `count` bytes of `_receive_chunk`; returns what `receive_now` does."""
        kind, _, length = PREFIX.unpack(self._prefix)
        behind = count - _PREFIX_SIZE
        if behind == _AFTER_PREFIX:
            # `take_now` has compared with the size of the buffer, which may be larger.
            self._drained = False
        if kind == _BYTES and length and behind > 0:
            # As of almost every message.
            if behind <= length:
                self._bytes_left = length - behind
                return behind
            self._start, self._end = 0, behind - length
            self._raw[: self._end] = buffer[length:behind]
            return length
        self._start, self._end = 0, count
        self._raw[:_PREFIX_SIZE] = self._prefix
        if behind > 0:
            self._raw[_PREFIX_SIZE:count] = buffer[:behind]
        return NOT_NOW

    def set_low_water(self, at_least: int) -> None:
        """Nothing: a frame may come in several chunks, and how many bytes they are is not known."""

    @property
    def is_drained(self) -> bool:
        return self._drained and self._start == self._end and not self._places and self._has_greeted

    async def receive_ranges(self, length: int) -> Payload | None:
        while not self._bytes_left and not self._places:
            if not self._next_chunk() and not await self._more_raw():
                raise self._cut()
        if self._bytes_left or not self._is_fresh or self._places_bytes != length:
            return None
        places = tuple(self._places)
        self._places.clear()
        self._places_bytes = 0
        return RangePayload(places)

    def _read_place(self, buffer: memoryview) -> int:
        place = self._places[0]
        try:
            count = os.preadv(place.fileno(), [buffer[: place.length]], place.offset)
        except OSError as error:
            raise self.broken(error) from error
        if count == 0:
            raise LinkBroken(f"{self.remote}: a file was cut while it was read", peer=str(self.remote))
        self._is_fresh = False
        self._places_bytes -= count
        if count == place.length:
            self._places.popleft()
        else:
            self._places[0] = Place(place.file, place.offset + count, place.length - count)
        return count

    def _next_chunk(self) -> bool:
        """Take the next chunk's beginning; False if not all of it is there."""
        start = self._start
        if self._end - start < PREFIX.size:
            return False
        kind, number, length = PREFIX.unpack_from(self._raw, start)
        if kind == _BYTES:
            self._start = start + PREFIX.size
            self._bytes_left = length
            return True
        if kind == Chunk.RANGES:
            if not 0 < number <= MOST_PLACES:
                raise ProtocolError(f"{self.remote} sends {number} ranges at once", peer=str(self.remote))
            if self._end - start < PREFIX.size + number * PLACE.size:
                return False
            self._take_places(number, length)
            return True
        self._start = start + PREFIX.size
        if kind == Chunk.FILE and self._descriptors:
            self._taken.take(number, self._descriptors.popleft())
        elif kind == Chunk.DROP:
            self._taken.drop(number)
        else:
            raise ProtocolError(f"{self.remote} sent a chunk of type {kind}", peer=str(self.remote))
        return True

    def _take_places(self, count: int, length: int) -> None:
        at = self._start + PREFIX.size
        self._start = at + count * PLACE.size
        for place in PLACE.iter_unpack(self._raw[at : self._start]):
            if place[2] == 0:
                raise ProtocolError(f"{self.remote} sent an empty range", peer=str(self.remote))
            self._places.append(self._taken.place(*place))
        self._places_bytes = sum(place.length for place in self._places)
        self._is_fresh = True
        if self._places_bytes != length:
            raise ProtocolError(
                f"{self.remote} sent ranges of another size than announced", peer=str(self.remote)
            )

    async def _more_raw(self) -> bool:
        """Receive more of a chunk's beginning; False at the end of the stream between two chunks."""
        if await self._fill_raw():
            return True
        if self._start < self._end:
            raise self._cut()
        return False

    async def _fill_raw(self) -> int:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = bytes(self._raw[self._start : self._end])
            self._start, self._end = 0, len(rest)
            self._raw[: len(rest)] = rest
        count = await self._receive(self._raw[self._end :])
        self._end += count
        return count

    async def _receive(self, buffer: memoryview) -> int:
        """Receive bytes, and the descriptors that come with them."""
        return await self.receive_by(self._receive_message, buffer)

    def _receive_message(self, buffer: memoryview) -> int:
        count, ancillary, flags, _ = self.socket.recvmsg_into([buffer], _SPACE, _RECEIVE_FLAGS)
        if ancillary or flags & _CUT_RIGHTS:
            self._keep_descriptors(ancillary, flags)
        return count

    def _keep_descriptors(self, ancillary: Sequence[tuple[int, int, bytes]], flags: int) -> None:
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                rights = array.array("i", data[: len(data) - len(data) % _DESCRIPTOR_SIZE])
                self._descriptors.extend(map(OpenFile, rights))
        if flags & _CUT_RIGHTS:
            _shortage.until = trio.current_time() + _NO_DESCRIPTORS_FOR
            log.warning("%s: no descriptor was left for a file: files will be sent as bytes", self.remote)
            raise LinkBroken(f"{self.remote}: no descriptor was left for a file", peer=str(self.remote))
        if len(self._descriptors) > _MOST_PENDING:
            raise ProtocolError(f"{self.remote} sends descriptors without files", peer=str(self.remote))

    def close(self) -> None:
        super().close()
        self._descriptors.clear()
        self._places.clear()
        self._handed, self._taken = HandedFiles(0), TakenFiles(0)

    def _cut(self) -> LinkBroken:
        return LinkBroken(f"{self.remote} closed the connection inside a chunk", peer=str(self.remote))


def _places_chunks(places: Sequence[tuple[FileRange, int]]) -> Iterator[bytes]:
    for first in range(0, len(places), MOST_PLACES):
        some = places[first : first + MOST_PLACES]
        yield PREFIX.pack(Chunk.RANGES, len(some), sum(part.length for part, _ in some))
        yield b"".join(PLACE.pack(file, part.offset, part.length) for part, file in some)


def _is_worth(size: int, count: int) -> bool:
    """Whether ranges of this number and size are handed over instead of sent."""
    return size >= max(HAND_OVER_FROM, LEAST_RANGE * count)


def _is_known(found: Handed | tuple[int, int] | None) -> bool:
    return isinstance(found, Handed)


def _in_memory(part: Part) -> Buffer:
    return read_range(part) if is_range(part) else part  # type: ignore[return-value]


def _size(part: Part) -> int:
    if isinstance(part, bytes):
        return len(part)
    return memoryview(part).nbytes if isinstance(part, bytes | bytearray | memoryview) else part.length

"""Frames over byte streams: a plugin for a byte stream implements opening and listening, the rest is here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

import trio

from . import _framing
from ._payload import POOL, BytesPayload
from .abc import Buffer, Capabilities, Link, LinkTransport, Listener, Part, Payload
from .buffers import KEPT, LazyBuffer
from .connections._incoming import FRAMES_AT_ONCE, Partial
from .errors import EndOfLink, LinkBroken, LinkClosed
from .frames import (
    HEADER_SIZE,
    LARGE_BODY,
    PREFACE,
    PREFACE_MAGIC,
    Frame,
    Header,
    check_frame,
    check_magic,
    damaged,
    decode_header,
    encode_header,
    hello_length,
)
from .ranges import after
from .urls import Endpoint

RECEIVE_BUFFER = 256 << 10
HANDOVER_FROM = 64 << 10
"""From here on a range may be handed over instead of received."""
LARGE_PAYLOAD = 128 << 10
"""From here on a payload is received straight into memory of its own; below it several come by one system call."""

_WORTH_WAKING = 1 << 20
"""Inside a large payload the receiver sleeps until so much is there."""
_WORTH_WAITING = 16 << 10
"""If so much of a frame is missing, the receiver sleeps until all of it is there: to say so costs a call."""
NOT_NOW = -2
"""The value that `ByteStream.receive_now` returns when `receive_into` is to be called."""
_NO_PAYLOAD = BytesPayload(b"")


class ByteStream(ABC):
    """An ordered, reliable duplex of bytes, used by one sending and one receiving task."""

    local: Endpoint
    remote: Endpoint
    caps: Capabilities

    @abstractmethod
    async def send(self, parts: Sequence[Part]) -> None:
        """Send it all, in order; then `parts` are not needed any more. If it is cancelled, or fails, the stream is
        aborted: no half of anything is followed by something else.

        Raises:
          LinkBroken: The peer is gone.
          LinkClosed: Closed on this side, perhaps while this waited.
          RangeTruncated: A file ended inside its range.
        """

    @abstractmethod
    async def receive_into(self, buffer: memoryview, at_least: int = 1) -> int:
        """Receive at least one byte into the beginning of `buffer`; returns how many, 0 at the end of the stream.
        Cancelling loses nothing: what a cancelled call had put into `buffer` comes again by the next. Afterwards
        `buffer` is somebody else's. Raises LinkBroken, LinkClosed. `buffer` may have room for a whole payload: what
        reads into memory of its own should ask for less. It may be as short as a frame's header, too, where a large
        payload is expected to follow.

        Fewer than `at_least` bytes are of no use yet: a stream that can wait for as many saves wake-ups. It must
        not wait for more, or a small frame would lie there unread. When there are bytes already it may return
        without letting other tasks run, but not for more than about a megabyte in a row.
        """

    receives_now: ClassVar[bool] = False
    """Whether there are `receive_now` and `until_readable`: together they are `receive_into`, but what waits has
    few coroutines above it, all of which would run each time. A class with `receive_into` alone has neither.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "receive_into" in cls.__dict__ and "receives_now" not in cls.__dict__:
            cls.receives_now = False
        if "receive_now" in cls.__dict__ and "is_drained" not in cls.__dict__:
            # What it keeps itself is not known to whom it inherits from.
            cls.is_drained = ByteStream.is_drained  # type: ignore[method-assign]

    def receive_now(self, buffer: memoryview) -> int:
        """As `receive_into`, from what is there already; -1 if it is time for `until_readable`, and NOT_NOW if
        only `receive_into` can go on.
        """
        return NOT_NOW

    @property
    def is_drained(self) -> bool:
        """Whether `receive_now` would return -1, as far as is known without a look."""
        return False

    async def until_readable(self, at_least: int) -> None:
        """Return when `receive_now` is worth an attempt, after other tasks could run. Cancelling loses nothing.

        `at_least`: see `receive_into`. Raises LinkClosed.
        """
        await trio.lowlevel.checkpoint()

    async def receive_ranges(self, length: int) -> Payload | None:
        """The next `length` bytes, if they come as exactly so many bytes of the peer's files.

        None: they come as bytes, or with others. Asked only if `caps.ranges` is "handover". Cancelling is safe.
        """
        return None

    async def prepare(self) -> None:
        """See `Link.prepare`."""
        await trio.lowlevel.checkpoint()

    @property
    def peer_name(self) -> str | None:
        """See `Link.peer_name`; known after `prepare`."""
        return None

    @property
    def peer_uid(self) -> int | None:
        """See `Link.peer_uid`."""
        return None

    async def send_eof(self) -> None:
        """Nothing more will be sent; only with `caps.half_close`."""
        await trio.lowlevel.checkpoint()

    @abstractmethod
    async def aclose(self) -> None:
        """Close in good order; when cancelled, closed all the same. Idempotent."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once, without blocking; wakes both tasks with LinkClosed. Idempotent."""

    sent: int = 0
    """Bytes that `send` got rid of so far, counted while it goes on, if that can be told: a peer that takes them is
    alive, however long it takes for all.
    """

    def trim(self) -> None:
        """See `Link.trim`."""
        return

    @property
    def unread(self) -> int:
        """Bytes that have arrived and were not received yet, if that can be told."""
        return 0

    def send_now(self, parts: Sequence[Part]) -> int:
        """Send what goes without waiting; returns how many bytes went. Raises what `send` raises.

        Offered are heads and payloads of whole frames, up to a megabyte of bytes and any number of ranges; `send`
        sends the rest.
        """
        return 0


class ByteListener(ABC):
    """Accepts byte streams; see `Listener`."""

    endpoints: Sequence[Endpoint]

    @abstractmethod
    async def accept(self) -> ByteStream:
        """The next stream, before anything was said on it. Cancelling loses none. Raises LinkClosed once this is
        closed; OSError (EMFILE and its like) is the caller's to wait out.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Stop accepting; a blocked `accept` ends with LinkClosed. Accepted streams live on. Idempotent."""


class StreamTransport(LinkTransport):
    """A transport whose links are byte streams. `parse` remains to be written, too."""

    @abstractmethod
    async def open_stream(self, endpoint: Endpoint) -> ByteStream:
        """Open a stream. Raises ConnectError."""

    @abstractmethod
    async def listen_streams(self, endpoint: Endpoint) -> ByteListener:
        """Open a listener. Raises AddressInUseError, OSError."""

    async def connect(self, endpoint: Endpoint) -> Link:
        return StreamLink(await self.open_stream(endpoint))

    async def listen(self, endpoint: Endpoint) -> Listener:
        return _StreamListener(await self.listen_streams(endpoint))


class _StreamListener(Listener):
    def __init__(self, listener: ByteListener) -> None:
        self._listener = listener
        self.endpoints = listener.endpoints

    async def accept(self) -> Link:
        return StreamLink(await self._listener.accept())

    async def aclose(self) -> None:
        await self._listener.aclose()


class StreamLink(Link):
    """Frames on a byte stream. Many frames are parsed from one read, and many are sent by one write."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.caps, self.local, self.remote = stream.caps, stream.local, stream.remote
        self._memory: LazyBuffer | None = LazyBuffer(RECEIVE_BUFFER)
        self._buffer = self._memory.view
        self._is_used = False
        """Whether something lay behind the first `KEPT` bytes of the buffer since they were given back."""
        self._start = self._end = 0
        self._partial: Partial | None = None
        self._ready: list[Frame] = []
        self._rest: list[Part] = []
        self._sending = self._receiving = False
        self._is_behind = self._is_held_back = False
        self._missing = 0
        """Bytes that the frame in the buffer lacks, if that is known."""
        self._next_head = 0
        """The size of the next frame's header and body, if it is like the last one, which was large; else 0."""
        self._large = HANDOVER_FROM if self.caps.ranges == "handover" else LARGE_PAYLOAD
        self._received = 0
        self._receives_now = stream.receives_now
        self.limits = Link.limits

    @property
    def received(self) -> int:
        return self._received + self._stream.unread

    @property
    def sent(self) -> int:
        return self._stream.sent

    @property
    def peer_name(self) -> str | None:
        return self._stream.peer_name

    @property
    def peer_uid(self) -> int | None:
        return self._stream.peer_uid

    async def prepare(self) -> None:
        await self._stream.prepare()

    async def send(self, head: Buffer, parts: Sequence[Part], *, more: bool = False) -> None:
        await self.send_many([(head, parts)])

    async def send_many(self, frames: Sequence[tuple[Buffer, Sequence[Part]]]) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this link")
        pieces = self._rest
        for head, parts in frames:
            pieces.append(head)
            pieces.extend(parts)
        self._sending = True
        try:
            await self._stream.send(pieces)
        except BaseException:
            self.abort()
            raise
        finally:
            self._sending = False
        self._rest = []

    def send_now(self, pieces: Sequence[Part]) -> bool:
        if self._sending or self._rest:
            return False
        self._rest = after(pieces, self._stream.send_now(pieces))
        return True

    @property
    def has_rest(self) -> bool:
        return bool(self._rest)

    async def recv(self) -> tuple[memoryview, Payload]:
        if not self._ready:
            self._ready = await self.recv_many()
        frame = self._ready.pop(0)
        return memoryview(_encode_again(frame)), frame.payload

    async def recv_many(self) -> list[Frame]:
        if self._receiving:
            raise self._busy()
        self._receiving = True
        try:
            if self._is_behind:
                await trio.lowlevel.checkpoint()
            is_woken = False
            while True:
                if self._end > self._start or self._partial is not None or self._ready:
                    frames = self._parse()
                    if frames:
                        return frames
                    if self._is_held_back:
                        assert self.gate is not None
                        await self.gate.wait()
                        continue
                if self._partial is not None or not self._receives_now:
                    there = NOT_NOW
                else:
                    # Asked first: to find out by an attempt costs five calls for each message.
                    there = self._fill_now() if is_woken or not self._stream.is_drained else -1
                if there == NOT_NOW:
                    await self._fill()
                elif there < 0:
                    at_least = self._missing if self._missing >= _WORTH_WAITING else 1
                    await self._stream.until_readable(at_least)
                is_woken = there == -1
        finally:
            self._receiving = False

    async def recv_hello(self) -> bytes:
        if self._receiving:
            raise self._busy()
        self._receiving = True
        try:
            # Some servers send a line of their own at once, shorter than a preface, and then wait for us.
            await self._fill_until(len(PREFACE_MAGIC))
            check_magic(bytes(self._buffer[self._start : min(self._end, self._start + PREFACE.size)]))
            await self._fill_until(PREFACE.size)
            length = PREFACE.size + hello_length(
                bytes(self._buffer[self._start : self._start + PREFACE.size])
            )
            await self._fill_until(length)
            hello = bytes(self._buffer[self._start : self._start + length])
            self._start += length
            return hello
        finally:
            self._receiving = False

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            self._let_go()

    def abort(self) -> None:
        try:
            self._stream.abort()
        finally:
            self._let_go()

    def trim(self) -> None:
        super().trim()
        # A read may be under way, and may have received already: between two frames it goes to what stays.
        if self._is_used and self._start == self._end and self._memory is not None:
            self._is_used = False
            self._memory.give_back()
        self._stream.trim()

    def _let_go(self) -> None:
        """A closed link may be kept for long, by a log's record or a traceback; what it has received may not."""
        ready, self._ready = self._ready, []
        for frame in ready:
            frame.payload.release()
        partial, self._partial = self._partial, None
        if partial is not None:
            for view in partial.missing:
                view.release()
            partial.payload.release()
        self._memory, self._buffer, self._start, self._end = None, memoryview(b""), 0, 0
        self._rest = []

    def _check_open(self) -> None:
        if self._memory is None:
            raise LinkClosed(f"the link to {self.remote} was closed here", peer=str(self.remote))

    def _busy(self) -> trio.BusyResourceError:
        return trio.BusyResourceError("another task is receiving on this link")

    def _parse(self) -> list[Frame]:
        """All whole frames that are there; a large one that has begun becomes `_partial`."""
        frames, self._ready = self._ready, []
        self._is_held_back = self._is_behind = False
        self._missing = 0
        if self._partial is not None:
            if self._partial.missing or self._partial.may_be_handed_over:
                return frames
            frames.append(self._finish(self._partial))
            self._partial = None
        while self._end - self._start >= HEADER_SIZE:
            frames += self._take_plain(FRAMES_AT_ONCE - len(frames))
            if self._end - self._start < HEADER_SIZE:
                break
            self._is_behind = len(frames) >= FRAMES_AT_ONCE
            if self._is_behind:
                break
            start = self._start
            header = decode_header(bytes(self._buffer[start : start + HEADER_SIZE]), self.limits)
            body_end = start + header.size + header.body_length
            total = body_end - start + header.payload_length
            if header.payload_length >= self._large or total > RECEIVE_BUFFER:
                if self._end - start < header.size:
                    break
                self._is_held_back = not self._is_admitted(header)
                if self._is_held_back:
                    break
                partial = self._begin(header)
                if partial.missing or partial.may_be_handed_over:
                    self._partial = partial
                    break
                frames.append(self._finish(partial))
                continue
            if self._end - start < total:
                self._missing = total - (self._end - start)
                break
            # It is whole, and was not plain.
            raise damaged(header, bytes(self._buffer[start + header.size : body_end]))
        return frames

    def _take_plain(self, most: int) -> list[Frame]:
        """Those that are whole, small and right, up to the first that is not."""
        buffer, limits = self._buffer, self.limits
        frames, at = _framing.take_frames(
            buffer,
            self._start,
            self._end,
            limits.max_body_bytes,
            limits.max_payload_bytes,
            self._large,
            most,
            BytesPayload,
        )
        if self._buffer is not buffer:
            return []  # closed by a finaliser, which may run where memory is allocated
        if frames:
            self._start, self._next_head = at, 0
        return frames

    def _is_admitted(self, header: Header) -> bool:
        large = header.payload_length or header.body_length > LARGE_BODY
        return not large or self.gate is None or self.gate.admits(header)

    def _begin(self, header: Header) -> Partial:
        """Lay out a large frame; what is in the buffer goes to its place, the rest will be received there."""
        self._start += header.size
        body = bytearray(header.body_length)
        is_last = self._end - self._start == header.body_length
        if is_last and self.caps.ranges == "handover" and header.payload_length >= HANDOVER_FROM:
            body[:] = self._buffer[self._start : self._end]
            self._start = self._end
            return Partial(header, body, _NO_PAYLOAD, [], may_be_handed_over=True)
        payload = POOL.take(header.payload_length)
        missing = []
        for target in (memoryview(body), payload.view()):
            there = min(len(target), self._end - self._start)
            target[:there] = self._buffer[self._start : self._start + there]
            self._start += there
            if there < len(target):
                missing.append(target[there:])
        return Partial(header, body, payload, missing)

    def _finish(self, partial: Partial) -> Frame:
        self._next_head = partial.header.size + partial.header.body_length
        frame = Frame(partial.header, bytes(partial.body), partial.payload)
        check_frame(frame)
        return frame

    async def _fill(self) -> None:
        if self._partial is None:
            await self._fill_buffer()
            return
        if self._partial.may_be_handed_over:
            await self._ask_for_ranges(self._partial)
            return
        target = self._partial.missing[0]
        count = await self._receive(target[:], min(len(target), _WORTH_WAKING))
        if count == len(target):
            target.release()
            del self._partial.missing[0]
        else:
            self._partial.missing[0] = target[count:]

    async def _ask_for_ranges(self, partial: Partial) -> None:
        length = partial.header.payload_length
        payload = await self._stream.receive_ranges(length)
        if self._memory is None and payload is not None:
            payload.release()
        self._check_open()
        partial.may_be_handed_over = False
        if payload is None:
            in_memory = POOL.take(length)
            partial.payload, partial.missing = in_memory, [in_memory.view()[:]]
        else:
            partial.payload = payload
            self._received += length

    async def _fill_until(self, size: int) -> None:
        while self._end - self._start < size:
            await self._fill_buffer()

    async def _fill_buffer(self) -> None:
        target = self._room(KEPT)  # for `trim`
        at_least = self._missing if self._missing >= _WORTH_WAITING else 1
        self._end += await self._receive(target, at_least)
        self._is_used = self._is_used or self._end > KEPT

    def _fill_now(self) -> int:
        """As `_fill_buffer`, without waiting, so that nobody trims meanwhile; what `receive_now` returned."""
        if self._memory is None:
            self._check_open()
        if self._start == self._end and not self._next_head:
            # As for most messages: all of the buffer.
            self._start = self._end = 0
            count = self._stream.receive_now(self._buffer)
        else:
            with self._room(RECEIVE_BUFFER) as target:
                count = self._stream.receive_now(target)
        if count > 0:
            self._received += count
            self._end += count
            self._is_used = self._is_used or self._end > KEPT
        elif count == 0:
            raise self._at_its_end()
        return count

    def _room(self, of_empty: int) -> memoryview:
        """Where the next bytes go; in an empty buffer only its first `of_empty`."""
        stop = RECEIVE_BUFFER
        if self._start == self._end:
            self._start = self._end = 0
            stop = of_empty
        elif RECEIVE_BUFFER - self._end < max(1, self._missing) or RECEIVE_BUFFER - self._start < HEADER_SIZE:
            there = self._end - self._start
            self._buffer[:there] = self._buffer[self._start : self._end]
            self._start, self._end = 0, there
        # A large payload goes to memory of its own: what came with its header would have to be copied there.
        if self._next_head:
            stop = min(stop, self._end + self._next_head)
        return self._buffer[self._end : stop]

    def _at_its_end(self) -> EndOfLink | LinkBroken:
        if self._partial is None and self._start == self._end:
            return EndOfLink(f"{self.remote} closed the connection", peer=str(self.remote))
        return LinkBroken(f"{self.remote} closed the connection inside a frame", peer=str(self.remote))

    async def _receive(self, target: memoryview, at_least: int = 1) -> int:
        """Receive into a view that is made for this one call."""
        self._check_open()
        try:
            count = await self._stream.receive_into(target, at_least)
        finally:
            # Who was cancelled may live on in a traceback, and memory with it.
            with suppress(BufferError):
                target.release()
        self._check_open()
        if count == 0:
            raise self._at_its_end()
        self._received += count
        return count


def _encode_again(frame: Frame) -> bytes:
    header = frame.header
    return encode_header(
        header.type,
        header.corr,
        kind=header.kind,
        kind_version=header.kind_version,
        flags=header.flags,
        aux=header.aux,
        body=frame.body,
        payload_length=header.payload_length,
        payload_crc=header.payload_crc,
        max_response=header.max_response,
    )

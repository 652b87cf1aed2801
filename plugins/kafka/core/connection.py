"""One client connection without its socket: bytes in, requests out; answers in, bytes out in the order of requests.

Requests run one after the other, as in Kafka. Produce requests alone may start behind others that are not answered
yet: their batches are put in order by the log. Answers leave in the order of requests, whatever comes first.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs

from insync.transport import Payload, size_of
from insync.transport.buffers import POOL
from insync.transport.frames import NOT_HERE

from ..protocol.apis import Api
from .errors import ProtocolViolationError

MOST_PRODUCES = 64
"""Produce requests of one connection that may be unanswered; Kafka's clients have 5 at most."""
SMALL_FRAME = 64 << 10
"""A larger frame, with its size, gets memory of its own, once there is room for it in the budget."""
LEAST_BUFFER, MOST_BUFFER = 8 << 10, 256 << 10
"""Bytes received at a time: few of a connection that says little, and four times as many whenever a read fills
them. Small requests that come in one read are one turn of the node: one write, one answer to its followers.
"""
FRAME_OF_STRANGERS = 64 << 10
MOST_PRODUCED = 100 << 20
MOST_ELSE = 8 << 20
"""Bytes of a frame: before a client has proved who it is, with record batches, and else."""

MOST_TAGS = 1000
"""Tagged fields of a request's header, of which Kafka has none so far."""

_HEAD = struct.Struct(">ihhi")
_SIZE = struct.Struct(">i")
_ANSWER = struct.Struct(">ii")
_SHORT = struct.Struct(">h")
_NOTHING = memoryview(b"")
# Each, read as a size, lies outside of every limit: `_frame_size` meets all of these clients.
_HINTS = {
    b"GET ": "an HTTP client",
    b"POST": "an HTTP client",
    b"HEAD": "an HTTP client",
    b"\x16\x03\x01": "a TLS client on a port without TLS",
    b"\x16\x03\x03": "a TLS client on a port without TLS",
    b"\x89ISR": "one of insync's own clients, or a node: they need an address such as tcp://, not kafka://",
}


@attrs.define(eq=False, slots=True)
class Request:
    """A request, and the place of its answer. `body`: a frame; `position`: where the message begins in it.

    `is_token`: the frame is a bare SASL token and has no header; `api` and `version` say nothing then.
    `room`: bytes of the receive budget that it holds until its memory is let go; `size`: of the frame, which is
    known after that, too.
    """

    api: int
    version: int
    correlation: int
    client_id: str | None
    body: memoryview
    position: int
    size: int = 0
    room: int = 0
    memory: Payload | None = None
    """Where a large frame lies; to be released when nobody looks at it any more, and used again then."""
    begun: float = 0.0
    """When it was received, in seconds of the caller's clock."""
    is_token: bool = False
    wants_answer: bool = True
    """False of a produce request without acknowledgement."""
    has_tags: bool = False
    """Whether the header of its answer has tagged fields."""
    answer: Sequence[Any] | None = None
    """The frame to be sent, in parts; empty: nothing is to be sent."""
    answer_size: int = 0
    """Bytes of the answer's message, without its header."""


class Connection:
    """flexible: whether the headers of a request and its answer have tagged fields. offers: whether a version of an
    API is served; what is not offered ends the connection, but for ApiVersions, which is how clients find out.
    """

    def __init__(
        self,
        *,
        offers: Callable[[int, int], bool],
        flexible: Callable[[int, int], bool],
        strangers_may: Collection[int] = (),
        may_grow: Callable[[int], bool] = lambda more: True,
    ) -> None:
        """may_grow: whether there is room for so many more bytes of buffer than a small frame needs."""
        self._offers = offers
        self._flexible = flexible
        self.strangers_may = strangers_may
        """APIs that may be used before the client has authenticated; empty: it need not."""
        self.next_is_token = False
        """Whether the next frame is a bare SASL token (KIP-43)."""
        self._slots: deque[Request] = deque()
        self._not_produces = 0
        """Of the slots."""
        self._may_grow = may_grow
        self._is_filled = False
        """The last read filled the buffer: more was waiting."""
        self._start = self._end = 0
        self._buffer = bytearray(LEAST_BUFFER)
        self._view = memoryview(self._buffer)
        self._large: Payload | None = None
        self._large_rest = _NOTHING
        """Where the rest of it is to be received."""
        self._expects_large = False
        """The last frame was large: the head of the next is read alone, so that the rest comes where it stays."""

    # Receiving

    @property
    def in_flight(self) -> int:
        """Requests that are not answered, or whose answers have not been taken."""
        return len(self._slots)

    @property
    def has_unparsed(self) -> bool:
        """Whether bytes are here that no request was made of."""
        return self._end > self._start or self._large is not None

    @property
    def is_idle(self) -> bool:
        return not self._slots

    @property
    def room_needed(self) -> int:
        """Bytes of a frame that is too large for the buffer; it is received after `make_room`. 0: there is none.

        Raises:
          ProtocolViolationError: Its size is over the limit.
        """
        # The limit hangs on the API: the whole head must be here. No request is shorter than that.
        if self._large is not None or self._end - self._start < _HEAD.size:
            return 0
        size = self._frame_size()
        # A smaller frame asks no budget: however full that is, `_grow` lets the buffer hold it.
        return size if size + _SIZE.size > SMALL_FRAME else 0

    def make_room(self) -> None:
        """Memory for the large frame, which the budget has admitted."""
        size = self._frame_size()
        self._large = POOL.take(size)
        start = self._start + _SIZE.size
        # The read of the head may have brought the whole frame, and bytes of the next, which stay in the buffer.
        here = min(self._end - start, size)
        view = self._large.view()
        view[:here] = self._view[start : start + here]
        self._large_rest, self._start = view[here:], start + here
        self._expects_large = True

    def get_buffer(self) -> memoryview:
        """Where bytes are to be received; empty while there is no room for any."""
        if self._large is not None:
            # It ends with the frame. Nothing is left of a whole one that may not start yet: the client is held up.
            return self._large_rest
        size, here = len(self._buffer), self._end - self._start
        if self._expects_large:
            if not here:
                self._start = self._end = 0
            if here < _HEAD.size <= size - self._start:
                return self._view[self._end : self._start + _HEAD.size]
            # A head that is whole here is of a small frame: of a large one `make_room` takes it away first.
            self._expects_large = False
        # A full buffer that may not grow does not stall: it holds a whole small frame, which starts once answers
        # have left, or the head of a large one, for which `make_room` comes before this call.
        if here == size or (self._is_filled and size < MOST_BUFFER):
            self._grow(size, here)
        elif self._start and not here:
            self._start, self._end, self._is_filled = 0, 0, False
        elif self._start and 2 * self._end > size:
            # Not with every read, each of which would copy the rest of a frame.
            self._resize(size)
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes were put into the buffer."""
        if self._large is not None:
            self._large_rest = self._large_rest[count:]
            return
        self._end += count
        self._is_filled = self._end == len(self._buffer)

    @property
    def large_missing(self) -> int:
        """Bytes that have not come of a frame for which memory was laid out; 0: there is none."""
        return len(self._large_rest)

    @property
    def large_filled(self) -> int:
        """Bytes that have come of such a frame."""
        return 0 if self._large is None else self._large.nbytes - len(self._large_rest)

    @property
    def can_shrink(self) -> bool:
        """Whether the buffer is larger than an idle connection needs, and empty."""
        # Bytes that are here would be lost by `shrink`: only the end of the connection may have that.
        return len(self._buffer) > LEAST_BUFFER and not self.has_unparsed

    def shrink(self) -> int:
        """Forget what was received, and make the buffer small; how many bytes that `may_grow` or the budget had
        admitted are free.
        """
        # First, since both go below. Up to `SMALL_FRAME` the buffer has grown without asking the budget.
        allowed = max(0, len(self._buffer) - SMALL_FRAME) + (0 if self._large is None else self._large.nbytes)
        self._large, self._large_rest = None, _NOTHING
        self._start = self._end = 0
        self._resize(LEAST_BUFFER)
        return allowed

    def _grow(self, size: int, here: int) -> None:
        larger = min(4 * size, SMALL_FRAME if size < SMALL_FRAME else MOST_BUFFER)
        if larger > size and (larger <= SMALL_FRAME or self._may_grow(larger - size)):
            self._resize(larger)
        # Refused: a buffer filled to its end has no room for the rest of a frame unless that moves to the front.
        elif self._start:
            self._resize(size)

    def _resize(self, size: int) -> None:
        """The bytes that are here move to the beginning."""
        rest = bytes(self._view[self._start : self._end]) if self._end > self._start else b""
        if size != len(self._buffer):
            # Another one: a bytearray of which a view is alive cannot change its size.
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
        self._buffer[: len(rest)] = rest
        self._start, self._end, self._is_filled = 0, len(rest), False

    def next_request(self) -> Request | None:
        """The next request, if it is here and may start.

        Raises:
          ProtocolViolationError: It is none, or is not served.
        """
        large = self._large
        if large is not None:
            if len(self._large_rest):
                return None
            frame, room = large.view(), large.nbytes
        else:
            if self._end - self._start < _SIZE.size:
                return None
            # A bare token may be shorter than the head of a request.
            size = self._frame_size() if self._end - self._start >= _HEAD.size or self.next_is_token else -1
            if size < 0 or self._end - self._start < size + _SIZE.size:
                return None
            frame, room = self._view[self._start + _SIZE.size : self._start + _SIZE.size + size], 0
        # Before the copy: a frame that waits stays in the buffer, which then holds the client up. Before `_parse`:
        # the answer to a request of the login changes how the next frame is read.
        if not self._may_start(frame):
            return None
        if large is None:
            # Whoever serves it may keep it; the buffer is used again.
            frame = memoryview(bytes(frame))
            self._start += _SIZE.size + len(frame)
        request = self._parse(frame)
        # Only now: the room of a frame that is none is given back with the buffer.
        if large is not None:
            self._large, self._large_rest = None, _NOTHING
        request.size, request.room, request.memory = len(frame), room, large
        # Behind `_parse`: a frame that is no request takes no slot, which no answer would free. The listener waits
        # for free slots before it closes.
        self._slots.append(request)
        self._not_produces += request.api != Api.PRODUCE
        return request

    def _may_start(self, frame: memoryview) -> bool:
        if not self._slots:
            return True
        if self.next_is_token or len(frame) < 2 or _SHORT.unpack_from(frame)[0] != Api.PRODUCE:
            return False
        # Not behind another kind, whose effects come first: Kafka's broker, too, reads nothing more of a connection
        # until it has answered.
        return len(self._slots) < MOST_PRODUCES and not self._not_produces

    def _frame_size(self) -> int:
        """That of the next frame, of which the head is here."""
        (size,) = _SIZE.unpack_from(self._buffer, self._start)
        # First: a bare token has no head, and its own bytes would be taken for an API.
        if self.next_is_token:
            if not 0 <= size <= FRAME_OF_STRANGERS:
                raise ProtocolViolationError(
                    f"a SASL token of {size} bytes; at most {FRAME_OF_STRANGERS} are accepted"
                )
            return int(size)
        _, api, _, _ = _HEAD.unpack_from(self._buffer, self._start)
        limit = MOST_ELSE
        # Before the API: a frame that claims to be a produce request brings a stranger no more memory.
        if self.strangers_may:
            limit = FRAME_OF_STRANGERS
        elif api == Api.PRODUCE:
            limit = MOST_PRODUCED
        # 8 bytes: `_parse` reads API, version and correlation without another look.
        if not 8 <= size <= limit:
            head = bytes(self._view[self._start : self._start + 4])
            hint = next(
                (f"; it looks like {who}" for start, who in _HINTS.items() if head.startswith(start)), ""
            )
            error = ProtocolViolationError(
                f"a frame of {size} bytes; one of API {api} may have 8 to {limit} here{hint}"
            )
            if head == NOT_HERE[:4]:
                # The dialer learns its mistake in its own protocol only: Kafka's would tell it nothing.
                error.farewell = NOT_HERE
            raise error
        return int(size)

    def _parse(self, frame: memoryview) -> Request:
        if self.next_is_token:
            # For one frame: the login sets it again, with its answer to this token, if another is due.
            self.next_is_token = False
            return Request(-1, 0, 0, None, frame, 0, is_token=True)
        api, version, correlation = struct.unpack_from(">hhi", frame)
        if self.strangers_may and api not in self.strangers_may:
            raise ProtocolViolationError(
                f"API {api} before the client has authenticated; clients of this port log in: their "
                "security.protocol is SASL_PLAINTEXT, or SASL_SSL at kafka+tls://"
            )
        known = self._offers(api, version)
        if not known and api != Api.API_VERSIONS:
            raise ProtocolViolationError(f"version {version} of API {api}, which is not offered")
        if not known:
            # Its body is not looked at: the answer says which versions there are.
            return Request(api, version, correlation, None, frame, len(frame))
        client_id, position = self._client_id(frame)
        request = Request(api, version, correlation, client_id, frame, position)
        if self._flexible(api, version):
            if frame[position : position + 1] == b"\0":  # as almost every client writes it: none
                request.position += 1
            else:
                request.position = _skip_tags(frame, position)
            # Clients read this answer before they know the node's versions: its header never has tags (KIP-511).
            request.has_tags = api != Api.API_VERSIONS
        return request

    @staticmethod
    def _client_id(frame: memoryview) -> tuple[str | None, int]:
        if len(frame) < 10:
            raise ProtocolViolationError("a request header that ends too early")
        # Two bytes of length in flexible versions, too: old brokers have to read the header of any ApiVersions.
        (length,) = _SHORT.unpack_from(frame, 8)
        if length < 0:
            return None, 10
        if 10 + length > len(frame):
            raise ProtocolViolationError("a client id that is longer than its request")
        try:
            return str(frame[10 : 10 + length], "utf-8"), 10 + length
        except UnicodeDecodeError as error:
            raise ProtocolViolationError("a client id that is not UTF-8") from error

    # Answering

    def answer(self, request: Request, parts: Sequence[Any]) -> None:
        """Take the answer to a request: parts of its message; none for a request that is to have no answer."""
        assert request.answer is None, "a request is answered once"
        # Of almost every answer there is one part.
        is_one = len(parts) == 1 and type(parts[0]) is bytes
        request.answer_size = len(parts[0]) if is_one else size_of(parts)
        if not parts:
            # Not None, which would hold up all answers behind it.
            request.answer = ()
        elif request.is_token:
            # As bare as the token: the client expects no header (KIP-43).
            request.answer = (_SIZE.pack(request.answer_size) + parts[0], *parts[1:])
        else:
            tags = b"\0" if request.has_tags else b""
            size = _SIZE.size + len(tags) + request.answer_size
            head = _ANSWER.pack(size, request.correlation) + tags + parts[0]
            request.answer = (head,) if is_one else (head, *parts[1:])

    def take_answers(self) -> list[Any]:
        """The frames that can be sent by now, whole and in order."""
        sent: list[Any] = []
        slots = self._slots
        # Kafka's clients take an answer for that to their oldest request, and fail at any other correlation.
        while slots and slots[0].answer is not None:
            request = slots.popleft()
            # Here and not in `answer`: the next request starts only behind an answer that leaves.
            self._not_produces -= request.api != Api.PRODUCE
            sent += request.answer or ()
        return sent


def _skip_tags(frame: memoryview, position: int) -> int:
    """Past the tagged fields of a header, none of which is known (KIP-482)."""
    try:
        count, position = _varint(frame, position)
        # Before the loop: a frame has room for millions of fields, and the node's event loop would wait for them.
        if count > MOST_TAGS:
            raise ProtocolViolationError(f"a request header with {count} tagged fields, above {MOST_TAGS}")
        for _ in range(count):
            _, position = _varint(frame, position)
            size, position = _varint(frame, position)
            position += size
            if position > len(frame):
                break
    except IndexError:
        position = len(frame) + 1
    if position > len(frame):
        raise ProtocolViolationError("a request header that ends too early")
    return position


def _varint(frame: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, position
        shift += 7
        # Kafka's varints end here. Python's integers do not: a frame of such bytes would become one number.
        if shift > 28:
            raise ProtocolViolationError("a number of more than five bytes in a request header")

"""The transport under the fuzzer: its sender in C, everything in Python that reads what a peer sends, and what C
takes of that.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Coroutine, Iterator
from typing import Any
from unittest.mock import patch

import trio

from insync.transport import URL, ByteStream, Capabilities, Identity, TransportError, _framing
from insync.transport import frames as frames_
from insync.transport import stream as stream_
from insync.transport.connections import _handshake, intake, session
from insync.transport.connections.intake import ReceiveBudget
from insync.transport.connections.request import Request
from insync.transport.connections.session import Session
from insync.transport.errors import EndOfLink, FrameTooLargeError, LinkBroken, ProtocolError
from insync.transport.frames import FrameType, Limits, crc32c, decode_hello, encode_header, encode_hello
from insync.transport.stream import StreamLink
from tests.transport import slow_frames

from ._fuzzing import Target
from ._python import PythonTarget

LIMITS = Limits(max_body_bytes=600, max_payload_bytes=3000, window_bytes=4000)
_SMALLER = {"RECEIVE_BUFFER": 1024, "LARGE_PAYLOAD": 300}
"""So that short inputs fill the buffer and have payloads with memory of their own."""
_REPAIR = 1
_HEADER = struct.Struct("<HBBHBBQIIQIII")
_NO_ERRORS = (EndOfLink, LinkBroken, ProtocolError, FrameTooLargeError)
"""How a peer's bytes may end: nothing else may come out, whatever they are."""


class Script(ByteStream):
    """A stream of given bytes in pieces of given size."""

    caps = Capabilities()
    local = remote = URL("fuzz", "peer")

    def __init__(self, data: bytes, piece: int) -> None:
        self._data, self._piece = memoryview(data), piece

    async def send(self, parts: object) -> None:
        pass

    async def receive_into(self, buffer: memoryview, at_least: int = 1) -> int:
        size = min(len(buffer), len(self._data), self._piece)
        buffer[:size], self._data = self._data[:size], self._data[size:]
        return size

    async def aclose(self) -> None:
        pass

    def abort(self) -> None:
        pass


def repaired(data: bytes) -> bytes:
    """With the CRCs as they should be, wherever the lengths lead: else hardly any input passes the first check."""
    found, at = bytearray(data), 0
    while at + 48 <= len(found):
        found[at : at + 2] = b"\x49\x52"
        fields = _HEADER.unpack_from(found, at)
        body = at + min(max(fields[1], 6), 32) * 8
        payload = body + min(fields[7], len(found))
        end = payload + min(fields[9], len(found))
        struct.pack_into("<I", found, at + 32, crc32c(bytes(found[body:payload])))
        if fields[5] & 1:
            struct.pack_into("<I", found, at + 36, crc32c(bytes(found[payload:end])))
        struct.pack_into("<I", found, at + 44, crc32c(bytes(found[at : at + 44])))
        at = max(end, at + 48)
    return bytes(found)


def finish(step: Coroutine[Any, Any, Any]) -> Any:
    """Run what never waits."""
    try:
        step.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something")


def link_of(data: bytes, piece: int = 1 << 20) -> StreamLink:
    """A link from which these bytes come, in pieces of that size."""
    link = StreamLink(Script(data, piece))
    link.set_limits(LIMITS)
    return link


def frames_in(link: StreamLink) -> tuple[list[tuple[object, bytes, bytes]], str]:
    """The frames of a stream, and how it ends."""
    found = []
    try:
        while True:
            for frame in finish(link.recv_many()):
                assert len(frame.body) <= LIMITS.max_body_bytes
                assert frame.payload.nbytes <= LIMITS.max_payload_bytes
                header = [getattr(frame.header, name) for name in slow_frames.NAMES]
                found.append((header, frame.body, bytes(frame.payload.view())))
                frame.payload.release()
    except _NO_ERRORS as error:
        return found, type(error).__name__


def run_frames(raw: bytes) -> None:
    """The same frames, and the same end, come out of a stream in whatever pieces it comes, in C and in Python."""
    if len(raw) < 2:
        return
    data = repaired(raw[2:]) if raw[0] & _REPAIR else raw[2:]
    with patch.multiple(stream_, **_SMALLER):
        in_c = frames_in(link_of(data)), frames_in(link_of(data, 1 + raw[1]))
        with patch.object(_framing, "take_frames", slow_frames.take_frames):
            whole, end = frames_in(link_of(data))
            pieces, end_in_pieces = frames_in(link_of(data, 1 + raw[1]))
    assert in_c == ((whole, end), (pieces, end_in_pieces)), "C and Python differ"
    # Damage that came in one read with frames in front of it takes them along.
    both = min(len(whole), len(pieces))
    assert whole[:both] == pieces[:both], "the pieces matter"
    assert len(whole) == len(pieces) or end in ("ProtocolError", "FrameTooLargeError")
    assert end == end_in_pieces


def run_session(raw: bytes) -> None:
    """A peer's frames make a session answer, or end it by ProtocolError; what is held is what is counted."""
    if len(raw) < 2:
        return
    requests: list[Request] = []
    budget = ReceiveBudget(1 << 30)
    one = Session(
        dialer=bool(raw[1] & 1),
        limits=LIMITS,
        peer="peer",
        on_request=requests.append,
        budget=budget,
        credit=1000 if raw[1] & 2 else None,
    )
    ended = []
    for size in (0, 10, 900, 900):
        one.request(1, b"", [bytes(size)], deadline=5, now=0, max_response=5000, on_done=ended.append)
    with patch.multiple(stream_, **_SMALLER):
        link = link_of(repaired(raw[2:]))
        link.set_gate(_Gate(one))
        try:
            while True:
                for frame in finish(link.recv_many()):
                    one.receive(frame, 1)
                    _act(one, requests, raw[1])
        except _NO_ERRORS as error:
            one.end(error)
    assert len(ended) == 4, "each request has ended"
    for request in requests:
        request.payload.release()
    assert budget.used == 0 == one.intake.held


class _Gate:
    def __init__(self, one: Session) -> None:
        self.admits = one.admits

    async def wait(self) -> None:
        raise AssertionError("there is room")


def _act(one: Session, requests: list[Request], how: int) -> None:
    """What a handler does, now and then."""
    if requests and how & 4:
        requests[-1].payload.release()
    if requests and how & 8 and requests[-1].corr in one.unanswered:
        one.reply(requests[-1], b"body", [b"payload"])
    if how & 16:
        one.expire(6)
    one.outbox.clear()


def run_hello(raw: bytes) -> None:
    """A HELLO is decoded, and then says the same when it is encoded again; or it is refused."""
    try:
        hello = decode_hello(raw)
    except ProtocolError:
        return
    assert decode_hello(encode_hello(hello)) == hello


def run_strangers(raw: bytes) -> None:
    """Nobody gets in who does not know the secret, whatever he says."""

    async def welcome() -> None:
        mine = _handshake.make_hello(Identity("c", 1, 1), "", LIMITS, proves=True)
        with trio.move_on_after(5):
            await _handshake.introduce(
                StreamLink(Script(raw, 1 << 20)),
                mine,
                _handshake.judge_dialer,
                dialer=False,
                secrets=[b"s" * 16],
            )
            raise AssertionError("a stranger was let in")

    try:
        trio.run(welcome)
    except TransportError:
        return


def _hellos() -> Iterator[bytes]:
    for proves in (False, True):
        for node in (-1, 3):
            mine = _handshake.make_hello(
                Identity("c", node, 2), "data", Limits(), 1 if proves else None, proves=proves
            )
            yield encode_hello(mine)


def _streams() -> Iterator[bytes]:
    noise = random.Random(1)
    for number in range(30):
        parts = [bytes([_REPAIR, noise.randrange(256)])]
        corr = 1 + number % 2
        for _ in range(noise.randrange(1, 6)):
            kind = noise.choice(list(FrameType))
            payload = noise.randbytes(noise.choice((0, 0, 5, 300)))
            head = encode_header(
                kind,
                corr,
                kind=1,
                aux=noise.choice((0, 1000)),
                body=noise.randbytes(noise.choice((0, 3))),
                payload_length=len(payload),
                max_response=1024,
            )
            parts += [head, payload]
            corr += noise.choice((0, 2))
        yield b"".join(parts)
    for length in (299, 300, 1000, 3000, 3001):
        yield bytes([_REPAIR, 9]) + encode_header(FrameType.REQUEST, 1, payload_length=length) + bytes(length)


def _strangers() -> Iterator[bytes]:
    for hello in _hellos():
        yield hello
        yield hello + encode_header(FrameType.REPLY, 0, body=bytes(32))
        yield hello + encode_header(FrameType.ERROR, 0, aux=5, body=b"no")


def _senders() -> Iterator[bytes]:
    noise = random.Random(2)
    for number in range(30):
        options = bytes([4 * (number % 2), noise.randrange(256)]) + noise.randbytes(2) + bytes(12)
        parts = b""
        for _ in range(noise.randrange(1, 9)):
            if noise.random() < 0.5:
                parts += b"\x03" + noise.randrange(40_000).to_bytes(3) + noise.randrange(40_000).to_bytes(3)
            else:
                parts += b"\x00" + (100).to_bytes(3) + noise.randbytes(100)
        yield options + parts


_target = functools.partial(PythonTarget, modules=(frames_, stream_, session, intake, _handshake))

TARGETS = (
    Target("transport_tx", ("isr_tx.c",), _senders, max_len=2048),
    _target("transport_frames", run_frames, seeds=_streams),
    _target("transport_session", run_session, seeds=_streams),
    _target("transport_hello", run_hello, seeds=_hellos),
    _target("transport_strangers", run_strangers, seeds=_strangers),
)

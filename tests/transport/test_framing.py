"""Frames in C: those taken out of a buffer, and headers, are as Python would have them, whatever a peer sends."""

from __future__ import annotations

import gc
import struct
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from insync.transport import URL, ByteStream, Capabilities, Limits, _framing
from insync.transport import stream as stream_
from insync.transport._payload import BufferPayload, BytesPayload
from insync.transport.connections import _outgoing
from insync.transport.connections._incoming import FRAMES_AT_ONCE, Partial
from insync.transport.errors import EndOfLink, FrameTooLargeError, LinkBroken, ProtocolError
from insync.transport.frames import (
    HEADER_SIZE,
    Frame,
    FrameType,
    Header,
    crc32c,
    decode_header,
    encode_header,
)
from insync.transport.ranges import after
from insync.transport.stream import StreamLink

from . import slow_frames

LIMITS = Limits(max_body_bytes=300, max_payload_bytes=900)
LARGE = 400
BUFFER = 1024
AT_ONCE = 3
NAMES = (*slow_frames.NAMES, "size")


# ---- what comes in ----


class Script(ByteStream):
    """Delivers given bytes in pieces of given sizes."""

    caps = Capabilities()
    local = remote = URL("test", "peer")

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.data, self.sizes, self.turn = memoryview(data), sizes, 0

    async def send(self, parts: object) -> None:
        raise AssertionError

    async def receive_into(self, buffer: memoryview, at_least: int = 1) -> int:
        size = min(len(buffer), len(self.data), self.sizes[self.turn % len(self.sizes)])
        self.turn += 1
        buffer[:size], self.data = self.data[:size], self.data[size:]
        return size

    async def aclose(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Doorkeeper:
    """Lets a large frame in at the second attempt."""

    def __init__(self) -> None:
        self.asked = 0

    def admits(self, header: Header) -> bool:
        self.asked += 1
        return self.asked % 2 == 0

    async def wait(self) -> None:
        pass


def shown(value: object) -> object:
    """A frame, a payload or a part of either, so that it can be compared with types and all."""
    if isinstance(value, Header):
        return [getattr(value, name) for name in NAMES]
    if isinstance(value, Frame):
        return [shown(value.header), (type(value.body), value.body), shown(value.payload)]
    if isinstance(value, BytesPayload | BufferPayload):
        return [type(value).__name__, value.nbytes, bytes(value.view())]
    if isinstance(value, Partial):
        # What is not filled yet may hold what was there before.
        missing = [len(one) for one in value.missing]
        return [shown(value.header), len(value.body), value.payload.nbytes, missing, value.may_be_handed_over]
    return value


def state(link: StreamLink) -> list[object]:
    """All that a link keeps of what it has received."""
    names = (
        "_start",
        "_end",
        "_is_behind",
        "_is_held_back",
        "_missing",
        "_next_head",
        "_received",
        "_is_used",
    )
    buffer = bytes(link._buffer[link._start : link._end])
    return [
        [getattr(link, name) for name in names],
        buffer,
        [shown(one) for one in link._ready],
        shown(link._partial),
    ]


def run(step: Any) -> Any:
    """Run what never waits, but for others."""
    while True:
        try:
            step.send(None)
        except StopIteration as done:
            return done.value


def story(data: bytes, sizes: list[int], *, guarded: bool, one_by_one: bool = False) -> list[object]:
    """What a link does with these bytes, step by step, to the end."""
    link = StreamLink(Script(data, sizes))
    link.set_limits(LIMITS)
    if guarded:
        link.set_gate(Doorkeeper())
    told: list[object] = []
    try:
        while True:
            if one_by_one:
                head, payload = run(link.recv())
                told.append([bytes(head), shown(payload)])
                payload.release()
            else:
                told.append([shown(one) for one in run(link.recv_many())])
            told.append(state(link))
    except (EndOfLink, FrameTooLargeError, LinkBroken, ProtocolError) as error:
        told.append([type(error), str(error), state(link)])
    return told


@contextmanager
def small() -> Iterator[pytest.MonkeyPatch]:
    """A small buffer, and small bounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_, "RECEIVE_BUFFER", BUFFER)
        patch.setattr(stream_, "LARGE_PAYLOAD", LARGE)
        patch.setattr(stream_, "FRAMES_AT_ONCE", AT_ONCE)
        patch.setattr(stream_.trio.lowlevel, "checkpoint", _nothing)
        yield patch


async def _nothing() -> None:
    pass


def seal(head: bytearray, at: int = 0) -> None:
    head[at + 44 : at + 48] = crc32c(bytes(head[at : at + 44])).to_bytes(4, "little")


@st.composite
def one_frame(draw: st.DrawFn) -> bytes:
    """A frame; most are right."""
    body = draw(st.binary(max_size=4) | st.sampled_from([bytes(300), bytes(301), b"x" * 200]))
    payload = draw(
        st.binary(max_size=4) | st.sampled_from([bytes(LARGE - 1), bytes(LARGE), b"y" * 901, b"z" * 900])
    )
    head = bytearray(
        encode_header(
            draw(st.integers(1, 9) | st.integers(0, 255)),
            draw(st.integers(0, 5) | st.integers(0, 2**64 - 1)),
            kind=draw(st.integers(0, 2**16 - 1)),
            kind_version=draw(st.integers(0, 255)),
            flags=draw(st.sampled_from([0, 1, 1, 1, 2, 3, 255])),
            aux=draw(st.integers(0, 2**32 - 1)),
            body=body,
            payload_length=len(payload),
            payload_crc=crc32c(payload),
            max_response=draw(st.integers(0, 2**42 - 1024)),
        )
    )
    words = draw(st.sampled_from([6, 6, 6, 7, 9, 32]))
    head[2] = words
    head[HEADER_SIZE:HEADER_SIZE] = bytes(8 * (words - 6))
    wrong = draw(st.sampled_from([None] * 20 + ["words", "body", "payload", "crc", "payload crc", "magic"]))
    if wrong == "words":
        head[2] = draw(st.sampled_from([0, 5, 33, 255]))
    elif wrong == "body":
        head[16:20] = draw(st.integers(0, 2**32 - 1) | st.integers(0, 400)).to_bytes(4, "little")
    elif wrong == "payload":
        head[24:32] = draw(st.integers(0, 2**64 - 1) | st.integers(0, 1000)).to_bytes(8, "little")
    elif wrong == "crc":
        head[32:36] = draw(st.binary(min_size=4, max_size=4))
    elif wrong == "payload crc":
        head[36:40] = draw(st.binary(min_size=4, max_size=4))
    elif wrong == "magic":
        head[0] ^= 1
    seal(head)
    return bytes(head) + payload


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Several frames, perhaps with a bit that is wrong, or without an end."""
    data = bytearray(b"".join(draw(st.lists(one_frame(), max_size=8))) * draw(st.integers(1, 4)))
    for at in draw(st.lists(st.integers(0, max(0, len(data) * 8 - 1)), max_size=1)) if data else ():
        data[at // 8] ^= 1 << at % 8
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@settings(max_examples=300, deadline=None)
@given(
    streams(),
    st.lists(st.integers(1, 60) | st.integers(60, 1 << 12), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_whatever_comes_has_the_same_result(data, sizes, guarded, one_by_one):
    with small() as patch:
        in_c = story(data, sizes, guarded=guarded, one_by_one=one_by_one)
        patch.setattr(_framing, "take_frames", slow_frames.take_frames)
        assert in_c == story(data, sizes, guarded=guarded, one_by_one=one_by_one)


PLAIN = encode_header(
    FrameType.REPLY, 300, body=b"body", payload_length=3, payload_crc=crc32c(b"pay"), flags=1
)
PLAIN += b"pay"


def taken(data: Any, start: int = 0, limits: Limits = LIMITS, large: int = 1 << 20, most: int = 100) -> Any:
    bounds = limits.max_body_bytes, limits.max_payload_bytes, large, most
    return _framing.take_frames(data, start, len(data), *bounds, BytesPayload)


def link_with(data: bytes) -> StreamLink:
    """In the buffer of which these bytes lie."""
    link = StreamLink(Script(b"", [1]))
    link._buffer[: len(data)] = data
    link._end = len(data)
    return link


@pytest.mark.parametrize("rest", [b"", PLAIN[:47], PLAIN[:48], PLAIN[:-1], b"\0" * 48], ids=len)
def test_what_lies_behind_plain_frames_stays(rest):
    frames, at = taken(b"-" + PLAIN * 2 + rest, 1)
    assert [(one.body, bytes(one.payload.view())) for one in frames] == [(b"body", b"pay")] * 2
    assert frames[0].payload is not frames[1].payload
    assert at == 1 + 2 * len(PLAIN)
    assert taken(PLAIN * 5, most=3)[1] == 3 * len(PLAIN)
    assert taken(PLAIN, most=0) == taken(PLAIN, most=-1) == ([], 0)


def test_a_frame_that_fills_the_buffer_is_plain():
    data = encode_header(FrameType.REPLY, 1, body=bytes(stream_.RECEIVE_BUFFER - HEADER_SIZE))
    link = link_with(data)
    link.set_limits(Limits(max_body_bytes=1 << 20))
    (found,) = link._parse()
    assert len(found.body) == len(data) - HEADER_SIZE and link._partial is None
    assert found.payload.nbytes == 0


def edge(
    words: int = 6,
    body: bytes = b"",
    flags: int = 1,
    payload: bytes = b"",
    said: int | None = None,
    **crcs: int,
) -> bytes:
    """A frame; `said` is what it announces as the length of its payload, if that is not right."""
    length = len(payload) if said is None else said
    crc = crcs.get("payload_crc", crc32c(payload))
    head = encode_header(1, 1, flags=flags, body=body, payload_length=length, payload_crc=crc)
    changed = bytearray(head[:2] + bytes([words]) + head[3:HEADER_SIZE])
    if "body_crc" in crcs:
        changed[32:36] = crcs["body_crc"].to_bytes(4, "little")
    seal(changed)
    return bytes(changed) + bytes(8 * max(0, words - 6)) + body + payload


EDGES = {
    "too few words": (edge(words=5), False),
    "most words": (edge(words=32, body=b"body", payload=b"payload"), True),
    "too many words": (edge(words=33), False),
    "the longest body": (edge(body=bytes(300)), True),
    "a longer one": (edge(body=bytes(301)), False),
    "the longest payload": (edge(payload=bytes(900)), True),
    "one longer than that": (edge(payload=bytes(901)), False),
    "a longer and large one": (edge(payload=bytes(stream_.LARGE_PAYLOAD)), False),
    "a length around the world": (edge(said=(1 << 64) - HEADER_SIZE), False),
    "a negative length": (edge(said=(1 << 64) - 1), False),
    "no CRC of a payload": (edge(flags=2, payload=b"payload")[:-1] + b"?", True),
    "flags of another time": (edge(flags=255, payload=b"payload"), True),
    "they do not excuse": (edge(flags=255, payload=b"payload")[:-1] + b"?", False),
    "a CRC of no body": (edge(body_crc=7), True),
    "a CRC of no payload": (edge(payload_crc=7), False),
    "without a flag it says nothing": (edge(payload_crc=7, flags=0), True),
}


@pytest.mark.parametrize(("data", "is_plain"), EDGES.values(), ids=EDGES)
def test_what_is_a_plain_frame(data, is_plain):
    assert bool(taken(data)[0]) == is_plain
    assert not taken(edge(payload=bytes(899)), large=899)[0]
    assert taken(edge(payload=bytes(899)), large=900)[0]


def test_no_length_goes_around_the_world():
    """Also where no bound stands in its way."""
    unbound = Limits(max_body_bytes=(1 << 64) - 1, max_payload_bytes=(1 << 64) - 1)
    for said in ((1 << 64) - HEADER_SIZE, (1 << 64) - 1, 1 << 63):
        assert taken(edge(said=said), limits=unbound, large=(1 << 64) - 1) == ([], 0)


@pytest.mark.parametrize("raw", [bytes(range(1, 45)), bytes([1] * 44), bytes([254] * 44), bytes([255] * 44)])
def test_each_number_of_a_header_is_the_one_that_came(raw):
    data = bytearray(raw + bytes(4))
    data[:4], data[7], data[16:20], data[24:32] = PLAIN[:4], 2, bytes(4), bytes(8)
    data[3] = raw[3]
    seal(data)
    (found,) = taken(data)[0]
    assert shown(found.header) == shown(decode_header(bytes(data), LIMITS))
    assert {name: getattr(found.header, name) for name in NAMES} == slow_frames.fields(bytes(data))


@pytest.mark.parametrize("more", [0, 1])
def test_many_frames_are_handed_out_in_turns(more):
    link = link_with(PLAIN * (FRAMES_AT_ONCE + more))
    assert len(link._parse()) == FRAMES_AT_ONCE
    assert link._is_behind == bool(more)
    assert len(link._parse()) == more
    assert not link._is_behind and link._start == link._end


def test_a_link_that_is_closed_meanwhile_keeps_nothing():
    """The collection of garbage runs finalizers, while memory is allocated (up to Python 3.11)."""
    link = link_with(PLAIN * 20)
    usual = gc.get_threshold()

    def close(phase: str, info: object) -> None:
        link._let_go()

    gc.callbacks.append(close)
    gc.set_threshold(1)
    try:
        found = link._parse()
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(close)
    assert link._ready == []
    assert (found, link._start, link._end) == ([], 0, 0) or sys.version_info >= (3, 12)


def test_what_cannot_be_taken_from_is_refused():
    bounds = 1000, 1000, 1000, 3, BytesPayload
    for start, end in ((-1, 2), (2, 1), (0, len(PLAIN) + 1)):
        with pytest.raises(ValueError, match=r"bytes .* of "):
            _framing.take_frames(PLAIN, start, end, *bounds)
    for kind in (dict, BufferPayload):
        with pytest.raises(TypeError, match="no class of copied payloads"):
            _framing.take_frames(PLAIN, 0, len(PLAIN), 1000, 1000, 1000, 3, kind)
    released = memoryview(bytearray(PLAIN))
    released.release()
    for buffer in ("text", memoryview(PLAIN)[::2], released):
        with pytest.raises((TypeError, ValueError, BufferError)):
            taken(buffer) if not isinstance(buffer, memoryview) else _framing.take_frames(
                buffer, 0, 1, *bounds
            )
    for raw in (PLAIN[:47], bytearray(PLAIN[:48]), "text"):
        with pytest.raises(ValueError, match="48 bytes"):
            _framing.decode_header(raw)
    for arguments in ((), ("header", b"", None), (None, b"", None)):
        with pytest.raises(TypeError):
            Frame(*arguments)
    with pytest.raises(TypeError):
        Header()
    with pytest.raises(TypeError):
        BytesPayload(bytearray(b"x"))


def test_a_frame_is_collected_with_its_payload():
    class Payload:
        pass

    payload: Any = Payload()
    header = taken(PLAIN)[0][0].header
    payload.me = Frame(header, b"", payload)
    gone: list[int] = []
    weakref.finalize(payload, gone.append, 1)
    del payload
    gc.collect()
    assert gone == [1]


def test_a_copied_payload(tmp_path: Path) -> None:
    payload = BytesPayload(b"payload")
    with payload.view() as view:
        assert view == b"payload" and view.readonly
    assert payload.view() == b"payload", "it is a view of its own"
    with (tmp_path / "file").open("wb+") as file:
        file.write(b"--")
        file.flush()
        assert payload.copy_to(file.fileno(), 2) == 7
    assert (tmp_path / "file").read_bytes() == b"--payload"
    with payload:
        pass
    for gone in (payload, BytesPayload(b"")):
        gone.release()
        gone.release()
        for look in (gone.view, lambda gone=gone: gone.copy_to(0, 0)):
            with pytest.raises(ValueError, match="has been released"):
                look()
    assert payload.nbytes == 7


# ---- what goes out ----

WHOLE = st.integers(0, 300) | st.sampled_from(
    [n + d for n in (0, 2**8, 2**16, 2**32, 2**42, 2**63, 2**64) for d in (-1025, -1024, -1, 0, 1)]
)
OUT = ("kind", "kind_version", "flags", "aux", "payload_length", "payload_crc", "max_response")


@settings(max_examples=400, deadline=None)
@given(WHOLE, WHOLE, st.dictionaries(st.sampled_from(OUT), WHOLE, max_size=7), st.binary(max_size=5))
@example(1, 1, {"max_response": (2**32 - 1) << 10}, b"")
@example(1, 1, {"max_response": ((2**32 - 1) << 10) + 1}, b"")
@example(255, 2**64 - 1, {"kind": 65535, "kind_version": 255, "flags": 255, "aux": 2**32 - 1}, b"body")
def test_a_header_has_its_numbers_or_is_refused(frame_type, corr, numbers, body):
    try:
        expected = slow_frames.encode_header(frame_type, corr, body=body, **numbers)
    except struct.error:
        with pytest.raises(OverflowError, match="of a frame is a number from 0 to"):
            encode_header(frame_type, corr, body=body, **numbers)
    else:
        assert encode_header(frame_type, corr, body=body, **numbers) == expected


def test_names_are_compared_by_their_letters():
    name = "".join(["ki", "nd"])
    assert encode_header(1, 1, **{name: 7}) == encode_header(1, 1, kind=7)  # type: ignore[arg-type]
    assert encode_header(FrameType.REQUEST, True) == encode_header(1, 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((1,), {}),
        ((1, 2, 3), {}),
        ((1, 2), {"nothing": 1}),
        ((1, 2), {"frame_type": 1}),
        ((1, 2.0), {}),
        ((1, None), {}),
        ((1, 2), {"kind": "1"}),
        ((1, 2), {"body": bytearray(b"body")}),
        ((1, 2), {"body": None}),
    ],
)
def test_what_is_no_header_is_refused(arguments, named):
    with pytest.raises(TypeError):
        encode_header(*arguments, **named)


class Range:
    """Of a file, as far as it is looked at here."""

    offset, length = 3, 7

    def fileno(self) -> int:
        raise AssertionError


def test_the_size_and_the_crc_of_a_payload():
    parts = [b"one", bytearray(b"two"), memoryview(b"three"), memoryview(bytearray(8)).cast("I")]
    assert _outgoing.size_of(parts) == 19
    assert _outgoing.payload_of(parts) == (19, 1, crc32c(b"onetwothree" + bytes(8)))
    assert _outgoing.payload_of([*parts, Range()]) == _outgoing.payload_of([Range(), *parts]) == (26, 0, 0)
    assert _outgoing.payload_of([]) == (0, 0, 0)
    for function in (_outgoing.size_of, _outgoing.payload_of):
        with pytest.raises(ValueError, match="must be contiguous"):
            function([memoryview(b"abcdef")[::2]])


def test_the_parts_of_a_payload_that_are_left():
    parts = [b"one", bytearray(b"two"), memoryview(bytearray(8)).cast("I")]
    whole = b"onetwo" + bytes(8)
    for count in range(len(whole) + 1):
        assert b"".join(after(parts, count)) == whole[count:]
    assert after(parts, 0) == parts and after([], 0) == []
    (rest,) = after([b"12", Range()], 4)
    assert (rest.offset, rest.length) == (5, 5)


# ---- memory ----


def without_memory(action: Callable[[], object]) -> Iterator[object]:
    """What it gives when its first allocation fails, its second, and so on, until it succeeds."""
    control = pytest.importorskip("_testcapi", reason="this Python was installed without its own tests")
    result: object = MemoryError
    for number in range(100):
        if number > 20 and result is not MemoryError:
            return
        control.set_nomemory(number, number + 1)
        try:
            result = action()
        except MemoryError:
            result = MemoryError
        finally:
            control.remove_mem_hooks()
        yield result
    raise AssertionError("it never succeeds")


def objects() -> int:
    """How many frames there are."""
    gc.collect()
    return sum(isinstance(one, Frame) for one in gc.get_objects())


def test_nothing_is_held_without_memory():
    data = bytearray(PLAIN + encode_header(FrameType.REPLY, 1 << 40, body=b"body") + PLAIN)
    alive, failed = objects(), 0
    for found in without_memory(lambda: taken(data)):
        if found is MemoryError:
            failed += 1
        else:
            assert (len(found[0]), found[1]) == (3, len(data))
    assert failed > 10
    del found
    assert objects() == alive
    data.append(1)  # nobody looks at it any more
    results = list(without_memory(lambda: encode_header(1, 1 << 40, body=bytes(5000))))
    assert MemoryError in results and results[-1] == encode_header(1, 1 << 40, body=bytes(5000))


def growth(action: Callable[[], object]) -> int:
    """Bytes that stay after a thousand times."""
    for _ in range(50):
        action()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            action()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_nothing_leaks():
    data, bad = PLAIN * 3 + PLAIN[:-1], b"\0" * 48
    watched = [None, Header, Frame, BytesPayload, data, bad, b"", PLAIN]

    def everything() -> None:
        frames, _ = taken(data)
        Frame(frames[0].header, b"", frames[0].payload)
        taken(bad)
        _framing.decode_header(PLAIN[:48])
        for wrong in ({"kind": 1 << 16}, {"body": 1}, {"nothing": 1}):
            with pytest.raises((TypeError, OverflowError)):
                encode_header(1, 1 << 40, **wrong)  # type: ignore[arg-type]
        encode_header(1, 1 << 40, body=PLAIN, max_response=1 << 40)

    counts = [sys.getrefcount(one) for one in watched]
    assert growth(everything) < 5_000
    now = [sys.getrefcount(one) for one in watched]
    assert all(abs(one - other) < 500 for one, other in zip(counts, now, strict=True))

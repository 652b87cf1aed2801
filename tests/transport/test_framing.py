"""What takes and makes plain frames in C comes to the same as its twins in Python, whatever bytes a peer sends."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.transport import URL, ByteStream, Capabilities, Limits, _framing, ranges
from insync.transport import stream as stream_
from insync.transport._payload import BufferPayload, EmptyPayload
from insync.transport.connections import _outgoing
from insync.transport.connections._incoming import FRAMES_AT_ONCE, Partial, bind, take_frames
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
from insync.transport.stream import StreamLink

LIMITS = Limits(max_body_bytes=300, max_payload_bytes=900)
LARGE = 400
BUFFER = 1024
AT_ONCE = 3


def twin(function: Any) -> Callable[..., Any]:
    """The one in Python."""
    found: Callable[..., Any] = function.__self__
    return found


def bound(**other: Any) -> None:
    """Other classes than those of this package; of these, if none are given."""
    right = {"link": StreamLink, "limits": Limits, "header": Header, "frame": Frame}
    right |= {"empty": EmptyPayload, "payload": BufferPayload, "most": FRAMES_AT_ONCE}
    if other:
        _framing.bind(**{**right, **other})
    else:
        bind(StreamLink)


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
        return [(type(one), one) for one in attrs.astuple(value)]
    if isinstance(value, Frame):
        return [shown(value.header), (type(value.body), value.body), shown(value.payload)]
    if isinstance(value, EmptyPayload | BufferPayload):
        inside = [(name, type(getattr(value, name, None))) for name in type(value).__slots__]
        return [type(value).__name__, inside, value.nbytes, shown(value.view())]
    if isinstance(value, memoryview):
        return bytes(value), value.format, value.shape, value.readonly
    if isinstance(value, Partial):
        # What is not filled yet may hold what was there before.
        missing = [len(one) for one in value.missing]
        return [shown(value.header), len(value.body), value.payload.nbytes, missing, value.may_be_handed_over]
    return value


def state(link: StreamLink) -> list[object]:
    """All that a link keeps of what it has received."""
    names = set(StreamLink.__slots__) - {"_buffer", "_ready", "_partial", "_header"}
    buffer = bytes(link._buffer[link._start : link._end])
    inside = [(name, type(getattr(link, name)), getattr(link, name)) for name in sorted(names)]
    ready = [shown(one) for one in link._ready]
    return [inside, buffer, ready, shown(link._partial), shown(link._header), link._received, link._is_used]


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
        bound(most=AT_ONCE)
        try:
            yield patch
        finally:
            bound()


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


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(
    streams(),
    st.lists(st.integers(1, 60) | st.integers(60, 1 << 12), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_whatever_comes_has_the_same_result(data, sizes, guarded, one_by_one):
    with small() as patch:
        in_c = story(data, sizes, guarded=guarded, one_by_one=one_by_one)
        patch.setattr(stream_, "take_frames", twin(take_frames))
        assert in_c == story(data, sizes, guarded=guarded, one_by_one=one_by_one)


PLAIN = encode_header(
    FrameType.REPLY, 300, body=b"body", payload_length=3, payload_crc=crc32c(b"pay"), flags=1
)
PLAIN += b"pay"


def link_with(data: bytes) -> StreamLink:
    """In the buffer of which these bytes lie."""
    link = StreamLink(Script(b"", [1]))
    link._buffer[: len(data)] = data
    link._end = len(data)
    return link


def test_plain_frames_need_no_python():
    link = link_with(PLAIN * 5)
    link._next_head, link._missing, link._header = 60, 7, shown  # type: ignore[assignment]
    link._is_behind = link._is_held_back = True
    found = take_frames(link)
    assert found is not None and len(found) == 5 and found[0].payload is not found[1].payload
    assert (link._start, link._end, link._ready) == (5 * len(PLAIN), 5 * len(PLAIN), [])
    assert (link._next_head, link._missing, link._header) == (0, 0, None)
    assert not link._is_behind and not link._is_held_back
    assert take_frames(link) is None, "there is nothing more"


@pytest.mark.parametrize("rest", [PLAIN[:47], PLAIN[:48], PLAIN[:-1], b"\0" * 48], ids=len)
def test_what_lies_behind_plain_frames_stays(rest):
    link = link_with(PLAIN * 2 + rest)
    link._missing, link._is_held_back, there = 7, True, link._ready
    found = take_frames(link)
    assert (found is None) == (len(rest) >= HEADER_SIZE)
    assert len(found or link._ready) == 2
    assert link._start == 2 * len(PLAIN) and (link._ready is there) == (found is not None)
    # Who goes on sets these.
    assert (link._missing, link._is_held_back) == ((7, True) if found is None else (0, False))


def test_a_frame_that_fills_the_buffer_is_plain():
    limits = Limits(max_body_bytes=1 << 20)
    data = encode_header(FrameType.REPLY, 1, body=bytes(stream_.RECEIVE_BUFFER - HEADER_SIZE))
    link = link_with(data)
    link.set_limits(limits)
    found = take_frames(link)
    assert found is not None and [len(one.body) for one in found] == [len(data) - HEADER_SIZE]
    assert found[0].payload.nbytes == 0


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
    link = link_with(data)
    link.set_limits(LIMITS)
    assert (take_frames(link) is not None) == is_plain
    large = link_with(edge(payload=bytes(899)))
    large.set_limits(LIMITS)
    large._large = 899
    assert take_frames(large) is None
    large._large = 900
    assert take_frames(large) is not None


@pytest.mark.parametrize("raw", [bytes(range(1, 45)), bytes([1] * 44), bytes([254] * 44), bytes([255] * 44)])
def test_each_number_of_a_header_is_the_one_that_came(raw):
    data = bytearray(raw + bytes(4))
    data[:4], data[7], data[16:20], data[24:32] = PLAIN[:4], 2, bytes(4), bytes(8)
    data[3] = raw[3]
    seal(data)
    (found,) = take_frames(link_with(bytes(data))) or ()
    assert shown(found.header) == shown(decode_header(bytes(data), LIMITS))


@pytest.mark.parametrize("more", [0, 1])
def test_many_frames_are_handed_out_in_turns(more):
    link = link_with(PLAIN * (FRAMES_AT_ONCE + more))
    found = take_frames(link)
    assert (found is None) == bool(more)
    assert len(found or link._ready) == FRAMES_AT_ONCE
    if more:
        assert len(link._parse()) == FRAMES_AT_ONCE and link._is_behind
        assert len(link._parse()) == 1
    assert not link._is_behind and link._start == link._end


def odd_states() -> dict[str, Callable[[StreamLink], object]]:
    """What keeps C from looking into the buffer."""

    def released(link: StreamLink) -> None:
        link._buffer = memoryview(bytes(link._buffer))
        link._buffer.release()

    def behind(link: StreamLink) -> None:
        link._buffer[: 2 * len(PLAIN)] = PLAIN * 2
        link._start, link._end = len(PLAIN), 5

    def view(change: Callable[[memoryview], object]) -> Callable[[StreamLink], object]:
        return lambda link: setattr(link, "_buffer", change(link._buffer))

    def setting(name: str, value: object) -> Callable[[StreamLink], object]:
        return lambda link: setattr(link, name, value)

    return {
        "released": released,
        "with gaps": view(lambda whole: whole[::2]),
        "of numbers": view(lambda whole: whole.cast("I")),
        "of two dimensions": view(lambda whole: whole.cast("B", (64, len(whole) // 64))),
        "bytes": view(bytes),
        "shorter than it is said": view(lambda whole: whole[: len(PLAIN) - 1]),
        "none": lambda link: delattr(link, "_buffer"),
        "start behind the end": behind,
        "start before it": setting("_start", -len(PLAIN)),
        "start far away": setting("_start", 1 << 70),
        "start of another kind": setting("_start", True),
        "no end": lambda link: delattr(link, "_end"),
        "a large frame": setting("_partial", object()),
        "no word of one": lambda link: delattr(link, "_partial"),
        "frames before": setting("_ready", [None]),
        "frames in a tuple": setting("_ready", ()),
        "nothing before": lambda link: delattr(link, "_ready"),
        "limits of another kind": setting("limits", attrs.make_class("Other", [])()),
        "limits without numbers": setting("limits", Limits(max_body_bytes=1e6)),  # type: ignore[arg-type]
        "limits without a number": setting("limits", Limits(max_payload_bytes=None)),  # type: ignore[arg-type]
        "no limits": lambda link: delattr(link, "limits"),
        "no idea of large": lambda link: delattr(link, "_large"),
    }


@pytest.mark.parametrize("change", odd_states().values(), ids=odd_states())
def test_in_an_odd_state_nothing_is_done(change):
    link = link_with(PLAIN)
    change(link)

    def everything() -> list[object]:
        return [getattr(link, name, None) for name in StreamLink.__slots__]

    before = everything()
    assert take_frames(link) is None
    assert all(one is other for one, other in zip(before, everything(), strict=True))
    if isinstance(before[0], memoryview):
        before[0].release()  # nobody looks at it any more


def test_a_view_of_bytes_that_may_not_be_written_serves():
    link = link_with(b"")
    link._buffer, link._end = memoryview(b"-" + PLAIN), 1 + len(PLAIN)
    link._start = 1
    assert [one.body for one in take_frames(link) or ()] == [b"body"]
    link._start = link._end
    assert take_frames(link) is None
    link._buffer.release()  # nobody looks at it any more


def test_only_links_are_taken_from():
    class Other(StreamLink):
        pass

    with pytest.raises(TypeError, match="class that bind"):
        take_frames(object())  # type: ignore[arg-type]
    other = Other(Script(b"", [1]))
    other._buffer[: len(PLAIN)], other._end = PLAIN, len(PLAIN)
    assert len(take_frames(other) or ()) == 1


def test_a_link_that_is_closed_meanwhile_keeps_nothing():
    """The collection of garbage runs finalizers, while memory is allocated (up to Python 3.11)."""
    link = link_with(PLAIN * 20)
    usual = gc.get_threshold()

    def close(phase: str, info: object) -> None:
        link._let_go()

    gc.callbacks.append(close)
    gc.set_threshold(1)
    try:
        found = take_frames(link)
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(close)
    closed = link._memory is None
    assert closed or sys.version_info >= (3, 12)
    assert link._ready == []
    if closed:
        assert (found, link._start, link._end) == (None, 0, 0) or sys.version_info >= (3, 12)


def test_objects_that_are_made_are_collected():
    """As any other: what hangs on a frame goes with it, also in a circle."""
    link = link_with(PLAIN)
    found = take_frames(link)
    assert found is not None
    (frame,) = found
    assert all(map(gc.is_tracked, (frame, frame.header, frame.payload)))
    frame.body = found  # type: ignore[assignment]
    header = frame.header.corr
    del found, frame
    gc.collect()
    assert not any(isinstance(one, Header) and one.corr is header for one in gc.get_objects())


def objects() -> int:
    """How many there are of those that frames consist of."""
    gc.collect()
    kinds = (Header, Frame, EmptyPayload, BufferPayload)
    return sum(isinstance(one, kinds) for one in gc.get_objects())


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


@pytest.mark.parametrize("rest", [b"", PLAIN[:-1]], ids=["all", "some"])
def test_nothing_is_taken_and_nothing_held_without_memory(rest):
    data = PLAIN + encode_header(FrameType.REPLY, 1 << 40, body=b"body") + PLAIN
    link = link_with(data + rest)
    alive, failed = objects(), 0
    for found in without_memory(lambda: take_frames(link)):
        if found is MemoryError:
            failed += 1
            assert (link._start, link._ready) == (0, [])
        else:
            taken = found if isinstance(found, list) else link._ready
            assert (len(taken), link._start) == (3, len(data))
            link._start, link._ready = 0, []
    assert failed > 20
    del found, taken
    assert objects() == alive
    link._buffer.release()


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
    plain, cut = link_with(PLAIN * 3), link_with(PLAIN * 3 + PLAIN[:-1])
    empty = link_with(encode_header(FrameType.REPLY, 1 << 40))
    bad = link_with(b"\0" * 48)
    watched = [
        None,
        False,
        0,
        Header,
        Frame,
        EmptyPayload,
        BufferPayload,
        Limits,
        StreamLink,
        plain,
        cut,
        bad,
    ]
    watched += [plain._buffer, cut._buffer, Link_limits := plain.limits, b"", PLAIN]
    parts = [b"one", bytearray(b"two"), memoryview(b"three")]

    def everything() -> None:
        for link in (plain, cut, empty, bad):
            link._start, link._ready = 0, []
            take_frames(link)
        cut._ready = []
        for wrong in ({"kind": 1 << 16}, {"body": 1}, {"nothing": 1}):
            with pytest.raises(Exception):  # noqa: B017
                encode_header(1, 1 << 40, **wrong)  # type: ignore[arg-type]
        encode_header(1, 1 << 40, body=PLAIN, max_response=1 << 40)
        _outgoing.size_of(parts)
        _outgoing.payload_of(parts)
        ranges.after(parts, 11)
        ranges.after(parts, 1)

    counts = [sys.getrefcount(one) for one in watched]
    assert growth(everything) < 5_000
    now = [sys.getrefcount(one) for one in watched]
    assert all(abs(one - other) < 500 for one, other in zip(counts, now, strict=True))
    plain._buffer.release()
    assert Link_limits is StreamLink(Script(b"", [1])).limits


# ---- the module ----


def test_classes_that_are_not_as_expected_are_refused():
    class NoSlots:
        _buffer = max_body_bytes = type = header = _is_released = nbytes = 0

    @attrs.define(slots=True)
    class Longer:
        header: object
        body: object
        payload: object
        more: object

    @attrs.define(slots=True)
    class Inherits(Frame):
        pass

    for name in ("link", "limits", "header", "frame", "empty", "payload"):
        with pytest.raises((TypeError, AttributeError), match=r"is no slot|no attribute|other fields"):
            bound(**{name: NoSlots})

    class WithMore:
        __slots__ = ("more",)

    class Below(WithMore):
        __slots__ = ("body", "header", "payload")

    for kind in (Longer, Inherits, EmptyPayload, Below):
        with pytest.raises(TypeError, match="other fields"):
            bound(frame=kind)
    with pytest.raises(TypeError):
        bound(link=StreamLink(Script(b"", [1])))
    bound()
    with pytest.raises(ValueError, match="no 'growth' in C"):
        _framing.in_front_of(growth)
    with pytest.raises(AttributeError):
        _framing.in_front_of(io.BytesIO())  # type: ignore[type-var]
    assert len(take_frames(link_with(PLAIN)) or ()) == 1


PROGRAM = """
import sys, types
{}
from insync.transport import frames, stream, ranges
from insync.transport.connections import _incoming, _outgoing
import trio
from tests.transport.test_stream import Script, frame, frames_of
print(isinstance(frames.encode_header, types.FunctionType), isinstance(stream.take_frames, types.FunctionType))
large = frame(b"body", bytes(200_000))
print(len(trio.run(frames_of, stream.StreamLink(Script((frame(b"b", b"p") * 300 + large) * 2, (70_000, 11))))))
"""


@pytest.mark.parametrize("there", [True, False])
def test_python_does_it_alone_where_there_is_no_such_module(there):
    without = "" if there else "sys.modules['insync.transport._framing'] = None"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(without)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == [f"{not there} {not there}", "602"], done.stderr

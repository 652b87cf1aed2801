"""Frames out of a byte stream, however its bytes come in."""

import random

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from insync.transport import URL, ByteStream, Capabilities, pieces
from insync.transport.buffers import KEPT
from insync.transport.errors import EndOfLink, LinkBroken, ProtocolError
from insync.transport.frames import Flag, FrameType, crc32c, encode_header
from insync.transport.kit._frame import FileSlice, file_of
from insync.transport.ranges import after
from insync.transport.stream import LARGE_PAYLOAD, RECEIVE_BUFFER, StreamLink

NOISE = random.Random(5).randbytes(1 << 20)


class Script(ByteStream):
    """A stream that delivers given bytes in pieces of given sizes, then ends; and keeps what is sent."""

    caps = Capabilities()
    local = remote = URL("test", "peer")

    def __init__(self, data, sizes=(1 << 30,), accepts=1 << 30):
        self.data = memoryview(data)
        self.sizes = list(sizes)
        self.accepts = accepts
        self.turn = 0
        self.asked = []
        self.sent = b""
        self.aborted = False

    async def send(self, parts):
        await trio.lowlevel.checkpoint()
        self.sent += b"".join(map(bytes, parts))

    def send_now(self, parts):
        data = b"".join(parts)
        self.sent += data[: self.accepts]
        return min(self.accepts, len(data))

    async def receive_into(self, buffer, at_least=1):
        await trio.lowlevel.checkpoint()
        self.asked.append((len(buffer), at_least))
        size = min(len(buffer), len(self.data), max(1, self.sizes[self.turn % len(self.sizes)]))
        self.turn += 1
        buffer[:size] = self.data[:size]
        self.data = self.data[size:]
        return size

    async def aclose(self):
        await trio.lowlevel.checkpoint()

    def abort(self):
        self.aborted = True


def frame(body, payload):
    return (
        encode_header(
            FrameType.REPLY,
            1,
            flags=Flag.PAYLOAD_CRC,
            body=body,
            payload_length=len(payload),
            payload_crc=crc32c(payload),
        )
        + payload
    )


async def frames_of(link):
    received = []
    try:
        while True:
            for one in await link.recv_many():
                received.append((one.body, bytes(one.payload.view())))
                one.payload.release()
    except EndOfLink:
        return received


EDGES = (
    0,
    1,
    100,
    LARGE_PAYLOAD - 1,
    LARGE_PAYLOAD,
    LARGE_PAYLOAD + 1,
    RECEIVE_BUFFER - 60,
    RECEIVE_BUFFER,
    400_000,
)
LENGTHS = st.one_of(st.integers(0, 2000), st.sampled_from(EDGES))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(LENGTHS, LENGTHS), max_size=8),
    st.lists(st.one_of(st.integers(1, 200), st.integers(1000, 300_000)), min_size=1, max_size=5),
)
def test_frames_are_found_in_any_pieces(shapes, sizes):
    expected = [(NOISE[body : 2 * body], NOISE[-payload:] if payload else b"") for body, payload in shapes]
    data = b"".join(frame(*one) for one in expected)
    if min(sizes) < 200:
        sizes = [*sizes, 50_000]
    assert trio.run(frames_of, StreamLink(Script(data, sizes))) == expected


async def test_a_full_buffer_is_moved_to_its_front():
    expected = [(NOISE[:70_001], b"x"), (NOISE[:90_001], b"y"), (NOISE[:120_001], b"z")] * 5
    assert await frames_of(StreamLink(Script(b"".join(frame(*one) for one in expected)))) == expected


async def test_large_payloads_in_a_row_are_received_where_they_stay():
    large = frame(b"body", NOISE[:300_000])
    stream = Script(large * 3 + frame(b"", b"small"))
    link = StreamLink(stream)
    for _ in range(3):
        await link.recv_many()
    head = len(large) - 300_000
    rest = len(large) - KEPT
    assert stream.asked == [
        (KEPT, 1),
        (rest, rest),
        *[(head, 1), (300_000, 300_000)] * 2,
    ]
    # What comes then need not be like it.
    assert [one.payload.view() for one in await link.recv_many()] == [b"small"]
    with pytest.raises(EndOfLink):
        await link.recv_many()
    assert stream.asked[-1] == (KEPT, 1)


async def test_the_receiver_sleeps_until_all_of_a_frame_is_there():
    one = frame(b"", NOISE[:100_000])
    rest = RECEIVE_BUFFER - KEPT
    missing = 3 * len(one) - RECEIVE_BUFFER
    stream = Script(one * 3)
    assert len(await frames_of(StreamLink(stream))) == 3
    assert stream.asked[:3] == [
        (KEPT, 1),
        (rest, len(one) - KEPT),
        (rest + KEPT - len(one) + missing, missing),
    ]


class Yields(Script):
    """Gives frame after frame; others run between what is received and the return, as over trio's own sockets."""

    others = staticmethod(trio.lowlevel.cancel_shielded_checkpoint)

    def __init__(self, frames):
        super().__init__(b"")
        self.frames = list(frames)

    async def receive_into(self, buffer, at_least=1):
        if not self.data and self.frames:
            self.data = memoryview(self.frames.pop(0))
        count = await super().receive_into(buffer, at_least)
        await self.others()
        return count


async def test_what_came_before_a_read_returns_survives_a_trim():
    """Of an idle link `trim` comes upon a read, and bytes may be in its buffer already."""
    expected = [(b"first", NOISE[:100_000]), (b"second", NOISE[1:90_001]), (NOISE[:30_000], b"third")] * 4
    stream = Yields(frame(*one) for one in expected)
    link = StreamLink(stream)

    async def others():
        await trio.lowlevel.cancel_shielded_checkpoint()
        link.trim()
        link._is_used = True  # as after a burst: the next trim gives memory back again

    stream.others = others
    assert await frames_of(link) == expected


async def test_an_idle_link_gives_back_what_a_burst_took_while_it_reads(nursery):
    stream, idle = Yields([frame(b"", NOISE[:100_000])]), trio.Event()
    link = StreamLink(stream)
    assert len(await link.recv_many()) == 1
    stream.others = idle.wait
    nursery.start_soon(frames_of, link)
    await trio.testing.wait_all_tasks_blocked()
    assert link._receiving and any(link._buffer[KEPT:])
    link.trim()
    assert not any(link._buffer[KEPT:])
    idle.set()


@pytest.mark.parametrize("payload", [b"tail", NOISE[:150_000]], ids=["small", "large"])
async def test_damage_is_found(payload):
    good = frame(b"body", payload)
    for position in (50, len(good) - 1):
        bad = bytearray(good)
        bad[position] ^= 4
        with pytest.raises(ProtocolError, match="damaged"):
            await StreamLink(Script(bad)).recv_many()


async def test_the_end_inside_a_large_payload_is_a_break():
    link = StreamLink(Script(frame(b"", NOISE[:150_000])[:-1]))
    with pytest.raises(LinkBroken):
        await link.recv_many()


async def test_what_could_not_be_sent_at_once_is_sent_first():
    stream = Script(b"", accepts=5)
    link = StreamLink(stream)
    assert link.send_now([b"012", b"3456789"]) and link.has_rest
    assert not link.send_now([b"not yet"])
    await link.send_many([(b"ab", [b"cd", b"ef"]), (b"gh", ())])
    assert stream.sent == b"0123456789abcdefgh" and not link.has_rest


async def test_a_cancelled_send_breaks_the_link():
    stream = Script(b"")
    with trio.CancelScope() as scope:
        scope.cancel()
        await StreamLink(stream).send(b"frame", [b"payload"])
    assert scope.cancelled_caught and stream.aborted


@given(st.lists(st.one_of(st.binary(max_size=30), st.integers(0, 30)), max_size=8), st.data())
def test_what_is_left_after_so_many_bytes(choices, data):
    content = bytes(range(64))
    with file_of(content) as fd:
        parts = [FileSlice(fd, 7, one) if isinstance(one, int) else one for one in choices]
        whole = b"".join(pieces(parts))
        count = data.draw(st.integers(0, len(whole)))
        assert b"".join(pieces(after(parts, count))) == whole[count:]
        rest = after(after(parts, count), min(3, len(whole) - count))
        assert b"".join(pieces(rest)) == whole[min(count + 3, len(whole)) :]

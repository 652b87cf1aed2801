"""What `receive_now` makes of chunks, wherever reads cut them, beside `receive_into`."""

import array
import contextlib
import itertools
import socket

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from insync.plugins.shm import ShmTransport, _shm
from insync.plugins.shm._chunks import GREETING, MAGIC, PLACE, PREFIX, Chunk
from insync.transport import URL, LinkBroken
from insync.transport.stream import NOT_NOW

CONTENT = bytes(range(256)) * 40
ALL_AT_ONCE = _shm._AFTER_PREFIX


@contextlib.asynccontextmanager
async def stream_and_raw():
    """A stream that has greeted, and the socket at its other end."""
    transport = ShmTransport()
    listener = await transport.listen_streams(transport.parse(URL.parse("shm://@")))
    raw = socket.socket(socket.AF_UNIX)
    raw.connect("\0" + listener.endpoints[0].authority[1:])
    raw.sendall(GREETING.pack(MAGIC, 1, 64))
    stream = await listener.accept()
    await stream.prepare()
    await listener.aclose()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    try:
        yield stream, raw
    finally:
        stream.abort()
        raw.close()


def chunk(data):
    return PREFIX.pack(Chunk.BYTES, 0, len(data)) + data


def places(*ranges):
    head = PREFIX.pack(Chunk.RANGES, len(ranges), sum(length for _, length in ranges))
    return head + b"".join(PLACE.pack(1, *each) for each in ranges)


async def receive(stream, buffer):
    """As a link does it: by `receive_now` where that is possible. 0 at the end; None if nothing is there."""
    there = stream.receive_now(buffer)
    if there == NOT_NOW:
        return await stream.receive_into(buffer)
    return None if there < 0 else there


async def all_of(stream, sizes):
    """What the stream has until its end, into buffers of these sizes, one after the other."""
    arrived = bytearray()
    memory = memoryview(bytearray(max(sizes)))
    turn = 0
    while True:
        buffer = memory[: sizes[turn % len(sizes)]]
        turn += 1
        count = await receive(stream, buffer)
        if count is None:
            await stream.until_readable(1)
            continue
        if not count:
            return bytes(arrived)
        assert count <= len(buffer)
        arrived += buffer[:count]


pieces = st.tuples(
    st.booleans(),
    st.sampled_from(["bytes", "bytes", "ranges"]),
    st.integers(0, 40) | st.sampled_from([0, 1000, ALL_AT_ONCE - 1, ALL_AT_ONCE, ALL_AT_ONCE + 1]),
)
"""Of a chunk: whether it comes later than what is before it, its kind and its size."""


@pytest.mark.slow
@given(
    what=st.lists(pieces, min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 500) | st.integers(0, 3 * ALL_AT_ONCE), max_size=3),
    sizes=st.lists(st.sampled_from([1, 15, 16, 17, 100, 70_000, 300_000]), min_size=1, max_size=4),
)
async def test_all_that_was_sent_arrives_in_order(what, cuts, sizes, tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "file"
    path.write_bytes(CONTENT)
    wire, expected, ends = bytearray(), bytearray(), set(cuts)
    for number, (is_later, kind, size) in enumerate(what):
        if is_later:
            ends.add(len(wire))
        if kind == "bytes":
            data = bytes([number + 1]) * size
            wire += chunk(data)
            expected += data
        else:
            ranges = [(number * 7 + each * 300, 5 + each) for each in range(1 + size % 3)]
            wire += places(*ranges)
            for at, length in ranges:
                expected += CONTENT[at : at + length]
    async with stream_and_raw() as (stream, raw):
        with path.open("rb") as file:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))]
            raw.sendmsg([PREFIX.pack(Chunk.FILE, 1, 0) + chunk(b"x")], rights)
        with trio.fail_after(30):
            assert await stream.receive_into(memoryview(bytearray(1))) == 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_cut, raw, wire, sorted({end for end in ends if end < len(wire)}))
                assert await all_of(stream, sizes) == expected


async def send_cut(raw, wire, ends):
    """Send all, and wait at each of `ends` until what came before has been read."""
    for begin, end in itertools.pairwise([0, *ends, len(wire)]):
        view = memoryview(wire)[begin:end]
        while view:
            try:
                view = view[raw.send(view, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(raw)
        await trio.testing.wait_all_tasks_blocked()
    raw.shutdown(socket.SHUT_WR)


async def test_a_message_goes_straight_to_where_it_belongs():
    async with stream_and_raw() as (stream, raw):
        raw.sendall(chunk(b"message"))
        await stream.until_readable(1)
        buffer = memoryview(bytearray(100))
        assert stream.receive_now(buffer) == 7
        assert bytes(buffer[:8]) == b"message\0" and b"message" not in bytes(stream._raw[:100])
        assert stream.is_drained


async def test_what_follows_a_message_is_kept():
    async with stream_and_raw() as (stream, raw):
        raw.sendall(chunk(b"one") + chunk(b"another"))
        await stream.until_readable(1)
        buffer = memoryview(bytearray(100))
        assert stream.receive_now(buffer) == 3 and bytes(buffer[:3]) == b"one"
        assert not stream.is_drained
        assert stream.receive_now(buffer) == 7 and bytes(buffer[:7]) == b"another"


async def test_more_than_a_read_takes_is_not_waited_for():
    """Else each such read costs a turn of the event loop."""
    async with stream_and_raw() as (stream, raw):
        raw.setblocking(False)
        data = bytes(100_000)
        assert raw.send(chunk(data)) == 16 + len(data)
        await stream.until_readable(1)
        buffer = memoryview(bytearray(300_000))
        assert stream.receive_now(buffer) == ALL_AT_ONCE
        assert not stream.is_drained
        assert stream.receive_now(buffer) == len(data) - ALL_AT_ONCE


@pytest.mark.parametrize("cut", [1, 15, 16, 20])
async def test_an_end_inside_a_chunk_is_told(cut):
    async with stream_and_raw() as (stream, raw):
        raw.sendall(chunk(b"message")[:cut])
        raw.shutdown(socket.SHUT_WR)
        with trio.fail_after(30), pytest.raises(LinkBroken, match="inside a chunk"):
            await all_of(stream, [100])

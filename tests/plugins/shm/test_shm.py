"""Files handed over instead of sent."""

import array
import contextlib
import errno
import fcntl
import gc
import itertools
import os
import random
import resource
import socket

import pytest
import trio

from insync.plugins.shm import ShmTransport, _files, _shm
from insync.plugins.shm._chunks import GREETING, MAGIC, PLACE, PREFIX, Chunk
from insync.transport import URL, ByteStream, LinkBroken, ProtocolError, RangeTruncated
from insync.transport.kit._frame import FileSlice, message, until
from insync.transport.ranges import after
from insync.transport.stream import StreamLink

CONTENT = random.Random(5).randbytes(2 << 20)


@contextlib.asynccontextmanager
async def two_streams():
    transport = ShmTransport()
    listener = await transport.listen_streams(transport.parse(URL.parse("shm://@")))
    one = await transport.open_stream(listener.endpoints[0])
    other = await listener.accept()
    await listener.aclose()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.prepare)
            nursery.start_soon(other.prepare)
        yield one, other
    finally:
        one.abort()
        other.abort()


@contextlib.asynccontextmanager
async def two_links():
    transport = ShmTransport()
    listener = await transport.listen(transport.parse(URL.parse("shm://@")))
    one = await transport.connect(listener.endpoints[0])
    other = await listener.accept()
    await listener.aclose()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.prepare)
            nursery.start_soon(other.prepare)
        yield one, other
    finally:
        one.abort()
        other.abort()


@pytest.fixture
def log_file(tmp_path):
    with open(tmp_path / "log", "wb+") as file:
        file.write(CONTENT)
        file.flush()
        yield file


async def pass_on(one, other, *parts):
    """What arrives of a frame of these parts."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send, message(b"body", parts), parts)
        head, payload = await other.recv()
    assert bytes(head[48:]) == b"body"
    return payload


def opened(path, mode):
    return open(path, mode)


def descriptors():
    gc.collect()  # what a failure's traceback held
    return len(os.listdir("/proc/self/fd"))


async def test_ranges_are_not_sent(log_file, tmp_path):
    async with two_links() as (one, other):
        parts = [FileSlice(log_file.fileno(), at, 100_000) for at in (5, 300_000, 1_000_000)]
        expected = b"".join(CONTENT[part.offset : part.offset + part.length] for part in parts)
        payload = await pass_on(one, other, *parts)
        assert payload.source == "range" and payload.nbytes == 300_000
        with opened(tmp_path / "copy", "wb+") as copy, payload:
            assert payload.copy_to(copy.fileno(), 11) == 300_000
            copy.seek(11)
            assert copy.read() == expected and payload.view() == expected
        with pytest.raises(ValueError, match="released"):
            payload.copy_to(log_file.fileno(), 0)


async def test_what_cannot_be_copied_by_the_system_is_read_and_written(log_file, monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    async with two_links() as (one, other):
        payload = await pass_on(one, other, FileSlice(log_file.fileno(), 7, 1_000_000))
        monkeypatch.setattr(os, "copy_file_range", refuse)
        with opened(tmp_path / "copy", "wb+") as copy, payload:
            assert payload.copy_to(copy.fileno(), 3) == 1_000_000
            copy.seek(3)
            assert copy.read() == CONTENT[7:1_000_007]


async def test_bytes_among_ranges_arrive_in_their_places(log_file):
    async with two_links() as (one, other):
        part = FileSlice(log_file.fileno(), 10, 200_000)
        payload = await pass_on(one, other, b"<", part, b"-", FileSlice(log_file.fileno(), 3, 0), part, b">")
        body = CONTENT[10:200_010]
        assert payload.source == "pooled" and payload.view() == b"<" + body + b"-" + body + b">"


class Pieces(ByteStream):
    """Gives out just these, one after the other."""

    caps = ShmTransport.caps
    local = remote = URL("shm", "@pieces")

    def __init__(self, *pieces):
        self._pieces = [memoryview(piece) for piece in pieces]

    async def receive_into(self, buffer, at_least=1):
        await trio.lowlevel.checkpoint()
        piece = self._pieces.pop(0)
        count = min(len(piece), len(buffer))
        buffer[:count] = piece[:count]
        if count < len(piece):
            self._pieces.insert(0, piece[count:])
        return count

    async def send(self, parts): ...

    async def aclose(self): ...

    def abort(self): ...


@pytest.mark.parametrize("size", [0, 1, 100, (64 << 10) - 1, 64 << 10])
async def test_a_body_that_fills_the_buffer_is_followed_by_its_payload(size):
    """Where everything received is used up before the payload, that comes as bytes."""
    body, payload = bytes((256 << 10) - 48), CONTENT[:size]
    link = StreamLink(Pieces(message(body, [payload]), *([payload] if size else []), message(b"next")))
    frame, after_it = [*await link.recv_many(), *await link.recv_many()]
    assert frame.body == body and frame.payload.view() == payload
    assert after_it.body == b"next"


async def test_more_ranges_than_one_chunk_has(log_file, monkeypatch):
    monkeypatch.setattr(_shm, "LEAST_RANGE", 0)
    async with two_links() as (one, other):
        parts = [FileSlice(log_file.fileno(), at, 40) for at in range(5000)]
        payload = await pass_on(one, other, *parts)
        assert payload.view() == b"".join(CONTENT[at : at + 40] for at in range(5000))


@pytest.mark.parametrize("size", [200, 2_000], ids=["at once", "by the writer"])
async def test_many_short_ranges_are_sent_as_bytes(tmp_path, size):
    """An answer about hundreds of partitions with a record each has no file handed over."""
    for number in range(200):
        (tmp_path / f"{number}").write_bytes(bytes([number]) * size)
    async with two_links() as (one, other):
        before = descriptors()
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(opened(tmp_path / f"{number}", "rb")) for number in range(200)]
            parts = [FileSlice(file.fileno(), 0, size) for file in files]
            assert one.send_now([message(b"body", parts), *parts]) and one.has_rest == (size > 200)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.send, message(b"over"), ())
                _, payload = await other.recv()
                payload.view()
                await other.recv()
        assert payload.view() == b"".join(bytes([number]) * size for number in range(200))
        payload.release()
        assert descriptors() == before


async def test_a_deleted_file_is_read_on_and_a_cut_one_is_noticed(log_file, tmp_path):
    async with two_links() as (one, other):
        payload = await pass_on(one, other, FileSlice(log_file.fileno(), 0, 1 << 20))
        late = await pass_on(one, other, FileSlice(log_file.fileno(), 1 << 20, 1 << 20))
        os.unlink(tmp_path / "log")
        assert payload.view() == CONTENT[: 1 << 20]
        log_file.truncate((1 << 20) + 500)
        with pytest.raises(RangeTruncated, match="1049076"):
            late.view()
        with opened(tmp_path / "copy", "wb+") as copy, pytest.raises(RangeTruncated, match="cut"):
            late.copy_to(copy.fileno(), 0)
        again = await pass_on(one, other, FileSlice(log_file.fileno(), 0, 1 << 20))
        assert again.view() == CONTENT[: 1 << 20]


async def test_a_file_cut_in_the_middle_of_reading_breaks_the_stream(log_file):
    async with two_streams() as (one, other):
        await one.send([FileSlice(log_file.fileno(), 0, 1 << 20)])
        buffer = memoryview(bytearray(1 << 20))
        assert await other.receive_into(buffer[:1000]) == 1000
        log_file.truncate(1000)
        with pytest.raises(LinkBroken, match="cut"):
            await other.receive_into(buffer)


async def test_who_gets_a_file_cannot_write_to_it(log_file):
    async with two_streams() as (one, other):
        await one.send([FileSlice(log_file.fileno(), 0, 1 << 20)])
        payload = await other.receive_ranges(1 << 20)
        (place,) = payload._ranges
        assert fcntl.fcntl(place.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(place.fileno(), b"x", 0)


async def test_a_few_files_are_open_at_a_time(tmp_path, monkeypatch):
    """Each end holds at most 64 of them, and lets go of deleted ones when it hands over another."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 16, 1 << 16))
    async with two_links() as (one, other):
        before = descriptors()
        for number in range(200):
            (tmp_path / f"{number}").write_bytes(b"%9d" % number * 20_000)
            with opened(tmp_path / f"{number}", "rb") as file:
                payload = await pass_on(one, other, FileSlice(file.fileno(), 0, 180_000))
            assert payload.source == "range" and payload.view() == b"%9d" % number * 20_000
            payload.release()
        assert descriptors() - before == 2 * 64
        for number in range(200):
            os.unlink(tmp_path / f"{number}")
        fresh = tmp_path / "fresh"
        fresh.write_bytes(CONTENT)
        with opened(fresh, "rb") as file:
            (await pass_on(one, other, FileSlice(file.fileno(), 0, len(CONTENT)))).release()
        await other_side_has_read(one, other)
        assert descriptors() - before == 2
    assert descriptors() <= before - 2


async def test_deleted_files_are_let_go_of_after_a_while(log_file, tmp_path, autojump_clock):
    """Also when no other file is handed over: an idle follower must not keep a deleted segment's space."""
    async with two_links() as (one, other):
        before = descriptors()
        (await pass_on(one, other, FileSlice(log_file.fileno(), 0, 1 << 20))).release()
        os.unlink(tmp_path / "log")
        await other_side_has_read(one, other)
        assert descriptors() - before == 2
        await trio.sleep(_shm._SWEEP_PAUSE)
        assert one.send_now([message(b"left to the writer")]) and one.has_rest
        await other_side_has_read(one, other)
        await until(lambda: descriptors() == before, "a thread closes the deleted file")
        head, _ = await other.recv()
        assert head[48:] == b"over"


async def other_side_has_read(one, other):
    await one.send(message(b"over"), ())
    await other.recv()


async def test_a_deleted_file_stays_open_for_a_frame_that_has_it_beside_a_new_one(log_file, tmp_path):
    with opened(tmp_path / "gone", "wb+") as gone:
        gone.write(CONTENT[:100_000])
        gone.flush()
        async with two_links() as (one, other):
            (await pass_on(one, other, FileSlice(gone.fileno(), 0, 100_000))).release()
            os.unlink(tmp_path / "gone")
            parts = FileSlice(gone.fileno(), 7, 90_000), FileSlice(log_file.fileno(), 5, 90_000)
            with await pass_on(one, other, *parts) as payload:
                assert payload.view() == CONTENT[7:90_007] + CONTENT[5:90_005]


async def test_more_files_in_a_frame_than_may_be_open(tmp_path):
    for number in range(100):
        (tmp_path / f"{number}").write_bytes(b"%9d" % number * 1000)
    async with two_links() as (one, other):
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(opened(tmp_path / f"{number}", "rb")) for number in range(100)]
            payload = await pass_on(one, other, *(FileSlice(file.fileno(), 0, 9000) for file in files))
        assert payload.view() == b"".join(b"%9d" % number * 1000 for number in range(100))


async def test_who_has_no_descriptor_left_is_sent_bytes(log_file, monkeypatch):
    def refuse(fd):
        raise OSError(24, "Too many open files")

    async with two_links() as (one, other):
        monkeypatch.setattr(_files, "_reopened", refuse)
        payload = await pass_on(one, other, FileSlice(log_file.fileno(), 0, 1 << 20))
        assert payload.source == "pooled" and payload.view() == CONTENT[: 1 << 20]


async def test_a_file_that_could_not_go_on_its_way_is_handed_over_with_a_later_frame(log_file, monkeypatch):
    sendmsg, refused = socket.socket.sendmsg, []

    def once(self, buffers, ancillary=(), *more):
        if ancillary and not refused:
            refused.append(ancillary)
            raise OSError(errno.ETOOMANYREFS, "too many references")
        return sendmsg(self, buffers, ancillary, *more)

    monkeypatch.setattr(socket.socket, "sendmsg", once)
    async with two_links() as (one, other):
        for source in ("pooled", "range"):
            with await pass_on(one, other, FileSlice(log_file.fileno(), 3, 200_000)) as payload:
                assert payload.source == source and payload.view() == CONTENT[3:200_003]
    assert refused


async def test_a_process_gives_a_part_of_its_descriptors_to_files(log_file, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert _files.most_files() == 16
    kept = [_files.OpenFile(os.dup(log_file.fileno())) for _ in range(256)]
    assert _files.most_files() == 0
    async with two_links() as (one, other):
        payload = await pass_on(one, other, FileSlice(log_file.fileno(), 0, 1 << 18))
        assert payload.source == "pooled" and payload.view() == CONTENT[: 1 << 18]
    kept.clear()
    assert _files.most_files() == 16
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert _files.most_files() == 64


async def test_who_could_not_take_a_descriptor_asks_for_bytes_from_then_on(log_file, monkeypatch, caplog):
    monkeypatch.setattr(_shm, "_shortage", _shm._Shortage())
    async with two_streams() as (one, other):
        await one.send([FileSlice(log_file.fileno(), 0, 1 << 20)])
        with pytest.raises(LinkBroken, match="no descriptor was left"):
            other._keep_descriptors([], socket.MSG_CTRUNC)
        assert "no descriptor was left" in caplog.text
    async with two_links() as (one, other):
        for from_end, to_end in ((one, other), (other, one)):
            payload = await pass_on(from_end, to_end, FileSlice(log_file.fileno(), 0, 1 << 18))
            assert payload.source == "pooled" and payload.view() == CONTENT[: 1 << 18]


@pytest.mark.parametrize("size", [100, 20_000])
async def test_what_a_disk_has_to_be_waited_for_is_not_sent_at_once(log_file, monkeypatch, size):
    async with two_streams() as (one, _):
        await one.send([FileSlice(log_file.fileno(), 0, 20_000)])  # the peer has the file
        monkeypatch.setattr(_shm, "is_warm", lambda part: False)
        assert one.send_now([b"head", FileSlice(log_file.fileno(), 0, size)]) == 0
        monkeypatch.undo()
        assert one.send_now([b"head", FileSlice(log_file.fileno(), 0, size)]) == 4 + size


async def test_any_mixture_of_sendings_is_one_stream(log_file):
    """Also when the socket takes a few bytes at a time, in the midst of what `send_now` has promised."""
    draw = random.Random(17)
    covered = []
    for _ in range(30):
        async with two_streams() as (one, other):
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
            expected = bytearray()
            done = trio.Event()

            async def send(one=one, expected=expected, done=done):
                for _ in range(40):
                    data = draw.randbytes(draw.choice([1, 15, 100, 3000, 20_000]))
                    expected.extend(data)
                    parts = [data]
                    if draw.random() < 0.6:
                        at, size = draw.randrange(1 << 20), draw.choice([10, 20_000, 100_000])
                        parts += [FileSlice(log_file.fileno(), at, size), data]
                        expected.extend(CONTENT[at : at + size] + data)
                    if draw.random() < 0.6:
                        parts = after(parts, one.send_now(parts))
                        covered.append(one._unsent != b"")
                    if parts:
                        await one.send(parts)
                await one.send_eof()
                done.set()

            arrived = bytearray()
            buffer = memoryview(bytearray(70_000))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                while count := await other.receive_into(buffer[: draw.choice([1, 100, 70_000])]):
                    arrived += buffer[:count]
                await done.wait()
            assert arrived == expected
    assert any(covered) and not all(covered)


def file_chunk(number):
    return PREFIX.pack(Chunk.FILE, number, 0)


def ranges_chunk(*places, count=None, length=None):
    total = sum(place[2] for place in places) if length is None else length
    head = PREFIX.pack(Chunk.RANGES, len(places) if count is None else count, total)
    return head + b"".join(PLACE.pack(*place) for place in places)


HOSTILE = {
    "no greeting": (None, "does not speak shm"),
    "another version": (GREETING.pack(MAGIC, 2, 64), "version"),
    "unknown chunk": (PREFIX.pack(9, 0, 0), "type 9"),
    "a file without a descriptor": (file_chunk(1), "type 2"),
    "a pipe as a file": ([file_chunk(1), "pipe"], "not a readable file"),
    "a file for writing": ([file_chunk(1), "write"], "not a readable file"),
    "a file twice": ([file_chunk(1), "read", file_chunk(1), "read"], "out of turn"),
    "too many files": ([one for n in range(65) for one in (file_chunk(n), "read")], "out of turn"),
    "descriptors that are no file's": ([b"", "read"] * 80, "descriptors without"),
    "dropping what was never there": (PREFIX.pack(Chunk.DROP, 5, 0), "not handed over"),
    "a range of an unknown file": (ranges_chunk((1, 0, 5)), "not there"),
    "a range beyond all files": ([file_chunk(1), "read", ranges_chunk((1, (1 << 64) - 1, 5))], "not there"),
    "an empty range": ([file_chunk(1), "read", ranges_chunk((1, 0, 0))], "empty range"),
    "no ranges": (ranges_chunk(), "0 ranges"),
    "too many ranges": (ranges_chunk(count=(1 << 32) - 1), "ranges at once"),
    "ranges of another size": ([file_chunk(1), "read", ranges_chunk((1, 0, 5), length=6)], "another size"),
    "an end inside a chunk": (PREFIX.pack(Chunk.BYTES, 0, 100) + b"x", "inside a chunk"),
    "an end inside a prefix": (PREFIX.pack(Chunk.BYTES, 0, 100)[:9], "inside a chunk"),
    "an end inside ranges": (ranges_chunk((1, 0, 5))[:-1], "inside a chunk"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_peers_are_hung_up_on(name, tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 16, 1 << 16))
    sent, words = HOSTILE[name]
    (tmp_path / "file").write_bytes(bytes(1000))
    before = descriptors()
    transport = ShmTransport()
    listener = await transport.listen_streams(transport.parse(URL.parse("shm://@")))
    raw = socket.socket(socket.AF_UNIX)
    raw.connect("\0" + listener.endpoints[0].authority[1:])
    stream = await listener.accept()
    if sent is None:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
    elif b"SHM" in sent:
        raw.sendall(sent)
    else:
        raw.sendall(GREETING.pack(MAGIC, 1, 64))
        send_hostile(raw, sent if isinstance(sent, list) else [sent, None], tmp_path / "file")
    raw.shutdown(socket.SHUT_WR)
    with trio.fail_after(60), pytest.raises((ProtocolError, LinkBroken), match=words):
        await stream.prepare()
        buffer = memoryview(bytearray(100))
        while await stream.receive_into(buffer):
            pass
    stream.abort()
    raw.close()
    await listener.aclose()
    assert descriptors() == before


def send_hostile(raw, sent, path):
    for data, how in itertools.zip_longest(sent[::2], sent[1::2]):
        with contextlib.ExitStack() as stack:
            given = []
            if how == "pipe":
                given = list(os.pipe())
                stack.callback(os.close, given[1])
                given = given[:1]
            elif how is not None:
                given = [os.open(path, os.O_RDONLY if how == "read" else os.O_WRONLY)]
            for fd in given:
                stack.callback(os.close, fd)
            data = data or PREFIX.pack(Chunk.BYTES, 0, 1) + b"x"
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given))] if given else []
            raw.sendmsg([data], rights)

"""What is TCP's own: addresses, sockets, and how file ranges are sent."""

import ctypes
import mmap
import os
import random
import select
import signal
import socket
import struct

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from insync.plugins.tcp import TcpTransport, TlsTransport
from insync.transport import (
    URL,
    AddressInUseError,
    ConnectError,
    ConnectSlowError,
    LinkBroken,
    RangeTruncated,
    ranges,
    sockets,
)
from insync.transport._native import ffi, lib
from insync.transport.kit._frame import FileSlice, file_of
from insync.transport.sockets import SocketStream
from tests.processes import kept_address
from tests.requires import missing

CONTENT = random.Random(1).randbytes(1 << 20)
HERE = URL("tcp", "test")


@pytest.fixture
async def wire():
    """A stream over a connected pair, and the raw socket at its other end."""
    server = socket.create_server(("127.0.0.1", 0))
    far = socket.create_connection(server.getsockname())
    near, _ = server.accept()
    server.close()
    near.setblocking(False)
    stream = SocketStream(near, TcpTransport.caps, HERE, HERE)
    yield stream, far
    stream.abort()
    far.close()


async def read_all(far, size):
    far.settimeout(5)

    def read():
        data = bytearray()
        while len(data) < size:
            chunk = far.recv(1 << 20)
            if not chunk:
                break
            data += chunk
        return bytes(data)

    return await trio.to_thread.run_sync(read)


async def transfer(stream, far, parts, size):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send, parts)
        return await read_all(far, size)


def cached_pages(fd, size):
    """The number of pages in the page cache. A look at a page by a read, as the sender's, would fetch it."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with mmap.mmap(fd, size, mmap.MAP_PRIVATE) as mapped:
        start = (ctypes.c_char * size).from_buffer(mapped)
        try:
            if libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), flags) != 0:
                raise OSError(ctypes.get_errno(), "mincore")
        finally:
            del start
    return sum(flag & 1 for flag in flags)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
async def test_a_listener_tells_its_real_port(host):
    transport = TcpTransport()
    listener = await transport.listen(transport.parse(URL.parse(f"tcp://{host}:0")))
    (endpoint,) = listener.endpoints
    name, _, port = endpoint.authority.rpartition(":")
    assert (name, int(port) > 0) == (host, True)
    await listener.aclose()


@pytest.mark.parametrize("url", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://0.0.0.0:0?contact=example.org"])
async def test_a_wildcard_is_not_advertised(url):
    transport = TcpTransport()
    listener = await transport.listen(transport.parse(URL.parse(url)))
    host = listener.endpoints[0].authority.rpartition(":")[0]
    assert host not in ("0.0.0.0", "*", "[::]")
    assert ("contact" in url) == (host == "example.org")
    await listener.aclose()


@pytest.mark.parametrize("kind", [TcpTransport, TlsTransport])
async def test_an_advertised_address_may_have_a_port_of_its_own(kind, monkeypatch):
    monkeypatch.setattr(TlsTransport, "listen_streams", TcpTransport.listen_streams)
    monkeypatch.setattr(TlsTransport, "make_listener", TcpTransport.make_listener)
    transport = kind()
    scheme = transport.schemes[0]
    for contact in ("localhost:9650", "[2001:db8::1]:9650"):
        endpoint = transport.parse(URL.parse(f"{scheme}://127.0.0.1:0?contact={contact}"))
        listener = await transport.listen(endpoint)
        assert str(listener.endpoints[0]) == f"{scheme}://{contact}"
        await listener.aclose()
    with pytest.raises(ValueError, match="contact=::1 is not HOST, HOST:PORT"):
        transport.parse(URL.parse(f"{scheme}://127.0.0.1:0?contact=::1"))


async def test_an_address_in_use_is_named_with_the_remedy():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        transport = TcpTransport()
        with pytest.raises(AddressInUseError, match=rf"tcp://127\.0\.0\.1:{port} is in use.*port 0"):
            await transport.listen(transport.parse(URL.parse(f"tcp://127.0.0.1:{port}")))


async def test_a_name_without_address_is_a_connect_error():
    transport = TcpTransport()
    with pytest.raises(ConnectError, match=r"no-such-host\.invalid"), trio.fail_after(10):
        await transport.connect(transport.parse(URL.parse("tcp://no-such-host.invalid:1")))


async def test_nobody_connects_to_himself(monkeypatch):
    """A dial from the very port that it dials succeeds on Linux, with itself."""
    plain = socket.socket

    class SamePort(plain):
        def connect_ex(self, address):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(address)
            return super().connect_ex(address)

    transport = TcpTransport()
    with kept_address() as url:
        monkeypatch.setattr("insync.plugins.tcp._transport.socket.socket", SamePort)
        with pytest.raises(ConnectError, match="refused"):
            await transport.connect(transport.parse(URL.parse(url)))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.tuples(st.integers(0, len(CONTENT)), st.one_of(st.integers(0, 100), st.integers(0, 1 << 19))),
        ),
        max_size=12,
    )
)
def test_any_mixture_of_parts_arrives_as_if_it_were_copied(choices):
    async def run():
        with file_of(CONTENT) as fd, socket.create_server(("127.0.0.1", 0)) as server:
            far = socket.create_connection(server.getsockname())
            near, _ = server.accept()
            near.setblocking(False)
            stream = SocketStream(near, TcpTransport.caps, HERE, HERE)
            parts, expected = [], b""
            for choice in choices:
                if isinstance(choice, bytes):
                    parts.append(choice)
                    expected += choice
                else:
                    offset, length = choice[0], min(choice[1], len(CONTENT) - choice[0])
                    parts.append(FileSlice(fd, offset, length))
                    expected += CONTENT[offset : offset + length]
            assert await transfer(stream, far, parts, len(expected)) == expected
            stream.abort()
            far.close()

    trio.run(run)


class RefusingOnce:
    """The C library, but once, inside the range that is the second part, sendfile refuses to go on."""

    refused = False

    def __getattr__(self, name):
        return getattr(lib, name)

    def isr_tx_step(self, sock, parts, count, cursor, quantum, sent):
        if self.refused:
            return lib.isr_tx_step(sock, parts, count, cursor, quantum, sent)
        self.refused = lib.isr_tx_step(sock, parts, 2, cursor, 1000, sent) == lib.ISR_TX_QUANTUM
        assert cursor.part == 1 and cursor.done > 0
        return lib.ISR_TX_NO_SENDFILE


async def test_a_file_that_sendfile_refuses_is_copied(wire, monkeypatch):
    stream, far = wire
    with file_of(CONTENT) as fd:
        monkeypatch.setattr(sockets, "lib", RefusingOnce())
        parts = [b"<", FileSlice(fd, 7, 500_000), b">"]
        received = await transfer(stream, far, parts, 500_002)
    assert received == b"<" + CONTENT[7:500_007] + b">"


async def test_a_pipe_cannot_be_a_range(wire):
    stream, _ = wire
    reader, writer = os.pipe()
    try:
        with pytest.raises((LinkBroken, OSError)), trio.fail_after(30):
            await stream.send([FileSlice(reader, 0, 100_000)])
    finally:
        os.close(reader)
        os.close(writer)


async def test_a_file_that_shrinks_while_it_is_sent_is_noticed(wire):
    stream, far = wire
    with file_of(bytes(64 << 20)) as fd:

        async def send():
            with pytest.raises(RangeTruncated, match="inside the range"):
                await stream.send([FileSlice(fd, 0, 64 << 20)])
            stream.abort()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked(0.01)
            os.ftruncate(fd, 1000)
            with trio.fail_after(60):
                far.settimeout(5)
                await trio.to_thread.run_sync(_drain, far)


def _drain(far):
    try:
        while far.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass


async def test_a_cold_file_is_read_on_another_thread(wire, monkeypatch, tmp_path):
    stream, far = wire
    path = tmp_path / "cold"
    path.write_bytes(CONTENT)
    warmed = []
    warm = ranges._read_through
    monkeypatch.setattr(ranges, "_read_through", lambda part: (warmed.append(part.length), warm(part)))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_pages(fd, len(CONTENT)):
            missing("this file system does not let go of cached pages")
        assert await transfer(stream, far, [FileSlice(fd, 0, len(CONTENT))], len(CONTENT)) == CONTENT
    finally:
        os.close(fd)
    assert warmed == [len(CONTENT)]


async def test_a_reset_connection_is_a_broken_link(wire):
    stream, far = wire
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    with pytest.raises(LinkBroken, match="broke"):
        await stream.receive_into(memoryview(bytearray(10)))
    with pytest.raises(LinkBroken):
        for _ in range(3):
            await stream.send([bytes(1 << 20)])


def test_the_c_sender_stops_at_its_quantum_and_does_not_raise_sigpipe():
    near, far = socket.socketpair()
    near.setblocking(False)
    previous = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        with file_of(CONTENT) as fd:
            parts = ffi.new("isr_tx_part[]", 2)
            head = ffi.from_buffer(b"head")
            parts[0].data, parts[0].length, parts[0].fd = head, 4, -1
            parts[1].fd, parts[1].offset, parts[1].length = fd, 10, 60_000
            cursor, sent = ffi.new("isr_tx_cursor *"), ffi.new("int64_t *")
            assert lib.isr_tx_step(near.fileno(), parts, 2, cursor, 1000, sent) == lib.ISR_TX_QUANTUM
            assert (sent[0], cursor.part, cursor.done) == (1000, 1, 996)
            code = lib.ISR_TX_QUANTUM
            while code == lib.ISR_TX_QUANTUM:
                code = lib.isr_tx_step(near.fileno(), parts, 2, cursor, 100_000, sent)
            assert (code, sent[0], cursor.part) == (lib.ISR_TX_DONE, 60_004, 2)
            received = b""
            while len(received) < 60_004:
                received += far.recv(1 << 20)
            assert received == b"head" + CONTENT[10:60_010]
            far.close()
            for start in (0, 1):
                cursor.part, cursor.done = start, 0
                code = lib.isr_tx_step(near.fileno(), parts, 2, cursor, 100_000, sent)
                assert code in (-32, -104), os.strerror(-code)
    finally:
        signal.signal(signal.SIGPIPE, previous)
        near.close()


async def test_sending_at_once_sends_bytes_and_ranges_and_tells_how_much(wire):
    stream, far = wire
    with file_of(CONTENT) as fd:
        assert stream.send_now([b"<", FileSlice(fd, 5, 100_000), FileSlice(fd, 0, 10), b">"]) == 100_012
        assert await read_all(far, 100_012) == b"<" + CONTENT[5:100_005] + CONTENT[:10] + b">"
        with pytest.raises(RangeTruncated):
            stream.send_now([FileSlice(fd, 10, len(CONTENT))])


async def test_sending_at_once_stops_where_the_socket_is_full_or_the_file_is_cold(wire, monkeypatch):
    stream, far = wire
    with file_of(CONTENT) as fd:
        parts = [FileSlice(fd, 0, len(CONTENT))] * 40
        sent = stream.send_now(parts)
        assert 0 < sent <= sockets.QUANTUM
        assert await transfer(stream, far, ranges.after(parts, sent), 40 << 20) == CONTENT * 40
        monkeypatch.setattr(sockets, "is_warm", lambda part: False)
        assert stream.send_now([b"<", *parts]) == 0


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_a_connection_that_ended_before_it_was_seen_tells_of_a_busy_listener(monkeypatch, is_noticed):
    """As in a process that was held up while the listener made room for others."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        wait = trio.lowlevel.wait_writable

        def reset(near):
            far, _ = server.accept()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            far.close()
            poll = select.poll()
            poll.register(near, 0)
            assert poll.poll(30_000), "the reset has not arrived"

        async def held_up(near):
            await wait(near)
            reset(near)
            if not is_noticed:  # it came after the look at the socket's error
                near.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

        monkeypatch.setattr(trio.lowlevel, "wait_writable", held_up)
        endpoint = URL.parse(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(ConnectSlowError, match="cannot connect to tcp://"):
            await TcpTransport().connect(endpoint)
